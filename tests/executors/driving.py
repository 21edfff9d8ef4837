"""Drives an executor with plans made by hand: scattered blocks, tokens fixed in advance, logits kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.engine import Executor
from chairlift.core.types import Chunk, Join, Request, SamplingParams, StepPlan, StepResult
from chairlift.sampling import Sampled, Sampler

BLOCK_SIZE = 32


class Recorder(Sampler):
    """Keeps the logits of every sampled row, and gives the tokens that the test has decided on."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        super().__init__(num_slots, vocab_size)
        self.logits: dict[int, NDArray[np.float32]] = {}
        self.script: dict[int, int] = {}

    def sample(
        self,
        slots: NDArray[np.integer] | list[int],
        logits: NDArray[np.float32],
        logsumexp: NDArray[np.float32] | None,
    ) -> Sampled:
        sampled = super().sample(slots, logits, logsumexp)
        for i, slot in enumerate(np.asarray(slots).tolist()):
            self.logits[slot] = logits[i].copy()
            if slot in self.script and slot not in sampled.errors:
                sampled.tokens[i] = self.script[slot]
        return sampled


class Driver:
    """Sequences whose tokens are all fixed: the first `num_prompt` are the prompt, decodes feed the others in order."""

    def __init__(self, executor: Executor, recorder: Recorder, num_blocks: int, seed: int = 0) -> None:
        self.executor = executor
        self.recorder = recorder
        self.free: list[int] = np.random.default_rng(seed).permutation(num_blocks).tolist()
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self._tokens: dict[int, list[int]] = {}
        self._known: dict[int, int] = {}
        self._plan = StepPlan(0)
        self._step = 0

    def join(
        self,
        slot: int,
        tokens: Sequence[int],
        num_prompt: int,
        *,
        blocks: Sequence[int] = (),
        params: SamplingParams | None = None,
        num_known: int | None = None,
    ) -> None:
        """A sequence takes a slot in the next step. `blocks` are full and computed: its prefix is a hit.

        `num_known` above `num_prompt`: it comes back after a preemption.
        """
        known = num_known or num_prompt
        self._tokens[slot], self._known[slot] = list(tokens), known
        self.tables[slot], self.computed[slot] = list(blocks), len(blocks) * BLOCK_SIZE
        request = Request(slot, list(tokens[:num_prompt]), params or SamplingParams(temperature=0.0))
        self._plan.joins.append(Join(slot, request, 0, list(tokens[:known])))
        self._plan.block_slots += [slot] * len(blocks)
        self._plan.block_ids += blocks

    def leave(self, slot: int, *, keep: int = 0) -> list[int]:
        """A sequence leaves in the next step; returns its first `keep` blocks, the others are free."""
        table = self.tables.pop(slot)
        self.free += table[keep:]
        self._plan.leaves.append(slot)
        return table[:keep]

    def step(
        self,
        chunks: Mapping[int, int] | None = None,
        decodes: Sequence[int] = (),
        *,
        fillers: Sequence[int] = (),
        scores: bool = False,
    ) -> StepResult:
        """Compute `chunks` (tokens by slot) and one token for each of `decodes`; logits are in the recorder.

        `fillers` are slots that have decoded, and are held.
        """
        plan, self._plan = self._plan, StepPlan(0)
        plan.step, plan.decodes, plan.fillers = self._step, list(decodes), list(fillers)
        counts = {**dict.fromkeys(decodes, 1), **(chunks or {})}
        self.recorder.script = {}
        for slot in fillers:
            self._reserve(plan, slot, self.computed[slot] + 1)
        for slot, count in counts.items():
            end = self.computed[slot] + count
            self._reserve(plan, slot, end)
            samples = end == self._known[slot]
            if slot not in decodes:
                plan.chunks.append(Chunk(slot, self.computed[slot], count, samples, scores))
                plan.num_chunk_tokens += count
            if samples:
                if self._known[slot] < len(self._tokens[slot]):
                    self.recorder.script[slot] = self._tokens[slot][self._known[slot]]
                self._known[slot] += 1
            self.computed[slot] = end
        self._step += 1
        return self.executor.submit(plan).result()

    def _reserve(self, plan: StepPlan, slot: int, num_tokens: int) -> None:
        while len(self.tables[slot]) * BLOCK_SIZE < num_tokens:
            block = self.free.pop(0)
            self.tables[slot].append(block)
            plan.block_slots.append(slot)
            plan.block_ids.append(block)

    def num_known(self, slot: int) -> int:
        """Tokens that the scheduler would know: the prompt and what was sampled."""
        return self._known[slot]

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Logits that the slot's last sample was taken from, `[vocab]`."""
        return self.recorder.logits[slot]


def run_decoding(driver: Driver, tokens: Sequence[int], num_prompt: int, *, slot: int = 0) -> NDArray[np.float32]:
    """Logits after each position from num_prompt - 1 on: the prompt as one chunk, then decodes."""
    driver.join(slot, tokens, num_prompt)
    driver.step({slot: num_prompt})
    rows = [driver.logits(slot)]
    for _ in range(num_prompt, len(tokens)):
        driver.step(decodes=[slot])
        rows.append(driver.logits(slot))
    driver.leave(slot)
    return np.stack(rows)


def divergence(own: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of logits from exact ones, in nats, `[rows]`."""
    p, q = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (exact, own))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return result
