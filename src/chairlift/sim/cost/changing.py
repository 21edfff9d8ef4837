"""A step of another size than the one before takes longer, where the device prepares itself for each size anew."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from chairlift.core.types import StepPlan
from chairlift.sim.cost.model import CostModel, DecodeLine, LineModel


def padded(num_tokens: int, sizes: tuple[int, ...]) -> int:
    """The first of `sizes` that holds so many tokens; past the last one, or without any, there is no padding."""
    at = bisect_left(sizes, num_tokens)
    return sizes[at] if at < len(sizes) else num_tokens


@dataclass(frozen=True, slots=True)
class SizeChange:
    """Seconds more for a step whose tokens are padded to another of `token_sizes` than those of the step before."""

    seconds: float
    token_sizes: tuple[int, ...] = ()


@runtime_checkable
class ChangeModel(Protocol):
    """A cost model that knows what a change of size costs, and leaves it out: it does not know the step before."""

    @property
    def size_change(self) -> SizeChange | None:
        """None if it costs nothing."""
        ...


@dataclass(slots=True)
class ChangingCost:
    """Adds what changes of size cost. It remembers the last step, so that each engine needs its own."""

    cost: LineModel
    change: SizeChange
    _size: int = field(default=0, init=False)

    def __call__(self, plan: StepPlan) -> float:
        size = padded(plan.num_tokens, self.change.token_sizes)
        if size == self._size:
            return self.cost(plan)
        self._size = size
        return self.cost(plan) + self.change.seconds

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        """Of steps that follow one of their own size."""
        return self.cost.decode_line(num_rows, num_shared_tokens)

    def is_steady(self, num_rows: int) -> bool:
        """Whether the last step was of the size of `num_rows` decodes: the next one lies on their line then."""
        return self._size == padded(num_rows, self.change.token_sizes)


def for_one_engine(cost: CostModel) -> CostModel:
    """`cost` with the changes of size that one engine goes through, if these cost anything."""
    if not isinstance(cost, ChangeModel) or not isinstance(cost, LineModel):
        return cost
    change = cost.size_change
    return cost if change is None else ChangingCost(cost, change)
