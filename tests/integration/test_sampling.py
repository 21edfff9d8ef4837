"""A request with a seed gets the same tokens whoever is next to it and however it is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chairlift.core.types import Request, SamplingParams
from integration.equality import Logits, Subject, parting
from integration.variants import Key, Outcome, Variant, variants

KINDS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.5, top_k=20),
    SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=0.4),
    SamplingParams(temperature=1.2, logit_bias=((7, 4.0), (9, -100.0)), allowed_token_ids=tuple(range(5, 60))),
]
ALONE = Variant("alone", 1, 256, caching=False)


def seeded(num: int, vocab_size: int, max_tokens: int) -> list[Request]:
    """Prompts of 1 to 80 tokens, half of them with a common beginning; every kind of sampling, every seed its own."""
    rng = np.random.default_rng(3)
    stem = rng.integers(3, vocab_size, 60).tolist()
    requests = []
    for i in range(num):
        prompt = (stem if i % 2 else []) + rng.integers(3, vocab_size, int(rng.integers(1, 20))).tolist()
        params = replace(KINDS[i % len(KINDS)], seed=i, max_tokens=max_tokens, ignore_eos=True)
        requests.append(Request(i, prompt, params, arrival=float(i // 8)))
    return requests


def num_parting(
    tokens: dict[Key, list[int]], own: Logits, wanted: Outcome, exact: Logits, prompts: dict[int, int]
) -> int:
    """Sequences that differ. They may where a draw falls between two tokens, but not because the logits differ."""
    num = 0
    for key, expected in wanted.tokens.items():
        at = parting(tokens[key], expected)
        if at is not None:
            num += 1
            place = key, prompts[key[0]] + at
            assert np.abs(own.rows[place] - exact.rows[place]).max() < 1e-3
    return num


def test_alone_among_63_chunked_cached_and_preempted(exact: Subject) -> None:
    requests = seeded(64, exact.vocab_size, 20)
    prompts = {request.id: len(request.prompt) for request in requests}
    first_logits = Logits()
    first = exact.generate(requests, ALONE, first_logits)
    ways = [way for way in variants(64, 256, tight_blocks=20) if way.max_num_seqs > 1]
    num = 0
    for way in ways:
        own = Logits()
        tokens = exact.generate(requests, way, own).tokens
        num += num_parting(tokens, own, first, first_logits, prompts)
    assert num <= len(requests) * len(ways) / 100
    assert len({tuple(tokens[:8]) for tokens in first.tokens.values()}) > 60


@pytest.mark.parametrize("preempts", [False, True])
def test_choices_differ_and_come_again(preempts: bool, exact: Subject) -> None:
    requests = [replace(request, n=4) for request in seeded(12, exact.vocab_size, 20)]
    way = Variant("choices", 16, 40, preempts=preempts)
    tokens = exact.generate(requests, way).tokens
    assert exact.generate(requests, Variant("few choices", 4, 256, caching=False)).tokens == tokens
    for request in requests:
        choices = {tuple(tokens[request.id, choice]) for choice in range(4)}
        assert len(choices) == 4
    single = exact.generate([replace(request, n=1) for request in requests], ALONE).tokens
    assert all(single[request.id, 0] == tokens[request.id, 0] for request in requests)


def test_the_seed_decides_and_nothing_else_that_a_caller_says(exact: Subject) -> None:
    (request,) = seeded(1, exact.vocab_size, 30)
    again = replace(request, id=77, arrival=2.0, priority=3, salt=b"another tenant")
    other = replace(request, id=78, params=replace(request.params, seed=1234))
    tokens = exact.generate([request, again, other], Variant("three", 3, 256)).tokens
    assert tokens[0, 0] == tokens[77, 0] != tokens[78, 0]
