"""Every combination of parameters, against the slow sampler."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampler
from sampling.reference import acceptable, patched, seeded_uniform

VOCABS = (1, 2, 7, 60, 1100, 5000)
"""The last two are long enough for stripes, runs of partial sums and a histogram of mass."""


@st.composite
def requests(draw: st.DrawFn, vocab: int) -> tuple[Request, list[int]]:
    """A request and its tokens so far, some of them generated."""
    ids = st.integers(0, vocab - 1)
    allowed = draw(st.none() | st.lists(ids, min_size=1, max_size=20))
    params = SamplingParams(
        max_tokens=None,
        min_tokens=draw(st.sampled_from([0, 0, 2, 5])),
        temperature=draw(st.sampled_from([0.0, 1e-6, 0.01, 0.3, 1.0, 1.0, 2.5, 40.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 5, 50, 700, 10**6])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.999, 0.9, 0.5, 0.1, 1e-9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -0.5])),
        logit_bias=tuple(draw(st.lists(st.tuples(ids, st.sampled_from([-100.0, 3.0, 100.0])), max_size=3))),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, vocab + 5), max_size=2))),
    )
    prompt = draw(st.lists(ids, min_size=1, max_size=8))
    output = draw(st.lists(ids, max_size=4))
    return Request(draw(st.integers(0, 9)), prompt, params, eos_token_ids=(0,)), prompt + output


@st.composite
def batches(draw: st.DrawFn) -> tuple[NDArray[np.float32], list[tuple[Request, list[int]]]]:
    """Logits that are spread, flat or full of ties, with some of them masked by the model."""
    vocab = draw(st.sampled_from(VOCABS))
    rows = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.normal(size=(rows, vocab)) * draw(st.sampled_from([0.01, 1.0, 5.0])) + rng.choice([0, -30, 90])
    if draw(st.booleans()):
        logits = np.round(logits)
    if draw(st.booleans()) and vocab > 2:
        logits[:, rng.random(vocab) < 0.3] = -np.inf
        logits[:, 1] = 0.0
    return logits.astype(np.float32), [draw(requests(vocab)) for _ in range(rows)]


@settings(max_examples=250, deadline=None)
@given(batches())
def test_equals_the_slow_sampler(batch: tuple[NDArray[np.float32], list[tuple[Request, list[int]]]]) -> None:
    logits, asked = batch
    sampler = Sampler(len(asked), logits.shape[1])
    for slot, (request, tokens) in enumerate(asked):
        sampler.join(slot, request, slot, tokens)
    before = logits.copy()
    sampled = sampler.sample(list(range(len(asked))), logits, None)
    assert np.array_equal(before, logits)
    for slot, (request, tokens) in enumerate(asked):
        row = patched([float(x) for x in logits[slot]], request, tokens)
        if max(row) == -np.inf:
            assert sampled.tokens[slot] == -1 and "masked" in sampled.errors[slot]
            continue
        assert request.params.seed is not None
        uniform = seeded_uniform(request.params.seed, slot, len(tokens) - len(request.prompt))
        assert sampled.tokens[slot] in acceptable(row, request, uniform)
        assert slot not in sampled.errors
