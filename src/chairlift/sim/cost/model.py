"""What a cost model is."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from chairlift.core.types import StepPlan


class CostModel(Protocol):
    """Says how long a step takes: from the beginning of one step to where the next one can begin."""

    def __call__(self, plan: StepPlan) -> float:
        """Seconds, more than 0."""
        ...


class DecodeLine(NamedTuple):
    """Steps in which the same rows decode and nothing else happens: only their context grows, by tokens of their own.

    seconds = max(base_s + context_token_s * context tokens, least_s)
    """

    base_s: float
    context_token_s: float
    least_s: float = 0.0

    def seconds(self, num_context_tokens: int) -> float:
        """Of one such step, to the last bit what the model itself says."""
        seconds = self.base_s + self.context_token_s * num_context_tokens
        return seconds if seconds > self.least_s else self.least_s

    def ends(
        self, begin: float, num_context_tokens: int, num_rows: int, most: int, *, bound: float, until: float
    ) -> list[float]:
        """When up to `most` such steps end, the first of which begins at `begin`; each of `num_rows` rows reads one
        token more in every step. They all end before `until`, and only the last of them at `bound` or after it."""
        base_s, context_token_s, least_s = self
        ends: list[float] = []
        end = begin
        for num_tokens in range(num_context_tokens, num_context_tokens + most * num_rows, num_rows):
            seconds = base_s + context_token_s * num_tokens
            end += seconds if seconds > least_s else least_s
            if end >= until:
                break
            ends.append(end)
            if end >= bound:
                break
        return ends


@runtime_checkable
class LineModel(Protocol):
    """A cost model whose pure-decode steps lie on a line: many of them can be taken at once.

    One with noise is none: its steps have to be drawn one by one.
    """

    def __call__(self, plan: StepPlan) -> float: ...

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        """The line of steps of `num_rows` decodes and fillers, which share so many tokens of their contexts."""
        ...
