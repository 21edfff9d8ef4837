"""Who goes before whom: the smallest case of each rule."""

from __future__ import annotations

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, LimitChange, Limits, PreemptReason, Request, SamplingParams
from fakes import VOCAB_SIZE, FakeExecutor, prompt


def make_engine(policy: Policy, limits: Limits, shape: CacheShape | None = None) -> Engine:
    shape = shape if shape is not None else CacheShape(64, 4)
    return Engine(Scheduler(limits, shape, vocab_size=VOCAB_SIZE, policy=policy), FakeExecutor(shape))


def ask(
    number: int, length: int = 3, max_tokens: int = 20, priority: int = 0, n: int = 1, principal: str = ""
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(
        number, prompt(length, first=number), params, float(number), n, priority=priority, principal=principal
    )


def running(engine: Engine) -> set[int]:
    return {s.request.id for s in engine.scheduler._running.live()}


def test_nobody_is_preempted_for_one_that_lowered_limits_still_keep_out() -> None:
    """With four running where one may, each step preempted one more, and the better one joined after the last."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(4, 64, 100))
    for number in range(4):
        engine.add(ask(number))
    engine.step(4.0)
    engine.set_limits(LimitChange(max_num_seqs=1))
    engine.add(ask(9, priority=-1))
    for now in range(5, 9):
        engine.step(float(now))
        assert 9 in running(engine) or not engine.stats().num_preemptions


def test_equals_keep_their_places_when_one_was_looked_at() -> None:
    """Room is made for the first of two equal owners, and then it takes it."""
    engine = make_engine(Policy(scheduling_policy="fair"), Limits(2, 64, 100))
    for number in range(2):
        engine.add(ask(number))
    engine.step(1.0)
    engine.step(1.0)
    engine.add(ask(2, priority=-1, n=2, principal="a"))
    engine.add(ask(3, priority=-1, principal="b"))
    served = engine.scheduler._service
    assert served is not None
    served.principals.service.update(a=0.0, b=0.0)
    engine.step(2.0)
    assert running(engine) == {2}


def test_a_better_level_takes_a_slot_at_once_and_an_equal_one_does_not() -> None:
    """vLLM#45561, #40004: with every slot taken, strictly higher priority starts in the next step."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(2, 64, 100))
    for number in range(2):
        engine.add(ask(number, max_tokens=40))
    engine.step(2.0)
    engine.add(ask(2))
    engine.step(3.0)
    assert running(engine) == {0, 1}
    engine.add(ask(3, priority=-1))
    engine.step(4.0)
    assert running(engine) == {0, 3}
    victim = engine.scheduler._live[1][0]
    assert victim.preemptions == [(3, PreemptReason.PRIORITY)]
