"""Who is let in over HTTP, what those are told who are not, and that every place comes back."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from chairlift.core.admission import AdmissionLimits, RefusalReason
from chairlift.core.errors import Overloaded
from chairlift.server import generate
from chairlift.server.errors import overloaded
from chairlift.server.json_body import read_object
from server.fake_text import FakeText
from server.fake_worker import DIE, FAIL, REFUSE, REFUSE_LATE, FakeOptions
from server.raw_http import RESET, request
from server.running import TIMEOUT_S, RunningServer, running_server, until

SLOTS = 4
MODEL_LEN = 20_000
LONG: dict[str, Any] = {"max_tokens": 15_000, "ignore_eos": True}
"""Does not end while a test lasts."""

SHORT: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True}
KEYS = ("sk-first", "sk-second")


def caps(**limits: int | None) -> dict[str, Any]:
    return {"admission": AdmissionLimits(**limits)}


@contextlib.contextmanager
def serving(text: FakeText | None = None, worker: FakeOptions | None = None, **options: Any) -> Iterator[RunningServer]:
    """Four slots, taken by nobody."""
    default = FakeOptions(step_s=0.002, max_num_seqs=SLOTS, heartbeat_s=0.05, max_model_len=MODEL_LEN)
    with running_server(worker or default, text, **options) as server:
        yield server
        server.wait_idle()


def key(index: int) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[index]}"}


PADDING = {str(number): "\u00e9" * 512 for number in range(8)}
"""Metadata as long as any may be: as JSON 24 KiB, which are read on a thread."""


def post(server: RunningServer, body: Any, headers: dict[str, str] | None = None) -> socket.socket:
    """Send a request and do not read the answer."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    head = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    sock.sendall(request("/v1/completions", json.dumps(body).encode(), head.encode()))
    return sock


@contextlib.contextmanager
def occupied(server: RunningServer, headers: dict[str, str] | None = None) -> Iterator[None]:
    """Every slot taken, and admission knows it."""
    with post(server, {"prompt": "occupy", "n": SLOTS} | LONG, headers):
        until(lambda: len(server.worker.running) == SLOTS and server.admission.num_queued == 0)
        yield


@contextlib.contextmanager
def queued(server: RunningServer, count: int, headers: dict[str, str] | None = None, **fields: Any) -> Iterator[None]:
    """So many more requests, waiting in the engine."""
    before = len(server.worker.adds)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(post(server, {"prompt": "wait"} | LONG | fields, headers))
        until(lambda: len(server.worker.adds) == before + count)
        yield


def ask(server: RunningServer, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any]:
    return server.json("POST", "/v1/completions", {"prompt": "hi"} | SHORT | fields, headers)


def refusals(server: RunningServer) -> dict[str, float]:
    metrics = server.request("GET", "/metrics")[2].decode()
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:admission_rejections_total{")]
    return {line.partition('reason="')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "status", "kind"),
    [({}, 429, "rate_limit_error"), ({"overload_status": 503}, 503, "service_unavailable_error")],
)
def test_src_vllm_18826_49445_the_queue_is_bounded_and_the_excess_is_told_when_to_come_back(
    options: dict[str, Any], status: int, kind: str
) -> None:
    with serving(**caps(max_num_queued_reqs=3), **options) as server:
        with occupied(server), queued(server, 3):
            for _ in range(20):
                begun = time.perf_counter()
                got, headers, content = server.request("POST", "/v1/completions", {"prompt": "one too many"})
                assert time.perf_counter() - begun < 1.0
                assert got == status
                assert 1 <= int(headers["retry-after"]) <= 120
                assert 1 <= int(headers["retry-after-ms"]) <= 120_000
                assert headers["x-should-retry"] == "true"
                error = json.loads(content)["error"]
                assert set(error) == {"message", "type", "param", "code", "estimated_wait_ms"}
                assert (error["type"], error["code"]) == (kind, "max_num_queued_reqs")
                assert "3 requests wait, of at most 3" in error["message"]
                assert "Estimated wait" in error["message"]
                assert len(server.worker.waiting) == 3
            assert refusals(server) == dict.fromkeys(RefusalReason, 0.0) | {"max_num_queued_reqs": 20.0}
        until(lambda: ask(server)[0] == 200)


