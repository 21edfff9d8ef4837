"""Latency objectives, and how far a run keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.metrics.latency import itls, percentile
from chairlift.sim.result import Result, e2e_s, is_completed, ttft_s
from chairlift.sim.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Bounds of a percentile of latencies over all requests, in seconds; infinite where none is wanted.

    A request that is not completed has no first token and no end in time, whatever it got.

    Raises:
        InvalidOption: a bound that is not above 0, or a percentage that is not between 0 and 100.
    """

    ttft_s: float = math.inf
    itl_s: float = math.inf
    e2e_s: float = math.inf
    percent: float = 99.0

    def __post_init__(self) -> None:
        if not all(bound > 0.0 for bound in (self.ttft_s, self.itl_s, self.e2e_s)):
            raise InvalidOption("a latency objective must be above 0")
        if not 0.0 < self.percent < 100.0:
            raise InvalidOption("the percentile of objectives must be above 0 and below 100")

    def missed(self, latencies: Latencies) -> tuple[str, ...]:
        """Names of the objectives that latencies do not keep."""
        found = []
        if not latencies.ttft_s <= self.ttft_s:
            found.append("TTFT")
        if not latencies.itl_s <= self.itl_s:
            found.append("ITL")
        if not latencies.e2e_s <= self.e2e_s:
            found.append("E2E")
        if latencies.dropped_share > 1.0 - self.percent / 100.0:
            found.append("dropped")
        return tuple(found)

    def num_misses_to_fail(self, num_requests: int) -> int:
        """So many requests later than a bound, and the percentile of all is later, whatever becomes of the others."""
        return num_requests - math.floor((num_requests - 1) * self.percent / 100.0)

    def is_good(self, result: Result, served: Served) -> bool:
        """Whether a request by itself was completed and kept every bound; of its inter-token latencies, their
        percentile."""
        first, end = ttft_s(served), e2e_s(served)
        if not is_completed(served) or first is None or end is None or first > self.ttft_s or end > self.e2e_s:
            return False
        if self.itl_s == math.inf:
            return True
        gaps = [gap for choice in range(served.asked.n) for gap in itls(result.token_times(served, choice))]
        return not gaps or percentile(sorted(gaps), self.percent) <= self.itl_s


@dataclass(frozen=True, slots=True)
class Latencies:
    """The percentile that objectives are about, in seconds, of all requests of a run, and how many were dropped."""

    ttft_s: float
    itl_s: float
    e2e_s: float
    dropped_share: float


def latencies_of(result: Result, percent: float) -> Latencies:
    """Of a run; without an answer of two tokens there is no ITL, and it is 0."""
    completed = [served for served in result.served if is_completed(served)]
    num_dropped = len(result.served) - len(completed)
    gaps = result.inter_token_latencies
    return Latencies(
        _late(map(ttft_s, completed), num_dropped, percent),
        percentile(gaps, percent) if len(gaps) else 0.0,
        _late(map(e2e_s, completed), num_dropped, percent),
        num_dropped / len(result.served) if result.served else 0.0,
    )


def _late(values: Iterable[float | None], num_never: int, percent: float) -> float:
    """A percentile of values, of which so many more are infinite."""
    ordered = sorted(value for value in values if value is not None)
    return _percentile(ordered, len(ordered) + num_never, percent)


def _percentile(ordered: Sequence[float], num_all: int, percent: float) -> float:
    place = (num_all - 1) * percent / 100.0
    if num_all == 0:
        return 0.0
    if math.ceil(place) >= len(ordered):
        return math.inf
    if num_all == len(ordered):
        return percentile(ordered, percent)
    return percentile(ordered, 100.0 * place / max(len(ordered) - 1, 1))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within the objectives, per second; `penalised` takes off those that were late or dropped, each
    `penalty` times."""

    raw: float
    penalised: float
    good_share: float


def goodput_of(result: Result, objectives: Objectives, penalty: float = 1.0) -> Goodput:
    """Per second of the time in which requests arrived: how long the last answers take is of no account."""
    arrivals = [served.asked.arrival for served in result.served]
    num_all = len(arrivals)
    if num_all < 2 or not max(arrivals) > min(arrivals):
        return Goodput(0.0, 0.0, 0.0)
    rate = (num_all - 1) / (max(arrivals) - min(arrivals))
    good = sum(objectives.is_good(result, served) for served in result.served) / num_all
    return Goodput(good * rate, (good - penalty * (1.0 - good)) * rate, good)
