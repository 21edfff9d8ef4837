"""Latency objectives, held by the real scheduler on a virtual clock; `benchmarks/controller.py` prints more of it."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest

from chairlift.core.policy import Policy
from chairlift.core.snapshot import capture, restore
from load_steps import CPU_LOAD, GPU_LOAD, NOISE, Load, best_fixed, serve_steered, steered_driver, sweep_fixed
from virtual_engine import (
    CPU_LIKE,
    LinearCost,
    VirtualEngine,
    percentile_of,
    poisson_arrivals,
    virtual_request,
    virtual_scheduler,
)

SHORT_CPU_LOAD = replace(CPU_LOAD, phases=((25.0, 5.0), (25.0, 10.0), (25.0, 5.0)))
SHORT_GPU_LOAD = replace(GPU_LOAD, phases=((10.0, 60.0), (10.0, 120.0), (10.0, 60.0)))
LOADS = [
    pytest.param(SHORT_CPU_LOAD, (0.02, 0.05, 0.1), (8, 16, 48, 96), (16, 64), id="cpu"),
    pytest.param(SHORT_GPU_LOAD, (0.02, 0.05), (256, 512), (64, 512), id="gpu"),
]


@pytest.mark.parametrize(("load", "objectives_s", "num_seqs", "num_tokens"), LOADS)
def test_objectives_hold_in_each_phase_at_the_throughput_of_the_best_fixed_setting(
    load: Load, objectives_s: tuple[float, ...], num_seqs: tuple[int, ...], num_tokens: tuple[int, ...]
) -> None:
    requests = load.requests(seed=1)
    fixed = sweep_fixed(load, requests, itertools.product(num_seqs, num_tokens), seed=1)
    for objective_s in objectives_s:
        steered = serve_steered(load, requests, objective_s, seed=1)
        assert max(steered.p99_itl_s) <= 1.1 * objective_s
        assert steered.p99_itl_overall_s <= 1.1 * objective_s
        best = best_fixed(fixed, objective_s)
        assert best is not None
        assert steered.tokens_per_s >= 0.9 * best.tokens_per_s
    assert not all(outcome.holds(objectives_s[0]) for outcome in fixed), "what every setting holds proves nothing"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize(
    ("mean_prompt", "mean_output", "rate"), [(128, 96, 5.5), (600, 60, 1.7), (20, 250, 5.0), (1500, 300, 0.6)]
)
def test_objectives_hold_whatever_is_asked(mean_prompt: float, mean_output: float, rate: float, seed: int) -> None:
    phases = ((40.0, rate), (40.0, 2 * rate), (40.0, rate))
    load = Load(CPU_LIKE, phases, 256, 2048, mean_prompt, mean_output, settle_s=5.0)
    for objective_s in (0.02, 0.05, 0.15):
        assert max(serve_steered(load, load.requests(seed), objective_s, seed).p99_itl_s) <= 1.1 * objective_s


def test_the_batch_settles_under_steady_overload() -> None:
    driver = steered_driver(CPU_LOAD, Policy(itl_objective_s=0.05), seed=2)
    driver.run(poisson_arrivals([(60.0, 12.0)], seed=2, mean_prompt=128, mean_output=96), until=60.0)
    rows = [step.num_decodes for step in driver.steps if step.begun > 20.0]
    assert statistics.pstdev(rows) < 0.15 * statistics.fmean(rows)
    lengths = sorted(step.ended - step.begun for step in driver.steps if step.begun > 20.0)
    assert percentile_of(lengths, 10.0) > 0.7 * percentile_of(lengths, 90.0)


def test_a_burst_is_let_in_no_faster_than_the_objective_allows() -> None:
    driver = steered_driver(CPU_LOAD, Policy(itl_objective_s=0.05), seed=3)
    driver.run([virtual_request(i, 0.0, 100, 50) for i in range(200)])
    assert percentile_of(driver.inter_token_latencies(), 99.0) <= 1.1 * 0.05
    assert all(len(served.finishes) == 1 for served in driver.served.values())


def test_an_objective_that_cannot_be_held_stops_nobody() -> None:
    driver = steered_driver(CPU_LOAD, Policy(itl_objective_s=0.001), seed=4)
    driver.run([virtual_request(i, 0.1 * i, 200, 20) for i in range(20)])
    assert all(served.finishes[0].num_output_tokens == 20 for served in driver.served.values())


def test_no_step_lasts_longer_than_planned_whatever_the_context() -> None:
    costly_context = LinearCost(0.006, 350e-6, 0.5e-6, 450e-6, 400e-9)
    scheduler = virtual_scheduler(64, 2048, policy=Policy(max_step_s=0.25))
    driver = VirtualEngine(scheduler, costly_context, noise=0.03, seed=5)
    driver.run([virtual_request(i, 2.0 * i, (4000, 100, 50)[i % 3], 100) for i in range(18)])
    assert max(step.ended - step.begun for step in driver.steps) < 1.1 * 0.25
    chunked = [step.ended - step.begun for step in driver.steps if step.num_chunk_tokens]
    assert percentile_of(sorted(chunked), 75.0) > 0.15


@pytest.mark.parametrize(("count", "num_prompt"), [(8, 40), (64, 40), (64, 500)])
def test_a_bound_on_steps_costs_hardly_any_time_even_at_the_start(count: int, num_prompt: int) -> None:
    durations = []
    for policy in (Policy(), Policy(max_step_s=0.25)):
        driver = VirtualEngine(virtual_scheduler(64, 512, policy=policy), CPU_LIKE, noise=NOISE, seed=8)
        driver.run([virtual_request(i, 0.0, num_prompt, 64) for i in range(count)])
        durations.append(driver.now)
    assert durations[1] < 1.03 * durations[0]


@pytest.mark.parametrize("objective_s", [0.5, 2.0])
def test_first_tokens_come_in_time_and_no_earlier_than_needed(objective_s: float) -> None:
    requests = poisson_arrivals([(40.0, 4.0), (40.0, 6.0)], seed=6, mean_prompt=128, mean_output=96)
    driver = steered_driver(CPU_LOAD, Policy(ttft_objective_s=objective_s), seed=6)
    driver.run(requests)
    ttfts = driver.ttfts(since=15.0)
    assert 0.3 * objective_s < percentile_of(ttfts, 90.0) <= objective_s
    unsteered = steered_driver(CPU_LOAD, Policy(), seed=6)
    unsteered.run(requests)
    assert percentile_of(driver.inter_token_latencies(15.0), 99.0) < 0.7 * percentile_of(
        unsteered.inter_token_latencies(15.0), 99.0
    )


def test_a_restored_controller_goes_on_as_it_was() -> None:
    driver = steered_driver(CPU_LOAD, Policy(itl_objective_s=0.05, ttft_objective_s=1.0, max_step_s=0.25), seed=7)
    driver.run(poisson_arrivals([(10.0, 8.0)], seed=7, mean_prompt=128, mean_output=96), until=10.0)
    first = driver.engine.scheduler
    second = restore(capture(first), lambda request, choice: None)
    assert vars(second.controller.times) == vars(first.controller.times)
    plans = [scheduler.schedule(driver.now) for scheduler in (first, second)]
    assert plans[0] is not None
    assert plans[0] == plans[1]
