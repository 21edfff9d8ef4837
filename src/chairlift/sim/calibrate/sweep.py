"""Measuring an engine: shapes drawn at random over what it can do, then some traffic through its scheduler.

An executor is driven with plans directly, as if the beginnings of all sequences had been in the prefix cache: what a
step costs does not depend on what the tokens are. All regimes take turns, so that a machine that becomes slower
meanwhile does so for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from chairlift.core.engine import Executor
from chairlift.core.types import CacheShape, Chunk, Join, Limits, Request, SamplingParams, StepPlan
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost.shape import REGIMES, Regime, shape_of

REPEATS = 3
"""Steps of each shape."""
MIN_SHAPES = 56
"""A dozen of each regime for the fit, a quarter of all to check it, and some that come twice."""
MOST_TIMES_LONGER = 3.0
"""How much longer than told a sweep may take to get that many."""
JOIN_TOKENS = 2
"""That a row computes when it joins, before it decodes: the CPU back end computes a single one with a past twice."""
MAX_CHUNKS = 4
MAX_MEAN_CONTEXT = 512
"""Tokens for each sequence there may be: long contexts of all at once would take most of the time."""
ROWS_SHARE = 0.7
"""Of the cache, for rows that decode; the rest is for chunks."""
SHARED_SHARE = 0.5
"""Of the shapes with several rows that have full blocks: how many are measured once more, with rows that begin with the
same blocks. A pair tells what that saves however far the fit is off otherwise."""
LONG_CHUNK_SHARE = 0.25
"""Of the shapes with chunks: how many use all of the token budget, as full steps do."""


@dataclass(frozen=True, slots=True)
class Rig:
    """An executor that nothing else uses, and what it can do.

    `params` are how tokens are sampled; `clock` gives seconds.
    """

    executor: Executor
    limits: Limits
    cache_shape: CacheShape
    vocab_size: int
    params: SamplingParams
    clock: Callable[[], float]

    @property
    def num_cache_tokens(self) -> int:
        """Tokens of the cache that a sweep uses."""
        whole = self.cache_shape.num_blocks * self.cache_shape.block_size
        return min(whole, max(self.limits.max_num_seqs * MAX_MEAN_CONTEXT, 2 * self.limits.max_model_len))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A step to measure: tokens in the cache of each row that decodes, and (start, count, samples) of each chunk.

    All rows begin with the same `num_shared_blocks`.
    """

    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int, bool], ...]
    num_shared_blocks: int = 0


def sweep(rig: Rig, seconds: float, *, seed: int = 0, max_context: int = 4096) -> Iterator[Measured]:
    """Steps of shapes drawn at random, for so many seconds, and longer where these were too few to fit anything.

    `group` numbers the shapes, each of `REPEATS` steps.
    """
    driver = _Driver(rig, Random(seed))
    driver.touch(rig.num_cache_tokens)
    ends = rig.clock() + seconds
    try:
        for group, wanted in enumerate(shapes(rig, seed, max_context)):
            now = rig.clock()
            if now >= ends and (group >= MIN_SHAPES or now >= ends + MOST_TIMES_LONGER * seconds):
                return
            for step in driver.measure(wanted):
                yield replace(step, group=group)
    finally:
        driver.leave()


# ---------------------------------------------------------------- which shapes


def shapes(rig: Rig, seed: int, max_context: int) -> Iterator[Wanted]:
    """Shapes without an end: the regimes in turn, the fullest steps first, then sizes evenly over their logarithms.

    Some come twice, the second time with a beginning that all rows share.
    """
    random = Random(seed)
    limits = rig.limits
    longest = max(1, min(max_context, limits.max_model_len - REPEATS - 1))
    regimes = REGIMES if min(limits.max_num_seqs, limits.max_num_batched_tokens) > 1 else REGIMES[:2]
    for number in count():
        regime = regimes[number % len(regimes)]
        most = 0 if regime == "prefill" else min(limits.max_num_seqs, limits.max_num_batched_tokens)
        most -= regime == "mixed"
        fullest = number < len(regimes)
        num_rows = most if fullest or not most else _draw(random, 1, most)
        contexts = _contexts(random, rig, num_rows, longest, fullest)
        chunks = _chunks(random, rig, regime, contexts, longest)
        yield Wanted(contexts, chunks)
        num_shared_blocks = _num_shared_blocks(random, contexts, rig.cache_shape.block_size)
        if num_shared_blocks:
            yield Wanted(contexts, chunks, num_shared_blocks)


