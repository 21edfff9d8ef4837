"""What one connection may use: headers, bodies, time, and what is kept for a client that does not read."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.fake_worker import FakeOptions
from server.running import TIMEOUT_S, RunningServer, running_server, until

BODY_LIMIT = 200_000
RECEIVE_TIMEOUT_S = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    limits: dict[str, Any] = {"max_body_bytes": BODY_LIMIT, "receive_timeout_s": RECEIVE_TIMEOUT_S}
    with running_server(FakeOptions(heartbeat_s=0.05), **limits) as running:
        yield running
        running.wait_idle()


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)


def answer_to(server: RunningServer, data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of what the server says to these bytes, read until it closes."""
    with connect(server) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        received = read_all(sock)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), received[:100]
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def read_all(sock: socket.socket) -> bytes:
    received = b""
    try:
        while data := sock.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


def is_alive(server: RunningServer) -> bool:
    return bool(server.json("GET", "/health")[0] == 200)


@pytest.mark.parametrize(
    "head",
    [
        b"x-long: " + b"a" * 17_000,
        b"x-" + b"a" * 17_000 + b": 1",
        b"\r\n".join(b"x-%d: 1" % i for i in range(101)),
        b"\r\n".join(b"x-%d: %b" % (i, b"a" * 300) for i in range(60)),
    ],
)
def test_src_vllm_cve_2025_48956_a_head_over_the_limit_is_a_431(server: RunningServer, head: bytes) -> None:
    status, error = answer_to(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
    assert (status, error["code"]) == (431, "headers_too_large")
    assert is_alive(server)


def test_a_long_path_is_a_431(server: RunningServer) -> None:
    assert answer_to(server, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n")[0] == 431


@pytest.mark.parametrize("start", [b"x-endless: ", b"x-endless-name-"])
def test_an_endless_header_is_cut_early(server: RunningServer, start: bytes) -> None:
    """Never more than one read beyond the limit is taken, though no line ever ends."""
    sent = 0
    with connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + start)
        try:
            while sent < 64 << 20:
                sent += sock.send(b"a" * 65_536)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 32 << 20
    assert is_alive(server)


def test_headers_within_the_limit_pass(server: RunningServer) -> None:
    headers = {f"x-{i}": "a" * 100 for i in range(90)}
    assert server.request("GET", "/health", headers=headers)[0] == 200


def test_a_body_over_the_limit_is_a_413_by_its_length_alone(server: RunningServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n")
        received = read_all(sock)
    assert b" 413 " in received.split(b"\r\n")[0]
    assert b"body_too_large" in received


@pytest.mark.parametrize("size", [1, 1000, 50_000])
def test_a_chunked_body_over_the_limit_is_a_413(server: RunningServer, size: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, b" " * size)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    status, error = answer_to(server, head + chunk * (BODY_LIMIT // size + 2))
    assert (status, error["code"]) == (413, "body_too_large")
    assert is_alive(server)


def test_a_client_that_sends_a_body_too_large_can_read_why(server: RunningServer) -> None:
    """Ten times the limit, from a client that reads only after it has sent everything it could."""
    data = b" " * (10 * BODY_LIMIT)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(data)
    assert answer_to(server, head + data)[0] == 413


def test_a_body_at_the_limit_passes(server: RunningServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    assert server.request("POST", "/v1/completions", body + b" " * (BODY_LIMIT - len(body)))[0] == 200
    assert server.request("POST", "/v1/completions", body + b" " * (BODY_LIMIT + 1 - len(body)))[0] == 413


def test_chunk_extensions_and_trailers_are_bounded(server: RunningServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    assert answer_to(server, head + b"1;" + b"a" * 300_000)[0] in (400, 413, 431)
    trailers = b"".join(b"x-%d: 1\r\n" % i for i in range(200))
    assert answer_to(server, head + b"1\r\n \r\n0\r\n" + trailers + b"\r\n")[0] == 431
    assert is_alive(server)


def test_a_trailer_cannot_add_to_the_head(server: RunningServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    with connect(server) as sock:
        sock.sendall(head + b"%x\r\n%b\r\n0\r\nx-request-id: smuggled\r\n\r\n" % (len(body), body))
        received = read_all(sock)
    assert b" 200 " in received.split(b"\r\n")[0]
    assert b"smuggled" not in received


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET",
        b"GET /health HTTP/1.1\r\nhost: local",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_src_uvicorn_157_a_request_that_does_not_arrive_is_dropped(server: RunningServer, data: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(data)
        began = time.monotonic()
        received = read_all(sock)
        assert time.monotonic() - began < RECEIVE_TIMEOUT_S + 3
    assert received == b"" or b" 408 " in received.split(b"\r\n")[0]


def test_a_request_that_trickles_is_dropped_all_the_same(server: RunningServer) -> None:
    """A byte now and then does not win more time."""
    began = time.monotonic()
    with connect(server) as sock:
        sock.settimeout(0.02)
        sock.sendall(b"GET /health HTTP/1.1\r\nx-slow: ")
        received = b""
        while time.monotonic() - began < TIMEOUT_S:
            try:
                data = sock.recv(1000)
                received += data
                if not data:
                    break
                continue
            except TimeoutError:
                pass
            except ConnectionResetError:
                break
            try:
                sock.sendall(b"a")
            except (BrokenPipeError, ConnectionResetError):
                break
    assert time.monotonic() - began < RECEIVE_TIMEOUT_S + 3


def test_many_half_sent_requests_do_not_keep_others_waiting(server: RunningServer) -> None:
    socks = [connect(server) for _ in range(200)]
    for sock in socks:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
    assert server.complete(max_tokens=1)["usage"]["completion_tokens"] == 1
    for sock in socks:
        read_all(sock)
        sock.close()
    server.wait_idle()


def test_a_request_may_take_its_time_to_be_answered() -> None:
    """The deadline is for receiving; a slow answer, and an idle connection, are something else."""
    options = FakeOptions(step_s=0.05, heartbeat_s=0.05)
    with running_server(options, receive_timeout_s=0.2) as server, connect(server) as sock:
        for _ in range(2):
            data = json.dumps({"prompt": "x", "max_tokens": 10, "ignore_eos": True}).encode()
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a.localhost\r\n".replace(b"a.", b""))
            sock.sendall(b"content-length: %d\r\n\r\n%b" % (len(data), data))
            head = sock.recv(1 << 16)
            assert b" 200 " in head.split(b"\r\n")[0]
            time.sleep(0.3)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1_0\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\nhost : localhost\r\n\r\n", {400}),
        (b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n", {400}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        (b"CONNECT localhost:22 HTTP/1.1\r\nhost: localhost\r\n\r\n", {400, 404, 405}),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n", {400}),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else "",
)  # fmt: skip
def test_what_is_not_http_is_turned_away(server: RunningServer, data: bytes, statuses: set[int]) -> None:
    assert answer_to(server, data)[0] in statuses
    assert is_alive(server)


def test_http_1_0_and_absolute_form_and_pipelining_are_served(server: RunningServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in read_all(sock).split(b"\r\n")[0]
    with connect(server) as sock:
        sock.sendall(b"GET http://localhost/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert b" 200 " in read_all(sock).split(b"\r\n")[0]
    get = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with connect(server) as sock:
        sock.sendall(get + get + last)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", read_all(sock))
    assert statuses == [b"200", b"200", b"404"]


def test_an_encoded_body_is_a_415(server: RunningServer) -> None:
    assert server.refused("/v1/completions", {"prompt": "x"}, {"Content-Encoding": "gzip"})[0] == 415


# ---------------------------------------------------------------- readers


def test_src_opencode_19423_a_client_that_does_not_read_is_given_up() -> None:
    """What is kept for it is bounded in bytes, its sequence ends, and its neighbour is served."""
    options = FakeOptions(max_model_len=100_000, num_blocks=100_000, heartbeat_s=0.05)
    with running_server(options, max_pending_bytes=50_000) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        data = json.dumps({"prompt": "x", "stream": True, "max_tokens": 90_000, "ignore_eos": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n")
        sock.sendall(b"content-length: %d\r\n\r\n%b" % (len(data), data))
        metrics = server.client.metrics
        assert metrics is not None
        until(lambda: metrics.num_slow_readers == 1)
        server.wait_idle()
        assert server.worker.aborts == [server.worker.adds[0].id]
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3
        assert b"[DONE]" not in read_all(sock)


def test_a_client_that_takes_nothing_of_a_whole_answer_is_cut_off() -> None:
    """Some megabytes, more than the system's own buffers take."""
    options = FakeOptions(max_model_len=100_000, num_blocks=100_000, heartbeat_s=0.05)
    with running_server(options, write_timeout_s=0.2) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        fields = {"prompt": [200] * 30_000, "max_tokens": 1, "n": 100, "return_token_ids": True}
        data = json.dumps(fields).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n")
        sock.sendall(b"content-length: %d\r\n\r\n%b" % (len(data), data))
        until(lambda: server.num_connections() == 1)
        until(lambda: server.num_connections() == 0)


def test_a_slow_but_steady_reader_gets_everything() -> None:
    options = FakeOptions(max_model_len=100_000, num_blocks=100_000, heartbeat_s=0.05)
    with running_server(options, write_timeout_s=0.3, max_pending_bytes=8 << 20) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        sock.connect(("127.0.0.1", server.port))
        data = json.dumps({"prompt": "x", "stream": True, "max_tokens": 8000, "ignore_eos": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n")
        sock.sendall(b"content-length: %d\r\n\r\n%b" % (len(data), data))
        received = b""
        while piece := sock.recv(32768):
            received += piece
            time.sleep(0.02)
        assert b"data: [DONE]" in received
