"""When requests arrive: gaps between them, under a rate that may change with time. The same for the same random stream.

Gaps are drawn with mean 1 and stretched by the rate: n arrivals are expected where the integral of the rate grows by n.

    gaps      poisson: exponential      gamma: of a given burstiness      constant: all 1
    rate      phases of (seconds, rate at the begin, rate at the end), linear in between, from the first again or not
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from chairlift.core.errors import InvalidOption

LEAST_IN_CYCLE = 1e-4
"""Or looking for the next arrival takes for ever."""

GapName = Literal["poisson", "gamma", "constant"]


@dataclass(frozen=True, slots=True)
class Phase:
    """For `duration_s` seconds the rate moves from `begin` to `end` requests a second."""

    duration_s: float
    begin: float
    end: float

    def __post_init__(self) -> None:
        if not self.duration_s > 0.0:
            raise InvalidOption("a phase of the request rate must last longer than 0 s")
        if not (0.0 <= self.begin < math.inf and 0.0 <= self.end < math.inf):
            raise InvalidOption("a request rate must be at least 0 and finite")
        if math.isinf(self.duration_s) and self.begin != self.end:
            raise InvalidOption("a request rate cannot move for ever")

    @property
    def num_expected(self) -> float:
        """Arrivals in the whole phase."""
        if self.begin == self.end == 0.0:
            return 0.0
        return self.duration_s * (self.begin + self.end) / 2.0

    def after(self, since: float, num: float) -> float:
        """Seconds from the begin of the phase at which `num` more arrivals are expected than at `since`.

        The phase has as many left.
        """
        slope = 0.0 if self.begin == self.end else (self.end - self.begin) / self.duration_s
        rate = self.begin + slope * since
        if slope == 0.0:
            return since + num / rate
        # rate * x + slope * x * x / 2 = num, in the form that does not cancel.
        root = math.sqrt(max(rate * rate + 2.0 * slope * num, 0.0))
        return min(since + 2.0 * num / (rate + root), self.duration_s)

    def num_between(self, since: float) -> float:
        """Arrivals expected from `since` to the end."""
        if math.isinf(self.duration_s):
            return math.inf if self.begin else 0.0
        rate = self.begin + (self.end - self.begin) * since / self.duration_s
        return (self.duration_s - since) * (rate + self.end) / 2.0


def steady(rate: float) -> tuple[Phase, ...]:
    """One rate for ever.

    Raises:
        InvalidOption: a rate that is not positive.
    """
    if not rate > 0.0:
        raise InvalidOption("a request rate must be above 0")
    return (Phase(math.inf, rate, rate),)


def on_off(rate: float, on_s: float, off_s: float, rest: float = 0.0) -> tuple[Phase, ...]:
    """`rate` for `on_s` seconds, then `rest` for `off_s` seconds; to be repeated."""
    return (Phase(on_s, rate, rate), Phase(off_s, rest, rest))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process of arrivals. `burstiness` is the shape of gamma gaps: below 1 they come in bursts, above 1 steadier.

    Raises:
        InvalidOption: nothing would ever arrive, or a burstiness that is not positive.
    """

    phases: tuple[Phase, ...]
    gaps: GapName = "poisson"
    burstiness: float = 1.0
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.gaps not in get_args(GapName):
            raise InvalidOption(f"gaps must be one of {', '.join(get_args(GapName))}, not {self.gaps!r}")
        if not 0.0 < self.burstiness < math.inf:
            raise InvalidOption("burstiness must be above 0")
        num_expected = 0.0
        for phase in self.phases:
            num_expected += phase.num_expected
            if math.isinf(phase.duration_s):
                break
        if not num_expected > 0.0:
            raise InvalidOption("with these request rates nothing ever arrives")
        if self.repeats and num_expected < LEAST_IN_CYCLE:
            raise InvalidOption(f"fewer than {LEAST_IN_CYCLE:g} arrivals are expected each time the rates repeat")

    def times(self, random: Random) -> Iterator[float]:
        """Arrivals, ascending, in seconds; endless if the last phase is or they repeat."""
        draw = self._draw(random)
        begin, i, since = 0.0, 0, 0.0
        while True:
            num = draw()
            while (left := self.phases[i].num_between(since)) < num:
                num -= left
                begin += self.phases[i].duration_s
                i, since = i + 1, 0.0
                if i == len(self.phases):
                    if not self.repeats:
                        return
                    i = 0
            since = self.phases[i].after(since, num)
            yield begin + since

    def _draw(self, random: Random) -> Callable[[], float]:
        match self.gaps:
            case "poisson":
                return lambda: random.expovariate(1.0)
            case "gamma":
                return lambda: random.gammavariate(self.burstiness, 1.0 / self.burstiness)
            case "constant":
                return lambda: 1.0


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Phases from a text such as `60:2,30:2-10,inf:10`: seconds, then the rate or from which to which.

    Raises:
        InvalidOption: anything else.
    """
    phases = []
    for item in text.split(","):
        duration, colon, rates = item.strip().partition(":")
        begin, dash, end = rates.partition("-")
        try:
            if not colon:
                raise ValueError(item)
            phases.append(Phase(float(duration), float(begin), float(end if dash else begin)))
        except ValueError as error:
            raise InvalidOption(f"not phases such as 60:2,30:2-10: {text!r}") from error
    return tuple(phases)
