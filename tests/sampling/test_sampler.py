"""Rows are on their own: neighbours, order, slots, failures, preemption."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampled, Sampler

VOCAB = 3000
MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.7, seed=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, min_p=0.1, logit_bias=((7, 3.0),)),
    SamplingParams(temperature=3.0, top_p=0.99, seed=-5),
    SamplingParams(temperature=0.0, min_tokens=3, logprobs=0),
]


def logits_of(rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32) * 3


def one(
    params: SamplingParams, vocab: int = VOCAB, *, eos: tuple[int, ...] = (), prompt: tuple[int, ...] = (1,)
) -> Sampler:
    sampler = Sampler(1, vocab)
    sampler.join(0, Request(0, prompt, params, eos_token_ids=eos), 0, list(prompt))
    return sampler


def step(sampler: Sampler, row: list[float] | NDArray[np.float32]) -> Sampled:
    return sampler.sample([0], np.array([row], np.float32), None)


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(len(MIXED))), size=st.integers(1, len(MIXED)), seed=st.integers(0, 99))
def test_a_row_knows_nothing_of_its_neighbours(order: list[int], size: int, seed: int) -> None:
    """Alone or among others, in any slot, in any order: the same tokens and bit-equal log-probabilities."""
    members = order[:size]
    together = Sampler(20, VOCAB, entropy=b"e")
    slots = {member: 19 - 2 * place for place, member in enumerate(members)}
    for member in members:
        together.join(slots[member], Request(member, [1, 2], MIXED[member]), 0, [1, 2])
    alone = {member: Sampler(1, VOCAB, entropy=b"e") for member in members}
    for member in members:
        alone[member].join(0, Request(member, [1, 2], MIXED[member]), 0, [1, 2])
    for now in range(3):
        logits = logits_of(len(MIXED), seed + now)
        turn = members if now % 2 else members[::-1]
        sampled = together.sample([slots[m] for m in turn], logits[turn], None)
        for token, member in zip(sampled.tokens, turn, strict=True):
            single = alone[member].sample([0], logits[member : member + 1], None)
            assert single.tokens == [token]
            assert single.logprobs.get(0) == sampled.logprobs.get(slots[member])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    logits = logits_of(len(MIXED))
    good = logits.copy()
    for row in range(0, len(MIXED), 2):
        logits[row, row + 100] = bad
    results = []
    for values in (good, logits):
        sampler = Sampler(len(MIXED), VOCAB, entropy=b"e")
        for slot, params in enumerate(MIXED):
            sampler.join(slot, Request(slot, [1], params), 0, [1])
        results.append(sampler.sample(np.arange(len(MIXED)), values, None))
    whole, hurt = results
    assert sorted(hurt.errors) == [0, 2, 4, 6]
    assert all("finite" in message for message in hurt.errors.values())
    assert hurt.tokens[::2] == [-1] * 4
    assert hurt.tokens[1::2] == whole.tokens[1::2]
    assert set(hurt.logprobs) == {1, 7} and hurt.logprobs == whole.logprobs


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, allowed_token_ids=(4,)),
        SamplingParams(temperature=1.0, allowed_token_ids=(4,)),
        SamplingParams(temperature=1.0, top_p=0.5),
    ],
)
def test_a_row_with_nothing_left_fails(params: SamplingParams) -> None:
    row = np.zeros(VOCAB, np.float32)
    row[4] = -np.inf
    if params.allowed_token_ids is None:
        row[:] = -np.inf
    sampled = step(one(params), row)
    assert sampled.tokens == [-1] and "masked" in sampled.errors[0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias=((VOCAB, 1.0),)),
        SamplingParams(allowed_token_ids=(1, -1)),
        SamplingParams(logit_bias=((-1, 1.0),)),
    ],
)
def test_ids_outside_the_vocabulary_fail_their_row_only(params: SamplingParams) -> None:
    sampler = Sampler(2, VOCAB)
    sampler.join(0, Request(0, [1], params), 0, [1])
    sampler.join(1, Request(1, [1], SamplingParams(temperature=0.0)), 0, [1])
    logits = logits_of(2)
    sampled = sampler.sample([0, 1], logits, None)
    assert sampled.tokens == [-1, int(logits[1].argmax())] and "outside the vocabulary" in sampled.errors[0]


def test_a_slot_that_nobody_joined_is_the_callers_mistake() -> None:
    sampler = one(SamplingParams(temperature=0.0))
    step(sampler, logits_of(1)[0])
    sampler.leave(0)
    with pytest.raises(ValueError, match="slot 0"):
        step(sampler, logits_of(1)[0])


@pytest.mark.parametrize("params", MIXED, ids=str)
def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(params: SamplingParams) -> None:
    request = Request(77, [1, 2, 3], params, eos_token_ids=(9,))
    logits = logits_of(12)
    logits[:, 9] = 20.0
    whole, broken = Sampler(3, VOCAB, entropy=b"e"), Sampler(3, VOCAB, entropy=b"e")
    tokens = list(request.prompt)
    whole.join(0, request, 1, tokens)
    for row in logits:
        tokens += whole.sample([0], row[None], None).tokens
    again = list(request.prompt)
    for start in range(0, 12, 4):
        slot = start // 4
        broken.join(slot, request, 1, again)
        for row in logits[start : start + 4]:
            again += broken.sample([slot], row[None], None).tokens
        broken.leave(slot)
    assert again == tokens


def test_choices_of_a_request_and_requests_without_a_seed_differ() -> None:
    flat = np.zeros((8, VOCAB), np.float32)
    seeded = Sampler(8, VOCAB)
    for slot in range(8):
        seeded.join(slot, Request(1, [1], SamplingParams(seed=3), n=8), slot, [1])
    assert len(set(seeded.sample(range_of(8), flat, None).tokens)) > 5
    free = Sampler(8, VOCAB)
    for slot in range(8):
        free.join(slot, Request(slot, [1], SamplingParams()), 0, [1])
    first = free.sample(range_of(8), flat, None).tokens
    assert len(set(first)) > 5
    assert Sampler(8, VOCAB)._entropy != free._entropy


def range_of(n: int) -> NDArray[np.int64]:
    return np.arange(n)


def test_equal_seeds_give_equal_answers_whatever_the_request() -> None:
    answers = []
    for id in (1, 2):
        sampler = Sampler(1, VOCAB)
        sampler.join(0, Request(id, [id], SamplingParams(seed=11)), 0, [id])
        answers.append([step(sampler, row).tokens[0] for row in logits_of(5)])
    assert answers[0] == answers[1]


def test_min_tokens_keeps_the_end_away_and_then_lets_it_come() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(6, 10**6))
    sampler = one(params, eos=(5,))
    row = np.zeros(VOCAB, np.float32)
    row[5], row[6], row[7] = 9.0, 8.0, 7.0
    assert [step(sampler, row).tokens[0] for _ in range(5)] == [7, 7, 7, 5, 5]
    assert sampler._plain[0]


def test_penalties_look_where_they_should() -> None:
    """Repetition at the prompt as well; frequency and presence at the output only."""
    row = [4.0, 3.9, 3.0, -1.0]
    assert step(one(SamplingParams(temperature=0.0, repetition_penalty=2.0), 4, prompt=(0,)), row).tokens == [1]
    assert step(one(SamplingParams(temperature=0.0, presence_penalty=2.0), 4, prompt=(0,)), row).tokens == [0]
    presence = one(SamplingParams(temperature=0.0, presence_penalty=0.5), 4)
    assert [step(presence, row).tokens[0] for _ in range(4)] == [0, 1, 0, 0]
    frequency = one(SamplingParams(temperature=0.0, frequency_penalty=0.5), 4)
    assert [step(frequency, row).tokens[0] for _ in range(6)] == [0, 1, 0, 1, 0, 2]
    negative = one(SamplingParams(temperature=0.0, repetition_penalty=2.0), 2, prompt=(0,))
    assert step(negative, [-1.0, -1.5]).tokens == [1]


def test_equal_logits_go_to_the_lowest_ids() -> None:
    row = np.zeros(VOCAB, np.float32)
    assert step(one(SamplingParams(temperature=0.0)), row).tokens == [0]
    assert step(one(SamplingParams(top_k=1)), row).tokens == [0]
    sampler = one(SamplingParams(top_p=0.001))
    assert {step(sampler, row).tokens[0] for _ in range(100)} == {0, 1, 2}


def test_a_thousand_plain_rows_share_one_argmax() -> None:
    sampler = Sampler(1000, 50)
    for slot in range(1000):
        sampler.join(slot, Request(slot, [1], SamplingParams(temperature=0.0)), 0, [1])
    logits = np.random.default_rng(0).normal(size=(1000, 50)).astype(np.float32)
    sampled = sampler.sample(np.arange(1000), logits, None)
    assert sampled == Sampled(logits.argmax(axis=1).tolist())
