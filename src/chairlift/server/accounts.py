"""What follows on a request that is over: its principal is charged, its line is written, its trace is handed on."""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.admission import Admission
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.exchange import Exchange
from chairlift.server.traced import Traced, Traces
from chairlift.server.usage import Used
from chairlift.server.usage_log import UsageLog


class Accounts:
    """Of all requests that use an engine. `clock` is that of requests."""

    def __init__(self, clock: Callable[[], float], usage_log: UsageLog | None, traces: Traces | None) -> None:
        self._clock = clock
        self._usage_log = usage_log
        self._traces = traces

    def open(self, exchange: Exchange) -> None:
        """From here on it is counted what a request uses."""
        exchange.used = Used(exchange.id, is_traced=self._traces is not None)

    def settle(self, exchange: Exchange, used: Used, route: str, arrival: float, admission: Admission | None) -> None:
        """A request is over; what it used is known now, or once the engine has ended what nobody waits for."""
        name, then = exchange.principal.name, self._records(exchange, used, route, arrival)

        def settled() -> None:
            if admission is not None:
                admission.spent(name, used.num_output_tokens, self._clock())
            for record in then:
                record()

        used.when_settled(settled)

    def report(self, metrics: ServingMetrics) -> None:
        """Tell the metrics what was lost of what was written."""
        if self._usage_log is not None:
            metrics.num_usage_records_lost = self._usage_log.num_lost
        if self._traces is not None:
            metrics.num_traces_lost = self._traces.num_lost

    def _records(self, exchange: Exchange, used: Used, route: str, arrival: float) -> list[Callable[[], None]]:
        """What writes down a request that is over."""
        records: list[Callable[[], None]] = []
        if self._usage_log is not None:
            records.append(self._line(self._usage_log, exchange, used, route, arrival))
        if self._traces is not None:
            records.append(self._trace(self._traces, exchange, used, route, arrival))
        return records

    def _line(self, log: UsageLog, exchange: Exchange, used: Used, route: str, arrival: float) -> Callable[[], None]:
        about = {"id": exchange.id, "principal": exchange.principal.name, "route": route, "status": exchange.status}
        if exchange.batch is not None:
            about["batch"] = exchange.batch
        total_s = {"total_s": round(self._clock() - arrival, 6)}
        return lambda: log.put(about | used.record() | total_s)

    def _trace(self, traces: Traces, exchange: Exchange, used: Used, route: str, arrival: float) -> Callable[[], None]:
        headers = exchange.headers
        traced = Traced(
            request_id=exchange.id,
            principal=exchange.principal.name,
            method=exchange.method,
            route=route,
            status=exchange.status,
            error_code=exchange.error_code,
            arrival=arrival,
            ended=self._clock(),
            used=used,
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            tracestate=headers.get(b"tracestate", b"").decode("latin-1"),
        )
        return lambda: traces.put(traced)
