"""Who gave up waiting is told for what they waited: nobody asks more often than those."""

from __future__ import annotations

import pytest

from chairlift.core.explain import sentence
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepResult, WaitReason


def scheduler(num_seqs: int, policy: Policy | None = None) -> Scheduler:
    return Scheduler(Limits(num_seqs, 64, 256), CacheShape(64, 16), vocab_size=100, policy=policy)


def request(id: int, arrival: float, n: int = 1, ttft_deadline: float | None = None) -> Request:
    return Request(id, [1, 2, 3], SamplingParams(max_tokens=9), arrival, n=n, ttft_deadline=ttft_deadline)


@pytest.mark.parametrize("n", [1, 2])
def test_a_deadline_missed_while_a_batch_fills_says_so(n: int) -> None:
    waiting = scheduler(4, Policy(batching="static", max_batch_wait_s=9.0))
    waiting.add(request(1, 10.0, n=n, ttft_deadline=10.5))
    assert waiting.schedule(10.0) is None
    assert waiting.wake_at() == 10.5
    assert waiting.schedule(10.5) is None
    ends = waiting.take_ended().finishes
    assert [dict(end.decisions.waited) for end in ends] == [{WaitReason.BATCH: 0.5}] * n
    assert sentence(ends[0]) == (
        "Waited 0.5 s for a batch; never started; given up after 0.5 s: its first token did not come in time."
    )


def test_who_leaves_the_queue_in_the_middle_of_a_step_waited_until_then() -> None:
    full = scheduler(1)
    full.add(request(1, 0.0))
    assert full.schedule(0.0) is not None
    full.commit(StepResult([5]), 0.25)
    full.add(request(2, 0.25))
    assert full.schedule(0.25) is not None
    full.abort(2, 1.0)
    (end,) = full.take_ended().finishes
    assert dict(end.decisions.waited) == {WaitReason.SLOTS: 0.75}


def test_a_wait_counted_in_the_middle_of_a_step_is_counted_once() -> None:
    """Whoever stays has waited for all of it."""
    full = scheduler(1)
    full.add(request(1, 0.0))
    assert full.schedule(0.0) is not None
    full.commit(StepResult([5]), 0.25)
    full.add(request(2, 0.25))
    full.add(request(3, 0.25))
    assert full.schedule(0.25) is not None
    full.abort(2, 1.0)
    full.abort(1, 1.5)
    full.commit(StepResult([5]), 2.0)
    assert full.schedule(2.0) is not None
    full.commit(StepResult([5]), 2.5)
    full.abort(3, 3.0)
    (end,) = [finish for finish in full.take_ended().finishes if finish.id == 3]
    assert dict(end.decisions.waited) == {WaitReason.SLOTS: 1.75}


def test_an_error_names_the_deadline_and_not_when_it_was_noticed() -> None:
    """It may be noticed a step late, and said that nothing had come within longer than was asked for."""
    busy = scheduler(1)
    busy.add(request(1, 10.0, ttft_deadline=10.001))
    assert busy.schedule(10.0) is not None
    (end,) = busy.commit(StepResult([5]), 10.25).finishes
    assert end.error == "ttft deadline: no first token within 0.001 s"
