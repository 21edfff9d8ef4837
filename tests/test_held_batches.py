"""When a batch that is held to its end begins, as those see it who wait for it."""

from __future__ import annotations

from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams

WAIT_S = 4.0


def scheduler(policy: Policy) -> Scheduler:
    """Four slots, and blocks for all that anybody here asks for."""
    return Scheduler(Limits(4, 64, 64), CacheShape(64, 16), vocab_size=100, policy=policy)


def request(id: int, arrival: float, n: int = 1, **fields: object) -> Request:
    return Request(id, [1, 2, 3], SamplingParams(max_tokens=4), arrival, n=n, **fields)  # type: ignore[arg-type]


def static(order: str = "fcfs") -> Policy:
    return Policy(batching="static", max_batch_wait_s=WAIT_S, scheduling_policy=order)  # type: ignore[arg-type]


def test_nobody_waits_longer_because_another_goes_first() -> None:
    """Each better one that came began the wait of all anew."""
    for policy, better in ((static("priority"), {"priority": -1}), (static("deadline"), {"e2e_deadline": 50.0})):
        waiting = scheduler(policy)
        waiting.add(request(1, 0.0))
        assert waiting.schedule(0.0) is None
        waiting.add(request(2, 0.75 * WAIT_S, **better))
        assert waiting.schedule(0.75 * WAIT_S) is None
        assert waiting.wake_at() == WAIT_S
        plan = waiting.schedule(WAIT_S)
        assert plan is not None and [join.request.id for join in plan.joins] == [2, 1]


def test_a_batch_is_full_when_its_answers_fill_the_slots() -> None:
    """A request for four answers fills four slots, and waited for three other requests."""
    one = scheduler(static())
    one.add(request(1, 0.0, n=4))
    assert one.schedule(0.0) is not None

    two = scheduler(static())
    two.add(request(1, 0.0, n=2))
    assert two.schedule(0.0) is None, "two slots are left"
    two.add(request(2, 0.1, n=3))
    plan = two.schedule(0.1)
    assert plan is not None and [join.request.id for join in plan.joins] == [1], "who is next has no room in it"
