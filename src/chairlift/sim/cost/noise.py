"""Steps of the same shape do not all take the same time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from chairlift.core.types import StepPlan
from chairlift.sim.cost.model import CostModel


@dataclass(frozen=True, slots=True)
class NoisyCost:
    """Multiplies each step by a log-normal factor of mean 1, in the order in which steps are asked for.

    `sigma` is the standard deviation of the factor's logarithm. Equal seeds give equal factors; each engine of several
    gets its own.
    """

    cost: CostModel
    sigma: float
    seed: int = 0
    _random: Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_random", Random(self.seed))

    def __call__(self, plan: StepPlan) -> float:
        factor = math.exp(self._random.gauss(-0.5 * self.sigma * self.sigma, self.sigma))
        return self.cost(plan) * factor
