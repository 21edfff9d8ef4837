"""A cost model whose every step takes so many times as long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.core.types import StepPlan
from chairlift.sim.cost.changing import ChangeModel, SizeChange
from chairlift.sim.cost.model import CostModel, DecodeLine, LineModel


def scaled(cost: CostModel, factor: float) -> CostModel:
    """`cost`, with steps `factor` times as long; on a line where `cost` is.

    Raises:
        InvalidOption: a factor that is not above 0 and finite.
    """
    if not 0.0 < factor < math.inf:
        raise InvalidOption("steps can be scaled by a factor above 0")
    if factor == 1.0:
        return cost
    return ScaledLine(cost, factor) if isinstance(cost, LineModel) else ScaledCost(cost, factor)


@dataclass(frozen=True, slots=True)
class ScaledCost:
    """Of a model whose steps have to be asked for one by one."""

    cost: CostModel
    factor: float

    def __call__(self, plan: StepPlan) -> float:
        return self.cost(plan) * self.factor


@dataclass(frozen=True, slots=True)
class ScaledLine:
    """Of a model whose pure-decode steps lie on a line. Those are read off the scaled line, to the last bit."""

    cost: LineModel
    factor: float

    def __call__(self, plan: StepPlan) -> float:
        if plan.chunks:
            return self.cost(plan) * self.factor
        line = self.decode_line(len(plan.decodes) + len(plan.fillers), plan.num_shared_context_tokens)
        return line.seconds(plan.num_context_tokens)

    @property
    def size_change(self) -> SizeChange | None:
        change = self.cost.size_change if isinstance(self.cost, ChangeModel) else None
        return None if change is None else SizeChange(change.seconds * self.factor, change.token_sizes)

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        line = self.cost.decode_line(num_rows, num_shared_tokens)
        return DecodeLine(*(figure * self.factor for figure in line))
