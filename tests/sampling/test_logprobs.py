from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from chairlift.core.types import Request, SamplingParams, TokenLogprob
from chairlift.sampling import Sampler, score


def expected(row: NDArray[np.float32], token: int, num_top: int) -> TokenLogprob:
    exact = [float(x) for x in row]
    peak = max(exact)
    lse = peak + math.log(math.fsum(math.exp(x - peak) for x in exact))
    order = sorted(range(len(exact)), key=lambda i: (-exact[i], i))
    top = tuple((i, exact[i] - lse) for i in order[:num_top])
    return TokenLogprob(token, exact[token] - lse, order.index(token) + 1, top)


def assert_close(have: TokenLogprob, want: TokenLogprob) -> None:
    assert (have.token, have.rank) == (want.token, want.rank)
    assert [i for i, _ in have.top] == [i for i, _ in want.top]
    assert have.logprob == pytest.approx(want.logprob, abs=1e-5)
    assert [x for _, x in have.top] == pytest.approx([x for _, x in want.top], abs=1e-5)


@pytest.mark.parametrize("given_lse", [True, False])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.7, top_k=9, logit_bias=((3, 5.0),), logprobs=20)])
@given(vocab=st.sampled_from([21, 500, 3000]), seed=st.integers(0, 1000), coarse=st.booleans())
def test_logprobs_are_the_models_own(
    given_lse: bool, params: SamplingParams, vocab: int, seed: int, coarse: bool
) -> None:
    """Whatever bias and temperature did to the draw."""
    spread = np.random.default_rng(seed).normal(size=(1, vocab)) * 8
    logits = (np.round(spread) if coarse else spread).astype(np.float32)
    lse = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32) if given_lse else None
    sampler = Sampler(1, vocab)
    sampler.join(0, Request(0, [1], params), 0, [1])
    sampled = sampler.sample([0], logits, lse)
    assert_close(sampled.logprobs[0], expected(logits[0], sampled.tokens[0], 20))


def test_no_alternatives_unless_asked() -> None:
    sampler = Sampler(2, 10)
    sampler.join(0, Request(0, [1], SamplingParams(temperature=0.0, logprobs=0)), 0, [1])
    sampler.join(1, Request(1, [1], SamplingParams(temperature=0.0)), 0, [1])
    sampled = sampler.sample([0, 1], np.eye(2, 10, dtype=np.float32), None)
    assert sampled.tokens == [0, 1] and list(sampled.logprobs) == [0]
    assert sampled.logprobs[0].top == () and sampled.logprobs[0].rank == 1


def test_scores_of_a_prompt() -> None:
    logits = (np.random.default_rng(1).normal(size=(5, 700)) * 4).astype(np.float32)
    targets = [0, 699, 3, 3, 50]
    for have, row, target in zip(score(logits, None, targets, 4), logits, targets, strict=True):
        assert_close(have, expected(row, target, 4))


def test_scores_of_masked_and_broken_rows() -> None:
    logits = np.zeros((4, 6), np.float32)
    logits[0, 2] = -np.inf
    logits[1, 3] = np.nan
    logits[2] = -np.inf
    masked, broken, empty, fine = score(logits, None, [2, 2, 2, 2], 2)
    assert masked.logprob == -math.inf and masked.rank == 6
    for bad in (broken, empty):
        assert math.isnan(bad.logprob) and bad.rank == 0 and bad.top == ()
    assert_close(fine, expected(logits[3], 2, 2))
