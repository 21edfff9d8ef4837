"""How many tokens prompts and answers have."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from chairlift.core.errors import InvalidOption

MAX_TOKENS = 1 << 24
"""Longest prompt, and longest answer. A prompt is spelled before an engine refuses it."""
_MAX_LOG = math.log(MAX_TOKENS) + 1.0


class Lengths(Protocol):
    """A distribution of lengths, in tokens, from 1 to `MAX_TOKENS`."""

    def draw(self, random: Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __post_init__(self) -> None:
        _check(self.tokens >= 1, "a length must be at least 1")
        _check(self.tokens <= MAX_TOKENS, f"a length must be at most {MAX_TOKENS}")

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high` as likely as any other."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check(1 <= self.low <= self.high, "uniform lengths go from at least 1 upwards")
        _check(self.high <= MAX_TOKENS, f"a length must be at most {MAX_TOKENS}")

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Median `median`, standard deviation of the logarithm `sigma`; whole tokens, 1 .. `most` or `MAX_TOKENS`."""

    median: float
    sigma: float
    most: float = math.inf

    def __post_init__(self) -> None:
        _check(0 < self.median < math.inf and 0 <= self.sigma < math.inf, "log-normal lengths: median > 0, sigma >= 0")
        _check(self.most >= 1, "log-normal lengths: at most 1 or more")

    def draw(self, random: Random) -> int:
        log = random.gauss(math.log(self.median), self.sigma)
        return int(min(max(math.exp(min(log, _MAX_LOG)), 1.0), self.most, MAX_TOKENS))


class Empirical:
    """Lengths as often as they were counted; those below 1 count as 1.

    Raises:
        InvalidOption: nothing was counted, or less than nothing.
    """

    def __init__(self, counts: Iterable[tuple[float, float]]) -> None:
        found = [pair for pair in counts if pair[1]]
        _check(
            all(0 < count < math.inf for _, count in found) and bool(found), "empirical lengths: nothing to draw from"
        )
        _check(all(abs(length) <= MAX_TOKENS for length, _ in found), f"a length must be at most {MAX_TOKENS}")
        pairs = [(max(1, round(length)), count) for length, count in found]
        self._lengths = [length for length, _ in pairs]
        self._ends = list(accumulate(count for _, count in pairs))

    def draw(self, random: Random) -> int:
        place = bisect_right(self._ends, random.random() * self._ends[-1])
        return self._lengths[min(place, len(self._lengths) - 1)]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidOption(message)


def parse_lengths(text: str, read_counts: Callable[[str], Iterable[tuple[float, float]]] | None = None) -> Lengths:
    """A distribution from a text: `1000`, `uniform:32:512`, `lognormal:90:1:2000` (median, sigma, most), or
    `empirical:PATH`, whose counts `read_counts` reads.

    Raises:
        InvalidOption: anything else.
    """
    name, _, rest = text.partition(":")
    fields = rest.split(":") if rest else []
    try:
        match name, len(fields):
            case "fixed", 1:
                return Fixed(int(fields[0]))
            case _, 0:
                return Fixed(int(name))
            case "uniform", 2:
                return Uniform(int(fields[0]), int(fields[1]))
            case "lognormal", 2 | 3:
                return LogNormal(*map(float, fields))
            case "empirical", _ if read_counts is not None:
                return Empirical(read_counts(rest))
    except ValueError:
        pass
    raise InvalidOption(f"not lengths such as 1000, uniform:32:512, lognormal:90:1:2000 or empirical:FILE: {text!r}")
