"""The rows of the batch and the ragged inputs made from them, against a plain Python account of the same plans."""

from __future__ import annotations

import random

import numpy as np
import pytest

from chairlift.core.types import CacheShape, Chunk, Join, Request, SamplingParams, StepPlan
from chairlift.executors.openvino.inputs import (
    SCRATCH_BLOCK,
    Rows,
    StepInputs,
    num_outputs,
    uniform_inputs,
)

BLOCK_SIZE = 4


Piece = tuple[list[int], list[int], int, list[int]]
"""Of one sequence: its token ids, their positions, its past, its blocks."""


def join(slot: int, tokens: list[int], num_prompt: int | None = None) -> Join:
    prompt = tokens[: num_prompt or len(tokens)]
    return Join(slot, Request(slot, prompt, SamplingParams()), 0, tokens)


def pieces(inputs: StepInputs) -> list[Piece]:
    result = []
    for i, past in enumerate(inputs.past_lens.tolist()):
        tokens = slice(inputs.starts[i], inputs.starts[i + 1])
        blocks = slice(inputs.block_starts[i], inputs.block_starts[i + 1])
        result.append(
            (
                inputs.token_ids[tokens].tolist(),
                inputs.positions[tokens].tolist(),
                past,
                inputs.block_ids[blocks].tolist(),
            )
        )
    return result


PADDING: Piece = ([0], [0], 0, [SCRATCH_BLOCK])
EMPTY: Piece = ([], [], 0, [SCRATCH_BLOCK])


def test_chunks_then_decodes() -> None:
    rows = Rows(4, 3, BLOCK_SIZE)
    plan = StepPlan(
        0,
        joins=[join(2, [5, 6, 7, 8, 9, 10])],
        block_slots=[2, 2],
        block_ids=[7, 3],
        chunks=[Chunk(2, 0, 5, False)],
        num_chunk_tokens=5,
    )
    rows.apply(plan)
    inputs = rows.assemble(plan, 6, 1)
    assert pieces(inputs) == [([5, 6, 7, 8, 9], [0, 1, 2, 3, 4], 0, [8, 4]), PADDING]
    assert inputs.slots.tolist() == [] and inputs.output_rows.tolist() == [0]
    rows.advance(plan, inputs.slots, [])

    plan = StepPlan(1, chunks=[Chunk(2, 5, 1, True)], num_chunk_tokens=1)
    rows.apply(plan)
    inputs = rows.assemble(plan, 1, 1)
    assert pieces(inputs) == [([10], [5], 5, [8, 4]), EMPTY]
    assert inputs.slots.tolist() == [2] and inputs.output_rows.tolist() == [0]
    rows.advance(plan, inputs.slots, [33])

    plan = StepPlan(2, decodes=[2])
    rows.apply(plan)
    assert pieces(rows.assemble(plan, 1, 1)) == [([33], [6], 6, [8, 4]), EMPTY]
    assert pieces(rows.assemble(plan, 3, 1)) == [([33], [6], 6, [8, 4]), PADDING, PADDING, EMPTY]


@pytest.mark.parametrize("start", [5, 6, 7])
def test_a_chunk_of_one_token_has_a_companion(start: int) -> None:
    """It is the same token once more, one position on: in the sequence's own block, or in the scratch block."""
    rows = Rows(2, 2, BLOCK_SIZE)
    tokens = [11, 12, 13, 14, 15, 16, 17, 18]
    plan = StepPlan(
        0,
        joins=[join(0, tokens, num_prompt=8), join(1, tokens[: start + 1])],
        block_slots=[0, 0, 1, 1],
        block_ids=[0, 1, 2, 3],
        chunks=[Chunk(0, 0, 8, True), Chunk(1, start, 1, True)],
        num_chunk_tokens=9,
    )
    rows.apply(plan)
    assert rows.num_companions(plan) == 1
    inputs = rows.assemble(plan, 11, 2)
    scratch = [SCRATCH_BLOCK] if start == 7 else []
    assert pieces(inputs) == [
        (tokens, list(range(8)), 0, [1, 2]),
        ([tokens[start]] * 2, [start, start + 1], start, [3, 4, *scratch]),
        PADDING,
    ]
    assert inputs.output_rows.tolist() == [7, 8]
    assert inputs.max_context_len == max(8, start + 2)
    without = rows.assemble(plan, 9, 2)
    assert pieces(without) == [(tokens, list(range(8)), 0, [1, 2]), ([tokens[start]], [start], start, [3, 4])]
    assert without.output_rows.tolist() == [7, 8]


