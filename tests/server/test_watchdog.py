"""Busy is not hung: on a virtual clock (reliability S30)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chairlift.server.restarts import MAX_DELAY_S, WINDOW_S, Restarts
from chairlift.server.watchdog import MAX_GAP_S, PATIENCE, Watchdog

LIMIT_S = 10.0
LOOK_S = 0.25


class Engine:
    """Speaks at the end of each step; somebody looks every quarter of a second, and now and then another does."""

    def __init__(self, seed: int, limit_s: float = LIMIT_S) -> None:
        self.generator = random.Random(seed)
        self.watchdog = Watchdog(limit_s)
        self.now = self.generator.uniform(0, 1e6)
        self.heard = self.now
        self.longest_step_s = 0.0

    def looks(self, seconds: float) -> Iterator[bool]:
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_S
            yield self.look()
            if self.generator.random() < 0.2:
                yield self.look()

    def look(self) -> bool:
        return self.watchdog.look(self.now, self.heard, self.longest_step_s)

    def step(self, seconds: float) -> bool:
        """Whether anybody thought it hung meanwhile."""
        alarm = any(list(self.looks(seconds)))
        self.heard = self.now
        self.longest_step_s = max(self.longest_step_s, seconds)
        return alarm or self.look()


@pytest.mark.parametrize("seed", range(10))
def test_src_gonka_1421_s30_ten_minutes_of_full_load_are_no_hang(seed: int) -> None:
    """Steps of all lengths up to nearly the limit, one after the other, and now and then this process itself stops."""
    engine = Engine(seed)
    end = engine.now + 600
    while engine.now < end:
        assert not engine.step(engine.generator.choice([0.05, 0.25, 1.0, LIMIT_S - 1]))
        if engine.generator.random() < 0.05:
            engine.now += 300  # stopped, with everything else on the machine
            assert not engine.look()


@pytest.mark.parametrize("seed", range(10))
def test_src_vllm_36451_s30_a_hang_is_seen_within_the_limit_and_a_second(seed: int) -> None:
    engine = Engine(seed)
    for _ in range(engine.generator.randrange(50)):
        assert not engine.step(0.25)
    began = engine.now
    for alarm in engine.looks(LIMIT_S + 1):
        if alarm:
            break
    else:
        pytest.fail("not seen")
    assert LIMIT_S < engine.now - began <= LIMIT_S + 1


def test_where_steps_are_slow_a_slow_step_is_no_hang() -> None:
    engine = Engine(1, limit_s=2.0)
    assert not engine.step(1.5)
    assert not engine.step(PATIENCE * 1.5 - 1)
    assert engine.step(PATIENCE * 2 + 1), "patience has an end"


def test_time_in_which_nobody_looked_counts_once() -> None:
    watchdog = Watchdog(LIMIT_S)
    assert not watchdog.look(0.0, 0.0, 0.0)
    for hour in range(1, 20):
        assert not watchdog.look(3600.0 * hour, 0.0, 0.0)
    assert watchdog.look(3600.0 * 21, 0.0, 0.0) == (20 * MAX_GAP_S > LIMIT_S)
    assert watchdog.look(3600.0 * 22, 0.0, 0.0)


def test_a_clock_that_goes_back_is_no_silence() -> None:
    watchdog = Watchdog(1.0)
    now = 1000.0
    for _ in range(100):
        assert not watchdog.look(now, 999.0, 0.0)
        now -= 10


def test_before_its_first_word_nothing_is_expected() -> None:
    watchdog = Watchdog(0.1)
    assert not any(watchdog.look(second, None, 0.0) for second in range(1000))


def test_restarts_are_bounded_and_come_later_and_later() -> None:
    restarts = Restarts(5)
    delays = [restarts.next(float(second)) for second in range(7)]
    assert delays == [0.0, 0.5, 1.0, MAX_DELAY_S, MAX_DELAY_S, None, None]
    assert restarts.next(WINDOW_S) == MAX_DELAY_S, "the first is forgotten"
    assert restarts.next(WINDOW_S + 0.5) is None
    assert restarts.next(3 * WINDOW_S) == 0.0


def test_no_restarts_at_all() -> None:
    assert Restarts(0).next(0.0) is None