def _contexts(random: Random, rig: Rig, num_rows: int, longest: int, fullest: bool) -> tuple[int, ...]:
    """Of rows around a mean that is drawn, or is the longest that fits: a quarter shorter to a quarter longer."""
    if num_rows < 1:
        return ()
    block = rig.cache_shape.block_size
    most_mean = max(1, int(rig.num_cache_tokens * ROWS_SHARE) // num_rows - 2 * block)
    most = min(longest, most_mean * 5 // 4)
    mean = min(longest, most_mean) if fullest else _draw(random, 1, min(longest, most_mean))
    return tuple(max(1, min(most, round(mean * random.uniform(0.75, 1.25)))) for _ in range(num_rows))


def _num_shared_blocks(random: Random, contexts: Sequence[int], block_size: int) -> int:
    """Of some shapes, a quarter to all of the full blocks that every row has before the tokens that it joins with."""
    if len(contexts) < 2 or random.random() >= SHARED_SHARE:
        return 0
    return math.ceil(random.uniform(0.25, 1.0) * (max(0, min(contexts) - JOIN_TOKENS) // block_size))


def _chunks(
    random: Random, rig: Rig, regime: Regime, contexts: Sequence[int], longest: int
) -> tuple[tuple[int, int, bool], ...]:
    """One to `MAX_CHUNKS` chunks, most of them one, in what budget, slots and cache leave."""
    if regime == "decode":
        return ()
    limits, block = rig.limits, rig.cache_shape.block_size
    budget = limits.max_num_batched_tokens - len(contexts)
    used = sum(-(-(context + REPEATS + 1) // block) * block for context in contexts)
    room = rig.num_cache_tokens - used - block
    slots = min(limits.max_num_seqs - len(contexts), MAX_CHUNKS)
    num_chunks = min(random.choice((1, 1, 1, 2, 3, 4)), slots, max(budget, 1))
    most = max(1, min(budget // num_chunks, longest, room // num_chunks - block))
    full = random.random() < LONG_CHUNK_SHARE
    chunks: list[tuple[int, int, bool]] = []
    for _ in range(num_chunks):
        size = most if full else _draw(random, 1, most)
        start = 0
        if random.random() < 0.5:
            start = min(_draw(random, 1, longest), limits.max_model_len - 1 - size, room // num_chunks - size - block)
        chunks.append((max(0, start), size, random.random() < 0.5))
    return tuple(chunks)


def _draw(random: Random, low: int, high: int) -> int:
    """An integer, evenly over its logarithm."""
    if high <= low:
        return low
    return min(high, int(low * ((high + 1) / low) ** random.random()))


# ---------------------------------------------------------------- driving


class _Driver:
    """Makes plans and times them. Slots are given out from 0, blocks in an order as mixed as after a day's work."""

    def __init__(self, rig: Rig, random: Random) -> None:
        self._rig = rig
        self._steps = count()
        self._ids = count()
        self._blocks = list(range(rig.cache_shape.num_blocks))
        random.shuffle(self._blocks)
        self._tokens = random.choices(range(rig.vocab_size), k=rig.limits.max_model_len + 1)
        self._num_tokens: int | None = None
        """That the last step computed."""
        self._leaves: list[int] = []
        """Slots that the next plan frees."""

    def touch(self, num_tokens: int) -> None:
        """Write to blocks of so many tokens once: memory that nobody wrote to costs nothing to read."""
        limits = self._rig.limits
        width = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        blocks = self._blocks[: -(-num_tokens // self._rig.cache_shape.block_size)]
        for first in range(0, len(blocks), width):
            plan = self._plan()
            for slot, block in enumerate(blocks[first : first + width]):
                self._join(plan, slot, 1, [block])
                _add_chunk(plan, slot, 0, 1, samples=False)
                self._leaves.append(slot)
            self._run(plan)

    def measure(self, wanted: Wanted) -> list[Measured]:
        """Some steps of that shape, each row's context one token longer than in the one before.

        Sequences join in steps of their own, which are not timed: it happens once to each.
        """
        free = iter(self._blocks)
        block_size = self._rig.cache_shape.block_size
        shared = self._take(free, wanted.num_shared_blocks * block_size)
        rows = list(range(len(wanted.contexts)))
        width = max(1, self._rig.limits.max_num_batched_tokens // JOIN_TOKENS)
        for first in range(0, len(rows), width):
            plan = self._plan()
            for slot in rows[first : first + width]:
                context = wanted.contexts[slot]
                size = min(JOIN_TOKENS, context, self._rig.limits.max_num_batched_tokens)
                own = self._take(free, context + REPEATS + 1 - len(shared) * block_size)
                self._join(plan, slot, context, [*shared, *own])
                _add_chunk(plan, slot, context - size, size, samples=True)
            self._run(plan)
        blocks = [self._take(free, start + size) for start, size, _ in wanted.chunks]
        chunk_slots = range(len(rows), len(rows) + len(blocks))
        timed: list[Measured] = []
        for repeat in range(REPEATS):
            if blocks:
                plan = self._plan()
                for slot, own, (start, size, samples) in zip(chunk_slots, blocks, wanted.chunks, strict=True):
                    self._join(plan, slot, start + size + (not samples), own)
                    _add_chunk(plan, slot, 0, 1, samples=False)
                self._run(plan)
            plan = self._plan()
            if rows:
                plan.decodes = rows
                plan.num_context_tokens = sum(wanted.contexts) + repeat * len(rows)
                plan.num_shared_context_tokens = len(shared) * block_size * (len(rows) - 1)
            for slot, (start, size, samples) in zip(chunk_slots, wanted.chunks, strict=True):
                _add_chunk(plan, slot, start, size, samples=samples)
            before = self._num_tokens
            timed.append(Measured(shape_of(plan), self._run(plan), before=before))
            self._leaves = list(chunk_slots)
        self._leaves = rows + self._leaves
        return timed

    def leave(self) -> None:
        """Free all slots but the first, as far as the executor knows: a new engine's sequences join there anyway."""
        if self._leaves:
            plan = self._plan()
            self._join(plan, 0, 2, self._blocks[:1])
            _add_chunk(plan, 0, 0, 1, samples=False)
            self._run(plan)

    def _plan(self) -> StepPlan:
        leaves, self._leaves = self._leaves, []
        return StepPlan(next(self._steps), leaves=leaves)

    def _take(self, free: Iterator[int], num_tokens: int) -> list[int]:
        return [next(free) for _ in range(-(-num_tokens // self._rig.cache_shape.block_size))]

    def _join(self, plan: StepPlan, slot: int, num_tokens: int, blocks: Sequence[int]) -> None:
        tokens = self._tokens[:num_tokens]
        plan.joins.append(Join(slot, Request(next(self._ids), tokens, self._rig.params), 0, tokens))
        plan.block_slots += [slot] * len(blocks)
        plan.block_ids += blocks

    def _run(self, plan: StepPlan) -> float:
        """Seconds that the step takes; whatever the executor raises."""
        clock = self._rig.clock
        self._num_tokens = plan.num_tokens
        begun = clock()
        self._rig.executor.submit(plan).result()
        return clock() - begun


def _add_chunk(plan: StepPlan, slot: int, start: int, size: int, *, samples: bool) -> None:
    plan.chunks.append(Chunk(slot, start, size, samples))
    plan.num_chunk_tokens += size
    plan.num_chunk_pairs += size * start + size * (size + 1) // 2