def test_a_slot_is_left_and_taken_in_one_plan() -> None:
    rows = Rows(2, 2, BLOCK_SIZE)
    first = StepPlan(
        0, joins=[join(1, [1, 2, 3])], block_slots=[1], block_ids=[5], chunks=[Chunk(1, 0, 3, True)], num_chunk_tokens=3
    )
    rows.apply(first)
    rows.advance(first, rows.assemble(first, 3, 1).slots, [9])
    second = StepPlan(
        1,
        leaves=[1],
        joins=[join(1, [4, 5])],
        block_slots=[1],
        block_ids=[2],
        chunks=[Chunk(1, 0, 2, True)],
        num_chunk_tokens=2,
    )
    rows.apply(second)
    assert pieces(rows.assemble(second, 2, 1)) == [([4, 5], [0, 1], 0, [3])]


def test_fillers_feed_the_same_token_at_the_same_place_and_are_not_sampled() -> None:
    """Between the decodes and the chunks; their hidden states come after those of the rows that sample."""
    rows = Rows(4, 2, BLOCK_SIZE)
    first = StepPlan(
        0,
        joins=[join(0, [1, 2, 3]), join(1, [4, 5]), join(2, [6, 7, 8, 9, 10])],
        block_slots=[0, 0, 1, 2, 2],
        block_ids=[0, 1, 2, 3, 4],
        chunks=[Chunk(0, 0, 3, True), Chunk(1, 0, 2, True)],
        num_chunk_tokens=5,
    )
    rows.apply(first)
    rows.advance(first, rows.assemble(first, 5, 2).slots, [21, 22])
    for step, token in enumerate((31, 41), 1):
        plan = StepPlan(step, decodes=[1], fillers=[0], chunks=[Chunk(2, 2 * step - 2, 2, False)], num_chunk_tokens=2)
        rows.apply(plan)
        assert num_outputs(plan, rows) == 2
        inputs = rows.assemble(plan, 5, 3)
        fed = 22 if step == 1 else 31
        assert pieces(inputs) == [
            ([fed], [1 + step], 1 + step, [3]),
            ([21], [3], 3, [1]),
            ([4 + 2 * step, 5 + 2 * step], [2 * step - 2, 2 * step - 1], 2 * step - 2, [4]),
            PADDING,
        ]
        assert inputs.slots.tolist() == [1] and inputs.num_fillers == 1
        assert inputs.output_rows.tolist() == [0, 1, 0]
        rows.advance(plan, inputs.slots, [token])


def test_generated_tokens_come_one_by_one_after_a_preemption() -> None:
    """As they did the first time, if they are a chunk of their own."""
    rows = Rows(2, 3, BLOCK_SIZE)
    tokens = [11, 12, 13, 14, 15, 16, 17]
    plan = StepPlan(
        0,
        joins=[join(0, tokens, num_prompt=5), join(1, tokens, num_prompt=5)],
        block_slots=[0, 0, 1, 1],
        block_ids=[0, 1, 2, 3],
        chunks=[Chunk(0, 4, 2, False, scores=True), Chunk(1, 5, 2, True, scores=True)],
        num_chunk_tokens=4,
    )
    rows.apply(plan)
    assert rows.num_companions(plan) == 0
    inputs = rows.assemble(plan, 5, num_outputs(plan, rows))
    assert pieces(inputs) == [
        ([15, 16], [4, 5], 4, [1, 2]),
        ([16], [5], 5, [3, 4]),
        ([17], [6], 6, [3, 4]),
        PADDING,
    ]
    assert inputs.output_rows.tolist() == [3]
    assert inputs.slots.tolist() == [1] and inputs.num_scored == 0
    rows.advance(plan, inputs.slots, [18])
    plan = StepPlan(1, decodes=[1], chunks=[Chunk(0, 6, 1, True)], num_chunk_tokens=1)
    rows.apply(plan)
    inputs = rows.assemble(plan, 2, 2)
    assert pieces(inputs) == [([18], [7], 7, [3, 4]), ([17], [6], 6, [1, 2]), EMPTY]
    assert inputs.output_rows.tolist() == [0, 1]


