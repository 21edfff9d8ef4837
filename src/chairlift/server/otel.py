"""Traces of requests for an OpenTelemetry collector; imported only where the operator names one.

    POST /v1/... ---------------------------------------------- server span, a child of what the client's header says
      queue -----|prefill ------|decode ------------------|     one of each for every choice, as the engine saw it
                                    preempted ---|              for every stay out of a slot

Serving hands over what it knows anyway, and never waits: spans are made and sent on a thread, from a bounded queue
whose overflow is lost and counted. A collector that does not answer is complained of once, until it answers again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Full, Queue
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from chairlift import __version__
from chairlift.core.types import Finish
from chairlift.server.logs import printable
from chairlift.server.traced import Traced
from chairlift.server.usage import Used

_log = logging.getLogger("chairlift.server")

MAX_QUEUED = 2048
"""Requests that wait to be sent."""
MAX_BATCH = 256
"""Requests sent at once."""
MAX_CHOICES = 16
"""Of one request, so many have spans of their own."""
GATHER_S = 1.0
"""How long the first of a batch waits for others."""
PAUSE_S = 5.0
"""After a batch that could not be delivered."""
EXPORT_TIMEOUT_S = 5.0

MAX_NUMBER = 2**63
"""Integers beyond cannot be sent, and would take the whole batch with them."""

OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embeddings": "embeddings",
}
"""What the conventions call it; what generates otherwise is a chat, and other readings of texts go by their path."""

Attributes = dict[str, AttributeValue]


class OtelTraces:
    """Sends a trace of each request through an exporter, on a thread of its own."""

    def __init__(
        self,
        exporter: SpanExporter,
        where: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        max_queued: int = MAX_QUEUED,
        gather_s: float = GATHER_S,
    ) -> None:
        self._exporter = exporter
        self._where = where
        self._clock = clock
        self._wall_clock = wall_clock
        self._gather_s = gather_s
        self._queue: Queue[tuple[Traced, float] | None] = Queue(max_queued)
        self._num_refused = 0
        """By a full queue; written by those who put."""
        self._num_undelivered = 0
        """Written by the thread."""
        self._is_failing = False
        self._closing = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="traces", daemon=True).start()

    @property
    def num_lost(self) -> int:
        """Requests whose traces were not delivered and will not be."""
        return self._num_refused + self._num_undelivered

    def put(self, traced: Traced) -> None:
        """Take a request. Never waits."""
        try:
            self._queue.put_nowait((traced, self._wall_clock() - self._clock()))
        except Full:
            self._num_refused += 1

    def close(self, timeout_s: float) -> None:
        """Deliver what is there, for at most `timeout_s` seconds, and take nothing more."""
        deadline = self._clock() + timeout_s
        self._closing.set()
        with contextlib.suppress(Full):
            self._queue.put(None, timeout=timeout_s)
        self._closed.wait(max(0.0, deadline - self._clock()))
        if self.num_lost:
            _log.warning("the traces of %d requests were not delivered to %s", self.num_lost, self._where)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        spans = _Collected()
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(spans)
        tracer = provider.get_tracer("chairlift", __version__)
        is_over = False
        while not is_over:
            batch, is_over = self._batch()
            num_lost = 0
            for traced, wall_s in batch:
                try:
                    _trace(tracer, traced, wall_s)
                except Exception:
                    num_lost += 1
                    _log.exception("no trace could be made of a request")
            if not self._deliver(spans.take()):
                num_lost = len(batch)
            self._num_undelivered += num_lost
            if self._is_failing:
                self._closing.wait(PAUSE_S)
        self._exporter.shutdown()
        self._closed.set()

    def _batch(self) -> tuple[list[tuple[Traced, float]], bool]:
        """What is there, after waiting for some of it and a little for more; and whether nothing more will come."""
        first = self._queue.get()
        self._closing.wait(self._gather_s)
        found = [first]
        try:
            while len(found) < MAX_BATCH:
                found.append(self._queue.get_nowait())
        except Empty:
            pass
        return [one for one in found if one is not None], None in found

    def _deliver(self, spans: Sequence[ReadableSpan]) -> bool:
        if not spans:
            return True
        try:
            is_delivered = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:
            _log.debug("traces: %s", error)
            is_delivered = False
        if is_delivered and self._is_failing:
            _log.info("traces are delivered to %s again", self._where)
        elif not is_delivered and not self._is_failing:
            _log.warning("traces cannot be delivered to %s; serving goes on, and they are lost", self._where)
        self._is_failing = not is_delivered
        return is_delivered


def open_traces(endpoint: str) -> OtelTraces:
    """Sends to the collector at this URL, in protobuf over HTTP; certificates and headers as `OTEL_EXPORTER_` variables
    say. A URL without a path means the usual one."""
    url = urlsplit(endpoint)
    full = urlunsplit(url._replace(path="/v1/traces")) if url.path in ("", "/") else endpoint
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would complain of every batch
    where = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "")  # what else it says may be a secret
    exporter = OTLPSpanExporter(endpoint=full, timeout=EXPORT_TIMEOUT_S)
    return OtelTraces(exporter, where, time.monotonic, time.time)


class _Collected(SpanProcessor):
    """Spans that ended, until they are taken; all on one thread."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Those since the last time."""
        taken, self._spans = self._spans, []
        return taken


def _resource() -> Resource:
    """Who sends it; what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say goes before."""
    ours = Resource({SERVICE_NAME: "chairlift", SERVICE_VERSION: __version__})
    return ours.merge(OTELResourceDetector().detect())


# ---------------------------------------------------------------- what a trace says


