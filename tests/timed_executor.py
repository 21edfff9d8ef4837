"""A device on a clock of its own: each step takes what a cost model says, and is checked to be one that can be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chairlift.core.types import CacheShape, Chunk, Join, Limits, StepPlan, StepResult
from chairlift.sim.cost import SmoothCost, StepShape, shape_of


@dataclass(slots=True)
class Clock:
    """Every look at it takes `look_s`."""

    look_s: float = 0.0
    now: float = 100.0

    def __call__(self) -> float:
        self.now += self.look_s
        return self.now


@dataclass(slots=True)
class _Ready:
    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


@dataclass(slots=True)
class _Slot:
    join: Join
    num_blocks: int = 0
    computed: int | None = None
    """Tokens in the cache once it decodes."""


@dataclass(slots=True)
class TimedExecutor:
    """Answers token 1 to every row.

    Raises:
        AssertionError: a plan that no scheduler would make.
    """

    cost: SmoothCost
    clock: Clock
    limits: Limits
    cache_shape: CacheShape
    num_tokens: int | None = None
    """Of the last step."""
    shapes: list[StepShape] = field(default_factory=list)
    slots: dict[int, _Slot] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    """Blocks that a token was written to."""
    tables: dict[int, list[int]] = field(default_factory=dict)

    def submit(self, plan: StepPlan) -> _Ready:
        self._change(plan)
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert len(plan.decodes) + len(plan.chunks) <= self.limits.max_num_seqs
        assert plan.num_tokens > 0
        context = 0
        for slot in plan.decodes:
            row = self.slots[slot]
            assert row.computed is not None, "a row decodes that never sampled"
            context += row.computed
            row.computed += 1
            self._write(slot, row.computed - 1, 1)
        for chunk in plan.chunks:
            self._compute(chunk)
        assert plan.num_context_tokens == context
        held = Counter(block for table in self.tables.values() for block in table)
        num_shared = (held.total() - len(held)) * self.cache_shape.block_size
        assert plan.num_shared_context_tokens == min(num_shared, context)
        assert plan.num_chunk_tokens == sum(chunk.count for chunk in plan.chunks)
        shape = shape_of(plan)
        assert plan.num_chunk_pairs == shape.num_chunk_pairs
        self.shapes.append(shape)
        self.clock.now += self.cost.of_shape(shape, self.num_tokens)
        self.num_tokens = plan.num_tokens
        return _Ready(StepResult([1] * (len(plan.decodes) + sum(chunk.samples for chunk in plan.chunks))))

    def _change(self, plan: StepPlan) -> None:
        for slot in plan.leaves:
            del self.slots[slot], self.tables[slot]
        for join in plan.joins:
            assert join.slot not in self.slots and 0 <= join.slot < self.limits.max_num_seqs
            self.slots[join.slot] = _Slot(join)
            self.tables[join.slot] = []
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            assert 0 <= block < self.cache_shape.num_blocks
            self.tables[slot].append(block)

    def _compute(self, chunk: Chunk) -> None:
        row = self.slots[chunk.slot]
        end = chunk.start + chunk.count
        assert end <= len(row.join.tokens) <= self.limits.max_model_len
        assert not chunk.samples or end == len(row.join.tokens)
        self._write(chunk.slot, chunk.start, chunk.count)
        if chunk.samples:
            row.computed = end

    def _write(self, slot: int, start: int, count: int) -> None:
        size = self.cache_shape.block_size
        table = self.tables[slot]
        assert start + count <= len(table) * size, "a sequence has fewer blocks than its tokens need"
        self.written.update(table[start // size : (start + count - 1) // size + 1])
