"""`chairlift generate --input`, as a user runs it: a real worker, killed half-way, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server.served import children

NUM_REQUESTS = 24
BAD = NUM_REQUESTS - 1
TIMEOUT_S = 60.0


def write_requests(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for i in range(NUM_REQUESTS):
            body: dict[str, Any] = {
                "prompt": f"The number {i} is",
                "max_tokens": 12,
                "temperature": 0,
                "ignore_eos": True,
            }
            url = "/v1/completions"
            if i % 2:
                body["messages"], url = [{"role": "user", "content": body.pop("prompt")}], "/v1/chat/completions"
            if i == BAD:
                body["temperature"] = -1
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body}) + "\n")


def command(requests: Path, results: Path) -> list[str]:
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--max-model-len", "256"]
    code = "import sys; from chairlift.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", code, "generate", "--input", str(requests), "--output", str(results), *small]


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists(), "the worker outlived the command"


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(requests)

    with subprocess.Popen(command(requests, results), stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + TIMEOUT_S
        while (not results.exists() or results.read_bytes().count(b"\n") < 4) and time.monotonic() < deadline:
            time.sleep(0.005)
        (worker,) = children(first.pid)
        os.kill(first.pid, signal.SIGKILL)
    wait_until_gone(worker)
    before = [json.loads(line)["id"] for line in results.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 4 <= len(before) < NUM_REQUESTS

    done = subprocess.run(command(requests, results), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1, done.stderr  # one request asks for what cannot be
    assert done.stdout == ""
    answers = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [answer["id"] for answer in answers][: len(before)] == before
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(NUM_REQUESTS))
    by_id = {answer["custom_id"]: answer["response"] for answer in answers}
    assert by_id[str(BAD)]["status_code"] == 400
    assert by_id[str(BAD)]["body"]["error"]["param"] == "temperature"
    for number in (4, 7):
        body = by_id[str(number)]["body"]
        assert body["usage"]["completion_tokens"] == 12
        assert body["choices"][0]["finish_reason"] == "length"
    assert by_id["4"]["body"]["object"] == "text_completion"
    assert by_id["7"]["body"]["object"] == "chat.completion"

    again = subprocess.run(command(requests, results), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert again.returncode == 0
    assert results.read_text(encoding="utf-8").count("\n") == NUM_REQUESTS