def test_the_wait_is_estimated_from_what_was_served() -> None:
    with serving(**caps(max_num_queued_reqs=8)) as server:
        with ThreadPoolExecutor(8) as threads:  # more than there are slots: somebody always waits
            assert all(status == 200 for status, _ in threads.map(lambda _: ask(server, max_tokens=20), range(48)))
        with occupied(server), queued(server, 8):
            status, headers, content = server.request("POST", "/v1/completions", {"prompt": "x"})
            assert status == 429
            wait_ms = json.loads(content)["error"]["estimated_wait_ms"]
            assert 20 <= wait_ms <= 5000  # nine more must leave four slots; each takes twenty steps of 2 ms or more
            assert int(headers["retry-after-ms"]) in (wait_ms, wait_ms + 1)
            assert f"about {max(0.1, wait_ms / 1000):.1f} s" in json.loads(content)["error"]["message"]


def test_a_burst_into_an_idle_server_finds_its_slots() -> None:
    with serving(**caps(max_num_queued_reqs=0)) as server:
        for _ in range(5):
            server.wait_idle()
            until(lambda: server.admission.num_live == 0)
            time.sleep(0.06)  # a heartbeat: the engine has said that nobody runs
            with ThreadPoolExecutor(SLOTS) as threads:
                assert [status for status, _ in threads.map(lambda _: ask(server), range(SLOTS))] == [200] * SLOTS
        with occupied(server):
            assert ask(server)[0] == 429


def test_a_full_queue_refuses_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counted(body: bytes) -> dict[str, Any]:
        read.append(body)
        return read_object(body)

    monkeypatch.setattr(generate, "read_object", counted)
    with serving(**caps(max_num_queued_reqs=1)) as server:
        with occupied(server), queued(server, 1):
            read.clear()
            assert ask(server, prompt="x" * 1_000_000)[0] == 429
            assert server.request("POST", "/v1/completions", b"[" * 1000)[0] == 429
            assert read == []
        until(lambda: ask(server)[0] == 200)
        read.clear()
        assert ask(server, prompt="y" * 1000)[0] == 200
        assert len(read) == 1  # and never twice


@pytest.mark.parametrize("large", [False, True], ids=["inline", "thread"])
def test_src_vllm_53936_a_list_of_prompts_enters_whole_or_not_at_all(large: bool) -> None:
    extra = {"metadata": PADDING} if large else {}
    with serving(**caps(max_num_queued_reqs=5)) as server, occupied(server):
        before = len(server.worker.adds)
        with queued(server, 1):
            status, answer = ask(server, prompt=["a", "b", "c"], n=2, **extra)
            assert (status, answer["error"]["code"]) == (429, "max_num_queued_reqs")
            assert server.admission.num_queued == 1
            with post(server, {"prompt": ["a", "b"], "n": 2} | LONG | extra):
                until(lambda: server.admission.num_queued == 5)
                until(lambda: len(server.worker.adds) == before + 3)
                assert ask(server)[0] == 429


def test_urgent_requests_get_past_a_flood_of_background_work() -> None:
    with serving(**caps(max_num_queued_reqs=8)) as server, occupied(server), queued(server, 8, priority=3):
        assert ask(server, priority=3)[0] == 429
        with queued(server, 2):  # a quarter of the cap
            assert ask(server)[0] == 429
            assert ask(server, priority=-5)[0] == 429


@pytest.mark.parametrize("named", ["header", "body"])
def test_a_modest_tenant_gets_past_a_flood_of_another(named: str) -> None:
    def as_tenant(name: str) -> dict[str, Any]:
        header = {"x-gateway-inference-fairness-id": name}
        return {"headers": header} if named == "header" else {"user": name}

    flood, modest = as_tenant("flood"), as_tenant("modest")
    options = caps(max_num_queued_reqs=8) | {"scheduling_policy": "fair"}
    with serving(**options) as server, occupied(server), queued(server, 8, **flood):
        assert ask(server, **flood)[0] == 429
        with queued(server, 1, **modest):
            assert server.worker.adds[-1].tenant == "modest"


def test_tokens_are_estimated_for_text_and_exact_for_ids() -> None:
    limits = caps(max_num_queued_tokens=1000)
    with serving(**limits) as server, occupied(server), queued(server, 1, prompt=[7] * 600):
        assert ask(server, prompt=[7] * 401)[1]["error"]["code"] == "max_num_queued_tokens"
        with post(server, {"prompt": "x" * 399} | LONG):  # taken for a quarter, and then counted
            until(lambda: server.admission.num_queued_tokens == 1000)
            assert ask(server)[1]["error"]["code"] == "max_num_queued_tokens"


