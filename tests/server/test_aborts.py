"""Whoever leaves costs nothing from then on, wherever in its life the request was."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.core.types import FinishReason
from server.fake_worker import HANG, FakeOptions
from server.raw_http import RESET, request
from server.running import TIMEOUT_S, RunningServer, running_server, until

LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Slow enough to be left in every phase; eight sequences at a time, so that others wait."""
    options = FakeOptions(step_s=0.002, max_num_seqs=8, prefill_steps=25, heartbeat_s=0.05)
    with running_server(options) as running:
        yield running
        running.wait_idle()


def post(server: RunningServer, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Send a request and do not read the answer."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    sock.sendall(request(path, json.dumps(body).encode()))
    return sock


def leave(sock: socket.socket, *, reset: bool) -> None:
    """Close with FIN, or with RST."""
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def occupy(server: RunningServer) -> socket.socket:
    """Fill every slot of the engine."""
    sock = post(server, {"prompt": "occupy", "n": 8} | LONG)
    until(lambda: len(server.worker.running) == 8)
    return sock


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "running"])
def test_src_vllm_9428_llama_cpp_13262_atom_1562_leaving_at_any_phase_frees_everything(
    server: RunningServer, phase: str, stream: bool, n: int, reset: bool
) -> None:
    occupant = occupy(server) if phase == "queued" else None
    count = len(server.worker.adds)
    sock = post(server, {"prompt": "leaver", "n": n, "stream": stream} | LONG)
    until(lambda: len(server.worker.adds) > count)
    request = server.worker.adds[count]
    if phase == "queued":
        until(lambda: sum(row.request.id == request.id for row in server.worker.waiting) == n)
    elif phase == "prefill":
        until(lambda: any(row.request.id == request.id for row in server.worker.running))
    elif stream:
        assert b"data: " in sock.recv(1 << 16)
    else:
        until(lambda: any(len(row.tokens) > 3 for row in server.worker.running if row.request.id == request.id))
    leave(sock, reset=reset)
    until(lambda: request.id in server.worker.aborts)
    if phase == "queued":
        assert request.id not in server.worker.scheduled
    if occupant is not None:
        occupant.close()
    server.wait_idle()


def test_every_prompt_of_a_list_is_aborted(server: RunningServer) -> None:
    count = len(server.worker.adds)
    sock = post(server, {"prompt": ["a", "b", "c"], "n": 2, "stream": True} | LONG)
    assert b"data: " in sock.recv(1 << 16)
    ids = {request.id for request in server.worker.adds[count:]}
    assert len(ids) == 3
    sock.close()
    until(lambda: ids <= set(server.worker.aborts))
    server.wait_idle()


def test_one_failing_prompt_aborts_the_others(server: RunningServer) -> None:
    count = len(server.worker.adds)
    status, _ = server.refused("/v1/completions", {"prompt": ["fine", "!fail"]} | LONG)
    assert status == 500
    fine = next(r for r in server.worker.adds[count:] if r.prompt[1] == ord("f"))
    until(lambda: fine.id in server.worker.aborts)
    server.wait_idle()


def test_half_a_request_never_reaches_the_engine(server: RunningServer) -> None:
    count = len(server.worker.adds)
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"prompt":')
    sock.close()
    server.wait_idle()
    assert len(server.worker.adds) == count


def test_src_vllm_22545_gauges_are_zero_after_a_mass_abort_without_new_traffic(server: RunningServer) -> None:
    socks = [post(server, {"prompt": f"mass {i}", "stream": True} | LONG) for i in range(30)]
    metrics = server.client.metrics
    assert metrics is not None
    until(
        lambda: metrics.stats.num_running == 8 and metrics.stats.num_waiting == 22 and metrics.stats.num_used_blocks > 0
    )
    before = metrics.num_disconnects
    for sock in socks:
        sock.close()
    until(lambda: metrics.stats.num_running == metrics.stats.num_waiting == metrics.stats.num_used_blocks == 0)
    assert metrics.num_disconnects == before + 30
    server.wait_idle()


