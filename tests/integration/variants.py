"""The same requests computed in different ways: alone or together, whole or in chunks, cached, preempted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.core.engine import Engine, Executor
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence as Running
from chairlift.core.sequence import State
from chairlift.core.types import CacheShape, FinishReason, Limits, Request, StepOutput, StepPlan
from chairlift.sampling import Sampled, Sampler
from fakes import check
from forcing import preempt

Key = tuple[int, int]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variant:
    """Limits, a cache, and whether sequences are preempted that need not be.

    `num_blocks=None`: as many as the executor has. `preempts`: a request loses its place once while it prefills, and
    whenever its known tokens (or, while it prefills, its computed ones) stand at the offset in a block that its id
    says: as many requests with consecutive ids as a block has tokens cover every offset.
    """

    name: str
    max_num_seqs: int
    max_num_batched_tokens: int
    caching: bool = True
    num_blocks: int | None = None
    preempts: bool = False
    policy: Policy = field(default_factory=Policy)


def variants(max_num_seqs: int, whole: int, tight_blocks: int) -> list[Variant]:
    """All ways, the plainest first. `whole` tokens hold any prompt, `tight_blocks` blocks just a few sequences."""
    few = min(4, max_num_seqs)
    return [
        Variant("alone", 1, whole, caching=False),
        Variant("alone, cached", 1, whole),
        Variant("alone, chunks of 1", 1, 1, caching=False),
        Variant("alone, chunks of 33", 1, 33),
        Variant("few, small chunks", few, few + 3),
        Variant("few, small chunks, not cached", few, few + 25, caching=False),
        Variant("together", max_num_seqs, whole),
        Variant("together, not cached", max_num_seqs, whole, caching=False),
        Variant("together, chunks", max_num_seqs, max_num_seqs + 5),
        Variant("together, chunks, not cached", max_num_seqs, max_num_seqs + 31, caching=False),
        Variant("tight", max_num_seqs, max_num_seqs + 50, num_blocks=tight_blocks),
        Variant("tight, not cached", max_num_seqs, max_num_seqs + 50, caching=False, num_blocks=tight_blocks),
        Variant("preempted", max_num_seqs, max_num_seqs + 20, preempts=True),
        Variant("preempted, not cached", max_num_seqs, max_num_seqs + 20, caching=False, preempts=True),
    ]


@dataclass(slots=True)
class Outcome:
    """What came out of one way, and what happened on it."""

    tokens: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    num_mixed: int = 0
    """Steps with decodes and chunks."""
    num_fillers: int = 0
    """Rows of held batches computed for nobody."""
    num_cut: int = 0
    """Chunks that did not reach the last known token."""
    num_hits: int = 0
    """Prompt tokens found in the cache."""
    num_preemptions: int = 0
    preempted_at: set[int] = field(default_factory=set)
    """Offsets in a block, in known tokens, at which a decoding sequence was made to go."""

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        self.num_mixed += bool(plan.decodes and plan.chunks)
        self.num_fillers += len(plan.fillers)
        self.num_cut += sum(not chunk.samples for chunk in plan.chunks)

    def take(self, output: StepOutput) -> None:
        for key, token in zip(output.keys, output.tokens, strict=True):
            self.tokens[key].append(token)
        for finish in output.finishes:
            ended = finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
            check(ended, f"request {finish.id} ended for {finish.reason}: {finish.error}")


def check_way(way: Variant, outcome: Outcome, block_size: int) -> None:
    """What a way is there for did happen.

    Raises:
        AssertionError: it did not, so that nothing was shown by it.
    """
    check((outcome.num_hits > 0) == way.caching, "prefix hits")
    if "chunks" in way.name:
        check(outcome.num_cut > 0, "cut prompts")
    if way.max_num_seqs > 1 and block_size > 1:
        check(outcome.num_mixed > 0, "mixed steps")
    check((outcome.num_preemptions > 0) == (way.preempts or way.num_blocks is not None), "preemptions")
    if way.preempts:
        check(outcome.preempted_at == set(range(block_size)), "preemptions at every offset in a block")


def generate(
    executor: Executor, cache: CacheShape, vocab_size: int, requests: Sequence[Request], variant: Variant
) -> Outcome:
    """Run all requests to their ends. A request is added before the step whose number its `arrival` is.

    The executor may have served other engines: a row that was left there is gone when another takes its slot.
    """
    shape = CacheShape(variant.num_blocks or cache.num_blocks, cache.block_size)
    limits = Limits(variant.max_num_seqs, variant.max_num_batched_tokens, shape.num_blocks * shape.block_size)
    scheduler = Scheduler(
        limits, shape, vocab_size=vocab_size, enable_prefix_caching=variant.caching, policy=variant.policy
    )
    outcome = Outcome()
    engine = Engine(scheduler, executor, observer=outcome)
    later = sorted(requests, key=lambda request: -request.arrival)
    step = 0
    seen: set[tuple[Key, int]] = set()
    while engine.has_work or later:
        while later and later[-1].arrival <= step:
            engine.add(later.pop())
        outcome.take(engine.step(float(step)) or StepOutput())
        step += 1
        if variant.preempts:
            _preempt_some(scheduler, seen, outcome)
    stats = engine.stats()
    check(stats.num_used_blocks == stats.num_running == 0, "something was left behind")
    outcome.num_hits, outcome.num_preemptions = stats.prefix_hits, stats.num_preemptions
    return outcome


def _preempt_some(scheduler: Scheduler, seen: set[tuple[Key, int]], outcome: Outcome) -> None:
    """Preempt every sequence whose moment this is; a moment comes once, so that everybody gets on."""
    block_size = scheduler.kv.block_size
    running = scheduler._running
    for sequence in [*running.prefilling, *running.decoding]:
        moment = sequence.key, _num_done(sequence)
        if moment in seen or not _is_due(sequence, block_size):
            continue
        seen.add(moment)
        if sequence.state is State.DECODING:
            outcome.preempted_at.add(len(sequence.tokens) % block_size)
        preempt(scheduler, sequence)


def _num_done(sequence: Running) -> int:
    return len(sequence.tokens) if sequence.state is State.DECODING else sequence.computed


def _is_due(sequence: Running, block_size: int) -> bool:
    if sequence.state not in (State.PREFILLING, State.DECODING) or not sequence.joined:
        return False
    is_first = sequence.state is State.PREFILLING and not sequence.preemptions
    return is_first or _num_done(sequence) % block_size == sequence.request.id % block_size


# ---------------------------------------------------------------- seeing the logits


class Watch(Protocol):
    def __call__(self, key: Key, num_known: int, logits: Floats) -> None:
        """What a sequence's token number `num_known`, the prompt counted from 0, is sampled from: `[vocab]`."""
        ...


class Probe(Sampler):
    """Shows every row of logits, and gives tokens that were decided before: `script` by key, from the prompt on."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        super().__init__(num_slots, vocab_size)
        self.watch: Watch | None = None
        self.script: Mapping[Key, Sequence[int]] = {}
        self._places: dict[int, tuple[Key, int]] = {}

    def join(self, slot: int, request: Request, choice: int, tokens: list[int]) -> None:
        super().join(slot, request, choice, tokens)
        self._places[slot] = (request.id, choice), len(tokens)

    def sample(self, slots: NDArray[np.integer] | list[int], logits: Floats, logsumexp: Floats | None) -> Sampled:
        sampled = super().sample(slots, logits, logsumexp)
        for i, slot in enumerate(np.asarray(slots).tolist()):
            key, num_known = self._places[slot]
            self._places[slot] = key, num_known + 1
            if self.watch is not None:
                self.watch(key, num_known, logits[i])
            if key in self.script and slot not in sampled.errors:
                sampled.tokens[i] = self.script[key][num_known]
        return sampled