def _trace(tracer: Tracer, traced: Traced, wall_s: float) -> None:
    """The spans of one request. The ends of its choices may come after its own: its client may have left."""

    def at(moment: float) -> int:
        """Nanoseconds since 1970."""
        return int((moment + wall_s) * 1e9)

    operation = _operation(traced)
    root = tracer.start_span(
        f"{operation} {traced.used.model}" if traced.used.model else f"{traced.method} {traced.route}",
        context=TraceContextTextMapPropagator().extract(
            {"traceparent": traced.traceparent, "tracestate": traced.tracestate}
        ),
        kind=SpanKind.SERVER,
        attributes=dict(_attributes(traced, operation)),
        start_time=at(traced.arrival),
    )
    is_broken_off = traced.error_code is not None and (traced.status or 500) < 400
    if is_broken_off or (traced.status or 0) >= 500 or "error" in traced.used.reasons:
        root.set_status(Status(StatusCode.ERROR))
    if root.is_recording():
        for number, finish in enumerate((traced.used.finishes or [])[:MAX_CHOICES]):
            for name, start, end, attributes in _phases(finish):
                _child(tracer, root, name, at(start), at(end), attributes | {"chairlift.choice": number})
    root.end(at(traced.ended))


def _child(tracer: Tracer, parent: Span, name: str, start: int, end: int, attributes: Attributes) -> None:
    span = tracer.start_span(name, context=set_span_in_context(parent), attributes=attributes, start_time=start)
    span.end(max(start, end))


def _phases(finish: Finish) -> Iterator[tuple[str, float, float, Attributes]]:
    """Name, start, end and attributes of what happened to one choice."""
    scheduled, first, ended = finish.first_scheduled, finish.first_token, finish.finished
    decisions = finish.decisions
    waited: Attributes = {f"chairlift.waited.{reason.value}_s": seconds for reason, seconds in decisions.waited}
    yield "queue", finish.arrival, ended if scheduled is None else scheduled, waited
    if scheduled is not None:
        yield (
            "prefill",
            scheduled,
            ended if first is None else first,
            {
                "chairlift.prompt_tokens": finish.num_prompt_tokens,
                "chairlift.cached_tokens": finish.num_cached_tokens,
                "chairlift.chunks": decisions.chunks,
            },
        )
    if first is not None:
        yield (
            "decode",
            first,
            ended,
            {
                "chairlift.output_tokens": finish.num_output_tokens,
                "chairlift.finish_reason": finish.reason.value,
                "chairlift.num_preemptions": finish.num_preemptions,
                "chairlift.recomputed_tokens": decisions.recomputed_tokens,
            },
        )
    has_reasons = len(decisions.absences) == len(decisions.preemptions)
    for number, (start, end) in enumerate(decisions.absences):
        reason: Attributes = {"chairlift.reason": decisions.preemptions[number][1].value} if has_reasons else {}
        yield "preempted", start, end, reason


def _operation(traced: Traced) -> str:
    if traced.route in OPERATIONS:
        return OPERATIONS[traced.route]
    return "chat" if traced.used.params is not None else traced.route.rpartition("/")[2]


def _attributes(traced: Traced, operation: str) -> Iterator[tuple[str, AttributeValue]]:
    """By the conventions for HTTP and generative models, and by the names that vLLM gives to the same."""
    used = traced.used
    yield "http.request.method", traced.method
    yield "http.route", traced.route
    if traced.status is not None:
        yield "http.response.status_code", traced.status
    if traced.error_code is not None or (traced.status or 0) >= 400:
        yield "error.type", traced.error_code or str(traced.status)
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", "chairlift"
    yield "gen_ai.request.id", traced.request_id
    yield "chairlift.principal", traced.principal
    yield "chairlift.tenant", printable(used.tenant)
    if used.client_left:
        yield "chairlift.client_left", True
    if used.model:
        yield "gen_ai.request.model", used.model
        yield "gen_ai.response.model", used.model
    yield from _asked(used)
    if used.reasons:
        yield "gen_ai.response.finish_reasons", sorted(used.reasons)
    yield "gen_ai.usage.input_tokens", used.num_prompt_tokens
    yield "gen_ai.usage.output_tokens", used.num_output_tokens
    yield "gen_ai.usage.cache_read.input_tokens", used.num_cached_tokens
    yield "gen_ai.usage.prompt_tokens", used.num_prompt_tokens
    yield "gen_ai.usage.completion_tokens", used.num_output_tokens
    yield from _latencies(traced)


def _asked(used: Used) -> Iterator[tuple[str, AttributeValue]]:
    """How the answer was to be; nothing in it that is text."""
    params = used.params
    if params is None:
        return
    yield "gen_ai.request.n", used.n
    yield "gen_ai.request.choice.count", used.n
    for name in ("max_tokens", "seed", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"):
        value = getattr(params, name)
        if value is not None and -MAX_NUMBER <= value < MAX_NUMBER:
            yield f"gen_ai.request.{name}", value


def _latencies(traced: Traced) -> Iterator[tuple[str, AttributeValue]]:
    """Seconds: of the first choice to get a token, as vLLM tells them of its only one."""
    yield "gen_ai.latency.e2e", traced.ended - traced.arrival
    finishes = traced.used.finishes or []
    started = [finish for finish in finishes if finish.first_scheduled is not None]
    if not started:
        return
    one = min(started, key=lambda finish: finish.first_token or finish.finished)
    scheduled = one.first_scheduled or one.arrival
    yield "gen_ai.latency.time_in_queue", scheduled - one.arrival
    yield "gen_ai.latency.time_in_model_inference", one.finished - scheduled
    if one.first_token is not None:
        yield "gen_ai.latency.time_to_first_token", one.first_token - one.arrival
        yield "gen_ai.latency.time_in_model_prefill", one.first_token - scheduled
        yield "gen_ai.latency.time_in_model_decode", one.finished - one.first_token
