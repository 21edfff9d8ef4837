"""`chairlift bench` from its flags to its files, against the stub server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import stub_server
from bench.stub_server import StubServer, in_thread
from chairlift.cli.main import main


@pytest.fixture
def stub() -> StubServer:
    return StubServer(1)


@pytest.fixture
def url(stub: StubServer) -> Iterator[str]:
    with in_thread(stub) as base:
        yield base


def serve(url: str, *flags: str) -> int:
    return main(["bench", "serve", "--base-url", url, "--num-prompts", "20", "--random-output-len", "5", *flags])


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "vllm"])
@pytest.mark.parametrize("mode", [["--request-rate", "400"], ["--max-concurrency", "3"], ["--no-stream"]])
def test_serve(
    url: str, stub: StubServer, backend: str, mode: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = [
        "--save-result",
        "--save-detailed",
        "--result-dir",
        str(tmp_path),
        "--metadata",
        "host=here",
        "--label",
        "try",
    ]
    assert serve(url, "--backend", backend, *mode, *saved, "--goodput", "e2el:60000") == 0
    printed = capsys.readouterr().out
    assert "Successful requests:                     20\n" in printed
    assert "Total generated tokens:                  100\n" in printed
    assert ("Mean TTFT (ms):" in printed) == ("--no-stream" not in mode)
    (path,) = tmp_path.iterdir()
    result: dict[str, Any] = json.loads(path.read_text())
    assert path.name.startswith("try-") and path.name.endswith(f"-model-{result['date']}.json")
    assert result["model_id"] == "stub/model" and result["host"] == "here" and result["backend"] == backend
    assert (result["completed"], result["failed"], result["total_input_tokens"]) == (20, 0, 180)
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["generated_texts"] == [" w0 w1 w2 w3 w4"] * 20
    assert len(result["start_times"]) == len(result["queue_times"]) == 20
    assert result["num_chunks"] == (0 if "--no-stream" in mode else 100)
    assert result["client_cpu_s"] > 0.0
    assert len(stub.bodies) == 21  # with the warm-up
    if "--max-concurrency" in mode:
        assert result["max_concurrent_requests"] <= 3 and result["request_rate"] == "inf"


def test_flags_reach_the_body_and_the_headers(url: str, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    extra = ["--extra-body", '{"user": "u", "temperature": 0.25}', "--header", "X-Tag=a b"]
    assert serve(url, "--ignore-eos", "--top-k", "4", "--temperature", "0.7", "--model", "mine", *extra) == 0
    body, headers = stub.bodies[-1], stub.headers[-1]
    assert body["ignore_eos"] is True and body["top_k"] == 4 and body["temperature"] == 0.25 and body["user"] == "u"
    assert body["model"] == "mine" and len(body["prompt"].split()) == 128
    assert headers["authorization"] == "Bearer secret" and headers["x-tag"] == "a b"


def test_a_server_that_refuses(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(url, "--extra-body", '{"stub": "refuse"}') == 2
    assert "failed the warm-up: HTTP 503" in capsys.readouterr().err
    assert serve(url, "--extra-body", '{"stub": "refuse"}', "--num-warmups", "0") == 1
    captured = capsys.readouterr()
    assert "Failed requests:                         20\n" in captured.out
    assert "20 failed: HTTP 503" in captured.err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--request-rate", "0"], "--request-rate"),
        (["--burstiness", "-1"], "--burstiness"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--percentile-metrics", "ttft,speed"], "speed"),
        (["--metric-percentiles", "high"], "--metric-percentiles"),
        (["--metric-percentiles", "101"], "between 0 and 100"),
        (["--goodput", "ttft"], "--goodput"),
        (["--goodput", "itl:5"], "itl"),
        (["--extra-body", "[]"], "--extra-body"),
        (["--extra-body", "{"], "--extra-body"),
        (["--header", "novalue"], "--header"),
        (["--header", "a=b\r\nc: d"], "--header"),
        (["--dataset-name", "sharegpt"], "--dataset-path"),
        (["--dataset-name", "custom", "--dataset-path", "/nowhere"], "/nowhere"),
        (["--tokenizer", "no-such-model"], "no-such-model"),
        (["--base-url", "nowhere"], "base URL"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
    ],
)
def test_mistakes_are_named_and_nothing_is_asked(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *flags]) == 2
    message = capsys.readouterr().err
    assert message.startswith("chairlift: ") and reason in message and message.count("\n") == 1


def test_custom_prompts_of_token_ids(
    url: str, stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"prompt": [7, 8], "output_tokens": 2}\n')
    custom = ["--dataset-name", "custom", "--dataset-path", str(path)]
    assert serve(url, *custom) == 0
    assert stub.bodies[-1]["prompt"] == [7, 8] and stub.bodies[-1]["max_tokens"] == 2
    assert serve(url, *custom, "--backend", "openai-chat") == 2
    assert "--tokenizer" in capsys.readouterr().err


@pytest.fixture
def fake_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands where the sweep looks for Python, and serves the stub."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {stub_server.__file__} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def test_sweep(fake_interpreter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "points.json"
    load = [
        "--num-prompts",
        "10",
        "--random-output-len",
        "4",
        "--request-rate",
        "100,500",
        "--output-json",
        str(output),
    ]
    assert main(["bench", "sweep", "some-model", "--max-num-seqs", "1,16", *load]) == 0
    head, *rows = capsys.readouterr().out.strip().split("\n")
    assert head.split()[:4] == ["max-num-seqs", "rate", "req/s", "tok/s"]
    assert [row.split()[:2] for row in rows] == [["1", "100"], ["1", "500"], ["16", "100"], ["16", "500"]]
    points = json.loads(output.read_text())
    assert [(point["settings"], point["request_rate"]) for point in points] == [
        ({"max_num_seqs": seqs}, rate) for seqs in ("1", "16") for rate in (100.0, 500.0)
    ]
    assert all(point["completed"] == 10 and point["total_output_tokens"] == 40 for point in points)


def test_sweep_with_a_server_that_does_not_start(fake_interpreter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", "--max-num-seqs", "0"]) == 2
    message = capsys.readouterr().err
    assert "it exited" in message and "max_num_seqs must be at least 1" in message
