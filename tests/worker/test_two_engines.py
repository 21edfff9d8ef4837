"""A model that generates and one that reads texts, on one device: they take turns, and neither hears of the other."""

from __future__ import annotations

import time

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
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
)
from fakes import FakeExecutor, expected
from worker.running import Running, request

FIRST_TEXT = 1000
"""Ids from here on are texts."""


class Device:
    """Says in which order steps came: "g" of the one that generates, "r" of the one that reads."""

    def __init__(self) -> None:
        self.turns: list[str] = []


class ReadingExecutor:
    def __init__(self, device: Device, fails: frozenset[int] = frozenset()) -> None:
        self._device = device
        self._fails = fails
        self._plan = StepPlan(0)

    def submit(self, plan: StepPlan) -> ReadingExecutor:
        self._device.turns.append("r")
        self._plan = plan
        return self

    def result(self) -> StepResult:
        requests = {join.slot: join.request for join in self._plan.joins}
        result = StepResult([])
        for chunk in self._plan.chunks:
            id = requests[chunk.slot].id
            if id in self._fails:
                result.errors[chunk.slot] = "it cannot be read"
            else:
                result.vectors[chunk.slot] = id.to_bytes(4, "little")
        return result


class NotedExecutor(FakeExecutor):
    def __init__(self, device: Device) -> None:
        super().__init__(CacheShape(64, 4), step_s=0.0005)
        self._device = device

    def submit(self, plan: StepPlan):  # type: ignore[no-untyped-def]
        self._device.turns.append("g")
        return super().submit(plan)


def reading_engine(executor: ReadingExecutor, wait_s: float = 0.001) -> Engine:
    policy = Policy(batching="dynamic", max_batch_wait_s=wait_s, enable_chunked_prefill=False, single_pass=True)
    limits, cache = Limits(8, 256, 32), CacheShape(20, 32)
    return Engine(Scheduler(limits, cache, vocab_size=100, enable_prefix_caching=False, policy=policy), executor)


def text(id: int, length: int = 5, **fields: float) -> Request:
    return Request(id, [7] * length, NO_SAMPLING, time.monotonic(), pooling=PoolingParams(), **fields)  # type: ignore[arg-type]


def running_both(
    fails: frozenset[int] = frozenset(),
    wait_s: float = 0.001,
    device: Device | None = None,
    heartbeat_s: float = 60.0,
) -> Running:
    device = device or Device()
    encoder = reading_engine(ReadingExecutor(device, fails), wait_s)
    return Running(NotedExecutor(device), encoder=encoder, heartbeat_s=heartbeat_s)


def test_each_gets_what_it_would_get_alone_and_they_take_turns() -> None:
    answers = [request(i, max_tokens=30) for i in range(4)]
    device = Device()
    with running_both(device=device) as both:
        both.add(*answers)
        both.add(*(text(id) for id in range(FIRST_TEXT, FIRST_TEXT + 60)))
        both.wait_finished(*range(4), *range(FIRST_TEXT, FIRST_TEXT + 60))
    assert all(both.emitted.tokens(each.id) == expected(each, 30) for each in answers)
    assert both.emitted.vectors == {id: id.to_bytes(4, "little") for id in range(FIRST_TEXT, FIRST_TEXT + 60)}
    turns = "".join(device.turns)
    assert "rr" not in turns[: turns.rindex("g")], "the one that reads had two steps while the other had work"
    assert {step.engine for step in both.emitted.steps if step.vectors} == {1}
    assert {step.engine for step in both.emitted.steps if step.tokens} == {0}


def test_failures_and_departures_stay_on_their_side() -> None:
    with running_both(fails=frozenset({FIRST_TEXT + 3})) as both:
        both.add(request(1, max_tokens=20))
        both.add(*(text(id) for id in range(FIRST_TEXT, FIRST_TEXT + 8)))
        both.wait_finished(1, *range(FIRST_TEXT, FIRST_TEXT + 8))
    reasons = {key[0]: finish.reason for key, finish in both.emitted.finishes.items()}
    assert reasons.pop(FIRST_TEXT + 3) is FinishReason.ERROR and reasons.pop(1) is FinishReason.LENGTH
    assert set(reasons.values()) == {FinishReason.STOP}


def test_what_ends_without_a_step_is_told_while_the_other_is_busy() -> None:
    """A text that is aborted while its batch fills, and one whose deadline comes."""
    with running_both(wait_s=600.0) as both:
        both.add(request(1, max_tokens=150))
        both.add(text(FIRST_TEXT))
        both.add(text(FIRST_TEXT + 1, e2e_deadline=time.monotonic()))
        both.abort(FIRST_TEXT)
        both.wait_finished(FIRST_TEXT, FIRST_TEXT + 1)
        told = len(both.emitted.tokens(1))
        both.wait_finished(1)
    assert told < 150
    reasons = [both.emitted.finishes[id, 0].reason for id in (FIRST_TEXT, FIRST_TEXT + 1)]
    assert reasons == [FinishReason.ABORT, FinishReason.DEADLINE]


def test_a_filling_batch_does_not_hold_up_a_drain() -> None:
    with running_both(wait_s=600.0) as both:
        both.add(text(FIRST_TEXT))
    assert both.emitted.finishes[FIRST_TEXT, 0].reason is FinishReason.STOP


def test_both_send_heartbeats_when_a_batch_that_was_waited_for_is_over() -> None:
    """The time at which it began must not be waited for again, for ever and in silence."""
    with running_both(heartbeat_s=0.01) as both:
        both.add(text(FIRST_TEXT))
        both.wait_finished(FIRST_TEXT)
        told = len(both.emitted.steps)
        both.emitted.wait_for(lambda: {step.engine for step in both.emitted.steps[told:]} == {0, 1})
        assert both.loop._engines[-1].wake_at() is not None, "there is something that could be waited for"


def test_what_goes_to_the_wrong_engine_is_refused() -> None:
    with running_both() as both:
        both.add(text(FIRST_TEXT, length=33))
        both.add(Request(5, [1] * 500, SamplingParams()))
        both.emitted.wait_for(lambda: len(both.emitted.refusals) == 2)
    assert {refused.id: refused.never for refused in both.emitted.refusals} == {FIRST_TEXT: True, 5: True}
