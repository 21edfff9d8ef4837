"""TLS, Unix sockets, proxies, web pages of others, and streams that are silent."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.server.http_server import bind
from chairlift.server.keep_alive import COMMENT
from chairlift.server.options import ServerOptions
from chairlift.server.tls import server_context
from server.fake_worker import FakeOptions
from server.raw_http import CLOSE, request
from server.running import TIMEOUT_S, RunningServer, running_server, until
from server.served import Served, served
from server.test_limits import read_all

FAST = FakeOptions(heartbeat_s=0.05)
PAGE = {"Origin": "https://page.example", "Host": "localhost"}


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and, signed by it, a server's and a client's certificate; and one of nobody's."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl(*new, "-keyout", "stranger.key", "-out", "stranger.pem", "-subj", "/CN=stranger")
    for name in ("server", "client"):
        extra = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-CA", "ca.pem", "-CAkey", "ca.key")
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", *extra)
    openssl("ec", "-in", "server.key", "-aes256", "-passout", "pass:secret", "-out", "encrypted.key")
    return folder


def client_context(certificates: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    if client is not None:
        context.load_cert_chain(certificates / f"{client}.pem", certificates / f"{client}.key")
    return context


@contextlib.contextmanager
def tls_server(certificates: Path, **options: Any) -> Iterator[RunningServer]:
    files = {"ssl_certfile": str(certificates / "server.pem"), "ssl_keyfile": str(certificates / "server.key")}
    worker = FakeOptions(heartbeat_s=0.05, max_model_len=100_000, num_blocks=100_000)
    with running_server(worker, **files | options) as server:
        yield server


def connect(server: RunningServer, context: ssl.SSLContext, sock: socket.socket | None = None) -> ssl.SSLSocket:
    if sock is None:
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    return context.wrap_socket(sock, server_hostname="localhost")


def post(fields: dict[str, Any]) -> bytes:
    data = json.dumps({"prompt": "x", "ignore_eos": True} | fields).encode()
    return request("/v1/completions", data, CLOSE)


def test_streams_come_encrypted_and_whole(certificates: Path) -> None:
    with tls_server(certificates) as server, connect(server, client_context(certificates)) as sock:
        assert sock.version() in ("TLSv1.2", "TLSv1.3")
        sock.sendall(post({"stream": True, "max_tokens": 500}))
        received = read_all(sock)
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        server.wait_idle()


def test_what_is_not_tls_gets_nothing(certificates: Path) -> None:
    with tls_server(certificates) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"HTTP/" not in read_all(sock)
        with connect(server, client_context(certificates)) as again:
            again.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert b" 200 " in read_all(again)


def test_limits_hold_under_tls(certificates: Path) -> None:
    """Heads, bodies, requests that do not arrive, and handshakes that do not."""
    limits = {"receive_timeout_s": 0.4, "max_body_bytes": 100_000}
    with tls_server(certificates, **limits) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        for data, status in (
            (head + b"x: " + b"y" * 40_000, b" 431 "),
            (head + b"content-length: 100001\r\n\r\n", b" 413 "),
            (head + b"content-length: 10\r\n\r\n{", b" 408 "),
            (head, b" 408 "),
        ):
            with connect(server, client_context(certificates)) as sock:
                sock.sendall(data)
                assert status in read_all(sock)
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as sock:
            sock.sendall(b"\x16\x03\x01")  # the beginning of a handshake
            assert read_all(sock) == b""
        assert time.monotonic() - began < 3
        until(lambda: server.num_connections() == 0)


def test_what_is_kept_for_a_client_that_does_not_read_is_bounded_under_tls(certificates: Path) -> None:
    with tls_server(certificates) as server, socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", server.port))
        sock = connect(server, client_context(certificates), plain)
        sock.sendall(post({"stream": True, "max_tokens": 90_000}))
        largest = 0

        async def unsent() -> int:
            connections = server.http.connections
            return sum(one.transport.get_write_buffer_size() for one in connections if not one.transport.is_closing())

        metrics = server.client.metrics
        assert metrics is not None
        while not metrics.num_slow_readers:
            largest = max(largest, server.run(unsent()))
        assert largest < (256 << 10) - server.options.max_pending_bytes
        server.wait_idle()
        until(lambda: server.num_connections() == 0)
        sock.close()


def test_with_authorities_only_their_clients_are_served(certificates: Path) -> None:
    with tls_server(certificates, ssl_ca_certs=str(certificates / "ca.pem")) as server:
        request = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        with connect(server, client_context(certificates, "client")) as sock:
            sock.sendall(request)
            assert b" 200 " in read_all(sock)
        for client in (None, "stranger"):
            received = b""
            with (
                contextlib.suppress(ssl.SSLError, ConnectionError),
                connect(server, client_context(certificates, client)) as sock,
            ):
                sock.sendall(request)
                received = read_all(sock)
            assert received == b""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ssl_certfile": "none.pem"}, "none.pem.*No such file"),
        ({"ssl_certfile": "ca.key"}, "ca.key"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "ca.key"}, "mismatch"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "encrypted.key"}, "encrypted"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "server.key", "ssl_ca_certs": "server.key"}, "server.key"),
    ],
)
def test_files_that_are_no_certificates_are_named(certificates: Path, files: dict[str, str], words: str) -> None:
    paths: dict[str, Any] = {name: str(certificates / file) for name, file in files.items()}
    with pytest.raises(InvalidOption, match=words):
        server_context(ServerOptions(**paths))


def test_a_new_certificate_is_taken_without_a_restart(certificates: Path, tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    files: dict[str, Any] = {"ssl_certfile": str(tmp_path / "server.pem"), "ssl_keyfile": str(tmp_path / "server.key")}
    with served(**files) as server:
        assert server.said.startswith("Chairlift serves fake at https://127.0.0.1:")

        def subject() -> str:
            with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as sock:
                context = client_context(certificates)
                with context.wrap_socket(sock, server_hostname="localhost") as secure:
                    return str(secure.getpeercert())

        assert "'server'" in subject()
        for name in ("pem", "key"):
            (tmp_path / f"server.{name}").write_bytes((certificates / f"client.{name}").read_bytes())
        server.tell(signal.SIGHUP)
        until(lambda: "'client'" in subject())
        (tmp_path / "server.pem").write_text("broken", encoding="ascii")
        server.tell(signal.SIGHUP)
        assert "'client'" in subject()
        server.tell(signal.SIGTERM)
        assert server.status() == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"ssl_keyfile": "key.pem"},
        {"ssl_ca_certs": "ca.pem"},
        {"ssl_certfile": ""},
        {"uds": ""},
        {"allowed_origins": ("https://a.example/path",)},
        {"allowed_origins": ("a.example",)},
        {"allowed_origins": ("*",)},
        {"root_path": "llm"},
        {"root_path": "/"},
        {"sse_keep_alive_interval_s": -1.0},
        {"sse_keep_alive_interval_s": float("nan")},
        {"sse_keep_alive_interval_s": float("inf")},
    ],
)
def test_options_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        ServerOptions(**fields)


# ---------------------------------------------------------------- Unix sockets


def ask_unix(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(str(path))
        sock.sendall(request)
        return read_all(sock)


def test_a_unix_socket_serves_its_owner_within_the_same_limits(tmp_path: Path) -> None:
    path = tmp_path / "chairlift.sock"
    with running_server(FAST, uds=str(path), receive_timeout_s=0.4) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"data: [DONE]" in ask_unix(path, post({"stream": True, "max_tokens": 5}))
        assert b" 408 " in ask_unix(path, b"GET / HTTP/1.1\r\n")
        assert b" 431 " in ask_unix(path, b"GET /" + b"x" * 40_000)
        server.wait_idle()


def test_the_socket_of_a_killed_server_is_taken_over_and_a_stopped_one_takes_its_own_away(tmp_path: Path) -> None:
    path = tmp_path / "chairlift.sock"

    def start() -> Served:
        server = Served({}, {"uds": str(path)})
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == f"Chairlift serves fake at {path}\n"
        return server

    first = start()
    with pytest.raises(InvalidOption, match="in use"):
        bind(ServerOptions(uds=str(path)))
    first.close()
    assert path.exists()
    second = start()
    try:
        curl = ["curl", "--silent", "--unix-socket", str(path), "http://localhost/health"]
        assert json.loads(subprocess.run(curl, capture_output=True, check=True).stdout) == {"status": "ok"}
        second.tell(signal.SIGTERM)
        assert second.status() == 0
        assert not path.exists()
    finally:
        second.close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("text", encoding="ascii")
    with pytest.raises(InvalidOption, match="no socket"):
        bind(ServerOptions(uds=str(path)))
    assert path.read_text(encoding="ascii") == "text"
    for name in (str(tmp_path / "no" / "folder"), str(tmp_path / ("x" * 200))):
        with pytest.raises(InvalidOption, match="cannot listen"):
            bind(ServerOptions(uds=name))


# ---------------------------------------------------------------- web pages


def test_without_names_no_page_is_told_that_it_may_read() -> None:
    with running_server(FAST, api_keys=("k",)) as server:
        for method, path in (("GET", "/health"), ("OPTIONS", "/v1/models")):
            asks = PAGE | {"Access-Control-Request-Method": "POST", "Authorization": "Bearer k"}
            _, headers, _ = server.request(method, path, headers=asks)
            assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("keys", [(), ("k",)], ids=["open", "keyed"])
def test_a_named_page_may_ask_and_read_and_no_other(keys: tuple[str, ...]) -> None:
    with running_server(FAST, allowed_origins=("https://page.example",), api_keys=keys) as server:
        key = {"Authorization": "Bearer k"} if keys else {}
        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        status, headers, body = server.request("OPTIONS", "/v1/chat/completions", headers=PAGE | asks)
        assert (status, body) == (200, b"")
        assert headers["access-control-allow-origin"] == "https://page.example"
        assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert "access-control-allow-credentials" not in headers
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "x"}, PAGE | key)
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE["Origin"], "origin")
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": ""}, PAGE | key | {"X": "y"})
        assert "access-control-allow-origin" in headers, "what is refused may be read as well"
        for other in ("https://page.example.evil", "http://page.example", "null", "https://page.example:1"):
            foreign = {"Origin": other, "Host": "localhost"}
            status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers=foreign | asks)
            assert status in (401, 403)
            _, after, _ = server.request("POST", "/v1/completions", {"prompt": "x"}, foreign | key)
            assert not [name for name in {**headers, **after} if name.startswith("access-control")]


def test_a_page_of_a_named_origin_still_needs_the_key() -> None:
    with running_server(FAST, allowed_origins=("*",), api_keys=("k",)) as server:
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "x"}, PAGE)
        assert (status, headers["access-control-allow-origin"]) == (401, "*")
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x\ty: z" * 3}
        _, headers, _ = server.request("OPTIONS", "/v1/completions", headers=PAGE | asks)
        assert headers["access-control-allow-headers"] == "authorization, content-type"


# ---------------------------------------------------------------- proxies


def test_a_prefix_may_be_taken_off_by_the_proxy_or_not() -> None:
    with running_server(FAST, root_path="/llm") as server:
        for path in ("/v1/models", "/llm/v1/models", "/llm/v1/models/fake", "/v1/models/fake"):
            assert server.json("GET", path)[0] == 200
        for path in ("/llm", "/llmv1/models", "/llm/llm/v1/models", "/LLM/v1/models", "/%6clm/v1/models"):
            assert server.json("GET", path)[0] == 404
    with running_server(FAST) as server:
        assert server.json("GET", "/llm/v1/models")[0] == 404


def test_a_silent_stream_gets_comments_and_a_busy_one_none() -> None:
    options = FakeOptions(heartbeat_s=0.05, max_num_seqs=1, step_s=0.01)
    with running_server(options, sse_keep_alive_interval_s=0.1) as server:
        blocker = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
        blocker.sendall(post({"stream": True, "max_tokens": 60}))
        until(lambda: len(server.worker.running) == 1)
        status, _, content = server.request(
            "POST", "/v1/completions", {"prompt": "y", "stream": True, "max_tokens": 60, "ignore_eos": True}
        )
        assert status == 200
        assert content.startswith(COMMENT * 2)
        assert content.lstrip(COMMENT).count(COMMENT) == 0
        assert content.endswith(b"data: [DONE]\n\n")
        with blocker:
            assert COMMENT not in read_all(blocker)
        server.wait_idle()


def test_an_error_after_a_comment_is_an_event() -> None:
    options = FakeOptions(heartbeat_s=0.05, prefill_steps=30, step_s=0.01)
    with running_server(options, sse_keep_alive_interval_s=0.05) as server:
        body = {"prompt": "!fail", "stream": True, "max_tokens": 60, "ignore_eos": True}
        status, _, content = server.request("POST", "/v1/completions", body)
        assert (status, content.startswith(COMMENT)) == (200, True)
        assert json.loads(content.split(b"data: ")[-1])["error"]["code"] == "internal_error"
        server.wait_idle()
