"""Steps of the same shape do not all take the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from chairlift.core.types import StepPlan
from chairlift.sim.cost.model import CostModel


@dataclass(frozen=True, slots=True)
class NoisyCost:
    """Multiplies each step by a factor of mean 1, in the order in which steps are asked for.

    The factor is log-normal with `sigma` as the standard deviation of its logarithm or, with `deviations`, drawn from
    these: factors at even shares, from the least to the most, as measured. Equal seeds give equal factors; each engine
    of several gets its own.
    """

    cost: CostModel
    sigma: float
    seed: int = 0
    deviations: Sequence[float] = ()
    _random: Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_random", Random(self.seed))

    def __call__(self, plan: StepPlan) -> float:
        return self.cost(plan) * (self._drawn() if self.deviations else self._log_normal())

    def _log_normal(self) -> float:
        return math.exp(self._random.gauss(-0.5 * self.sigma * self.sigma, self.sigma))

    def _drawn(self) -> float:
        place = self._random.random() * (len(self.deviations) - 1)
        low = int(place)
        return self.deviations[low] + (self.deviations[low + 1] - self.deviations[low]) * (place - low)
