"""Traces: what they say of a request, who they belong to, and what a collector that does not answer costs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from chairlift.core.types import Decisions, Finish, FinishReason, PreemptReason, Request, SamplingParams, WaitReason
from chairlift.server import otel
from chairlift.server.otel import MAX_CHOICES, OtelTraces, open_traces
from chairlift.server.traced import Traced
from chairlift.server.usage import Used
from server.fake_text import TURN
from server.fake_worker import DIE, FAIL, FakeOptions, answer_tokens
from server.running import TIMEOUT_S, RunningServer, running_server, until
from server.served import served

PROMPT = "the prompt that nobody may see"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SLOW = FakeOptions(step_s=0.002, prefill_steps=2, heartbeat_s=0.05)


class Held(SpanExporter):
    """A collector that hangs until it is let go, or refuses."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.refuses = False
        self.num_exports = 0
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_exports += 1
        if self.refuses:
            return SpanExportResult.FAILURE
        self.gate.wait(TIMEOUT_S)
        self.spans += spans
        return SpanExportResult.SUCCESS


class Tracing:
    """A server whose spans are kept here."""

    def __init__(self, server: RunningServer, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self.exporter = exporter

    def ask(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[ReadableSpan]:
        """The spans of one request, its own first."""
        self.exporter.clear()
        self.server.request("POST", path, body, headers)
        until(lambda: any(span.kind is SpanKind.SERVER for span in self.exporter.get_finished_spans()))
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.kind is not SpanKind.SERVER)


@pytest.fixture(scope="module")
def tracing() -> Iterator[Tracing]:
    exporter = InMemorySpanExporter()
    traces = OtelTraces(exporter, "memory", time.monotonic, time.time, gather_s=0.0)
    with running_server(SLOW, traces=traces) as server:
        yield Tracing(server, exporter)
        server.wait_idle()
    traces.close(TIMEOUT_S)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# ---------------------------------------------------------------- what a trace says


def test_a_chat_is_a_span_of_the_client_s_trace_with_its_phases_below(tracing: Tracing) -> None:
    before = time.time_ns()
    body = {
        "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 7, "ignore_eos": True, "temperature": 0.5,
        "user": "somebody",
    }  # fmt: skip
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "mine"}
    root, *phases = tracing.ask("/v1/chat/completions", body, headers)
    assert root.name == "chat fake" and root.kind is SpanKind.SERVER and root.status.status_code is StatusCode.UNSET
    assert root.context is not None and root.parent is not None
    assert f"{root.context.trace_id:032x}" == TRACE and f"{root.parent.span_id:016x}" == PARENT
    assert root.context.trace_state.get("vendor") == "1"
    said = attributes(root)
    assert said["http.route"] == "/v1/chat/completions" and said["http.response.status_code"] == 200
    assert said["gen_ai.request.id"] == "mine" and said["gen_ai.request.model"] == "fake"
    assert said["gen_ai.request.max_tokens"] == 7 and said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.usage.output_tokens"] == said["gen_ai.usage.completion_tokens"] == 7
    assert said["gen_ai.usage.input_tokens"] > len(PROMPT)
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert said["chairlift.tenant"] == "somebody"
    assert 0 < said["gen_ai.latency.time_to_first_token"] <= said["gen_ai.latency.e2e"] < TIMEOUT_S
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in phases)
    times = [time_ns for span in phases for time_ns in (span.start_time or 0, span.end_time or 0)]
    assert times == sorted(times)
    assert before - 10**6 < (root.start_time or 0) <= times[0] and times[-1] <= time.time_ns() + 10**6
    assert phases[0].end_time == phases[1].start_time and phases[1].end_time == phases[2].start_time
    assert PROMPT not in "".join(span.to_json() for span in (root, *phases))


def test_every_choice_and_prompt_has_phases_up_to_a_number(tracing: Tracing) -> None:
    root, *phases = tracing.ask("/v1/completions", {"prompt": ["a", "b"], "n": 12, "max_tokens": 2})
    assert root.name == "text_completion fake"
    assert attributes(root)["gen_ai.request.choice.count"] == 12
    assert len(phases) == 3 * MAX_CHOICES
    assert {attributes(span)["chairlift.choice"] for span in phases} == set(range(MAX_CHOICES))


