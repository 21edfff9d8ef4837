"""What is exported never contradicts itself."""

from __future__ import annotations

from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, LimitChange, Limits, Request, SamplingParams, StepResult, WaitReason


def test_a_step_never_holds_more_prompt_tokens_than_tokens() -> None:
    """The controller thinks in quanta of tokens that may be larger than a whole step, or than one is now."""
    policy = Policy(max_step_s=0.25)
    scheduler = Scheduler(Limits(4, 64, 256), CacheShape(64, 16), vocab_size=100, policy=policy)
    scheduler.add(Request(1, [1] * 60, SamplingParams(max_tokens=4), 0.0))
    assert scheduler.stats().max_prefill_tokens == 64
    scheduler.set_limits(LimitChange(max_num_batched_tokens=5))
    assert scheduler.stats().max_prefill_tokens == 5
    assert scheduler.schedule(0.0) is not None
    scheduler.commit(StepResult([]), 0.1)
    assert scheduler.stats().max_prefill_tokens == 5
    scheduler.set_limits(LimitChange(max_num_batched_tokens=64))
    assert scheduler.schedule(0.2) is not None
    assert scheduler.stats().max_prefill_tokens > 5


def test_who_waits_is_counted_as_who_runs() -> None:
    """A request for three answers is three that wait, as it is three that run."""
    scheduler = Scheduler(Limits(3, 64, 256), CacheShape(64, 16), vocab_size=100)
    for id in (1, 2):
        scheduler.add(Request(id, [1, 2, 3], SamplingParams(max_tokens=4), 0.0, n=3))
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (0, 6)
    assert scheduler.schedule(0.0) is not None
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (3, 3)
    assert stats.waiting_by_reason == {WaitReason.SLOTS: 3}
    scheduler.abort(2, 0.1)
    assert (scheduler.stats().num_waiting, scheduler.stats().waiting_by_reason) == (0, {})