def test_scored_rows_come_after_the_sampling_ones() -> None:
    """Positions whose next prompt token exists: the last prompt token is followed by nothing that was asked."""
    rows = Rows(3, 4, BLOCK_SIZE)
    plan = StepPlan(
        0,
        joins=[join(0, [1, 2, 3]), join(1, [4, 5, 6, 7, 8], num_prompt=4)],
        block_slots=[0, 1, 1],
        block_ids=[0, 1, 2],
        chunks=[Chunk(0, 0, 3, True, scores=True), Chunk(1, 1, 4, True, scores=True)],
        num_chunk_tokens=7,
    )
    rows.apply(plan)
    assert rows.targets(plan.chunks[0]).tolist() == [2, 3]
    assert rows.targets(plan.chunks[1]).tolist() == [6, 7]
    assert num_outputs(plan, rows) == 6
    inputs = rows.assemble(plan, 8, 8)
    assert inputs.output_rows.tolist() == [2, 6, 0, 1, 3, 4, 0, 0]
    assert inputs.num_scored == 4 and inputs.slots.tolist() == [0, 1]


def test_scored_rows_come_after_the_fillers() -> None:
    rows = Rows(2, 2, BLOCK_SIZE)
    first = StepPlan(
        0,
        joins=[join(0, [1, 2])],
        block_slots=[0],
        block_ids=[0],
        chunks=[Chunk(0, 0, 2, True)],
        num_chunk_tokens=2,
    )
    rows.apply(first)
    rows.advance(first, rows.assemble(first, 2, 1).slots, [9])
    plan = StepPlan(
        1,
        joins=[join(1, [4, 5, 6])],
        block_slots=[1],
        block_ids=[1],
        chunks=[Chunk(1, 0, 3, True, scores=True)],
        fillers=[0],
        num_chunk_tokens=3,
    )
    rows.apply(plan)
    assert num_outputs(plan, rows) == 4
    inputs = rows.assemble(plan, 4, 4)
    assert inputs.output_rows.tolist() == [3, 0, 1, 2]
    assert (inputs.slots.tolist(), inputs.num_fillers, inputs.num_scored) == ([1], 1, 2)


def test_a_position_past_the_block_table_is_an_error() -> None:
    rows = Rows(1, 2, BLOCK_SIZE)
    plan = StepPlan(
        0,
        joins=[join(0, list(range(6)))],
        block_slots=[0],
        block_ids=[0],
        chunks=[Chunk(0, 0, 5, False)],
        num_chunk_tokens=5,
    )
    rows.apply(plan)
    with pytest.raises(IndexError, match="fewer blocks"):
        rows.assemble(plan, 5, 1)
    plan = StepPlan(1, chunks=[Chunk(0, 4, 4, True)], num_chunk_tokens=4, block_slots=[0], block_ids=[1])
    rows.apply(plan)
    with pytest.raises(IndexError, match="no tokens"):
        rows.assemble(plan, 4, 1)


