"""How often which value came, exactly while there are few different ones and to four digits when there are many."""

from __future__ import annotations

from chairlift.metrics.counted import Counted

MAX_DISTINCT = 1 << 16
"""Different values that are kept apart exactly."""


class Values:
    """Counts of values. Memory is bounded: past `MAX_DISTINCT` different ones each is rounded to four significant
    digits, an error of at most 0.05 %."""

    __slots__ = ("_counts", "is_rounded", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self.is_rounded = False
        self._counts: dict[float, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        """Note that a value came `count` times more."""
        counts = self._counts
        self.sum += value * count
        if self.is_rounded:
            value = _rounded(value)
        counts[value] = counts.get(value, 0) + count
        if len(counts) > MAX_DISTINCT and not self.is_rounded:
            self._round()

    def counted(self) -> Counted:
        """All values, ascending."""
        return Counted(self._counts.items())

    def _round(self) -> None:
        self.is_rounded = True
        rounded: dict[float, int] = {}
        for value, count in self._counts.items():
            value = _rounded(value)
            rounded[value] = rounded.get(value, 0) + count
        self._counts = rounded


def _rounded(value: float) -> float:
    return float(f"{value:.3e}")
