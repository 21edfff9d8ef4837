"""Under the order of deadlines, who has none goes last in time, but not in all cases."""

from __future__ import annotations

import pytest

from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams


@pytest.mark.parametrize(("ageing_s", "first"), [(0.0, 2), (60.0, 2), (1.0, 1)])
def test_who_has_a_deadline_goes_before_who_has_none(ageing_s: float, first: int) -> None:
    """Without ageing, one without a deadline stood where it would with a deadline of now: before all others."""
    policy = Policy(scheduling_policy="deadline", priority_ageing_s=ageing_s)
    scheduler = Scheduler(Limits(1, 64, 64), CacheShape(64, 16), vocab_size=100, policy=policy)
    scheduler.add(Request(1, [1], SamplingParams(max_tokens=4), 0.0))
    scheduler.add(Request(2, [1], SamplingParams(max_tokens=4), 0.0, e2e_deadline=5.0))
    scheduler.add(Request(3, [1], SamplingParams(max_tokens=4), 0.0))
    plan = scheduler.schedule(0.0)
    assert plan is not None and [join.request.id for join in plan.joins] == [first]
