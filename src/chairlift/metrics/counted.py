"""Values that come many times each: what a step gives all its rows is kept once, with how many got it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from chairlift.metrics.latency import Summary, percentile


class Counted(Sequence[float]):
    """Ascending values that come many times each, as if they were written out."""

    def __init__(self, values: Iterable[tuple[float, int]]) -> None:
        pairs = sorted(values)
        self.values = [value for value, _ in pairs]
        self.counts = [count for _, count in pairs]
        self._ends = list(accumulate(self.counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...

    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.values[bisect_right(self._ends, index % len(self))]

    def __iter__(self) -> Iterator[float]:
        for value, count in zip(self.values, self.counts, strict=True):
            for _ in range(count):
                yield value

    def summary(self, percents: Sequence[float]) -> Summary | None:
        """Mean, median, deviation and percentiles; None if there are no values."""
        num = len(self)
        if not num:
            return None
        mean = sum(value * count for value, count in zip(self.values, self.counts, strict=True)) / num
        square = sum((value - mean) ** 2 * count for value, count in zip(self.values, self.counts, strict=True)) / num
        return Summary(mean, percentile(self, 50.0), square**0.5, {p: percentile(self, p) for p in percents})
