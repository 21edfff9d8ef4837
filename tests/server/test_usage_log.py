"""A line for each request: what it says, what it does not say, and what a full disk costs."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.server.usage_log import UsageLog
from server.fake_worker import FakeOptions
from server.raw_http import request
from server.running import TIMEOUT_S, RunningServer, running_server, until

SLOW = FakeOptions(heartbeat_s=0.05, step_s=0.005)
SECRET = "the prompt that nobody may see"


class Clocks:
    def __init__(self) -> None:
        self.now = 0.0
        self.wall = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.wall


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def wait_lines(path: Path, count: int) -> list[dict[str, Any]]:
    until(lambda: path.exists() and path.read_text(encoding="utf-8").count("\n") >= count)
    found = lines(path)
    assert len(found) == count
    return found


# ---------------------------------------------------------------- the file


def test_records_are_appended_with_the_time_whatever_the_clock_does(tmp_path: Path) -> None:
    path, clocks = tmp_path / "usage.jsonl", Clocks()
    path.write_text('{"time": "before"}\n', encoding="utf-8")
    log = UsageLog(str(path), clocks.monotonic, clocks.time)
    for jump in (0.0, 1.5, -86_400.0, 1e9):
        clocks.wall += jump
        log.put({"n": jump})
    log.close(TIMEOUT_S)
    found = lines(path)
    assert [line["time"] for line in found] == [
        "before",
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:21.500Z",
        "2023-11-13T22:13:21.500Z",
        "2055-07-23T00:00:01.500Z",
    ]
    assert log.num_lost == 0


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    UsageLog(str(path), *unused()).close(TIMEOUT_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def unused() -> tuple[Any, Any]:
    clocks = Clocks()
    return clocks.monotonic, clocks.time


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "usage.jsonl", tmp_path / "usage.jsonl.1"
    log = UsageLog(str(path), *unused())
    log.put({"n": 1})
    wait_lines(path, 1)
    path.rename(old)
    log.put({"n": 2})
    wait_lines(path, 1)
    log.close(TIMEOUT_S)
    assert [line["n"] for line in (*lines(old), *lines(path))] == [1, 2]


def test_a_full_disk_loses_records_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    log = UsageLog("/dev/full", clocks.monotonic, clocks.time)
    for number in range(100):
        log.put({"n": number})
        until(lambda number=number: log.num_lost == number + 1)  # type: ignore[misc]
    assert caplog.text.count("No space left on device") == 1
    clocks.now += 61
    log.put({})
    until(lambda: log.num_lost == 101)
    log.close(TIMEOUT_S)
    assert caplog.text.count("No space left on device") == 2


def test_what_was_torn_is_a_line_of_its_own_and_every_record_is_there_or_counted(tmp_path: Path) -> None:
    """A pipe whose reader is slow takes part of what is written, like a disk that fills up and is cleared.

    Of records longer than a page: shorter ones a pipe takes whole or not at all.
    """
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = UsageLog(str(path), *unused())
    received, num_records = b"", 0
    for _ in range(5):
        lost = log.num_lost
        while log.num_lost == lost:
            log.put({"n": num_records, "text": "x" * 10_000})
            num_records += 1
        while (data := read(reader)) is not None:
            received += data
    log.close(TIMEOUT_S)
    while (data := read(reader)) is not None:
        received += data
    os.close(reader)
    good, torn = [], 0
    for line in received.split(b"\n")[:-1]:
        try:
            good.append(json.loads(line)["n"])
        except ValueError:
            torn += 1
    assert torn > 0
    assert len(good) == len(set(good)) == num_records - log.num_lost


def read(file: int) -> bytes | None:
    try:
        return os.read(file, 1 << 16) or None
    except BlockingIOError:
        return None


def test_a_queue_that_is_full_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, path = threading.Event(), tmp_path / "usage.jsonl"
    write = os.write

    def slow(file: int, data: bytes) -> int:
        gate.wait(TIMEOUT_S)
        return write(file, data)

    monkeypatch.setattr(os, "write", slow)
    log = UsageLog(str(path), *unused(), max_queued=10)
    for number in range(100):
        log.put({"n": number})
    assert 79 <= log.num_lost <= 90
    gate.set()
    log.close(TIMEOUT_S)
    assert len(lines(path)) == 100 - log.num_lost


@pytest.mark.parametrize("name", ["no/such/folder", "."])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match="usage log"):
        UsageLog(str(tmp_path / name), *unused())


# ---------------------------------------------------------------- what it says


def test_a_request_is_a_line_that_says_who_and_how_much_and_not_what(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with running_server(SLOW, usage_log=str(path), api_keys=("key",)) as server:
        headers = {"Authorization": "Bearer key", "X-Request-Id": "mine"}
        body = {"prompt": SECRET, "max_tokens": 7, "ignore_eos": True, "n": 2, "user": "tenant"}
        assert server.request("POST", "/v1/completions", body, headers)[0] == 200
        (line,) = wait_lines(path, 1)
    text = path.read_text(encoding="utf-8")
    assert SECRET not in text
    assert "key" not in text.replace('"key', "")
    times = {name: line.pop(name) for name in ("queue_s", "ttft_s", "total_s")}
    assert 0 <= times["queue_s"] <= times["ttft_s"] <= times["total_s"] < TIMEOUT_S
    assert len(line.pop("principal")) == 16
    assert line.pop("time").endswith("Z")
    assert line == {
        "id": "mine",
        "route": "/v1/completions",
        "status": 200,
        "tenant": "tenant",
        "model": "fake",
        "prompt_tokens": len(SECRET) + 1,
        "cached_tokens": 4,
        "completion_tokens": 14,
        "finish": ["length"],
        "client_left": False,
    }


def test_tokens_of_clients_that_left_are_counted_to_the_last(tmp_path: Path) -> None:
    """As the engine counts them: whoever leaves before the end does not get what was computed for nothing."""
    path = tmp_path / "usage.jsonl"
    with running_server(SLOW, usage_log=str(path)) as server:
        for _ in range(10):
            leave(server)
        server.complete(max_tokens=5, ignore_eos=True)
        found = wait_lines(path, 11)
        metrics = server.client.metrics
        assert metrics is not None
        assert sum(line["completion_tokens"] for line in found) == metrics.num_generation_tokens
    left = [line for line in found if line["client_left"]]
    assert len(left) == 10
    assert {tuple(line["finish"]) for line in left} == {("abort",)}
    assert all(line["completion_tokens"] > 0 and line["prompt_tokens"] > 0 for line in left)


def leave(server: RunningServer) -> None:
    data = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True, "n": 2}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as sock:
        sock.sendall(request("/v1/completions", data))
        received = b""
        while received.count(b"data: ") < 6:
            received += sock.recv(1 << 16)


def test_requests_that_were_refused_are_lines_too_and_those_of_strangers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with running_server(SLOW, usage_log=str(path), api_keys=("key",)) as server:
        headers = {"Authorization": "Bearer key"}
        assert server.request("POST", "/v1/completions", {"prompt": 5}, headers)[0] == 400
        assert server.request("POST", "/v1/completions", {"prompt": "x"})[0] == 401
        assert server.request("POST", "/v1/other", {"prompt": "x"}, headers)[0] == 404
        assert server.request("GET", "/health")[0] == 200
        fails = {"prompt": "!fail", "ignore_eos": True, "max_tokens": 9}
        assert server.request("POST", "/v1/completions", fails, headers)[0] == 500
        found = wait_lines(path, 2)
    assert [(line["status"], line["completion_tokens"], line["finish"]) for line in found] == [
        (400, 0, []),
        (500, 2, ["error"]),
    ]


def test_requests_of_an_engine_that_died_are_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with running_server(SLOW, usage_log=str(path)) as server:
        leave(server)
        body = {"prompt": "!die", "ignore_eos": True, "max_tokens": 9}
        assert server.json("POST", "/v1/completions", body)[0] == 503
        found = wait_lines(path, 2)
    assert {line["status"] for line in found} == {200, 503}


def test_serving_goes_on_with_a_full_disk() -> None:
    with running_server(SLOW, usage_log="/dev/full") as server:
        for _ in range(5):
            server.complete(max_tokens=2)
        assert server.usage_log is not None
        until(lambda: server.usage_log is not None and server.usage_log.num_lost == 5)
        text = server.request("GET", "/metrics")[2].decode()
    assert 'chairlift:usage_records_lost_total{engine="0",model_name="fake"} 5.0' in text
