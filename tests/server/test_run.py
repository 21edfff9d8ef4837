"""The server as a process: starting, greeting, draining."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.server.greeting import base_url, greeting
from chairlift.server.http_server import bind
from chairlift.server.options import ServerOptions
from server.fake_worker import HANG
from server.running import TIMEOUT_S, until
from server.served import HERE, LONG, Reader, is_running, readers, served

# ---------------------------------------------------------------- starting


def test_what_is_printed_can_be_typed() -> None:
    """Both things that the greeting tells to type are typed, as they stand."""
    with served() as server:
        assert server.said.startswith("Chairlift serves fake at http://127.0.0.1:")
        lines = server.said.splitlines()
        curl = next(line.strip() for line in lines if line.strip().startswith("curl "))
        if shutil.which("curl"):
            done = subprocess.run(["bash", "-c", f"{curl} -s"], capture_output=True, timeout=TIMEOUT_S, check=True)
            assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"
        start = next(i for i, line in enumerate(lines) if "from openai" in line)
        script = "\n".join(line.removeprefix("  ") for line in lines[start:])
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
        assert done.stdout


def test_the_greeting_names_a_key_and_never_shows_it() -> None:
    text = greeting("http://x:1", "m", max_model_len=10, load_s=1.0, resident_bytes=1 << 30, needs_key=True)
    assert "Bearer $CHAIRLIFT_API_KEY" in text
    assert 'os.environ["CHAIRLIFT_API_KEY"]' in text
    assert "1024 MiB" in text


def test_a_server_whose_output_cannot_be_written_serves_all_the_same(tmp_path: Path) -> None:
    port = free_port()
    arguments = [sys.executable, str(HERE / "serve_fake.py"), "{}", json.dumps({"port": port})]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    with (
        Path("/dev/full").open("wb") as full,
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(arguments, stdout=full, stderr=log, env=environment) as process,
    ):
        try:
            until(lambda: is_ready(port))
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    assert "standard output cannot be written" in (tmp_path / "log").read_text(encoding="utf-8")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_an_address_that_means_all_is_shown_as_one_that_can_be_typed() -> None:
    assert base_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert base_url("::", 1) == "http://[::1]:1"
    assert base_url("fe80::1", 1) == "http://[fe80::1]:1"
    assert base_url("example", 1) == "http://example:1"


def test_while_loading_everything_is_a_503_that_says_so() -> None:
    sock = bind(ServerOptions(port=0))
    port = sock.getsockname()[1]
    sock.close()
    with served({"load_s": 1.5}, wait=False, port=port) as server:
        server.port = port

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return server.get("/health")[0] > 0
            return False

        until(answers)
        for path in ("/health", "/ready", "/v1/models"):
            status, answer = server.get(path)
            assert (status, answer["error"]["code"]) == (503, "loading")
        assert server.ask("POST", "/v1/completions", {"prompt": "x"})[0] == 503
        server.wait_ready()
        assert server.get("/health")[0] == 200


def test_src_vllm_48966_a_worker_that_cannot_start_is_one_line_and_status_2() -> None:
    with served({"fail_on_load": "model.gguf: not a GGUF file"}, wait=False) as server:
        assert server.status() == 2
        assert server.process.stderr is not None
        assert server.process.stderr.read().splitlines()[-1] == "chairlift: model.gguf: not a GGUF file"


@pytest.mark.parametrize("status", [1, 0, 7])
def test_a_worker_that_just_ends_is_an_error_too(status: int) -> None:
    with served({"exit_on_load": status}, wait=False) as server:
        assert server.status() != 0


def test_a_signal_while_loading_ends_it() -> None:
    with served({"load_s": 60}, wait=False) as server:
        until(lambda: len(server.worker_pids()) == 1)
        (worker,) = server.worker_pids()
        time.sleep(0.5)  # until the handler is there; without it the signal ends the process just as well
        server.tell(signal.SIGTERM)
        assert server.status() in (0, -signal.SIGTERM)
        until(lambda: not is_running(worker))


def test_an_address_in_use_is_refused() -> None:
    with bind(ServerOptions(port=0)) as sock, pytest.raises(InvalidOption, match="in use"):
        bind(ServerOptions(port=sock.getsockname()[1]))
    with pytest.raises(InvalidOption, match="cannot listen on 203"):
        bind(ServerOptions(host="203.0.113.1", port=0, api_keys=("k",)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_a_server_for_others_needs_a_key(host: str) -> None:
    with pytest.raises(InvalidOption, match="api-key"):
        ServerOptions(host=host)
    assert ServerOptions(host=host, api_keys=("k",)).host == host


@pytest.mark.parametrize(
    "fields",
    [
        {"port": -1},
        {"port": 65536},
        {"api_keys": ("",)},
        {"api_keys": ("a\nb",)},
        {"served_model_names": ("",)},
        {"served_model_names": ("a\nb",)},
        {"max_body_bytes": 0},
        {"shutdown_timeout_s": -1.0},
        {"receive_timeout_s": float("nan")},
    ],
)
def test_options_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        ServerOptions(**fields)


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(number: signal.Signals) -> None:
    with served() as server:
        (worker,) = server.worker_pids()
        began = time.monotonic()
        server.tell(number)
        assert server.status() == 0
        assert time.monotonic() - began < 4
        assert not is_running(worker)


def test_src_vllm_34730_a_signal_lets_streams_finish() -> None:
    """Readiness goes at once, newcomers are refused, and everything in flight ends as if nothing had happened."""
    with served({"step_s": 0.01}) as server:
        streams = readers(server, 20, max_tokens=150)
        server.tell(signal.SIGTERM)
        until(lambda: server.get("/ready")[0] == 503)
        assert server.get("/health")[0] == 200
        status, answer = server.ask("POST", "/v1/completions", {"prompt": "late"})
        assert (status, answer["error"]["code"]) == (503, "shutting_down")
        for stream in streams:
            stream.join(TIMEOUT_S)
            assert stream.content.endswith(b"data: [DONE]\n\n")
        assert server.status() == 0


def test_past_the_timeout_streams_get_an_error_and_the_status_says_so() -> None:
    with served({"step_s": 0.01}, shutdown_timeout_s=0.3) as server:
        streams = readers(server, 3)
        server.tell(signal.SIGTERM)
        for stream in streams:
            stream.join(TIMEOUT_S)
            assert json.loads(stream.content.split(b"data: ")[-1])["error"]["code"] == "shutting_down"
        assert server.status() == 1


def test_a_second_signal_does_not_wait() -> None:
    with served({"step_s": 0.01}, shutdown_timeout_s=60) as server:
        streams = readers(server, 2)
        server.tell(signal.SIGTERM)
        until(lambda: server.get("/ready")[0] == 503)
        server.tell(signal.SIGTERM)
        assert server.status() == 1
        for stream in streams:
            stream.join(TIMEOUT_S)
            assert b"shutting_down" in stream.content


def test_a_worker_that_does_not_end_is_killed_in_the_end() -> None:
    with served(shutdown_timeout_s=0.1) as server:
        (worker,) = server.worker_pids()
        stream = Reader(server.port, {"prompt": HANG} | LONG)
        stream.start()
        assert stream.began.wait(TIMEOUT_S)
        server.tell(signal.SIGTERM)
        assert server.status() == 1
        assert not is_running(worker)
