"""Whatever the batch, the chunks, the cache and the preemptions: the same tokens, and the reference's logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chairlift.core.types import CacheShape, Request, SamplingParams
from chairlift.executors.openvino.options import Dtype
from chairlift.models import Model
from fakes import VOCAB_SIZE, FakeExecutor, expected_answer
from integration.equality import GREEDY, TIE, Subject, compare_texts, equal_bits, logit_errors
from integration.variants import Variant, check_way, generate, variants

BLOCK_SIZE = 32
NUM_REQUESTS = 36
NUM_SLOTS = 64
WHOLE = 256
WAYS = variants(NUM_SLOTS, WHOLE, tight_blocks=20)


def requests_of(
    num: int, vocab_size: int, params: SamplingParams, *, longest: int = 110, seed: int = 0
) -> list[Request]:
    """Prompts of 1 to `longest` tokens, half of them with a common beginning; a third comes later, one each step."""
    rng = np.random.default_rng(seed)
    stems = rng.integers(3, vocab_size, (2, longest)).tolist()
    requests = []
    for i in range(num):
        length = int(rng.integers(1, longest + 1))
        stem = stems[i % 2][: min(length, 70)] if i % 4 < 2 else []
        prompt = stem + rng.integers(3, vocab_size, length - len(stem)).tolist()
        requests.append(Request(i, prompt, params, arrival=float(max(0, i - num * 2 // 3))))
    return requests


@pytest.mark.parametrize("way", variants(8, 64, tight_blocks=40), ids=lambda way: way.name)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_tokens_are_exactly_the_models_on_the_fake_device(way: Variant, block_size: int) -> None:
    way = replace(way, num_blocks=way.num_blocks and -(-64 // block_size))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests = requests_of(20, VOCAB_SIZE, params, longest=40)
    requests += [replace(request, id=20 + i, n=3) for i, request in enumerate(requests) if way.max_num_seqs > 3]
    executor = FakeExecutor(CacheShape(2000 // block_size, block_size))
    outcome = generate(executor, executor.cache, VOCAB_SIZE, requests, way)
    assert executor.violations == []
    wanted = {(r.id, choice): expected_answer(r, choice, 60) for r in requests for choice in range(r.n)}
    assert outcome.tokens == wanted
    check_way(way, outcome, block_size)


# ---------------------------------------------------------------- float32


def test_texts_are_the_same_whatever_the_way(exact: Subject) -> None:
    """At least 99 of 100; where two part, the model itself was undecided."""
    params = replace(GREEDY, max_tokens=BLOCK_SIZE + 2)
    found = compare_texts(exact, requests_of(NUM_REQUESTS, exact.vocab_size, params), WAYS)
    assert set(found) == {way.name for way in WAYS[1:]}
    num_cases = sum(texts.num_cases for texts in found.values())
    num_parting = sum(len(texts.gaps) for texts in found.values())
    assert num_cases == NUM_REQUESTS * len(found)
    assert num_parting <= num_cases / 100
    assert max(texts.max_gap for texts in found.values()) <= TIE
    for way in WAYS:
        check_way(way, exact.outcomes[way.name], BLOCK_SIZE)


def test_logits_are_the_references_whatever_the_way(exact: Subject) -> None:
    ways = [way for way in WAYS if way.name != "alone, chunks of 1"]
    errors = logit_errors(exact, requests_of(NUM_REQUESTS, exact.vocab_size, GREEDY, seed=1), ways)
    assert max(errors.values()) < 1e-3, errors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("num_neighbours", [7, 63])
def test_neighbours_change_no_bit(dtype: Dtype, num_neighbours: int, tiny: Model, exact: Subject) -> None:
    subject = exact
    if dtype != "float32":
        subject = Subject.load(tiny, dtype, max_num_seqs=NUM_SLOTS, max_num_batched_tokens=WHOLE)
    prompt = requests_of(1, exact.vocab_size, GREEDY, seed=2)[0].prompt
    num_equal, num_rows = equal_bits(subject, prompt, num_neighbours)
    assert (num_equal, num_rows) == (GREEDY.max_tokens, GREEDY.max_tokens)
