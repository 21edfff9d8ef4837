"""Estimates of a wait: right in a steady state, unknown before anything is known, never absurd in between."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.pace import Pace
from chairlift.core.types import EngineStats, WaitReason


def stats(running: int, waiting: int, slots: int = 4, **more: Any) -> EngineStats:
    counts = {"num_used_blocks": 0, "num_cached_blocks": 0, "num_preemptions": 0, "prefix_queries": 0, "prefix_hits": 0}
    fields: dict[str, Any] = counts | {"num_running": running, "num_waiting": waiting, "max_num_seqs": slots} | more
    return EngineStats(**fields)


def test_nothing_is_known_before_the_first_end() -> None:
    pace = Pace(4)
    assert pace.slots_s(0) == 0.0
    assert pace.slots_s(1) is None
    pace.observe(stats(4, 3), 1.0)
    assert pace.slots_s(1) is None
    assert pace.num_free == 0


def test_slots_are_free_only_where_nobody_waits() -> None:
    pace = Pace(4)
    assert pace.num_free == 4
    pace.observe(stats(1, 0), 1.0)
    assert pace.num_free == 3
    pace.observe(stats(1, 1), 1.1)  # it waits for blocks: the slots are of no use
    assert pace.num_free == 0
    pace.observe(stats(5, 0), 1.2)  # rows over a bound that was lowered
    assert pace.num_free == 0
    pace.observe(stats(1, 0, slots=2), 1.3)
    assert (pace.num_free, pace.max_num_seqs) == (1, 2)


def test_the_background_is_no_crowd_and_its_slots_are_free() -> None:
    pace = Pace(4)
    pace.observe(stats(4, 7, num_background_running=3, num_background_waiting=7), 1.0)
    assert pace.num_free == 3
    pace.observe(stats(4, 7, num_background_running=1, num_background_waiting=6), 1.1)
    assert pace.num_free == 0


def test_who_joins_with_the_next_step_is_no_crowd() -> None:
    pace = Pace(4)
    waiting: Any = {WaitReason.STEP: 2}
    pace.observe(stats(1, 2, waiting_by_reason=waiting), 1.0)
    assert pace.num_free == 3  # for the two as well
    pace.observe(stats(1, 3, waiting_by_reason=waiting | {WaitReason.BLOCKS: 1}), 1.1)
    assert pace.num_free == 0


def test_a_batch_that_fills_is_no_crowd_and_one_that_is_held_is() -> None:
    pace = Pace(4)
    waiting: Any = {WaitReason.BATCH: 3}
    pace.observe(stats(0, 3, waiting_by_reason=waiting), 1.0)
    assert pace.num_free == 4  # three of them for those who wait
    pace.observe(stats(1, 3, waiting_by_reason=waiting), 2.0)
    assert pace.num_free == 0


def test_littles_law_before_anything_was_counted() -> None:
    pace = Pace(4)
    pace.observe(stats(1, 0), 0.0)
    pace.left(1, 2.0)
    assert pace.slots_s(1) == pytest.approx(2.0 / 4)
    assert pace.slots_s(6) == pytest.approx(6 * 2.0 / 4)


@pytest.mark.parametrize("step_s", [0.01, 0.1])
@pytest.mark.parametrize("service_s", [0.5, 4.0])
def test_the_rate_of_a_crowded_engine_is_found(step_s: float, service_s: float) -> None:
    """Eight slots, each taken again at once: the rate is eight per service time, whatever was said before."""
    pace = Pace(8)
    pace.observe(stats(1, 0, slots=8), 0.0)
    for _ in range(10):
        pace.left(1, 60.0)  # long ones before the crowd
    ends = [service_s * (i + 1) / 8 for i in range(8)]
    for step in range(1, int(20 * service_s / step_s)):
        now = step * step_s
        for i, end in enumerate(ends):
            if end <= now:
                pace.left(1, service_s)
                ends[i] += service_s
        pace.observe(stats(8, 5, slots=8), now)
    assert pace.slots_s(8) == pytest.approx(service_s, rel=0.15)


def test_what_leaves_while_nobody_waits_says_nothing_about_what_can_be_served() -> None:
    pace = Pace(8)
    now = 0.0
    for _ in range(100):
        now += 1.0
        pace.left(1, 0.5)
        pace.observe(stats(1, 0, slots=8), now)
    assert pace.slots_s(16) == pytest.approx(16 * 0.5 / 8)  # not sixteen seconds


def test_a_single_departure_right_after_the_crowd_came_decides_little() -> None:
    pace = Pace(4)
    for _ in range(8):
        pace.left(1, 10.0)
    pace.observe(stats(4, 9), 0.0)
    pace.left(1, 10.0)
    pace.observe(stats(4, 9), 0.01)
    assert pace.slots_s(1) == pytest.approx(10.0 / 4, rel=0.3)  # not a hundredth of a second


def test_what_was_long_ago_is_forgotten() -> None:
    pace = Pace(4)
    now = 0.0
    for service_s, seconds in ((1.0, 600.0), (10.0, 120.0)):
        end = now + seconds
        while now < end:
            now += service_s / 4
            pace.left(1, service_s)
            pace.observe(stats(4, 9), now)
    assert pace.slots_s(4) == pytest.approx(10.0, rel=0.15)


def test_a_wait_grows_while_nobody_leaves() -> None:
    pace = Pace(4)
    pace.observe(stats(4, 9), 0.0)
    pace.left(1, 1.0)
    pace.observe(stats(4, 9), 0.1)
    before = pace.slots_s(1)
    pace.observe(stats(4, 9), 30.0)
    after = pace.slots_s(1)
    assert before is not None
    assert after is not None
    assert after > 10 * before


def test_prompts_bound_the_wait_from_below_once_a_full_step_was_seen() -> None:
    pace = Pace(4)
    pace.observe(stats(4, 9, max_num_batched_tokens=512, num_step_tokens=4, step_s=0.02), 0.0)
    assert pace.prompts_s(8000) == 0.0  # what a step of four rows takes says nothing about a full one
    pace.observe(stats(4, 9, max_num_batched_tokens=512, num_step_tokens=500, step_s=0.5), 1.0)
    assert pace.prompts_s(8000) == pytest.approx(8.0)
    pace.observe(stats(4, 9, prefix_queries=100, prefix_hits=75), 2.0)
    assert pace.prompts_s(8000) == pytest.approx(2.0)  # three quarters of it are in the cache


def test_a_clock_that_stands_or_goes_back_breaks_nothing() -> None:
    pace = Pace(4)
    for now in (5.0, 5.0, 4.0, 4.0):
        pace.observe(stats(4, 1), now)
        pace.left(1, 0.0)
    assert pace.slots_s(3) == 0.0
    pace.observe(stats(4, 1), 6.0)
    assert pace.slots_s(1) is not None
