"""What a client saw of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from chairlift.metrics import latency


@dataclass(slots=True)
class Exchange:
    """One request and its answer, in seconds on the client's monotonic clock.

    `deliveries` are the times at which text came; without streaming there are none. `error` says why the request
    failed; then only `start` and `finished` mean something. `queue_s` is how long the client itself held the request
    back after it was due: what a limit on concurrency hides from the other latencies.
    """

    start: float
    deliveries: list[float] = field(default_factory=list)
    finished: float = 0.0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    text: str = ""
    error: str | None = None
    queue_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        return latency.ttft(self.start, self.deliveries[0]) if self.deliveries else None

    @property
    def itls_s(self) -> list[float]:
        return latency.itls(self.deliveries)

    @property
    def tpot_s(self) -> float | None:
        if not self.deliveries:
            return None
        return latency.tpot(self.deliveries[0], self.finished, self.num_output_tokens)

    @property
    def e2el_s(self) -> float:
        return latency.e2e(self.start, self.finished)
