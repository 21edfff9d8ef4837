"""Runs the oracle as an executor: slow, in float32, over a paged cache.

Keys and values go through the block table, so that a wrong block shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chairlift.core.types import CacheShape, Request, StepPlan, StepResult
from chairlift.executors.forward import Floats, ReferenceModel, empty_caches, weights_of
from chairlift.models import Model
from chairlift.sampling import Sampler, score


@dataclass(slots=True)
class _Row:
    request: Request
    tokens: list[int]
    table: list[int] = field(default_factory=list)


class ReferenceExecutor:
    """Computes plans one sequence after the other, over a paged cache in float32."""

    def __init__(self, model: Model, cache_shape: CacheShape, sampler: Sampler) -> None:
        self.config = model.config
        self.cache_shape = cache_shape
        self._model = ReferenceModel(model.config, weights_of(model))
        self._sampler = sampler
        self._keys, self._values = empty_caches(model.config, cache_shape.num_blocks * cache_shape.block_size)
        self._rows: dict[int, _Row] = {}

    def submit(self, plan: StepPlan) -> ReferencePending:
        for slot in plan.leaves:
            del self._rows[slot]
            self._sampler.leave(slot)
        for join in plan.joins:
            self._rows[join.slot] = _Row(join.request, list(join.tokens))
            self._sampler.join(join.slot, join.request, join.choice, join.tokens)
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            self._rows[slot].table.append(block)
        return ReferencePending(self, plan)

    def compute(self, plan: StepPlan) -> StepResult:
        """The whole step."""
        slots: list[int] = []
        logits: list[Floats] = []
        result = StepResult([])
        for slot in plan.decodes:
            slots.append(slot)
            logits.append(self._forward(slot, len(self._rows[slot].tokens) - 1, 1)[-1])
        for slot in plan.fillers:
            self._forward(slot, len(self._rows[slot].tokens) - 1, 1)  # what it costs; nobody wants what it gives
        for chunk in plan.chunks:
            row = self._rows[chunk.slot]
            new = self._forward(chunk.slot, chunk.start, chunk.count)
            if chunk.scores:
                targets = row.request.prompt[chunk.start + 1 : chunk.start + chunk.count + 1]
                num_top = row.request.params.prompt_logprobs or 0
                result.prompt_logprobs[chunk.slot] = score(new[: len(targets)], None, list(targets), num_top)
            if chunk.samples:
                slots.append(chunk.slot)
                logits.append(new[-1])
        if slots:
            sampled = self._sampler.sample(slots, np.stack(logits), None)
            result.tokens, result.logprobs, result.errors = sampled.tokens, sampled.logprobs, sampled.errors
            for slot, token in zip(slots, sampled.tokens, strict=True):
                self._rows[slot].tokens.append(token)
        return result

    def _forward(self, slot: int, start: int, count: int) -> Floats:
        """Logits of `count` tokens from position `start`: gather the sequence's cache, compute, scatter it back."""
        row = self._rows[slot]
        positions = np.arange(start + count)
        block_size = self.cache_shape.block_size
        cells = np.array(row.table)[positions // block_size] * block_size + positions % block_size
        keys, values = [k[cells] for k in self._keys], [v[cells] for v in self._values]
        logits = self._model.forward(row.tokens[start : start + count], start, keys, values)
        for cache, new in zip((*self._keys, *self._values), (*keys, *values), strict=True):
            cache[cells[start:]] = new[start:]
        return logits


@dataclass(slots=True)
class ReferencePending:
    """A step computed when its result is asked for."""

    executor: ReferenceExecutor
    plan: StepPlan

    def result(self) -> StepResult:
        return self.executor.compute(self.plan)
