"""Whatever the policy: the same tokens from the same model, whoever is held in the batch next to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from chairlift.core.policy import Policy
from chairlift.core.types import CacheShape, Request, SamplingParams
from fakes import VOCAB_SIZE, FakeExecutor, expected_answer
from integration.equality import GREEDY, TIE, Subject, compare_texts
from integration.variants import Outcome, Variant, generate

NUM_SLOTS = 8
WHOLE = 256
WAYS = [
    Variant("static", NUM_SLOTS, WHOLE, policy=Policy(batching="static", max_batch_wait_s=5.0)),
    Variant("static, chunks", NUM_SLOTS, 40, policy=Policy(batching="static", max_batch_wait_s=5.0)),
    Variant("dynamic, not cached", NUM_SLOTS, WHOLE, caching=False, policy=Policy(batching="dynamic")),
    Variant("prefill first", NUM_SLOTS, 100, policy=Policy(prefill_first=True)),
    Variant("whole prompts", NUM_SLOTS, 130, policy=Policy(enable_chunked_prefill=False)),
    Variant("reserved", NUM_SLOTS, WHOLE, policy=Policy(kv_reservation="max")),
    Variant("fair", NUM_SLOTS, WHOLE, policy=Policy(scheduling_policy="fair", weights={"b": 3.0})),
    Variant("deadline", NUM_SLOTS, WHOLE, policy=Policy(scheduling_policy="deadline")),
    Variant("small parts of long prompts", NUM_SLOTS, WHOLE, policy=Policy(long_prefill_token_threshold=30)),
]


def requests_of(num: int, vocab_size: int, params: SamplingParams) -> list[Request]:
    """Prompts of up to 100 tokens and answers of 1 to 40, of three tenants; two come with each step."""
    rng = np.random.default_rng(7)
    return [
        Request(
            i,
            rng.integers(3, vocab_size, int(rng.integers(1, 101))).tolist(),
            replace(params, max_tokens=int(rng.integers(1, 41))),
            arrival=float(i // 2),
            tenant="abc"[i % 3],
            ttft_deadline=1e6 - i,
        )
        for i in range(num)
    ]


def check_way(way: Variant, outcome: Outcome) -> None:
    """What a way is there for did happen."""
    held = way.policy.batching != "continuous"
    assert (outcome.num_fillers > 0) == held
    assert (outcome.num_mixed > 0) == (not held and not way.policy.prefill_first)
    if not way.policy.enable_chunked_prefill or way.policy.long_prefill_token_threshold:
        assert (outcome.num_cut > 0) == way.policy.enable_chunked_prefill


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_on_the_fake_device(way: Variant, block_size: int) -> None:
    requests = requests_of(24, VOCAB_SIZE, SamplingParams(ignore_eos=True))
    executor = FakeExecutor(CacheShape(4000 // block_size, block_size))
    outcome = generate(executor, executor.cache, VOCAB_SIZE, requests, way)
    assert executor.violations == []
    assert outcome.tokens == {(r.id, 0): expected_answer(r, 0, 4000) for r in requests}
    check_way(way, outcome)


def test_on_the_real_device(exact: Subject) -> None:
    """Where two texts part, the model itself was undecided."""
    requests: Sequence[Request] = requests_of(32, exact.vocab_size, GREEDY)
    found = compare_texts(exact, requests, [Variant("alone", 1, WHOLE, caching=False), *WAYS])
    assert set(found) == {way.name for way in WAYS}
    assert max(texts.max_gap for texts in found.values()) <= TIE
    assert sum(len(texts.gaps) for texts in found.values()) <= len(requests) * len(WAYS) / 100
    for way in WAYS:
        check_way(way, exact.outcomes[way.name])