def test_a_text_is_never_taken_for_more_than_fits() -> None:
    with serving(**caps(max_num_queued_tokens=25_000)) as server, occupied(server):
        status, answer = ask(server, prompt="x" * 200_000)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_caps_of_a_principal_are_its_own() -> None:
    limits = caps(max_num_reqs_per_principal=6, max_num_queued_reqs_per_principal=1)
    with serving(api_keys=KEYS, **limits) as server, occupied(server, key(0)), queued(server, 1, key(0)):
        status, answer = ask(server, key(0))
        assert (status, answer["error"]["code"]) == (429, "max_num_queued_reqs_per_principal")
        server.generation.admission.set_limits(AdmissionLimits(max_num_reqs_per_principal=5))
        status, answer = ask(server, key(0))
        assert (status, answer["error"]["code"]) == (429, "max_num_reqs_per_principal")
        with queued(server, 3, key(1)):
            assert server.admission.num_principals == 2


@pytest.mark.parametrize("body", [{"n": 20}, {"prompt": ["x"] * 20}, {"prompt": "x" * 25_000}, {"prompt": REFUSE_LATE}])
def test_what_can_never_fit_is_no_overload(body: dict[str, Any]) -> None:
    with serving(**caps(max_num_queued_reqs=8)) as server:
        status, headers, content = server.request("POST", "/v1/completions", {"prompt": "x"} | SHORT | body)
        assert status == 400
        assert headers["x-should-retry"] == "false"
        assert json.loads(content)["error"]["code"] in ("request_too_large", "context_length_exceeded")
        assert sum(refusals(server).values()) == 0


def test_what_is_wrong_in_itself_says_nothing_about_asking_again() -> None:
    with serving() as server:
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "x", "temperature": -1})
        assert status == 400
        assert "x-should-retry" not in headers


def test_caps_change_while_serving() -> None:
    with serving(**caps(max_num_queued_reqs=0)) as server, occupied(server):
        assert ask(server)[0] == 429
        server.generation.admission.set_limits(AdmissionLimits(max_num_queued_reqs=1))
        with queued(server, 1):
            assert ask(server)[0] == 429
            server.generation.admission.set_limits(AdmissionLimits())
            with queued(server, 20):
                pass


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


def test_the_official_client_comes_back_when_it_was_told() -> None:
    with serving(**caps(max_num_queued_reqs=0)) as server, occupied(server), client_of(server) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="fake", prompt="x", max_tokens=2)
        assert caught.value.code == "max_num_queued_reqs"
        with ThreadPoolExecutor(1) as thread:
            patient = client.with_options(max_retries=2).completions
            answer = thread.submit(patient.create, model="fake", prompt="x", max_tokens=2)
            until(lambda: refusals(server)["max_num_queued_reqs"] == 2)
            server.generation.admission.set_limits(AdmissionLimits(max_num_queued_reqs=1))
            until(lambda: len(server.worker.waiting) == 1)
            server.worker.max_num_seqs += 1
            assert answer.result(TIMEOUT_S).choices[0].finish_reason in ("length", "stop")


# ---------------------------------------------------------------- every place comes back


def test_src_tgi_1877_every_permit_comes_back_however_a_request_ends() -> None:
    """Ends of every kind, many at once, under caps that refuse some: then as many may enter as before."""
    limits: dict[str, Any] = caps(max_num_queued_reqs=6, max_num_reqs_per_principal=10)
    generator = random.Random(12)
    kinds = ("served", "streamed", "fails", "refused", "wrong", "leaves", "resets", "late", "never", "large")
    with serving(**limits) as server:

        def live(kind: str) -> None:
            body: dict[str, Any] = {"prompt": f"{kind} {generator.random()}"} | SHORT
            body |= {"n": generator.choice([1, 1, 2]), "stream": kind == "streamed"}
            if kind == "fails":
                body |= {"prompt": FAIL, "max_tokens": 9}
            elif kind in ("refused", "never"):
                body["prompt"] = REFUSE if kind == "refused" else REFUSE_LATE
            elif kind == "wrong":
                body |= {"allowed_token_ids": [9999]}  # found out when the vocabulary is asked
            elif kind == "late":
                body |= {"e2e_deadline_ms": generator.choice([1, 5, 20])} | LONG
            elif kind == "large":
                body |= {"prompt": ["x" * 2000] * 10}
            if kind not in ("leaves", "resets"):
                server.request("POST", "/v1/completions", body)
                return
            sock = post(server, body | LONG)
            time.sleep(generator.random() * 0.02)
            if kind == "resets":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(live, generator.choices(kinds, k=600)))
        server.wait_idle()
        counts = refusals(server)
        assert sum(counts.values()) > 0  # the caps were reached, and yet:
        time.sleep(0.06)
        server.admission.set_limits(AdmissionLimits(max_num_queued_reqs=6))
        with occupied(server), queued(server, 6):
            assert ask(server)[1]["error"]["code"] == "max_num_queued_reqs"


