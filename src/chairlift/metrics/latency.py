"""The one definition of TTFT, ITL, TPOT, E2E and of percentiles; all times in seconds on one monotonic clock.

    start        first                     last     finished
      |--- TTFT ---|--ITL--|--ITL--| ... --ITL--|      |
      |-------------------- E2E -----------------------|
                   |---- TPOT * (tokens - 1) ----------|

`start` is when the request left the one who measures (a client) or came to it (a server). Deliveries are what the one
who measures can see: steps for a server, chunks for a client.

Source: as vLLM's and SGLang's benchmarks define them, so that figures compare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


def ttft(start: float, first: float) -> float:
    """Time to first token, in seconds."""
    return first - start


def itls(deliveries: Sequence[float]) -> list[float]:
    """Inter-token latencies, in seconds: one for each gap between two deliveries."""
    return [later - earlier for earlier, later in pairwise(deliveries)]


def tpot(first: float, finished: float, num_tokens: int) -> float | None:
    """Time per output token after the first, in seconds; None for an answer of fewer than two tokens."""
    return (finished - first) / (num_tokens - 1) if num_tokens > 1 else None


def e2e(start: float, finished: float) -> float:
    """End-to-end latency, in seconds."""
    return finished - start


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` % of ascending values lie, linear between neighbours.

    Source: definition 7 of Hyndman and Fan 1996, NumPy's default.

    Raises:
        ValueError: no values, or a percentage outside 0 .. 100.
    """
    if not ordered:
        raise ValueError("no values to take a percentile of")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
    place = (len(ordered) - 1) * percent / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, median, standard deviation (of the population) and percentiles of some values, in their unit."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]


def in_ms(name: str, summary: Summary) -> dict[str, float]:
    """The figures of a summary in seconds under the names that reports give them, such as p99_ttft_ms."""
    values = {"mean": summary.mean, "median": summary.median, "std": summary.std}
    values |= {f"p{percent:g}": value for percent, value in summary.percentiles.items()}
    return {f"{figure}_{name}_ms": value * 1e3 for figure, value in values.items()}


def summarize(values: Sequence[float], percents: Sequence[float]) -> Summary | None:
    """What a report says of some values; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Summary(
        mean=statistics.fmean(ordered),
        median=percentile(ordered, 50.0),
        std=statistics.pstdev(ordered),
        percentiles={percent: percentile(ordered, percent) for percent in percents},
    )
