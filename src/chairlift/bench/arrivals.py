"""When requests arrive, in seconds from the start; the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Literal

from chairlift.core.errors import InvalidOption

RampUp = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open-loop arrival process.

    `rate` requests per second, infinite for all at once. Gaps are gamma distributed with shape `burstiness` and mean
    1 / rate: 1 is a Poisson process, below 1 comes in bursts, above 1 is steadier. With `ramp_up` the rate moves from
    `ramp_start` to `ramp_end` over the requests instead.

    Raises:
        InvalidOption: a rate or a burstiness that is not positive, or half a ramp.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp_up: RampUp | None = None
    ramp_start: float | None = None
    ramp_end: float | None = None

    def __post_init__(self) -> None:
        if not self.rate > 0.0:
            raise InvalidOption("--request-rate must be positive, or inf")
        if not (self.burstiness > 0.0 and math.isfinite(self.burstiness)):
            raise InvalidOption("--burstiness must be positive")
        if self.ramp_up is None:
            return
        for bound in (self.ramp_start, self.ramp_end):
            if bound is None or not (bound > 0.0 and math.isfinite(bound)):
                raise InvalidOption("--ramp-up-strategy needs a positive --ramp-up-start-rps and --ramp-up-end-rps")
        if math.isfinite(self.rate):
            raise InvalidOption("--ramp-up-strategy sets the rate: leave out --request-rate")

    def times(self, num_requests: int, seed: int) -> list[float]:
        """Arrival of each request, ascending.

        Without a ramp the gaps are stretched so that the last request arrives at its expected time: a short run
        then has the rate that was asked for, not the rate that chance gave it.
        """
        if self.ramp_up is None and math.isinf(self.rate):
            return [0.0] * num_requests
        random = Random(seed)
        now, times = 0.0, []
        for i in range(num_requests):
            now += random.gammavariate(self.burstiness, 1.0 / (self._rate(i, num_requests) * self.burstiness))
            times.append(now)
        if self.ramp_up is None and times:
            stretch = num_requests / self.rate / times[-1]
            times = [time * stretch for time in times]
        return times

    def _rate(self, i: int, num_requests: int) -> float:
        if self.ramp_up is None or self.ramp_start is None or self.ramp_end is None:
            return self.rate
        share = i / max(num_requests - 1, 1)
        if self.ramp_up == "linear":
            return self.ramp_start + (self.ramp_end - self.ramp_start) * share
        return float(self.ramp_start * (self.ramp_end / self.ramp_start) ** share)
