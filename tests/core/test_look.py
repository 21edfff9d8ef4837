"""Who runs and who waits, as told to those who look: what is in the scheduler, and bounded."""

from __future__ import annotations

import pytest

from chairlift.core.look import MAX_RUNNING, MAX_WAITING, Look, Phase
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams
from fakes import VOCAB_SIZE, FakeExecutor, prompt
from journal.recording import busy_scheduler
from worker.running import fake_engine

PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def ask(number: int, length: int = 10, n: int = 1, params: SamplingParams = PARAMS) -> Request:
    return Request(number, prompt(length, number), params, arrival=float(number), n=n)


def described(look: Look) -> list[tuple[int, Phase, int]]:
    return [(seen.id, seen.phase, seen.slot) for seen in (*look.running, *look.waiting)]


def test_each_sequence_is_where_it_is() -> None:
    engine = fake_engine(FakeExecutor(CacheShape(64, 4)), max_num_seqs=2, max_num_batched_tokens=16)
    assert engine.look() == Look([], [])
    for number, length in ((1, 10), (2, 14), (3, 5)):
        engine.add(ask(number, length))
    assert described(engine.look()) == [(1, Phase.WAITING, -1), (2, Phase.WAITING, -1), (3, Phase.WAITING, -1)]
    engine.step(4.0)
    first, second = engine.look().running
    assert (first.phase, first.num_computed_tokens, first.num_output_tokens) == (Phase.DECODE, 10, 1)
    assert (second.phase, second.num_computed_tokens, second.num_output_tokens) == (Phase.PREFILL, 6, 0)
    assert (first.num_prompt_tokens, first.max_output_tokens, first.num_blocks) == (10, 8, 3)
    assert (first.arrival, first.first_scheduled, first.num_preemptions) == (1.0, 4.0, 0)
    assert [seen.id for seen in engine.look().waiting] == [3]
    while engine.has_work:
        engine.step(5.0)
    assert engine.look() == Look([], [])


def test_choices_that_share_a_prompt_say_so() -> None:
    engine = fake_engine(FakeExecutor(CacheShape(64, 4)), max_num_batched_tokens=8)
    engine.add(ask(1, 20, n=3))
    engine.step(1.0)
    look = engine.look()
    assert [(seen.choice, seen.phase) for seen in sorted(look.running, key=lambda seen: seen.choice)] == [
        (0, Phase.PREFILL), (1, Phase.SHARING), (2, Phase.SHARING)
    ]  # fmt: skip
    assert [seen.slot for seen in look.running] == sorted(seen.slot for seen in look.running)


def test_fillers_are_shown_until_their_batch_is_over() -> None:
    policy = Policy(batching="static", max_batch_wait_s=0.0)
    engine = fake_engine(FakeExecutor(CacheShape(64, 4)), max_num_seqs=4, policy=policy)
    engine.add(ask(1, params=SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)))
    engine.add(ask(2))
    phases = set()
    while engine.has_work:
        engine.step(1.0)
        phases |= {(seen.id, seen.phase) for seen in engine.look().running}
    assert (1, Phase.FILLER) in phases
    assert (2, Phase.FILLER) not in phases


def test_a_look_is_bounded_whatever_waits() -> None:
    limits = Limits(max_num_seqs=MAX_RUNNING + 8, max_num_batched_tokens=100_000, max_model_len=64)
    scheduler = Scheduler(limits, CacheShape(4096, 4), vocab_size=VOCAB_SIZE)
    for number in range(MAX_RUNNING + 3 * MAX_WAITING):
        scheduler.add(ask(number, 4))
    scheduler.schedule(1.0)
    look = scheduler.look()
    assert (len(look.running), len(look.waiting)) == (MAX_RUNNING, MAX_WAITING)
    assert [seen.id for seen in look.waiting] == list(range(MAX_RUNNING + 8, MAX_RUNNING + 8 + MAX_WAITING))


@pytest.mark.parametrize("seed", range(8))
def test_looking_changes_nothing_and_agrees_with_the_counts(seed: int) -> None:
    scheduler = busy_scheduler(seed)
    look = scheduler.look()
    stats = scheduler.stats()
    assert stats == scheduler.stats()
    assert sum(seen.phase is not Phase.FILLER for seen in look.running) == stats.num_running
    assert {(seen.id, seen.choice) for seen in (*look.running, *look.waiting) if seen.phase is not Phase.FILLER} <= {
        (request.id, choice) for request, choice, _, _ in scheduler.in_flight()
    }
