"""The roofline of the first lesson: a step reads the weights once, and the keys and values of every sequence."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.core.types import StepPlan
from chairlift.sim.cost.model import DecodeLine

LESSON_WEIGHTS_MS = 4.48
"""15.0 GB of Llama-3-8B over 3.35 TB/s."""
LESSON_KV_TOKEN_BYTES = 131_072
LESSON_BANDWIDTH = 3.35e12


@dataclass(frozen=True, slots=True)
class SeedRoofline:
    """Seconds of a step: `weights_s + context_token_s * tokens`.

    The tokens are those that a sequence holds when the step begins: what a chunk computes counts, so that a prompt is
    read in its first step and costs nothing else; and a row that decodes counts its newest token, which its plan does
    not count as cached.
    """

    weights_s: float
    context_token_s: float

    def __call__(self, plan: StepPlan) -> float:
        num_tokens = plan.num_context_tokens
        for chunk in plan.chunks:
            num_tokens += chunk.start + chunk.count
        return self.decode_line(len(plan.decodes) + len(plan.fillers)).seconds(num_tokens)

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        return DecodeLine(self.weights_s + self.context_token_s * num_rows, self.context_token_s)


LESSON = SeedRoofline(LESSON_WEIGHTS_MS / 1e3, LESSON_KV_TOKEN_BYTES / LESSON_BANDWIDTH)
"""Llama-3-8B in bfloat16 on an H100, as in the second seed."""
