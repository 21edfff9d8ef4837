"""The rows of the running batch, kept from step to step, and the ragged inputs of one step assembled from them.

Everything is an array over slots, changed only where a plan changes it: a step of a thousand decoding rows is a dozen
array operations, not a thousand visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import CacheShape, Chunk, StepPlan

Ints = NDArray[np.int32]

SCRATCH_BLOCK = 0
"""Where padding writes."""


@dataclass(slots=True)
class StepInputs:
    """All tokens of a step, one sequence after the other: decodes, fillers, chunks, then padding.

    Padding tokens are sequences of their own, one token long, without a past, in the scratch block.

    The plugin computes the attention of one token with a past in another way than that of several, and that of a few
    single tokens in a third; the last bits differ, which costs 0.007 nats in every later token with int8 activations.
    So that a token is computed in one way whatever else is in the step and however its prompt is cut:

    - a chunk of tokens that were generated before a preemption becomes sequences of one token each, as they were the
      first time (not a chunk that begins in the prompt: the plugin clears the rest of its last block meanwhile);
    - a chunk of one token of a prompt takes a padding token as its companion: the same token once more, one position
      on, which nothing reads before it is overwritten, or in the scratch block if that position has none;
    - where all sequences have one token, an empty one follows the last.

    Shapes:
        token_ids     [tokens]
        positions     [tokens]     tokens before it in its sequence
        past_lens     [seqs]       tokens of each sequence that are in the cache
        starts        [seqs + 1]   where each sequence's tokens begin in `token_ids`
        block_ids     [blocks]     the block tables of all sequences, flat
        block_starts  [seqs + 1]   where each sequence's blocks begin in `block_ids`
        output_rows   [outputs]    tokens whose hidden state is wanted: sampling rows, fillers, scored tokens, padding
        slots         [samples]    slot of each sampling row
    """

    token_ids: Ints
    positions: Ints
    past_lens: Ints
    starts: Ints
    block_ids: Ints
    block_starts: Ints
    max_context_len: int
    output_rows: Ints
    slots: NDArray[np.int64]
    num_fillers: int
    num_scored: int

    def ragged(self) -> dict[str, NDArray[Any]]:
        """Where its sequences and their blocks are, by the names that graphs give them."""
        return {
            "past_lens": self.past_lens,
            "starts": self.starts,
            "block_ids": self.block_ids,
            "block_starts": self.block_starts,
            "max_context_len": np.array(self.max_context_len, np.int32),
        }


class Rows:
    """What the executor knows of each slot: its block table, how much is computed, and what it feeds next.

    Block 0 of the cache's tensors is the scratch block, which belongs to no sequence: block b of a plan is block b + 1
    there.

    Shapes:
        last_token  [slots]           what a decode or a filler feeds
        computed    [slots]           tokens in the cache, if the slot decodes or is a filler
        num_blocks  [slots]
        table       [slots, blocks]   block ids
    """

    def __init__(self, num_slots: int, max_blocks: int, block_size: int) -> None:
        self.last_token = np.zeros(num_slots, np.int32)
        self.computed = np.zeros(num_slots, np.int32)
        self.num_blocks = np.zeros(num_slots, np.int32)
        self.table = np.full((num_slots, max_blocks + 1), SCRATCH_BLOCK, np.int32)
        self._block_size = block_size
        self._tokens: list[Ints | None] = [None] * num_slots
        """Known tokens of a slot until they are computed."""
        self._num_prompt = np.zeros(num_slots, np.int32)
        self._num_top = np.zeros(num_slots, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take over what a plan changes: leaves, joins, blocks."""
        for slot in plan.leaves:
            self._tokens[slot] = None
            self.num_blocks[slot] = 0
        for join in plan.joins:
            self._tokens[join.slot] = np.array(join.tokens, np.int32)
            self._num_prompt[join.slot] = len(join.request.prompt)
            self._num_top[join.slot] = join.request.params.prompt_logprobs or 0
            self.num_blocks[join.slot] = 0
        if plan.block_slots:
            slots = np.array(plan.block_slots, np.int64)
            order = np.argsort(slots, kind="stable")
            ordered = slots[order]
            # The n-th new block of a slot lands n places after the blocks it has.
            nth = np.arange(len(slots)) - np.searchsorted(ordered, ordered)
            self.table[ordered, self.num_blocks[ordered] + nth] = np.array(plan.block_ids, np.int32)[order] + 1
            self.num_blocks += np.bincount(slots, minlength=len(self.num_blocks)).astype(np.int32)

    def assemble(self, plan: StepPlan, num_tokens: int, num_outputs: int) -> StepInputs:
        """The inputs of a plan already applied, padded to `num_tokens` tokens and `num_outputs` hidden states.

        Raises:
            IndexError: a position lies past its slot's block table. The plan is wrong; never clamp.
        """
        singles = np.array([*plan.decodes, *plan.fillers], np.int64)
        chunks = [run for chunk in plan.chunks for run in self._runs(chunk)]
        num_singles = len(singles)
        lone = num_singles + np.array(self._lone(chunks)[: num_tokens - plan.num_tokens], np.int64)
        num_padding = num_tokens - plan.num_tokens - len(lone)
        num_seqs = num_singles + len(chunks)
        has_idle = plan.num_tokens == num_seqs and not len(lone)

        slots = np.concatenate((singles, np.array([c.slot for c in chunks], np.int64)))
        past_lens = np.zeros(num_seqs + num_padding + has_idle, np.int32)
        past_lens[:num_singles] = self.computed[singles]
        past_lens[num_singles:num_seqs] = [c.start for c in chunks]
        counts = np.ones(num_seqs + num_padding + has_idle, np.int32)
        counts[num_seqs + num_padding :] = 0
        counts[num_singles:num_seqs] = [c.count for c in chunks]
        if (-(-(past_lens + counts)[:num_seqs] // self._block_size) > self.num_blocks[slots]).any():
            raise IndexError("a sequence has fewer blocks than its tokens need")
        last_rows = counts - 1
        counts[lone] = 2
        starts = _starts(counts)
        last_rows += starts[:-1]

        token_ids = np.zeros(num_tokens, np.int32)
        positions = np.zeros(num_tokens, np.int32)
        token_ids[:num_singles] = self.last_token[singles]
        positions[:num_singles] = past_lens[:num_singles]
        for chunk, at in zip(chunks, starts[num_singles:].tolist(), strict=False):
            token_ids[at : at + chunk.count] = self._known(chunk)[chunk.start : chunk.start + chunk.count]
            positions[at : at + chunk.count] = np.arange(chunk.start, chunk.start + chunk.count)
        token_ids[starts[lone] + 1] = token_ids[starts[lone]]
        positions[starts[lone] + 1] = past_lens[lone] + 1

        context = past_lens + counts
        block_counts = np.maximum(-(-context // self._block_size), 1)
        block_starts = _starts(block_counts)
        block_ids = np.full(block_starts[-1], SCRATCH_BLOCK, np.int32)
        used = block_counts[:num_seqs]
        columns = np.arange(block_starts[num_seqs]) - np.repeat(block_starts[:num_seqs], used)
        block_ids[: block_starts[num_seqs]] = self.table[np.repeat(slots, used), columns]
        outside = lone[past_lens[lone] % self._block_size == self._block_size - 1]
        block_ids[block_starts[outside + 1] - 1] = SCRATCH_BLOCK

        samples = np.ones(num_seqs, np.bool_)
        samples[len(plan.decodes) : num_singles] = False
        samples[num_singles:] = [c.samples for c in chunks]
        wanted = [last_rows[:num_seqs][samples], last_rows[len(plan.decodes) : num_singles]]
        num_scored = 0
        for chunk, at in zip(chunks, starts[num_singles:].tolist(), strict=False):
            if chunk.scores:
                wanted.append(np.arange(at, at + len(self.targets(chunk)), dtype=np.int32))
                num_scored += len(wanted[-1])
        rows = np.concatenate(wanted)
        output_rows = np.zeros(num_outputs, np.int32)
        output_rows[: len(rows)] = rows
        return StepInputs(
            token_ids,
            positions,
            past_lens,
            starts,
            block_ids,
            block_starts,
            int(context.max()),
            output_rows,
            slots[samples],
            len(plan.fillers),
            num_scored,
        )

    def _runs(self, chunk: Chunk) -> list[Chunk]:
        """The sequences that a chunk becomes: one, or one for each generated token."""
        if chunk.start < self._num_prompt[chunk.slot]:
            return [chunk]
        last = chunk.start + chunk.count - 1
        return [Chunk(chunk.slot, p, 1, chunk.samples and p == last) for p in range(chunk.start, last + 1)]

    def _lone(self, chunks: list[Chunk]) -> list[int]:
        """Which chunks are one token of a prompt with a past: these may have a companion."""
        return [i for i, c in enumerate(chunks) if c.count == 1 and 0 < c.start < self._num_prompt[c.slot]]

    def num_companions(self, plan: StepPlan) -> int:
        """Tokens that a step wants beyond those of its plan, which was applied."""
        return len(self._lone(plan.chunks))

    def targets(self, chunk: Chunk) -> Ints:
        """The prompt tokens that follow the tokens of a scored chunk, `[scored]`: none follows the prompt's last."""
        end = min(chunk.start + chunk.count, int(self._num_prompt[chunk.slot]) - 1)
        return self._known(chunk)[chunk.start + 1 : end + 1]

    def num_prompt_logprobs(self, slot: int) -> int:
        """How many alternatives the slot's request wants for each prompt token."""
        return int(self._num_top[slot])

    def advance(self, plan: StepPlan, slots: NDArray[np.int64], tokens: list[int]) -> None:
        """The plan was computed and `tokens` were sampled for `slots`: the decodes, then the sampling chunks.

        Fillers stay as they are.
        """
        self.last_token[slots] = tokens
        self.computed[slots[: len(plan.decodes)]] += 1
        for chunk in plan.chunks:
            if chunk.samples:
                self.computed[chunk.slot] = chunk.start + chunk.count
                self._tokens[chunk.slot] = None

    def _known(self, chunk: Chunk) -> Ints:
        tokens = self._tokens[chunk.slot]
        if tokens is None or len(tokens) < chunk.start + chunk.count:
            raise IndexError(f"slot {chunk.slot} has no tokens to compute from position {chunk.start}")
        return tokens


def uniform_inputs(num_rows: int, past_len: int, cache_shape: CacheShape) -> StepInputs:
    """Rows of one token with equal pasts, which they read from whatever is in the cache; they write the scratch block.

    For steps that only take time: they do not touch what sequences own. As in any step of such rows, an empty one
    follows.
    """
    num_past_blocks = -(-past_len // cache_shape.block_size)
    past_blocks = np.arange(num_rows * num_past_blocks, dtype=np.int32) % cache_shape.num_blocks + 1
    table = np.full((num_rows, past_len // cache_shape.block_size + 1), SCRATCH_BLOCK, np.int32)
    table[:, :num_past_blocks] = past_blocks.reshape(num_rows, -1)
    table[:, past_len // cache_shape.block_size] = SCRATCH_BLOCK
    past_lens = np.full(num_rows, past_len, np.int32)
    rows = np.arange(num_rows + 1, dtype=np.int32)
    block_starts = rows * np.int32(table.shape[1])
    return StepInputs(
        token_ids=np.zeros(num_rows, np.int32),
        positions=past_lens,
        past_lens=np.append(past_lens, np.int32(0)),
        starts=np.append(rows, rows[-1]),
        block_ids=np.append(table, np.int32(SCRATCH_BLOCK)),
        block_starts=np.append(block_starts, block_starts[-1] + np.int32(1)),
        max_context_len=past_len + 1,
        output_rows=rows[:-1],
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=0,
    )


def num_outputs(plan: StepPlan, rows: Rows) -> int:
    """Hidden states that a plan needs: one for each sampling row and filler, one for each scored prompt token."""
    scored = sum(len(rows.targets(chunk)) for chunk in plan.chunks if chunk.scores)
    return plan.num_samples + len(plan.fillers) + scored


def _starts(counts: Ints) -> Ints:
    """Where each of consecutive runs begins, and where the last one ends: `[runs + 1]`."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts
