"""Journals of the real engine on the real model: what was recorded while serving replays to equal plans."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.types import FinishReason, Request, SamplingParams, StepOutput
from chairlift.models import DEFAULT_MODEL
from chairlift.worker.build import LoadedModel, load
from chairlift.worker.options import EngineOptions
from journal.recording import journal_at, replay_file, segments

POLICIES = [
    Policy(),
    Policy(scheduling_policy="priority", max_step_s=0.25),
    Policy(scheduling_policy="fair", itl_objective_s=0.03),
    Policy(scheduling_policy="deadline", long_prefill_token_threshold=32),
    Policy(batching="static", max_batch_wait_s=0.01),
    Policy(batching="dynamic", prefill_first=False),
    Policy(prefill_first=True, kv_reservation="max"),
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """A cache that eight sequences of these requests overflow."""
    return load(EngineOptions(model=DEFAULT_MODEL, max_num_seqs=8, max_model_len=192, kv_cache_memory_bytes=7 << 20))


def requests_of(rng: random.Random, num: int, now: float) -> list[Request]:
    stems = [[rng.randrange(1000, 40000) for _ in range(64)] for _ in range(2)]
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    return [
        Request(
            number,
            rng.choice(stems) + [rng.randrange(1000, 40000) for _ in range(rng.randint(1, 80))],
            replace(params, max_tokens=rng.randint(1, 40), stop=(" the",) if number % 5 == 0 else ()),
            now,
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 0, 1]),
            principal=rng.choice(["a", "b"]),
            e2e_deadline=now + 0.02 if number % 7 == 0 else None,
        )
        for number in range(num)
    ]


def serve(engine: Engine, requests: list[Request], rng: random.Random) -> list[StepOutput]:
    """Requests come a few at a time, some are aborted, the engine is closed at the end."""
    outputs = []
    while requests or engine.has_work:
        now = time.monotonic()
        for request in requests[:3]:
            engine.add(replace(request, arrival=now))
        del requests[:3]
        if not requests:
            engine.close()
        if rng.random() < 0.1:
            engine.abort(rng.randrange(20), now)
        if engine.begin(now):
            engine.wait()
            outputs.append(engine.finish(time.monotonic()))
        else:
            outputs.append(engine.flush(now))
    return outputs


def test_every_segment_replays_to_equal_plans(loaded: LoadedModel, tmp_path: Path) -> None:
    reasons: Counter[FinishReason] = Counter()
    num_preemptions = num_segments = 0
    for number, policy in enumerate(POLICIES):
        digest = number % 2 == 0
        rng = random.Random(number)
        path = tmp_path / f"{number}.jsonl"
        with closing(journal_at(path, digest=digest, max_bytes=30_000)) as journal:
            engine = loaded.engine(policy, recorder=journal)
            journal.attach(engine.scheduler)
            outputs = serve(engine, requests_of(rng, 14, time.monotonic()), rng)
        finishes = [finish for output in outputs for finish in output.finishes]
        reasons.update(finish.reason for finish in finishes)
        num_preemptions += sum(finish.num_preemptions for finish in finishes)
        for segment in segments(path):
            num_segments += 1
            replayed = replay_file(segment)
            assert replayed.difference is None, f"{policy}: {replayed.difference}"
    assert {FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT, FinishReason.DEADLINE} <= set(reasons)
    assert num_preemptions > 0
    assert num_segments > len(POLICIES)
