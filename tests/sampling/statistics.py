"""What chance allows."""

from __future__ import annotations

from collections.abc import Sequence


def chi_square(counts: Sequence[float], expected: Sequence[float]) -> float:
    """Pearson's statistic; every expected count is positive."""
    return sum((have - want) ** 2 / want for have, want in zip(counts, expected, strict=True))


def chi_square_limit(degrees: int) -> float:
    """A value that a true hypothesis exceeds about once in 30,000 times.

    Source: Wilson and Hilferty 1931, with the normal quantile 4.
    """
    part = 2.0 / (9.0 * degrees)
    return float(degrees * (1.0 - part + 4.0 * part**0.5) ** 3)
