"""Rows that a device spoils, by the thousand: each fails alone (reliability S17, rows 25 and 38 of §2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampled, Sampler

VOCAB = 400
FAULTS = ("nan", "all nan", "inf", "all -inf", "an id outside")
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=40),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, min_p=0.1, seed=3),
    SamplingParams(temperature=1.5, allowed_token_ids=tuple(range(0, VOCAB, 3))),
)


def spoil(row: NDArray[np.float32], fault: str, rng: np.random.Generator) -> None:
    """What a device may leave in a row of logits."""
    match fault:
        case "nan":
            row[rng.choice(VOCAB, rng.integers(1, 5), replace=False)] = np.nan
        case "all nan":
            row[:] = np.nan
        case "inf":
            row[rng.integers(VOCAB)] = np.inf
        case "all -inf":
            row[:] = -np.inf


def sample(params: list[SamplingParams], logits: NDArray[np.float32]) -> Sampled:
    sampler = Sampler(len(params), VOCAB, entropy=b"e")
    for slot, each in enumerate(params):
        sampler.join(slot, Request(slot, [1, 2], each), 0, [1, 2])
    return sampler.sample(np.arange(len(params)), logits, None)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_s17_a_spoiled_row_fails_and_no_other(count: int) -> None:
    rng = np.random.default_rng(count)
    seen: Counter[str] = Counter()
    for _ in range(count):
        size = int(rng.integers(2, 9))
        hit, fault = int(rng.integers(size)), FAULTS[int(rng.integers(len(FAULTS)))]
        params = [PARAMS[i] for i in rng.integers(len(PARAMS), size=size)]
        logits = rng.normal(size=(size, VOCAB)).astype(np.float32) * 3
        whole = sample(params, logits)
        spoiled = logits.copy()
        spoil(spoiled[hit], fault, rng)
        if fault == "an id outside":
            params[hit] = replace(params[hit], allowed_token_ids=(1, VOCAB + int(rng.integers(9))))
        hurt = sample(params, spoiled)
        seen[fault] += 1
        assert list(hurt.errors) == [hit] and hurt.tokens[hit] == -1, (fault, params[hit])
        for slot in set(range(size)) - {hit}:
            assert hurt.tokens[slot] == whole.tokens[slot], (fault, slot)
            assert hurt.logprobs.get(slot) == whole.logprobs.get(slot)
    print(dict(seen))
