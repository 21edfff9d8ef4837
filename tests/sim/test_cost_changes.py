"""Steps of another size than the one before: what these cost, and that skipping steps does not forget it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from chairlift.core.types import Chunk, StepPlan
from chairlift.sim.cost import (
    LESSON,
    ChangingCost,
    Coefficients,
    RowCosts,
    SizeChange,
    SmoothCost,
    WatchedCost,
    for_one_engine,
)
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.router import LeastQueued
from chairlift.sim.run import simulate
from sim.worlds import TokenLog, random_setup, random_workload

SMOOTH = SmoothCost(
    Coefficients(
        weights_s=0.004, token_s=2e-5, token_sizes=(1, 2, 4, 8), decode=RowCosts(0.001, 1e-4, 1e-7), change_s=0.5
    )
)


def decodes(num_rows: int, context: int = 100) -> StepPlan:
    return StepPlan(0, decodes=list(range(num_rows)), num_context_tokens=context)


def prompt(num_tokens: int) -> StepPlan:
    return StepPlan(0, chunks=[Chunk(0, 0, num_tokens, True)], num_chunk_tokens=num_tokens)


def test_only_a_step_of_another_padded_size_costs_more() -> None:
    cost = for_one_engine(SMOOTH)
    steps = [decodes(3), decodes(4), decodes(4), decodes(5), prompt(7), prompt(8), decodes(2)]
    more = [round(cost(step) - SMOOTH(step), 9) for step in steps]
    assert more == [0.5, 0, 0, 0.5, 0, 0, 0.5]


def test_every_engine_remembers_its_own_steps() -> None:
    one, other = for_one_engine(SMOOTH), for_one_engine(SMOOTH)
    one(decodes(4))
    assert one(decodes(4)) < other(decodes(4))


def test_a_model_whose_changes_cost_nothing_stays_as_it_is() -> None:
    free = SmoothCost(replace(SMOOTH.coefficients, change_s=0.0))
    for cost in (free, LESSON, WatchedCost(LESSON, {}, print)):
        assert for_one_engine(cost) is cost


def test_models_around_another_tell_what_its_changes_cost() -> None:
    assert SMOOTH.size_change == SizeChange(0.5, (1, 2, 4, 8))
    assert WatchedCost(SMOOTH, {}, print).size_change == SMOOTH.size_change
    twice = for_one_engine(scaled(SMOOTH, 2.0))
    assert isinstance(twice, ChangingCost)
    assert twice(decodes(4)) == pytest.approx(2 * for_one_engine(SMOOTH)(decodes(4)))
    assert twice(decodes(3)) == pytest.approx(2 * SMOOTH(decodes(3)))


def test_the_line_is_of_steps_that_follow_their_like() -> None:
    cost = for_one_engine(SMOOTH)
    assert isinstance(cost, ChangingCost)
    assert not cost.is_steady(3)
    cost(decodes(3))
    assert cost.is_steady(3) and cost.is_steady(4) and not cost.is_steady(5)
    assert cost.decode_line(4).seconds(200) == cost(decodes(4, 200))


@pytest.mark.parametrize("seed", range(12))
def test_steps_taken_at_once_end_when_they_would_one_by_one(seed: int) -> None:
    change = SmoothCost(replace(SMOOTH.coefficients, change_s=0.003))
    log = TokenLog()
    results = []
    for listener in (log, None):
        rng = Random(seed)
        engines = [replace(random_setup(rng), cost=change).replica(f"{i}", on_step=listener) for i in range(2)]
        results.append(simulate(random_workload(seed), engines, LeastQueued()))
    stepped, skipped = results
    assert [served.finishes for served in skipped.served] == [served.finishes for served in stepped.served]
    assert sorted(skipped.inter_token_latencies) == sorted(stepped.inter_token_latencies)
    assert sorted(stepped.inter_token_latencies) == sorted(log.gaps())
