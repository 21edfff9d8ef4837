"""Sequences that end when their tokens are computed, in batches that are gathered."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidOption, InvalidRequest, NeverFits
from chairlift.core.explain import sentence
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import capture, restore
from chairlift.core.types import (
    NO_SAMPLING,
    CacheShape,
    FinishReason,
    Limits,
    PoolingParams,
    Request,
    SamplingParams,
    StepPlan,
    StepResult,
    WaitReason,
)
from invariants import check_invariants

WAIT_S = 0.004
POLICY = Policy(batching="dynamic", max_batch_wait_s=WAIT_S, enable_chunked_prefill=False, single_pass=True)
MOST = 32


def scheduler(policy: Policy = POLICY, max_num_seqs: int = 4, budget: int = 64) -> Scheduler:
    """A block for each text, and more of them than slots."""
    limits, cache = Limits(max_num_seqs, budget, MOST), CacheShape(2 * max_num_seqs + 2, MOST)
    return Scheduler(limits, cache, vocab_size=100, enable_prefix_caching=False, policy=policy)


def text(id: int, length: int = 3, arrival: float = 0.0, **fields: object) -> Request:
    return Request(id, [7] * length, NO_SAMPLING, arrival, pooling=PoolingParams(), **fields)  # type: ignore[arg-type]


def result_of(plan: StepPlan, errors: dict[int, str] | None = None) -> StepResult:
    failed = errors or {}
    vectors = {chunk.slot: bytes([chunk.count]) for chunk in plan.chunks if chunk.slot not in failed}
    return StepResult([], errors=failed, vectors=vectors)


def ids_of(plan: StepPlan | None) -> list[int]:
    return [] if plan is None else [join.request.id for join in plan.joins]


def test_a_text_ends_with_the_step_that_reads_it() -> None:
    one = scheduler()
    for id in range(3):
        one.add(text(id, 5 + id))
    assert one.schedule(0.0) is None and one.wake_at() == WAIT_S
    plan = one.schedule(WAIT_S)
    assert plan is not None and not plan.num_samples
    assert [(chunk.start, chunk.count, chunk.pools) for chunk in plan.chunks] == [
        (0, 5, True),
        (0, 6, True),
        (0, 7, True),
    ]
    output = one.commit(result_of(plan), 0.5)
    assert output.vectors == {0: b"\x05", 1: b"\x06", 2: b"\x07"} and not output.keys
    assert [(f.reason, f.num_output_tokens, f.first_scheduled) for f in output.finishes] == [
        (FinishReason.STOP, 0, WAIT_S)
    ] * 3
    assert not one.has_work and one.stats().num_used_blocks == 0 and one.stats().num_running == 0
    assert "5 prompt tokens" in sentence(output.finishes[0])
    check_invariants(one)


@pytest.mark.parametrize(("count", "length"), [(4, 3), (2, 32)])
def test_a_batch_that_is_full_in_texts_or_tokens_waits_for_nothing(count: int, length: int) -> None:
    one = scheduler()
    for id in range(count):
        one.add(text(id, length))
    assert len(ids_of(one.schedule(0.0))) == count


def test_nobody_joins_a_batch_that_is_computed_and_the_next_takes_all_at_once() -> None:
    one = scheduler()
    one.add(text(0))
    plan = one.schedule(WAIT_S)
    assert plan is not None
    one.add(text(1, arrival=WAIT_S))
    one.add(text(2, arrival=2 * WAIT_S))
    one.commit(result_of(plan), 1.0)
    plan = one.schedule(1.0)
    assert ids_of(plan) == [1, 2]
    assert plan is not None
    waits = {f.id: dict(f.decisions.waited) for f in one.commit(result_of(plan), 2.0).finishes}
    assert sum(waits[1].values()) == pytest.approx(1.0 - WAIT_S)


def test_a_text_that_does_not_fit_the_budget_opens_the_next_batch() -> None:
    one = scheduler()
    for id, length in enumerate((30, 30, 30)):
        one.add(text(id, length))
    plan = one.schedule(0.0)
    assert ids_of(plan) == [0, 1] and plan is not None
    assert one.stats().waiting_by_reason == {WaitReason.TOKENS: 1}
    one.commit(result_of(plan), 0.1)
    assert ids_of(one.schedule(0.1)) == [2]


def test_inside_a_window_the_shorter_go_first() -> None:
    policy = replace(POLICY, length_window_s=1.0)
    one = scheduler(policy, max_num_seqs=2)
    for id, (length, arrival) in enumerate([(9, 0.1), (4, 0.2), (30, 0.3), (1, 1.1), (6, 0.4)]):
        one.add(text(id, length, arrival))
    order = []
    for now in (2.0, 3.0, 4.0):
        plan = one.schedule(now)
        assert plan is not None
        order += ids_of(plan)
        one.commit(result_of(plan), now)
    assert order == [1, 4, 0, 2, 3], "a longer one of an earlier window is not overtaken"


def test_one_that_fails_fails_alone() -> None:
    one = scheduler()
    for id in range(4):
        one.add(text(id))
    plan = one.schedule(0.0)
    assert plan is not None
    output = one.commit(result_of(plan, {plan.chunks[1].slot: "it cannot be read"}), 0.1)
    assert {f.id: (f.reason, f.error) for f in output.finishes if f.error} == {
        1: (FinishReason.ERROR, "it cannot be read")
    }
    assert sorted(output.vectors) == [0, 2, 3]


def test_a_vector_that_is_missing_is_the_error_of_its_text() -> None:
    class Forgetful:
        def submit(self, plan: StepPlan) -> Forgetful:
            self.plan = plan
            return self

        def result(self) -> StepResult:
            return StepResult([], vectors={chunk.slot: b"" for chunk in self.plan.chunks[1:]})

    engine = Engine(scheduler(), Forgetful())
    for id in range(4):
        engine.add(text(id))
    output = engine.step(0.0)
    assert output is not None
    assert [f.id for f in output.finishes if f.error == "the executor gave no vector"] == [0]
    assert len(output.finishes) == 4


def test_what_is_aborted_or_late_while_it_is_read_gives_nothing() -> None:
    one = scheduler()
    for id in range(4):
        one.add(text(id, e2e_deadline=0.5 if id == 2 else None))
    plan = one.schedule(0.0)
    assert plan is not None
    one.abort(1, 0.2)
    output = one.commit(result_of(plan), 1.0)
    reasons = {f.id: f.reason for f in output.finishes}
    assert (reasons[1], reasons[2]) == (FinishReason.ABORT, FinishReason.DEADLINE)
    assert sorted(output.vectors) == [0, 3]
    check_invariants(one)


def test_what_can_never_be_read_is_refused() -> None:
    one = scheduler()
    one.add(text(1, MOST))  # a prompt of an answer would need room for a token
    for request, kind in (
        (text(2, MOST + 1), NeverFits),
        (Request(3, [1], SamplingParams()), InvalidRequest),
        (replace(text(4), n=2), InvalidRequest),
        (replace(text(5), prompt=[100]), InvalidRequest),
        (replace(text(6), pooling=PoolingParams(num_first=4)), InvalidRequest),
        (replace(text(7), prompt=[]), InvalidRequest),
    ):
        with pytest.raises(kind):
            one.add(request)
    with pytest.raises(InvalidRequest, match="generates"):
        Scheduler(Limits(1, 8, 8), CacheShape(4, 4), vocab_size=100).add(text(1))
    with pytest.raises(InvalidOption, match="chunked"):
        Policy(single_pass=True)


def test_a_snapshot_goes_on_alike() -> None:
    """And a replay, which has no vectors, plans the same."""
    one = scheduler(replace(POLICY, length_window_s=0.1))
    rng = random.Random(0)
    for id in range(12):
        one.add(text(id, rng.randrange(1, MOST), id / 50))
    plan = one.schedule(1.0)
    assert plan is not None
    one.commit(result_of(plan), 1.1)
    two = restore(capture(one), lambda request, choice: None)
    for now in range(2, 9):
        plans = [each.schedule(now) for each in (one, two)]
        assert ids_of(plans[0]) == ids_of(plans[1])
        for each, planned in zip((one, two), plans, strict=True):
            if planned is not None:
                each.commit(StepResult([]), now)
    assert not one.has_work and not two.has_work


@pytest.mark.parametrize("seed", range(30))
def test_all_end_once_and_wait_no_longer_than_the_delay_and_a_batch(seed: int) -> None:
    """Random arrivals below what the device can do, aborts and failures, under each order.

    A text that finds at most a batch before it begins within the delay, after the batch that is being read.
    """
    rng = random.Random(seed)
    order = rng.choice(("fcfs", "priority", "fair", "deadline"))
    policy = replace(POLICY, scheduling_policy=order, length_window_s=rng.choice((0.0, 0.05)))  # type: ignore[arg-type]
    one = scheduler(policy, max_num_seqs=16, budget=512)
    step_s = 0.02
    arrivals = sorted(rng.uniform(0, 4) for _ in range(400))
    ends: dict[int, FinishReason] = {}
    waits: list[float] = []
    now, id = 0.0, 0
    while id < len(arrivals) or one.has_work:
        while id < len(arrivals) and arrivals[id] <= now:
            one.add(text(id, rng.randrange(1, MOST + 1), arrivals[id], principal=rng.choice("ab")))
            id += 1
        if id and rng.random() < 0.05:
            one.abort(rng.randrange(id), now)
        plan = one.schedule(now)
        check_invariants(one)
        if plan is not None:
            slots = [chunk.slot for chunk in plan.chunks]
            failed = {slot: "bad" for slot in slots if rng.random() < 0.03}
            assert plan.num_tokens <= 512 and len(slots) <= 16
            now += step_s
            output = one.commit(result_of(plan, failed), now)
        else:
            output = one.take_ended()
            wakes = [when for when in (one.wake_at(), arrivals[id] if id < len(arrivals) else None) if when is not None]
            now = max(now, min(wakes, default=now))
        for finish in output.finishes:
            assert finish.id not in ends
            ends[finish.id] = finish.reason
            if finish.first_scheduled is not None:
                waits.append(finish.first_scheduled - finish.arrival)
    assert len(ends) == len(arrivals)
    assert max(waits) <= WAIT_S + step_s + 1e-9