class Account:
    """What every slot should feed, kept as plain lists."""

    def __init__(self, rng: random.Random, num_slots: int) -> None:
        self.rng = rng
        self.num_slots = num_slots
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.decoding: list[int] = []
        self.fillers: list[int] = []

    def change(self, plan: StepPlan) -> None:
        """Some sequences leave, others join, a few of those with computed blocks."""
        for slot in [s for s in self.tokens if self.rng.random() < 0.1]:
            plan.leaves.append(slot)
            del self.tokens[slot], self.computed[slot], self.tables[slot]
            self.decoding = [s for s in self.decoding if s != slot]
            self.fillers = [s for s in self.fillers if s != slot]
        self.fillers += [s for s in self.decoding if self.rng.random() < 0.05]
        self.decoding = [s for s in self.decoding if s not in self.fillers]
        for slot in [s for s in range(self.num_slots) if s not in self.tokens and self.rng.random() < 0.3]:
            tokens = [self.rng.randrange(1, 99) for _ in range(self.rng.randrange(1, 20))]
            hit = self.rng.randrange((len(tokens) - 1) // BLOCK_SIZE + 1)
            self.tokens[slot], self.tables[slot] = tokens, [self.rng.randrange(1000) for _ in range(hit)]
            self.computed[slot] = hit * BLOCK_SIZE
            plan.joins.append(join(slot, list(tokens)))
            plan.block_slots += [slot] * hit
            plan.block_ids += self.tables[slot]

    def compute(self, plan: StepPlan, slot: int, count: int) -> Piece:
        """The slot's share of the step, with the blocks it needs."""
        table, start = self.tables[slot], self.computed[slot]
        while len(table) * BLOCK_SIZE < start + count:
            table.append(self.rng.randrange(1000))
            plan.block_slots.append(slot)
            plan.block_ids.append(table[-1])
        self.computed[slot] = start + count
        if slot in self.fillers:
            self.computed[slot] = start
        ids = self.tokens[slot][start : start + count]
        return ids, list(range(start, start + count)), start, [block + 1 for block in table]


@pytest.mark.parametrize("seed", range(20))
def test_random_plans(seed: int) -> None:
    """Sequences join, compute in chunks, decode, end, and leave; what each feeds is what it should."""
    rng = random.Random(seed)
    account = Account(rng, num_slots=6)
    rows = Rows(6, 40, BLOCK_SIZE)
    num_computed = 0
    for step in range(60):
        plan = StepPlan(step)
        account.change(plan)
        plan.decodes = list(account.decoding)
        sampling = list(account.decoding)
        plan.fillers = list(account.fillers)
        singles = [*plan.decodes, *plan.fillers]
        expected = [account.compute(plan, slot, 1) for slot in singles]
        for slot in [s for s in account.tokens if s not in singles]:
            lacking = len(account.tokens[slot]) - account.computed[slot]
            count = rng.randrange(1, lacking + 1)
            plan.chunks.append(Chunk(slot, account.computed[slot], count, count == lacking))
            plan.num_chunk_tokens += count
            expected.append(account.compute(plan, slot, count))
            if count == lacking:
                sampling.append(slot)
        if not expected:
            continue
        rows.apply(plan)
        lone = [len(singles) + i for i, chunk in enumerate(plan.chunks) if chunk.count == 1 and chunk.start]
        assert rows.num_companions(plan) == len(lone)
        inputs = rows.assemble(plan, plan.num_tokens + len(lone) + 2, num_outputs(plan, rows) + 1)
        last = np.cumsum([len(ids) + (i in lone) for i, (ids, _, _, _) in enumerate(expected)]) - 1
        last[lone] -= 1
        for i in lone:
            ids, _, start, blocks = expected[i]
            blocks = [*blocks, *([SCRATCH_BLOCK] if (start + 1) % BLOCK_SIZE == 0 else [])]
            expected[i] = ids * 2, [start, start + 1], start, blocks
        is_single = all(len(ids) == 1 for ids, _, _, _ in expected)
        assert pieces(inputs) == [*expected, PADDING, PADDING, *([EMPTY] if is_single else [])]
        assert inputs.slots.tolist() == sampling
        assert inputs.max_context_len == max(start + len(ids) for ids, _, start, _ in expected)
        owners = [*singles, *(chunk.slot for chunk in plan.chunks)]
        assert inputs.num_fillers == len(plan.fillers)
        assert inputs.output_rows[:-1].tolist() == [last[owners.index(slot)] for slot in [*sampling, *plan.fillers]]
        sampled = [rng.randrange(1, 99) for _ in sampling]
        for slot, token in zip(sampling, sampled, strict=True):
            account.tokens[slot].append(token)
        rows.advance(plan, inputs.slots, sampled)
        account.decoding = sampling
        num_computed += len(expected)
    assert num_computed > 100


def test_uniform_rows_write_only_the_scratch_block() -> None:
    for past_len in (0, 3, 4, 9):
        inputs = uniform_inputs(3, past_len, CacheShape(5, BLOCK_SIZE))
        *found, last = pieces(inputs)
        assert len(found) == 3 and last == EMPTY
        for ids, positions, past, blocks in found:
            assert (ids, positions, past) == ([0], [past_len], past_len)
            assert len(blocks) == past_len // BLOCK_SIZE + 1
            assert blocks[-1] == SCRATCH_BLOCK
            assert all(0 <= block <= 5 for block in blocks)
