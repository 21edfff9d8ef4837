"""Verdicts on hand-made loads of a queue with one server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

import pytest

from chairlift.sim.plan.verdict import Verdict, judge


def served_in_turn(arrivals: Iterable[float], service_s: float) -> list[tuple[float, float]]:
    """Waits of requests that join one after the other, each `service_s` after the one before."""
    waits, free_at = [], 0.0
    for arrival in arrivals:
        joined = max(arrival, free_at)
        waits.append((arrival, joined))
        free_at = joined + service_s
    return waits


def poisson(rate: float, number: int, start: float = 0.0, seed: int = 0) -> list[float]:
    random, now, times = Random(seed), start, []
    for _ in range(number):
        now += random.expovariate(rate)
        times.append(now)
    return times


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_is_served_in_time_is_stable(seed: int) -> None:
    backlog = judge(served_in_turn(poisson(0.7, 1000, seed=seed), 1.0))
    assert backlog.verdict is Verdict.STABLE
    assert abs(backlog.growth) < 0.05


def test_a_burst_that_is_worked_off_is_a_backlog() -> None:
    burst = poisson(10.0, 200)
    backlog = judge(served_in_turn([*burst, *poisson(0.5, 300, start=burst[-1])], 1.0))
    assert backlog.verdict is Verdict.BACKLOGGED
    assert backlog.longest > 150


@pytest.mark.parametrize("rate", [1.03, 1.2, 3.0])
def test_more_than_can_be_served_is_an_overload(rate: float) -> None:
    backlog = judge(served_in_turn([i / rate for i in range(1000)], 1.0))
    assert backlog.verdict is Verdict.OVERLOADED
    assert backlog.growth == pytest.approx(1.0 - 1.0 / rate, abs=0.01)


@pytest.mark.parametrize("rate", [0.5, 0.97, 1.0])
def test_evenly_spaced_requests_at_most_as_fast_as_served_are_stable(rate: float) -> None:
    assert judge(served_in_turn([i / rate for i in range(1000)], 1.0)).verdict is Verdict.STABLE


def test_a_burst_at_the_end_that_would_go_on_is_an_overload() -> None:
    calm = poisson(0.3, 100)
    load = served_in_turn([*calm, *poisson(5.0, 900, start=calm[-1])], 1.0)
    assert judge(load).verdict is Verdict.OVERLOADED


def test_waiting_for_the_end_of_a_step_is_no_queue() -> None:
    steps = [(i / 100.0, math.floor(i / 100.0) + 1.0) for i in range(100_00)]
    assert judge(steps).longest > 90
    assert judge(steps, grace_s=1.0).longest == 0


def test_those_who_never_join_wait_for_ever() -> None:
    backlog = judge((float(i), math.inf) for i in range(100))
    assert backlog.verdict is Verdict.OVERLOADED
    assert backlog.growth == pytest.approx(1.0, abs=0.05)


def test_no_requests_are_no_backlog() -> None:
    assert judge([]).verdict is Verdict.STABLE
    assert judge([(3.0, 4.0)]).verdict is Verdict.STABLE
    assert judge([(0.0, float(i)) for i in range(500)]).verdict is Verdict.BACKLOGGED


def test_work_tells_better_than_joins_what_can_be_served() -> None:
    load = served_in_turn([i / 1.2 for i in range(1000)], 1.0)
    assert judge(load, late_share=0.4).growth == pytest.approx(0.2, abs=0.01)
    assert judge(load, late_share=0.5).verdict is Verdict.BACKLOGGED
