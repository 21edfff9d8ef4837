"""Routes, access, and the shape of every error."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.server.access import Access
from chairlift.server.errors import ApiError
from chairlift.server.identity import ANYBODY
from server.fake_text import TURN
from server.fake_worker import DIE, FAIL, GARBAGE, FakeOptions, answer_tokens
from server.running import RunningServer, running_server, until

INSIDE = re.compile(rb"0x[0-9a-f]{6,}|Traceback|site-packages|/(home|usr|work|root)/|<.* object at")
"""What no response may contain (reliability L1)."""

METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "PATCH"]
PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/models/fake",
    "/version",
    "/metrics",
    "/health",
    "/ready",
]
OPEN = ["/health", "/ready"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running
        running.wait_idle()


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running_server(api_keys=("secret-key",)) as running:
        yield running


def test_version_models_health(server: RunningServer) -> None:
    assert server.json("GET", "/health") == (200, {"status": "ok"})
    assert server.json("GET", "/ready") == (200, {"status": "ready"})
    assert set(server.json("GET", "/version")[1]) == {"version"}
    listed = server.json("GET", "/v1/models")[1]["data"]
    assert listed == [server.json("GET", "/v1/models/fake")[1]]
    assert listed[0]["max_model_len"] == 4096
    status, headers, body = server.request("HEAD", "/health")
    assert (status, body) == (200, b"")
    assert headers["content-length"] == "15"


def test_served_names_replace_the_model_s_own() -> None:
    with running_server(served_model_names=("first", "second")) as server:
        for name in ("first", "second"):
            assert server.complete(model=name)["model"] == "first"
        assert server.complete(model=None)["model"] == "first"
        assert [m["id"] for m in server.json("GET", "/v1/models")[1]["data"]] == ["first", "second"]
        status, error = server.refused("/v1/completions", {"model": "fake", "prompt": "x"})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/completions/", "//v1/completions", "/V1/models", "/v1/%6dodels", "/docs"]
)
def test_there_is_nothing_anywhere_else(server: RunningServer, path: str) -> None:
    status, answer = server.json("GET", path)
    assert (status, answer["error"]["code"]) == (404, "unknown_path")


@pytest.mark.parametrize("path", PATHS)
def test_another_method_is_a_405_that_says_which(server: RunningServer, path: str) -> None:
    status, headers, body = server.request("DELETE", path)
    assert status == 405
    assert headers["allow"] == ("POST" if "completions" in path else "GET, HEAD")
    assert json.loads(body)["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "fake/", "%00", "x" * 5000, "FAKE", ""])
def test_a_model_is_looked_up_in_a_list_and_nowhere_else(server: RunningServer, name: str) -> None:
    status, answer = server.json("GET", f"/v1/models/{name}")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert server.refused("/v1/completions", {"model": name or "x", "prompt": "x"})[0] == 404


def test_what_breaks_in_here_is_a_500_that_says_nothing(
    server: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail at /root/secret")

    monkeypatch.setattr(server.generation, "_prepare", broken)
    status, _, body = server.request("POST", "/v1/completions", {"prompt": "x"})
    assert status == 500
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"secret" not in body
    assert "secret detail" in caplog.text


def test_a_text_stream_that_raises_costs_its_own_request_only(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def push(self, tokens: object) -> str:
            raise IndexError(tokens)

        def finish(self) -> str:
            raise IndexError

    with monkeypatch.context() as patch:
        patch.setattr(server._text, "streams", lambda *_, **__: Broken)
        for stream in (False, True):
            assert server.refused("/v1/completions", {"prompt": "x", "stream": stream})[0] == 500
    assert server.complete()["usage"]["completion_tokens"] == 16
    server.wait_idle()


# ---------------------------------------------------------------- access


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "path",
    [
        *PATHS,
        "/",
        "/nowhere",
        "//health",
        "/health/",
        "/%68ealth",
        "/health?x",
        "/ready/../metrics",
        "/health;/metrics",
    ],
)
def test_everything_needs_a_key_but_health_and_ready(locked: RunningServer, method: str, path: str) -> None:
    status, headers, _ = locked.request(method, path)
    if path.partition("?")[0] in OPEN:
        assert status in (200, 405)
    else:
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("host", ["a/health", "localhost/health?", "[", "x@y", ""])
def test_src_vllm_cve_2026_48746_the_host_header_does_not_open_anything(locked: RunningServer, host: str) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), timeout=5) as sock:
        sock.sendall(f"GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        assert sock.recv(1 << 16).split()[1] in (b"401", b"400")


@pytest.mark.parametrize("value", ["Bearer secret-key", "bearer secret-key", "BEARER  secret-key "])
def test_the_key_opens(locked: RunningServer, value: str) -> None:
    assert locked.request("GET", "/v1/models", headers={"Authorization": value})[0] == 200


@pytest.mark.parametrize(
    "value", ["", "secret-key", "Basic secret-key", "Bearer", "Bearer secret-kez", "Bearer secret-key2"]
)
def test_anything_else_does_not(locked: RunningServer, value: str) -> None:
    assert locked.request("GET", "/v1/models", headers={"Authorization": value})[0] == 401


def test_no_response_holds_the_key(locked: RunningServer) -> None:
    headers = {"Authorization": "Bearer secret-key"}
    for path in PATHS:
        assert b"secret-key" not in locked.request("GET", path, headers=headers)[2]


def test_keys_separate_prefix_caches() -> None:
    with running_server(api_keys=("one", "two")) as server:
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.json("POST", "/v1/completions", {"prompt": "same"}, headers)[0] == 200
        salts = {request.salt for request in server.worker.adds}
        assert len(salts) == 2
        assert b"" not in salts


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 200),
        ({"Host": "localhost", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "http://[bad"}, 403),
    ],
)
def test_a_web_page_cannot_use_a_server_without_keys(
    server: RunningServer, headers: dict[str, str], status: int
) -> None:
    """DNS rebinding and cross-site requests (Ollama CVE-2024-28224, Ray CVE-2025-62593)."""
    assert server.request("GET", "/v1/models", headers=headers)[0] == status


def test_allowed_hosts() -> None:
    named = Access((), "127.0.0.1", ("my.host",))
    assert named.principal({b"host": b"My.Host:80"}) is ANYBODY
    with pytest.raises(ApiError):
        named.principal({b"host": b"other.host"})
    assert Access((), "127.0.0.1", ("*",)).principal({b"host": b"other.host", b"origin": b"http://x"}) is ANYBODY
    assert Access((), "127.0.0.1", ()).principal({}) is ANYBODY


# ---------------------------------------------------------------- logs and metrics


def test_a_request_is_one_line_without_its_content(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server.complete(prompt="the secret text", max_tokens=5)
    server.refused("/v1/completions", {"prompt": "the secret text", "n": 1000})
    server.request("GET", "/no%0d%0ainjected", headers={"X-Request-Id": "a b"})

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "chairlift.server"]

    until(lambda: len(logged()) >= 3)
    lines = logged()
    assert len(lines) == 3
    assert re.fullmatch(
        r"id=[0-9a-f]{32} route=/v1/completions status=200 prompt_tokens=16 output_tokens=5 cached_tokens=4 "
        r"finish=length ttft_s=\d\.\d{3} total_s=\d\.\d{3}",
        lines[0],
    )
    assert "status=400" in lines[1]
    assert "route=unknown status=404" in lines[2]
    for line in lines:
        assert line.isprintable()
        assert len(line) < 4096
        assert "secret" not in line
        assert "injected" not in line


def test_the_line_of_a_stream_that_failed_says_why(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """Its status was sent before; and what was refused names its code once."""
    caplog.set_level(logging.INFO)

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "chairlift.server" and r.levelname == "INFO"]

    server.request("POST", "/v1/completions", {"prompt": FAIL, "ignore_eos": True, "max_tokens": 9, "stream": True})
    until(lambda: len(logged()) == 1)
    server.refused("/v1/completions", {"prompt": "x", "model": "other"})
    until(lambda: len(logged()) == 2)
    failed, refused = logged()
    assert "status=200" in failed and failed.endswith(" code=internal_error")
    assert refused.endswith(" status=404 code=model_not_found")


def test_metrics_have_a_bounded_number_of_series(server: RunningServer) -> None:
    def num_series() -> int:
        text = server.request("GET", "/metrics")[2].decode()
        return sum(len(family.samples) for family in text_string_to_metric_families(text))

    server.request("BREW", "/pot")
    server.request("GET", "/v1/models/none")
    before = num_series()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for number in range(200):
        connection.request(METHODS[number % 8], f"/path-{number}", headers={"User-Agent": f"agent {number}"})
        connection.getresponse().read()
        connection.request("GET", f"/v1/models/model-{number}")
        connection.getresponse().read()
    connection.close()
    assert num_series() <= before + 1


def test_metrics_count_what_happened() -> None:
    with running_server() as server:
        usage = server.complete(prompt=["a", "bcd"], n=2, max_tokens=7, ignore_eos=True)["usage"]
        families = text_string_to_metric_families(server.request("GET", "/metrics")[2].decode())
        found = {
            sample.name: sample.value for family in families for sample in family.samples if "le" not in sample.labels
        }
        assert found["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
        assert found["vllm:generation_tokens_total"] == usage["completion_tokens"]
        assert found["vllm:time_to_first_token_seconds_count"] == 4
        assert found["vllm:inter_token_latency_seconds_count"] == 4 * 6
        assert found["vllm:e2e_request_latency_seconds_count"] == 4
        assert found["vllm:request_params_n_sum"] == 4
        assert found["vllm:num_requests_running"] == 0


# ---------------------------------------------------------------- the end of the engine


@pytest.mark.parametrize("word", [DIE, GARBAGE])
def test_src_vllm_21728_a_lost_engine_ends_streams_with_an_error_and_is_not_healthy(word: str) -> None:
    prompts = (f"{word} {number}" for number in range(100))
    prompt = next(p for p in prompts if max(answer_tokens([TURN, *p.encode()], 0, 2)) < 128)  # text from the start
    with running_server(FakeOptions(step_s=0.001)) as server:
        status, _, body = server.request("POST", "/v1/completions", {"prompt": prompt, "stream": True})
        assert status == 200
        assert b"[DONE]" not in body
        assert json.loads(body.split(b"data: ")[-1])["error"]["code"] == "engine_dead"
        for path in OPEN:
            assert server.json("GET", path)[0] == 503
        status, error = server.refused("/v1/completions", {"prompt": "x"})
        assert (status, error["code"]) == (503, "engine_dead")
        assert server.client.num_live == 0
        until(lambda: server.num_tasks() <= 0)


def test_a_whole_answer_is_lost_with_a_503() -> None:
    with running_server(FakeOptions(step_s=0.001)) as server:
        status, error = server.refused("/v1/completions", {"prompt": DIE})
        assert (status, error["code"]) == (503, "engine_dead")


def test_nothing_from_the_inside_gets_out(server: RunningServer) -> None:
    for fields in ({"prompt": FAIL}, {"prompt": FAIL, "stream": True}, {"prompt": object.__name__, "n": 0}):
        assert not INSIDE.search(server.request("POST", "/v1/completions", fields)[2])
