"""What was measured, and a warning where it was not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from chairlift.core.types import StepPlan
from chairlift.sim.cost.changing import ChangeModel, SizeChange
from chairlift.sim.cost.model import DecodeLine, LineModel
from chairlift.sim.cost.shape import Regime, StepShape

SLACK = 1.1
"""How far past what was measured a step may be without a warning: a line goes on for a bit."""


Sums = tuple[int, int, int, int, int]
"""Rows, context tokens, chunk tokens, chunk pairs, shared context tokens."""


@dataclass(frozen=True, slots=True)
class Span:
    """The smallest and largest sums of the steps that were measured in one regime."""

    num_rows: tuple[int, int]
    num_context_tokens: tuple[int, int]
    num_chunk_tokens: tuple[int, int]
    num_chunk_pairs: tuple[int, int]
    num_shared_context_tokens: tuple[int, int] = (0, 0)
    """Where nothing was shared, nothing is saved by it, and no step is outside for that."""

    def excess(self, sums: Sums) -> str | None:
        """Which of the sums is outside, in words; None if none is."""
        spans = (self.num_rows, self.num_context_tokens, self.num_chunk_tokens, self.num_chunk_pairs)
        num_shared, (_, most_shared) = sums[-1], self.num_shared_context_tokens
        if 0 < most_shared * SLACK < num_shared:
            return f"{num_shared} shared context tokens (measured: up to {most_shared})"
        for name, value, (low, high) in zip(_NAMES, sums[:4], spans, strict=True):
            if not low <= value * SLACK or not value <= high * SLACK:
                return f"{value} {name} (measured: {low} to {high})"
        return None


_NAMES = ("rows", "context tokens", "chunk tokens", "chunk pairs")


def sums_of(shape: StepShape) -> Sums:
    return (
        shape.num_rows,
        shape.num_context_tokens,
        shape.num_chunk_tokens,
        shape.num_chunk_pairs,
        shape.num_shared_context_tokens,
    )


def spans_of(shapes: Iterable[StepShape]) -> dict[Regime, Span]:
    """The span of each regime that there is."""
    sums: dict[Regime, list[Sums]] = {}
    for shape in shapes:
        sums.setdefault(shape.regime, []).append(sums_of(shape))
    return {regime: Span(*((min(c), max(c)) for c in zip(*rows, strict=True))) for regime, rows in sums.items()}


@dataclass(frozen=True, slots=True)
class WatchedCost:
    """Calls `warn` with one sentence for the first step of each regime that lies outside of what was measured."""

    cost: LineModel
    spans: Mapping[Regime, Span]
    warn: Callable[[str], None]
    _warned: set[Regime] = field(default_factory=set, init=False, repr=False, compare=False)

    def __call__(self, plan: StepPlan) -> float:
        if len(self._warned) < 3:
            self._look(plan)
        return self.cost(plan)

    @property
    def size_change(self) -> SizeChange | None:
        """As of the model that is watched."""
        return self.cost.size_change if isinstance(self.cost, ChangeModel) else None

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        """As of the model that is watched. Of steps that are taken at once by it the context is not looked at."""
        span = self.spans.get("decode")
        if span is not None and "decode" not in self._warned:
            self._judge("decode", span.excess((num_rows, span.num_context_tokens[0], 0, 0, num_shared_tokens)))
        return self.cost.decode_line(num_rows, num_shared_tokens)

    def _look(self, plan: StepPlan) -> None:
        num_rows = len(plan.decodes) + len(plan.fillers)
        regime: Regime = "decode" if not plan.chunks else "mixed" if num_rows else "prefill"
        if regime in self._warned:
            return
        span = self.spans.get(regime)
        sums = (
            num_rows,
            plan.num_context_tokens,
            plan.num_chunk_tokens,
            plan.num_chunk_pairs,
            plan.num_shared_context_tokens,
        )
        self._judge(regime, "nothing of the kind was measured" if span is None else span.excess(sums))

    def _judge(self, regime: Regime, what: str | None) -> None:
        if what is not None:
            self._warned.add(regime)
            self.warn(f"{regime} steps outside of what the calibration measured: {what}")