def test_src_vllm_55634_tokens_are_counted_whether_aborted_or_not(server: RunningServer) -> None:
    metrics = server.client.metrics
    assert metrics is not None
    server.wait_idle()
    before = metrics.num_generation_tokens
    usage = server.complete(prompt="counted", max_tokens=11, ignore_eos=True)["usage"]
    assert metrics.num_generation_tokens == before + usage["completion_tokens"]
    sock = post(server, {"prompt": "aborted", "stream": True} | LONG)
    sock.recv(1 << 16)
    sock.close()
    server.wait_idle()
    assert metrics.num_generation_tokens > before + 11


def test_an_end_and_a_leaving_at_once_are_one_end(server: RunningServer) -> None:
    """The client closes exactly when its last event arrives; 40 times, since it is a race."""
    metrics = server.client.metrics
    assert metrics is not None
    for number in range(40):
        sock = post(server, {"prompt": f"race {number}", "max_tokens": 1, "stream": True})
        data = b""
        while b'finish_reason":"length' not in data:
            data += sock.recv(1 << 16)
        sock.close()
    server.wait_idle()
    assert metrics.num_finished[FinishReason.LENGTH] >= 40


def test_src_omlx_1031_aborting_again_or_unknown_ids_changes_nothing(server: RunningServer) -> None:
    async def abort_all() -> None:
        for request_id in range(-5, 5000):
            server.client.abort(request_id)

    count = len(server.worker.aborts)
    server.run(abort_all())
    assert server.complete(prompt="still here")["usage"]["completion_tokens"] == 16
    assert len(server.worker.aborts) == count


def test_src_vllm_36451_an_engine_that_hangs_is_not_healthy() -> None:
    with running_server(FakeOptions(heartbeat_s=0.05), stall_timeout_s=0.5) as server:
        assert server.json("GET", "/health")[0] == 200
        sock = post(server, {"prompt": HANG, "stream": True} | LONG)
        until(lambda: server.json("GET", "/health")[0] == 503)
        assert server.json("GET", "/health")[1]["error"]["code"] == "engine_stalled"
        assert server.json("GET", "/ready")[0] == 503
        sock.close()


def test_src_gonka_1421_a_busy_engine_stays_healthy() -> None:
    with running_server(FakeOptions(step_s=0.01), stall_timeout_s=0.3) as server:
        sock = post(server, {"prompt": "busy", "stream": True} | LONG)
        reader = threading.Thread(target=lambda: [None for _ in iter(lambda: sock.recv(1 << 16), b"")])
        reader.start()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert server.json("GET", "/health")[0] == 200
        sock.shutdown(socket.SHUT_RDWR)
        reader.join(TIMEOUT_S)
        sock.close()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
def test_src_triton_8034_7368_a_storm_of_timeouts_hurts_nobody(server: RunningServer, reset: bool) -> None:
    """All clients give up at once, after so many events, over and over; whoever comes next is served."""
    for num_events in (0, 1, 2, 5, 9):
        socks = [post(server, {"prompt": f"storm {i}", "stream": True, "n": 1 + i % 3} | LONG) for i in range(16)]
        received = b""
        while received.count(b"data: ") < num_events:
            received += socks[0].recv(1 << 12)
        for sock in socks:
            leave(sock, reset=reset)
        assert server.complete(prompt="canary", max_tokens=3)["usage"]["completion_tokens"] == 3
    server.wait_idle()


def test_src_vllm_10430_6642_43031_a_count_that_fails_costs_nobody_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("counters can only go up")

    with running_server(FakeOptions(heartbeat_s=0.05)) as server:
        metrics = server.client.metrics
        assert metrics is not None
        for name in ("on_tokens", "on_finish", "on_stats", "on_step", "on_first_token", "on_prefilled"):
            monkeypatch.setattr(metrics, name, fails)
        events = server.events("/v1/completions", {"prompt": "x", "max_tokens": 9, "ignore_eos": True})
        assert events[-1] == "[DONE]"
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3
        assert server.json("GET", "/health")[0] == 200
        server.wait_idle()
    assert caplog.text.count("serving goes on") == 1
