"""Rows with a grammar: what it does not allow is never said, and no other row notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampler

VOCAB = 300
FORM = StructuredOutputs(regex="anything")


class Countdown:
    """Allows every token that is a multiple of `step`, then `step` - 1, and so on; at 1 it has nothing to allow."""

    def __init__(self, step: int, output: list[int]) -> None:
        self.step = step
        self.said: list[int] = []
        for token in output:
            self.accept(token)

    def accept(self, token: int) -> None:
        assert token % self.step == 0
        self.said.append(token)
        self.step -= 1

    def fill(self, words: NDArray[np.uint32]) -> str | None:
        words.fill(0)
        if self.step == 1:
            return "a dead end"
        for token in range(0, VOCAB, self.step):
            words[token >> 5] |= np.uint32(1 << (token & 31))
        return None


def sampler(num_slots: int, step: int = 7) -> Sampler:
    return Sampler(num_slots, VOCAB, entropy=b"e", constraints=lambda _, output: Countdown(step, output))


def request(request_id: int = 0, **params: Any) -> Request:
    fields: dict[str, Any] = {"temperature": 0.0, "structured_outputs": FORM} | params
    return Request(request_id, [1, 2], SamplingParams(**fields), eos_token_ids=(0,))


def logits_of(rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32) * 3


PARAMS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2},
    {"temperature": 1.0},
    {"temperature": 2.0, "top_p": 0.8, "seed": 3},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "min_p": 0.05},
    {"repetition_penalty": 1.7, "presence_penalty": 1.0},
    {"logit_bias": ((13, 100.0), (14, 50.0))},
    {"min_tokens": 2},
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_only_what_is_allowed_is_said(params: dict[str, Any]) -> None:
    one = sampler(1)
    one.join(0, request(**params), 0, [1, 2])
    for place, step in enumerate((7, 6, 5, 4, 3, 2)):
        sampled = one.sample([0], logits_of(1, place), None)
        assert sampled.tokens[0] % step == 0
        assert not sampled.errors


def test_without_a_temperature_it_is_the_best_that_is_allowed() -> None:
    for seed in range(20):
        one, logits = sampler(1), logits_of(1, seed)
        one.join(0, request(), 0, [1, 2])
        allowed = np.arange(0, VOCAB, 7)
        assert one.sample([0], logits, None).tokens == [int(allowed[logits[0, allowed].argmax()])]


def test_the_draw_is_that_of_the_distribution_without_the_rest() -> None:
    """Masked first: a nucleus or the k best are those among what is allowed."""
    logits = logits_of(1, 4)
    allowed = np.arange(0, VOCAB, 7)
    plain = np.full((1, VOCAB), -np.inf, np.float32)
    plain[0, allowed] = logits[0, allowed]
    for params in PARAMS[2:]:
        one, free = sampler(1), sampler(1)
        one.join(0, request(**params), 0, [1, 2])
        free.join(0, request(**params, structured_outputs=None), 0, [1, 2])
        assert one.sample([0], logits, None).tokens == free.sample([0], plain, None).tokens


def test_log_probabilities_are_the_model_s_own() -> None:
    one, free, logits = sampler(1), sampler(1), logits_of(1)
    one.join(0, request(logprobs=3), 0, [1, 2])
    free.join(0, request(logprobs=3, structured_outputs=None), 0, [1, 2])
    masked, whole = one.sample([0], logits, None), free.sample([0], logits, None)
    assert masked.logprobs[0].top == whole.logprobs[0].top
    assert masked.logprobs[0].rank > 1


def test_src_vllm_43894_rows_with_and_without_a_grammar_come_and_go_as_if_alone() -> None:
    """Row 61 of the catalogue: a slot that had a grammar has none for the next, and the other way round."""
    draw = np.random.default_rng(5)
    together = sampler(6)
    slots: dict[int, tuple[int, Sampler, int]] = {}
    for now in range(200):
        for slot in range(6):
            if slot in slots and (draw.random() < 0.2 or slots[slot][2] >= 5):
                del slots[slot]
                together.leave(slot)
            if slot not in slots and draw.random() < 0.5:
                form = FORM if draw.random() < 0.5 else None
                params = PARAMS[int(draw.integers(len(PARAMS)))]
                asked, alone = request(now * 10 + slot, **params, structured_outputs=form), sampler(1)
                for one, place in ((together, slot), (alone, 0)):
                    one.join(place, asked, 0, [1, 2])
                slots[slot] = now * 10 + slot, alone, 0
        turn = sorted(slots, key=lambda slot: draw.random())
        if not turn:
            continue
        if now % 3:
            together.prepare(turn)
        logits = logits_of(6, now)
        sampled = together.sample(turn, logits[turn], None)
        for slot, token in zip(turn, sampled.tokens, strict=True):
            key, alone, count = slots[slot]
            assert alone.sample([0], logits[slot : slot + 1], None).tokens == [token]
            slots[slot] = key, alone, count + 1


def test_src_tensorrt_llm_18896_a_row_with_nothing_to_say_fails_alone() -> None:
    """Row 37: its own error, and the rows beside it are what they were."""
    both, logits = sampler(2), logits_of(2)
    both.join(0, request(0), 0, [1, 2, 0, 0, 0, 0, 0, 0])
    both.join(1, request(1), 0, [1, 2])
    alone = sampler(1)
    alone.join(0, request(1), 0, [1, 2])
    sampled = both.sample([0, 1], logits, None)
    assert sampled.tokens == [-1, alone.sample([0], logits[1:], None).tokens[0]]
    assert sampled.errors == {0: "a dead end"}


def test_a_minimum_length_that_the_grammar_cannot_reach_fails_the_row() -> None:
    """Nothing is ignored in silence: where only an end is allowed and an end is not, there is no token."""

    class OnlyEnd:
        def accept(self, token: int) -> None: ...

        def fill(self, words: NDArray[np.uint32]) -> str | None:
            words[0] = 1
            return None

    one = Sampler(1, VOCAB, constraints=lambda *_: OnlyEnd())
    one.join(0, request(min_tokens=3), 0, [1, 2])
    assert "masked" in one.sample([0], logits_of(1), None).errors[0]
    one.leave(0)
    one.join(0, request(), 0, [1, 2])
    assert one.sample([0], logits_of(1), None).tokens == [0]


def test_allowed_ids_and_the_grammar_both_hold() -> None:
    one = sampler(1)
    one.join(0, request(allowed_token_ids=(13, 14, 15)), 0, [1, 2])
    assert one.sample([0], logits_of(1), None).tokens == [14]
    assert "masked" in one.sample([0], logits_of(1), None).errors[0]  # 6 divides none of them


def test_a_sampler_without_grammars_refuses_a_row_that_needs_one() -> None:
    one = Sampler(1, VOCAB)
    one.join(0, request(), 0, [1, 2])
    assert "not available" in one.sample([0], logits_of(1), None).errors[0]
