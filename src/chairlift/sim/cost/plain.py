"""A cost whose every figure is given: for a device about which only that is known, and for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.core.types import StepPlan
from chairlift.sim.cost.model import DecodeLine


@dataclass(frozen=True, slots=True)
class PlainCost:
    """Seconds: for a step, for each decode or filler, for each cached token that these read, for each chunk token.

    Raises:
        InvalidOption: less than nothing, or a step that takes no time.
    """

    step_s: float
    row_s: float = 0.0
    context_token_s: float = 0.0
    chunk_token_s: float = 0.0

    def __post_init__(self) -> None:
        figures = (self.step_s, self.row_s, self.context_token_s, self.chunk_token_s)
        if not all(0.0 <= figure < math.inf for figure in figures) or not self.step_s > 0.0:
            raise InvalidOption("costs must be at least 0, and that of a step above 0")

    def __call__(self, plan: StepPlan) -> float:
        line = self.decode_line(len(plan.decodes) + len(plan.fillers))
        return line.seconds(plan.num_context_tokens) + self.chunk_token_s * plan.num_chunk_tokens

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        return DecodeLine(self.step_s + self.row_s * num_rows, self.context_token_s)
