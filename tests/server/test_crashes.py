"""An engine that is killed, hangs or cannot come back: who hears what, and what is left (reliability S14)."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.running import TIMEOUT_S, until
from server.served import HERE, Served, is_running, readers, served

STALL_S = 0.6
BUSY = {"step_s": 0.01, "heartbeat_s": 0.1}


def last_error(content: bytes) -> str:
    return str(json.loads(content.split(b"data: ")[-1])["error"]["code"])


def worker_of(server: Served) -> int:
    (pid,) = server.worker_pids()
    return pid


def wait_ready(server: Served, without: int) -> None:
    """Until another worker than the one with this process number is ready."""
    until(lambda: server.worker_pids() not in ([without], []))
    until(lambda: server.get("/ready")[0] == 200)


def test_src_vllm_21728_54553_a_killed_engine_costs_what_was_in_flight_and_comes_back() -> None:
    with served(BUSY | {"load_s": 0.3}) as server:
        before = server.metric("vllm:generation_tokens_total")
        for number in (1, 2):
            streams = readers(server, 5)
            worker, began = worker_of(server), time.monotonic()
            os.kill(worker, signal.SIGKILL)
            for stream in streams:
                stream.join(TIMEOUT_S)
                assert b"[DONE]" not in stream.content
                assert last_error(stream.content) == "engine_dead"
            assert time.monotonic() - began < 2
            assert server.get("/health")[0] == 503
            wait_ready(server, worker)
            assert time.monotonic() - began < 0.3 + 3
            assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 200
            assert worker_of(server) != worker
            assert not is_running(worker)
            assert server.metric("chairlift:engine_restarts_total") == number
        assert server.metric("vllm:generation_tokens_total") > before + 6
        server.tell(signal.SIGTERM)
        assert server.status() == 0


def test_src_vllm_36451_a_hung_engine_is_killed_and_replaced() -> None:
    """It is stopped, not told to hang: nothing of it runs any more."""
    with served(BUSY, stall_timeout_s=STALL_S) as server:
        streams = readers(server, 3)
        worker, began = worker_of(server), time.monotonic()
        os.kill(worker, signal.SIGSTOP)
        for stream in streams:
            stream.join(TIMEOUT_S)
            assert last_error(stream.content) == "engine_dead"
        assert time.monotonic() - began < STALL_S + 2
        wait_ready(server, worker)
        assert not is_running(worker)
        assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 200


def test_while_the_engine_is_away_requests_are_told_when_to_come_back() -> None:
    with served(BUSY | {"load_s": 1.2}) as server:
        asked = readers(server, 1, stream=False, max_tokens=4000, wait=False)[0]
        until(lambda: server.metric("vllm:num_requests_running") == 1)
        worker = worker_of(server)
        os.kill(worker, signal.SIGKILL)
        asked.join(TIMEOUT_S)
        assert json.loads(asked.content)["error"]["code"] == "engine_dead"
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x"}))
        response = connection.getresponse()
        assert (response.status, response.getheader("retry-after")) == (503, "2")
        assert json.loads(response.read())["error"]["code"] == "engine_dead"
        connection.close()
        assert server.get("/v1/models")[0] == 200
        assert server.metric("chairlift:engine_up") == 0
        wait_ready(server, worker)
        assert server.metric("chairlift:engine_up") == 1


def test_limits_that_were_set_hold_for_the_next_engine() -> None:
    with served(BUSY, admin_api_keys=["secret"]) as server:
        headers = {"Authorization": "Bearer secret"}
        status, _ = server.ask("PATCH", "/admin/limits", {"max_num_seqs": 3}, headers)
        assert status == 200
        worker = worker_of(server)
        os.kill(worker, signal.SIGKILL)
        wait_ready(server, worker)
        until(lambda: server.metric("chairlift:max_num_seqs") == 3)


@pytest.mark.parametrize("number", [0, 2])
def test_src_vllm_48966_an_engine_lost_too_often_ends_the_server_with_an_error(number: int) -> None:
    with served(BUSY, max_engine_restarts=number) as server:
        for _ in range(number):
            worker = worker_of(server)
            os.kill(worker, signal.SIGKILL)
            wait_ready(server, worker)
        (stream,) = readers(server, 1)
        os.kill(worker_of(server), signal.SIGKILL)
        stream.join(TIMEOUT_S)
        assert last_error(stream.content) == "engine_dead"
        assert server.status() == 1


def test_a_signal_while_the_engine_comes_back_ends_it_cleanly() -> None:
    with served(BUSY | {"load_s": 1.5}) as server:
        os.kill(worker_of(server), signal.SIGKILL)
        until(lambda: server.get("/health")[0] == 503)
        server.tell(signal.SIGTERM)
        assert server.status() == 0


def test_a_killed_server_leaves_no_worker() -> None:
    with served(BUSY) as server:
        worker = worker_of(server)
        (stream,) = readers(server, 1)
        server.tell(signal.SIGKILL)
        server.status()
        stream.join(TIMEOUT_S)
        until(lambda: not is_running(worker))


PARENT = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
child = subprocess.Popen([sys.executable, sys.argv[1], str(theirs.fileno())], pass_fds=[theirs.fileno()])
ours.recv(1)
print(child.pid, flush=True)
ours.recv(1 << 20)
sys.stdin.read()
"""


def test_a_killed_server_leaves_no_worker_that_was_stopped() -> None:
    """It cannot notice that the stream has ended; the system kills it."""
    worker = HERE.parent / "worker" / "fake_worker.py"
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-c", PARENT, str(worker)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        process.kill()
    until(lambda: not is_running(pid))


def test_nothing_is_left_in_the_file_system(tmp_path: Path) -> None:
    """No sockets with names, no shared memory: the frames' socket has no name."""
    names = {*Path("/dev/shm").iterdir()}
    with served(BUSY, cwd=tmp_path) as server:
        worker = worker_of(server)
        os.kill(worker, signal.SIGKILL)
        wait_ready(server, worker)
        unix = Path(f"/proc/{server.process.pid}/net/unix").read_text(encoding="ascii").splitlines()
        assert not [line for line in unix if str(tmp_path) in line]
    assert not list(tmp_path.iterdir())
    assert {*Path("/dev/shm").iterdir()} <= names