def test_preemptions_are_spans_with_their_reason(tracing: Tracing) -> None:
    def decide(request: Request) -> Decisions:
        start = request.arrival
        return Decisions(
            waited=((WaitReason.BLOCKS, 0.25),),
            preemptions=((99, PreemptReason.BLOCKS), (98, PreemptReason.PRIORITY)),
            absences=((start + 0.001, start + 0.002), (start + 0.003, start + 0.004)),
            recomputed_tokens=30,
        )

    tracing.server.worker.decide = decide
    try:
        _, *phases = tracing.ask("/v1/completions", {"prompt": "x", "max_tokens": 3})
    finally:
        tracing.server.worker.decide = lambda _: Decisions()
    preempted = [span for span in phases if span.name == "preempted"]
    assert [attributes(span)["chairlift.reason"] for span in preempted] == ["blocks", "priority"]
    assert [round(((span.end_time or 0) - (span.start_time or 0)) / 1e6) for span in preempted] == [1, 1]
    said = {span.name: attributes(span) for span in phases}
    assert said["queue"]["chairlift.waited.blocks_s"] == 0.25
    assert said["decode"]["chairlift.recomputed_tokens"] == 30
    assert said["decode"]["chairlift.num_preemptions"] == 2


@pytest.mark.parametrize(
    "said", ["", "junk", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", "00-" + "a" * 900]
)
def test_a_header_that_names_no_trace_begins_a_new_one(tracing: Tracing, said: str) -> None:
    root, *phases = tracing.ask("/v1/completions", {"prompt": "x", "max_tokens": 2}, {"traceparent": said})
    assert root.parent is None and root.context is not None
    assert f"{root.context.trace_id:032x}" != TRACE
    assert len(phases) == 3


def test_a_client_that_does_not_sample_is_not_traced(tracing: Tracing) -> None:
    quiet = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    tracing.exporter.clear()
    assert tracing.server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}, quiet)[0] == 200
    root, *_ = tracing.ask("/v1/completions", {"prompt": "loud", "max_tokens": 2})
    assert root.parent is None
    roots = [span for span in tracing.exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert len(roots) == 1


def test_errors_are_named_and_only_the_server_s_own_are_marked(tracing: Tracing) -> None:
    (refused,) = tracing.ask("/v1/completions", {"prompt": "x", "temperature": -1})
    assert (attributes(refused)["http.response.status_code"], attributes(refused)["error.type"]) == (400, "400")
    assert refused.status.status_code is StatusCode.UNSET
    failed, *phases = tracing.ask("/v1/completions", {"prompt": FAIL, "ignore_eos": True})
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "internal_error"
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]


def test_numbers_and_names_that_cannot_be_sent_do_not_take_others_along(tracing: Tracing) -> None:
    body = {"prompt": "x", "max_tokens": 2, "seed": 2**64 - 1, "user": "a\u202e\x9bb"}
    root, *_ = tracing.ask("/v1/completions", body)
    said = attributes(root)
    assert said["http.response.status_code"] == 200
    assert "gen_ai.request.seed" not in said
    assert said["chairlift.tenant"] == "a\\u202e\\x9bb"


def test_a_stream_that_a_lost_engine_ended_says_so() -> None:
    exporter = InMemorySpanExporter()
    traces = OtelTraces(exporter, "memory", time.monotonic, time.time, gather_s=0.0)
    prompts = (f"{DIE} {number}" for number in range(100))
    prompt = next(p for p in prompts if max(answer_tokens([TURN, *p.encode()], 0, 2)) < 128)  # text from the start
    with running_server(SLOW, traces=traces) as server:
        body = {"prompt": prompt, "ignore_eos": True, "stream": True}
        assert server.request("POST", "/v1/completions", body)[0] == 200
    traces.close(TIMEOUT_S)
    (root,) = exporter.get_finished_spans()
    assert attributes(root)["error.type"] == "engine_dead"
    assert root.status.status_code is StatusCode.ERROR


# ---------------------------------------------------------------- collectors that do not answer


def one(number: int = 0) -> Traced:
    used = Used(f"r{number}", is_traced=True)
    used.model, used.params = "m", SamplingParams()
    used.add(
        Finish(
            id=1, choice=0, reason=FinishReason.STOP, stop_reason=None, error=None, num_prompt_tokens=3,
            num_output_tokens=2, num_cached_tokens=0, num_preemptions=0, arrival=1.0, first_scheduled=1.5,
            first_token=2.0, finished=3.0,
        )
    )  # fmt: skip
    return Traced(
        request_id=f"r{number}", principal="", method="POST", route="/v1/completions", status=200, error_code=None,
        arrival=1.0, ended=3.0, used=used,
    )  # fmt: skip


