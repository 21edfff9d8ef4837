"""Figures against arithmetic that knows nothing of the simulator: queueing theory, and small cases by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest

from chairlift.cli.disaggregated_flags import link
from chairlift.cli.main import parse
from chairlift.sim.arrivals import Arrivals, GapName, steady
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.disaggregated import DisaggregatedSimulation
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.lengths import Fixed, Uniform
from chairlift.sim.plan.objectives import Objectives
from chairlift.sim.plan.offered import Offered
from chairlift.sim.plan.search import Search
from chairlift.sim.plan.setting import Space
from chairlift.sim.plan.trial import Stage
from chairlift.sim.result import Result, e2e_s, figures, queue_s, request_figures, ttft_s
from chairlift.sim.router import LeastQueued, RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traffic import ClosedLoop, Kind, merged, open_loop
from chairlift.sim.workload import Asked, Contents
from sim.worlds import UNIT, asked

ONE_SLOT = EngineSetup(cost=UNIT, max_num_seqs=1, max_num_batched_tokens=16, num_blocks=64, block_size=4)
SERVICE_S = 3.0
"""Of a prompt of one chunk, which gives the first token, and two more tokens."""


def arriving(rate: float, number: int, gaps: GapName = "poisson", seed: int = 0) -> list[Asked]:
    kind = Kind(prompt=Fixed(4), output=Fixed(3))
    return list(open_loop(kind, Arrivals(steady(rate), gaps), Contents(), seed, number))


def waits_in_one_slot(arrivals: Iterable[float]) -> list[float]:
    """Who comes begins when it comes, or when the one before is done."""
    free, waits = 0.0, []
    for arrival in arrivals:
        waits.append(max(0.0, free - arrival))
        free = arrival + waits[-1] + SERVICE_S
    return waits


def run(workload: Sequence[Asked], setup: EngineSetup = ONE_SLOT, num_engines: int = 1) -> Result:
    return simulate(workload, make_fleet([setup] * num_engines), RoundRobin())


# ---------------------------------------------------------------- one slot, in which all take the same time


@pytest.mark.parametrize("load", [0.3, 0.7, 1.5])
def test_waits_in_one_slot_are_those_of_the_recursion(load: float) -> None:
    workload = arriving(load / SERVICE_S, 800)
    result = run(workload)
    waits = waits_in_one_slot(question.arrival for question in workload)
    free = workload[-1].arrival + waits[-1] + SERVICE_S
    for served, wait in zip(result.served, waits, strict=True):
        assert queue_s(served) == pytest.approx(wait, abs=1e-6)
        assert ttft_s(served) == pytest.approx(wait + 1.0, abs=1e-6)
        assert e2e_s(served) == pytest.approx(wait + SERVICE_S, abs=1e-6)
    values = figures(result)
    assert values["duration"] == pytest.approx(free)
    assert values["replicas"][0]["busy_s"] == pytest.approx(800 * SERVICE_S)
    assert values["replicas"][0]["utilization"] == pytest.approx(800 * SERVICE_S / free)
    assert values["request_throughput"] == pytest.approx(800 / free)
    assert values["output_throughput"] == pytest.approx(2400 / free)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_poisson_arrivals_wait_as_long_as_pollaczek_and_khinchine_say(load: float) -> None:
    """The mean wait of an M/D/1 queue is load * service / (2 * (1 - load)); chance is worth 2 % here."""
    times = list(islice(Arrivals(steady(load / SERVICE_S)).times(Random(1)), 60_000))
    assert fmean(waits_in_one_slot(times)) == pytest.approx(load * SERVICE_S / (2.0 * (1.0 - load)), rel=0.05)
    assert 60_000 / times[-1] == pytest.approx(load / SERVICE_S, rel=0.02)


def test_users_who_do_not_think_keep_the_slots_full() -> None:
    """Four users, two slots: two requests in 3 s, each of which waited for the two before it."""
    workload = ClosedLoop(Kind(prompt=Fixed(4), output=Fixed(3)), 4, 0.0, Contents(), 0, 40)
    result = simulate(workload, make_fleet([replace(ONE_SLOT, max_num_seqs=2)]), RoundRobin())
    assert figures(result)["duration"] == 20 * SERVICE_S
    assert [queue_s(served) for served in result.served] == [0.0] * 2 + [3.0] * 38


def test_constant_arrivals_do_not_wait_below_capacity_and_wait_longer_by_as_much_each_above() -> None:
    early = run(arriving(1.0 / 3.5, 50, "constant"))
    assert [queue_s(served) for served in early.served] == pytest.approx([0.0] * 50, abs=1e-6)
    gaps = [b.asked.arrival - a.asked.arrival for a, b in zip(early.served, early.served[1:], strict=False)]
    assert gaps == pytest.approx([3.5] * 49)
    late = run(arriving(1.0 / 2.0, 50, "constant"))
    assert [queue_s(served) for served in late.served] == pytest.approx([float(i) for i in range(50)], abs=1e-6)


def test_slots_serve_as_many_times_as_much() -> None:
    """Twelve at once in four slots: three rounds."""
    result = run([asked(0.0)] * 12, replace(ONE_SLOT, max_num_seqs=4, enable_prefix_caching=False))
    assert [served.finished for served in result.served] == [3.0] * 4 + [6.0] * 4 + [9.0] * 4
    assert figures(result)["replicas"][0]["slot_use"] == 1.0


# ---------------------------------------------------------------- latencies by hand

TWO = replace(ONE_SLOT, cost=PlainCost(1.0, 0.0, 0.0, 0.25), max_num_seqs=2)


def two_answers() -> Result:
    """A step takes 1 s, and 2 s with a prompt of four tokens in it.

    a    2   4  5  6  7     its gaps  2 1 1 1
    b        4  5           its gap   1, arrives at 1.5
    """
    return run([asked(0.0, num_output=5), asked(1.5, num_output=2, content=2)], TWO)


def test_every_latency_of_two_answers() -> None:
    result = two_answers()
    assert [result.token_times(served) for served in result.served] == [[2.0, 4.0, 5.0, 6.0, 7.0], [4.0, 5.0]]
    values = figures(result, (50.0, 90.0))
    expected = {
        "mean_ttft_ms": 2250.0,
        "p50_ttft_ms": 2250.0,
        "p90_ttft_ms": 2450.0,
        "mean_tpot_ms": 1125.0,
        "p50_tpot_ms": 1125.0,
        "std_tpot_ms": 125.0,
        "mean_e2el_ms": 5250.0,
        "p50_e2el_ms": 5250.0,
        "mean_queue_ms": 250.0,
        "p50_queue_ms": 250.0,
        # Of five gaps, not of the steps that brought them, nor of the means of answers.
        "mean_itl_ms": 1200.0,
        "p50_itl_ms": 1000.0,
        "p90_itl_ms": 1600.0,
        "std_itl_ms": 400.0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert (values["duration"], values["output_throughput"], values["total_token_throughput"]) == (7.0, 1.0, 15 / 7)
    engine = values["replicas"][0]
    assert (engine["num_steps"], engine["utilization"], engine["num_chunk_tokens"]) == (5, 1.0, 8)
    assert engine["slot_use"] == pytest.approx((1 + 2 + 2 + 1 + 1) / (5 * 2))


@pytest.mark.parametrize(
    ("limits", "num_good"),
    [
        ({"ttft": 2500.0}, 2),
        ({"ttft": 2499.0}, 1),
        ({"ttft": 1999.0}, 0),
        ({"tpot": 1250.0}, 2),
        ({"tpot": 1249.0}, 1),
        ({"e2el": 3500.0}, 1),
        ({"ttft": 2000.0, "e2el": 3500.0}, 0),  # each keeps one of them
        ({"ttft": 2500.0, "tpot": 1250.0, "e2el": 7000.0}, 2),
    ],
)
def test_good_is_who_keeps_every_limit(limits: dict[str, float], num_good: int) -> None:
    values = figures(two_answers(), (50.0,), limits)
    assert values["goodput"] == pytest.approx(num_good / 7.0)
    assert values["good_share"] == num_good / 2


def test_who_was_preempted_is_measured_from_when_it_came() -> None:
    """Four blocks of four tokens for two answers that need three each: the later gives way, and begins again.

    a    1  2  3  4  5  6  7  8  9           holds a third block from its sixth token on
    b       2  3  4  5  .  .  .  .  - 11 12 13 14   arrives at 0.5, then computes its prompt at 10, its answer at 11
    """
    setup = replace(ONE_SLOT, max_num_seqs=2, num_blocks=4, enable_prefix_caching=False)
    result = run([asked(0.0, num_output=9), asked(0.5, num_output=8, content=2)], setup)
    first, second = result.served
    assert result.token_times(first) == [float(i) for i in range(1, 10)]
    assert result.token_times(second) == [2.0, 3.0, 4.0, 5.0, 11.0, 12.0, 13.0, 14.0]
    assert request_figures(result, second)["num_preemptions"] == figures(result)["num_preemptions"] == 1
    assert (ttft_s(second), queue_s(second), e2e_s(second)) == (1.5, 0.5, 13.5)
    gaps = sorted(result.inter_token_latencies)
    assert gaps == [1.0] * 14 + [6.0]


# ---------------------------------------------------------------- counts


def test_tokens_are_those_that_were_asked_of_completed_requests() -> None:
    kind = Kind(prompt=Uniform(1, 30), output=Uniform(1, 9))
    workload = list(open_loop(kind, Arrivals(steady(0.5)), Contents(), 3, 60))
    workload[10] = replace(workload[10], n=2)
    workload[20] = replace(workload[20], num_output=200, e2e_within_s=20.0)
    workload[30] = replace(workload[30], prompt=asked(0.0, num_prompt=5000).prompt)
    setup = replace(ONE_SLOT, max_num_seqs=8)
    values = figures(run(workload, setup))
    kept = [question for i, question in enumerate(workload) if i not in (20, 30)]
    assert (values["completed"], values["refused"], values["finish_reasons"]["deadline"]) == (58, 1, 1)
    assert values["total_input_tokens"] == sum(question.prompt.num_tokens for question in kept)
    assert values["total_output_tokens"] == sum(question.num_output * question.n for question in kept)


def test_an_alarm_that_wakes_nobody_does_not_make_a_run_longer() -> None:
    """A deadline a thousand seconds after everything: the engine is as busy as it was."""
    workload = [replace(asked(0.0), e2e_within_s=1000.0), replace(asked(0.0, num_output=50), e2e_within_s=5.5)]
    values = figures(run(workload, replace(ONE_SLOT, max_num_seqs=2)))
    assert values["duration"] == pytest.approx(6.0)
    assert values["replicas"][0]["utilization"] == 1.0
    assert values["request_throughput"] == pytest.approx(1 / 6)


def test_what_is_stopped_counts_up_to_its_last_step() -> None:
    workload = [asked(0.0), asked(0.0, num_output=50, content=2)]
    result = simulate(workload, make_fleet([replace(ONE_SLOT, max_num_seqs=2)]), RoundRobin(), until=10.5)
    values = figures(result)
    assert (values["duration"], values["completed"], values["unfinished"]) == (10.0, 1, 1)
    assert (values["request_throughput"], values["replicas"][0]["utilization"]) == (0.1, 1.0)


# ---------------------------------------------------------------- routers


@pytest.mark.parametrize("seed", range(3))
def test_least_queued_goes_where_fewest_are_for_each_slot(seed: int) -> None:
    """As everybody can count afterwards: who came before, and was not over."""
    slots = [2, 3, 5]
    kind = Kind(prompt=Uniform(1, 12), output=Uniform(1, 20))
    workload = open_loop(kind, Arrivals(steady(1.0)), Contents(), seed, 200)
    fleet = make_fleet([replace(ONE_SLOT, max_num_seqs=number) for number in slots])
    result = simulate(workload, fleet, LeastQueued())
    for i, served in enumerate(result.served):
        now = served.asked.arrival
        shares = [
            sum(other.replica == place and (other.finished or math.inf) >= now for other in result.served[:i]) / number
            for place, number in enumerate(slots)
        ]
        assert served.replica == shares.index(min(shares))
    assert {served.replica for served in result.served} == {0, 1, 2}


# ---------------------------------------------------------------- pools


def test_a_transfer_takes_the_bytes_of_the_model_by_the_bandwidth() -> None:
    """Of Llama 3.1 8B: 32 layers, keys and values of 8 heads of 128 numbers of 2 bytes, 128 KiB a token."""
    assert link(parse(["simulate", "--split", "1:1"], {})).seconds(1000) == pytest.approx(1e-4 + 131_072_000 / 25e9)
    argv = ["simulate", "--split", "1:1", "--kv-cache-dtype", "fp8", "--kv-link-gb-s", "10", "--kv-link-ms", "2"]
    half = link(parse(argv, {}))
    assert half.seconds(1000) == pytest.approx(2e-3 + 65_536_000 / 10e9)
    setup = replace(ONE_SLOT, cost=PlainCost(0.01), max_num_batched_tokens=2048, num_blocks=1024)
    simulation = DisaggregatedSimulation(
        [asked(1.0, num_prompt=1000, num_output=3)],
        make_fleet([setup]),
        make_fleet([setup]),
        half,
        (RoundRobin(), RoundRobin()),
    )
    simulation.run()
    result = simulation.result()
    then = 1.01 + half.seconds(1000)
    assert result.token_times(result.served[0]) == pytest.approx([1.01, then + 0.01, then + 0.02])
    assert figures(result, (50.0,))["p50_itl_ms"] == pytest.approx((half.seconds(1000) + 2 * 0.01) * 500)


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("objective", [{"ttft_s": 8.0}, {"e2e_s": 12.0}])
def test_the_planner_finds_what_trying_every_rate_finds(objective: dict[str, float]) -> None:
    """One slot, so that waits are those of the recursion; the highest rate is where no higher one holds."""
    offered = Offered(lambda: iter(arriving(1.0, 300, seed=2)))
    base = replace(ONE_SLOT, max_num_seqs=1)
    stage = Stage(offered, base, Objectives(percent=95.0, **objective))
    found = Search(stage, Space((1,), (16,)), tolerance=0.02).plan()
    assert found.chosen is not None
    arrivals = [question.arrival for question in offered.sample]

    def holds(rate: float) -> bool:
        factor = offered.factor(rate)
        waits = sorted(waits_in_one_slot(arrival / factor for arrival in arrivals))
        # The 95th percentile of 300 lies between the 15th and the 16th from above.
        wait = waits[284] + (waits[285] - waits[284]) * (299 * 0.95 - 284)
        return wait + (1.0 if "ttft_s" in objective else SERVICE_S) <= next(iter(objective.values()))

    rate = found.chosen.rate
    assert holds(rate) and not holds(rate * 1.02)
    assert not any(holds(rate * 1.02**i) for i in range(1, 60))
    mean_rate = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) * offered.factor(rate)
    assert rate == pytest.approx(mean_rate)


def test_streams_together_arrive_at_the_sum_of_their_rates() -> None:
    workload = list(merged([arriving(2.0, 1000, "constant"), arriving(6.0, 3000, "constant")]))
    assert len(workload) / workload[-1].arrival == pytest.approx(8.0)
