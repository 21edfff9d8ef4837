"""How it was lately: exact, of a window, and of a bounded memory whatever comes."""

from __future__ import annotations

import random

import pytest

from chairlift.core.types import EngineStats
from chairlift.metrics.latency import percentile
from chairlift.server.ui.recent import MAX_FIRSTS, MAX_GAPS, RATE_S, SERIES_S, WINDOW_S, Recent
from chairlift.server.ui.shapes import Latency


def stats(running: int = 1, waiting: int = 0, step_tokens: int = 1) -> EngineStats:
    return EngineStats(running, waiting, 0, 0, 0, 0, 0, num_step_tokens=step_tokens)


def test_nothing_is_told_of_nothing() -> None:
    recent = Recent()
    assert recent.itl(5.0) == recent.ttft(5.0) == Latency(count=0, p50=None, p99=None)
    assert set(recent.rates(5.0).values()) == {0.0}
    assert recent.series(5.0)["running"] == [0] * SERIES_S


def test_tokens_of_prompts_are_those_that_follow_no_other() -> None:
    """A step of three rows that decode and a chunk of 20 tokens, which gives a token as well."""
    recent = Recent()
    recent.on_step(100.5, 4, {100.4: 3}, stats(4, 2, step_tokens=23))
    recent.on_step(100.9, 4, {100.5: 4}, stats(4, 1, step_tokens=4))
    assert recent.rates(101.0) == {"output_tokens": 8 / RATE_S, "prompt_tokens": 20 / RATE_S, "steps": 2 / RATE_S}
    told = recent.series(101.2)
    assert (told["output_tokens"][-1], told["prompt_tokens"][-1]) == (8, 20)
    assert (told["running"][-1], told["waiting"][-1]) == (4, 1)
    assert sum(told["output_tokens"]) == 8


def test_a_second_that_is_not_over_is_not_told_of() -> None:
    recent = Recent()
    recent.on_step(7.25, 1, {}, stats())
    assert recent.rates(7.9)["output_tokens"] == 0
    assert recent.rates(8.0)["output_tokens"] == 1 / RATE_S
    assert recent.rates(8.0 + RATE_S)["output_tokens"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_of_gaps_are_those_of_every_token(seed: int) -> None:
    rng, recent, every = random.Random(seed), Recent(), []
    for step in range(200):
        now = 50.0 + step / 10
        gap, count = rng.choice([0.02, 0.03, rng.random()]), rng.randint(1, 9)
        recent.on_step(now, count, {now - gap: count}, stats())
        every += [now - (now - gap)] * count
    every.sort()
    told = recent.itl(70.0)
    assert told.count == len(every)
    assert told.p50 == pytest.approx(percentile(every, 50.0), abs=1e-6)
    assert told.p99 == pytest.approx(percentile(every, 99.0), abs=1e-6)


def test_what_is_older_than_the_window_is_left_out() -> None:
    recent = Recent()
    recent.on_first_token(10.0, 9.0)
    recent.on_first_token(15.0, 1.0)
    assert recent.ttft(15.0).p99 == pytest.approx(8.92)
    assert recent.ttft(15.0 + WINDOW_S) == Latency(count=1, p50=1.0, p99=1.0)


def test_memory_is_bounded_and_clocks_may_go_back() -> None:
    recent = Recent()
    for step in range(3 * MAX_GAPS):
        recent.on_step(float(step % 1000), 2, {0.0: 1, -1.0: 1}, stats())
        recent.on_first_token(float(step), 0.1)
    assert recent.itl(0.0).count <= MAX_GAPS
    assert recent.ttft(0.0).count <= MAX_FIRSTS
    assert all(len(values) == SERIES_S for values in recent.series(500.0).values())