def test_one_that_hangs_costs_no_time_and_what_does_not_fit_is_counted() -> None:
    exporter = Held()
    traces = OtelTraces(exporter, "nowhere", time.monotonic, time.time, max_queued=10, gather_s=0.0)
    traces.put(one())
    until(lambda: exporter.num_exports == 1)
    started = time.process_time()
    for number in range(5000):
        traces.put(one(number))
    assert time.process_time() - started < 2.0
    assert traces.num_lost == 4990
    exporter.gate.set()
    traces.close(TIMEOUT_S)
    assert sum(span.kind is SpanKind.SERVER for span in exporter.spans) == 11
    assert traces.num_lost == 4990


def test_closing_does_not_wait_for_one_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Held()
    traces = OtelTraces(exporter, "nowhere", time.monotonic, time.time, max_queued=2, gather_s=0.0)
    traces.put(one())
    until(lambda: exporter.num_exports == 1)
    for number in range(5):
        traces.put(one(number))
    started = time.monotonic()
    traces.close(0.05)
    assert time.monotonic() - started < TIMEOUT_S / 2
    assert "3 requests were not delivered" in caplog.text
    exporter.gate.set()


def test_one_that_refuses_is_complained_of_once_until_it_takes_something(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "PAUSE_S", 0.0)
    caplog.set_level(logging.INFO)
    exporter = Held()
    exporter.refuses = True
    exporter.gate.set()
    traces = OtelTraces(exporter, "http://collector:4318", time.monotonic, time.time, gather_s=0.0)
    for number in range(5):
        traces.put(one(number))
        until(lambda number=number: traces.num_lost == number + 1)  # type: ignore[misc]
    assert caplog.text.count("cannot be delivered to http://collector:4318") == 1
    exporter.refuses = False
    traces.put(one())
    until(lambda: bool(exporter.spans))
    traces.close(TIMEOUT_S)
    assert caplog.text.count("again") == 1
    assert traces.num_lost == 5


def test_what_is_there_at_the_end_is_delivered() -> None:
    exporter = InMemorySpanExporter()
    traces = OtelTraces(exporter, "memory", time.monotonic, time.time, gather_s=3600.0)
    for number in range(600):
        traces.put(one(number))
    traces.close(TIMEOUT_S)
    assert len(exporter.get_finished_spans()) == 600 * 4
    assert traces.num_lost == 0


# ---------------------------------------------------------------- over HTTP


class Collector(ThreadingHTTPServer):
    """As much of a collector as can be listened to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.paths: list[str] = []
        self.requests: list[ExportTraceServiceRequest] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receiving(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/other?x=1"])
def test_a_collector_gets_them_over_http_with_who_sent_them(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the-lift")
    with Collector() as collector:
        traces = open_traces(collector.url + path)
        traces.put(one())
        traces.close(TIMEOUT_S)
        collector.shutdown()
    assert collector.paths == [path if len(path) > 1 else "/v1/traces"]
    (resource,) = collector.requests[0].resource_spans
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert named["service.name"] == "the-lift" and "service.version" in named
    assert [span.name for span in resource.scope_spans[0].spans] == ["queue", "prefill", "decode", "text_completion m"]


def test_one_that_is_not_there_is_named_without_its_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "EXPORT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    traces = open_traces(f"http://user:secret@127.0.0.1:{port}/path?token=secret")
    traces.put(one())
    until(lambda: traces.num_lost == 1)
    traces.close(0.0)
    assert f"cannot be delivered to http://127.0.0.1:{port};" in caplog.text
    assert "secret" not in caplog.text


def test_a_server_sends_what_is_left_before_it_ends() -> None:
    with Collector() as collector:
        with served(script="serve_traced.py", otlp_traces_endpoint=collector.url) as server:
            assert server.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 200
            server.tell(signal.SIGTERM)
            assert server.status() == 0
        collector.shutdown()
    names = [span.name for span in collector.requests[0].resource_spans[0].scope_spans[0].spans]
    assert sorted(names) == ["decode", "prefill", "queue", "text_completion fake"]
    assert PROMPT not in str(collector.requests)


def test_a_server_whose_collector_hangs_serves_and_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with served(script="serve_traced.py", otlp_traces_endpoint=url) as server:
            for _ in range(100):
                assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
            server.tell(signal.SIGTERM)
            assert server.status() == 0


def test_a_trace_that_cannot_be_made_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    traces = OtelTraces(exporter, "memory", time.monotonic, time.time, gather_s=0.0)
    traces.put(replace(one(), arrival=float("nan")))
    traces.put(one())
    traces.close(TIMEOUT_S)
    assert len(exporter.get_finished_spans()) >= 4
    assert traces.num_lost == 1
    assert "no trace could be made" in caplog.text


assert os.environ.get("OTEL_TRACES_SAMPLER") is None, "these tests read what is sampled by default"
