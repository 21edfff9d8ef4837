"""A histogram that costs one bisection to feed: the counts of the values in each bucket, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by bucket. `edges` are the inclusive upper bounds, ascending; above the last lies infinity."""

    __slots__ = ("_counts", "_edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` equal values: a step gives every row the same gap, so one call serves them all."""
        self._counts[bisect_left(self._edges, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """How many values were seen."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as Prometheus writes it, number of values at most that), ending with `+Inf`."""
        rows: list[tuple[str, float]] = []
        below = 0
        for edge, count in zip(self._edges, self._counts, strict=False):
            below += count
            rows.append((repr(float(edge)), float(below)))
        rows.append(("+Inf", float(below + self._counts[-1])))
        return rows