def test_places_come_back_when_the_engine_dies() -> None:
    worker = FakeOptions(step_s=0.002, max_num_seqs=SLOTS, max_model_len=MODEL_LEN)
    with running_server(worker, **caps(max_num_queued_reqs=50)) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(post(server, {"prompt": "x"} | LONG))
        until(lambda: len(server.worker.adds) == 20)
        with ThreadPoolExecutor(1) as thread:
            last = thread.submit(ask, server, prompt=DIE, max_tokens=9)
            until(lambda: len(server.worker.adds) == 21)
            server.worker.max_num_seqs = 21
            assert last.result(TIMEOUT_S)[0] == 503
        until(lambda: server.admission.num_live == 0)
        assert (server.admission.num_queued, server.admission.num_principals) == (0, 0)


class GatedText(FakeText):
    """Tokenises when told."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.num_inside = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if "gated" in text:
            self.num_inside += 1
            self.gate.wait(TIMEOUT_S)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_src_triton_8658_a_queue_that_is_full_at_any_stage_gives_an_error_and_never_silence() -> None:
    """Full with requests that are being tokenised, that wait in the engine, or that run: everybody gets an answer."""
    text = GatedText()
    with serving(text, **caps(max_num_queued_reqs=3)) as server:
        large = {"prompt": "gated " + "x" * 1000, "metadata": PADDING} | SHORT
        with ThreadPoolExecutor(16) as threads, occupied(server):
            # All three are parsed before the first is tokenised, or the third would wait unread behind two that stand.
            with server.held_pool() as num_held_back:
                tokenising = [
                    threads.submit(ask, server, **large) for _ in range(3)
                ]  # two threads, and one behind them
                until(lambda: num_held_back() == 3)
            until(lambda: text.num_inside == 2 and server.admission.num_queued == 3)
            assert [status for status, _ in threads.map(lambda _: ask(server), range(8))] == [429] * 8
            assert [status for status, _ in threads.map(lambda _: ask(server, stream=True), range(4))] == [429] * 4
            text.gate.set()
            until(lambda: len(server.worker.waiting) == 3)
            assert [status for status, _ in threads.map(lambda _: ask(server), range(8))] == [429] * 8
            server.worker.max_num_seqs += 3
            assert [future.result(TIMEOUT_S)[0] for future in tokenising] == [200] * 3
            server.admission.set_limits(AdmissionLimits(max_num_reqs_per_principal=SLOTS))
            assert [status for status, _ in threads.map(lambda _: ask(server), range(8))] == [429] * 8


# ---------------------------------------------------------------- who asks


def test_the_principal_is_a_name_of_the_key_and_not_the_key() -> None:
    with serving(api_keys=KEYS) as server:
        for index in (0, 1, 0):
            assert ask(server, key(index))[0] == 200
        first, second, again = [request.principal for request in server.worker.adds]
        assert first == again != second
        assert len(first) == 16
        assert not any(secret in name for secret in KEYS for name in (first, second))
    with serving() as server:
        ask(server)
        assert server.worker.adds[0].principal == ""


@pytest.mark.parametrize(
    ("headers", "fields", "tenant"),
    [
        ({}, {}, ""),
        ({}, {"user": "u"}, "u"),
        ({}, {"safety_identifier": "s"}, "s"),
        ({}, {"user": "u", "safety_identifier": "s"}, "u"),
        ({}, {"user": "", "safety_identifier": None}, ""),
        ({"x-gateway-inference-fairness-id": "g"}, {"user": "u"}, "g"),
        ({"x-llm-d-inference-fairness-id": "l"}, {"user": "u"}, "l"),
        ({"x-gateway-inference-fairness-id": ""}, {"user": "u"}, "u"),
        ({"x-gateway-inference-fairness-id": "a" * 128}, {}, "a" * 128),
    ],
)
def test_the_tenant_is_what_the_gateway_or_the_body_says(
    tenants: RunningServer, headers: dict[str, str], fields: dict[str, Any], tenant: str
) -> None:
    assert ask(tenants, headers, **fields)[0] == 200
    assert tenants.worker.adds[-1].tenant == tenant


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"user": "u" * 129}),
        ({}, {"safety_identifier": "s" * 129}),
        ({}, {"user": 7}),
        ({"x-gateway-inference-fairness-id": "g" * 129}, {}),
        ({}, {"ttft_deadline_ms": 0}),
        ({}, {"ttft_deadline_ms": -1}),
        ({}, {"e2e_deadline_ms": "soon"}),
        ({}, {"e2e_deadline_ms": True}),
        ({}, {"e2e_deadline_ms": [1]}),
    ],
)
def test_wrong_names_and_deadlines_are_a_400(
    tenants: RunningServer, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    assert tenants.refused("/v1/completions", {"prompt": "x"} | fields, headers)[0] == 400


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e400", "NaN", "Infinity", "1" + "0" * 400])
def test_deadlines_that_are_no_numbers_are_a_400(tenants: RunningServer, number: str) -> None:
    body = f'{{"prompt": "x", "e2e_deadline_ms": {number}}}'.encode()
    assert tenants.request("POST", "/v1/completions", body)[0] == 400


@pytest.fixture(scope="module")
def tenants() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


# ---------------------------------------------------------------- deadlines


def test_deadlines_reach_the_engine_counted_from_the_arrival(tenants: RunningServer) -> None:
    assert ask(tenants, ttft_deadline_ms=5000, e2e_deadline_ms=1e12)[0] == 200
    request = tenants.worker.adds[-1]
    assert request.ttft_deadline == pytest.approx(request.arrival + 5, abs=1e-6)
    assert request.e2e_deadline == pytest.approx(request.arrival + 1e9)
    ask(tenants)
    assert (tenants.worker.adds[-1].ttft_deadline, tenants.worker.adds[-1].e2e_deadline) == (None, None)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["ttft", "e2e"])
def test_src_vllm_16391_a_deadline_that_passes_in_the_queue_is_a_504(kind: str, stream: bool) -> None:
    with serving() as server, occupied(server):  # one that has not yet served anything, so that it expects no wait
        body = {"prompt": "x", "stream": stream, f"{kind}_deadline_ms": 50} | SHORT
        status, headers, content = server.request("POST", "/v1/completions", body)
    assert status == 504
    assert headers["x-should-retry"] == "false"
    error = json.loads(content)["error"]
    assert (error["type"], error["code"]) == ("timeout_error", f"{kind}_deadline_exceeded")
    assert error["message"].startswith(f"{kind} deadline")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("n", [1, 2])
def test_src_atlas_482_an_answer_cut_by_its_deadline_is_no_200(tenants: RunningServer, path: str, n: int) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n": n, "e2e_deadline_ms": 60} | LONG
    status, headers, content = tenants.request("POST", path, body)
    assert (status, headers["x-should-retry"]) == (504, "false")
    assert json.loads(content)["error"]["code"] == "e2e_deadline_exceeded"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_cut_by_its_deadline_ends_with_an_error_and_without_done(tenants: RunningServer, path: str) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "e2e_deadline_ms": 150} | LONG
    events = tenants.events(path, body)
    assert len(events) > 2
    assert "[DONE]" not in events
    assert events[-1]["error"]["code"] == "e2e_deadline_exceeded"
    assert not any(choice["finish_reason"] for event in events[:-1] for choice in event["choices"])


def test_a_deadline_that_the_queue_would_miss_is_refused_at_once() -> None:
    with serving() as server:
        with ThreadPoolExecutor(12) as threads:
            list(threads.map(lambda _: ask(server, max_tokens=30), range(48)))
        with occupied(server), queued(server, 200):
            begun = time.perf_counter()
            status, answer = ask(server, ttft_deadline_ms=1000)
            assert time.perf_counter() - begun < 0.9  # no waiting for the deadline itself
            assert (status, answer["error"]["code"]) == (429, "deadline")
            assert answer["error"]["estimated_wait_ms"] > 1000
            with queued(server, 1, ttft_deadline_ms=10_000_000):
                pass


# ---------------------------------------------------------------- the response itself


@pytest.mark.parametrize(
    ("wait_s", "retry_after", "retry_after_ms", "estimated_ms"),
    [
        (None, b"1", b"1000", None),
        (0.0, b"1", b"1", 0),
        (0.25, b"1", b"250", 250),
        (1.001, b"2", b"1001", 1001),
        (119.9999, b"120", b"120000", 120_000),
        (1e9, b"120", b"120000", 10**12),
    ],
)
def test_how_long_to_wait_is_within_what_clients_obey(
    wait_s: float | None, retry_after: bytes, retry_after_ms: bytes, estimated_ms: int | None
) -> None:
    error = overloaded(Overloaded("Refused for now.", RefusalReason.DEADLINE, wait_s), 503)
    headers = dict(error.headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (retry_after, retry_after_ms)
    assert json.loads(error.body())["error"]["estimated_wait_ms"] == estimated_ms
    assert (error.status, error.code) == (503, "deadline")
