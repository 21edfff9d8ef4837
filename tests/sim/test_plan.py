"""The planner finds what is known beforehand: capacities of engines whose every step takes the same time."""

from __future__ import annotations

import math

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy
from chairlift.core.types import Chunk, StepPlan
from chairlift.sim.arrivals import Arrivals, GapName, steady
from chairlift.sim.cost.model import LineModel
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.lengths import Fixed, LogNormal
from chairlift.sim.plan.objectives import Objectives, _late
from chairlift.sim.plan.offered import Offered
from chairlift.sim.plan.report import plan_figures, to_lines
from chairlift.sim.plan.search import Plan, Search, highest
from chairlift.sim.plan.setting import Fleet, Setting, Space, fleets
from chairlift.sim.plan.trial import Stage
from chairlift.sim.plan.verdict import Verdict
from chairlift.sim.traffic import ClosedLoop, Kind, open_loop
from chairlift.sim.workload import Asked, Contents, Part, Workload, blocks

STEP_S, NUM_SEQS, NUM_OUTPUT = 0.01, 8, 10
CAPACITY = NUM_SEQS / (NUM_OUTPUT * STEP_S)
"""Requests a second of one engine: so many rows, each for so many steps."""
BASE = EngineSetup(cost=PlainCost(STEP_S))
ONE = Space((NUM_SEQS,), (512,))


def offered(gaps: GapName = "poisson", number: int = 400, seed: int = 0, kind: Kind | None = None) -> Offered:
    kind = kind or Kind(prompt=Fixed(20), output=Fixed(NUM_OUTPUT))
    return Offered(lambda: open_loop(kind, Arrivals(steady(3.0), gaps), Contents(), seed, number))


def plan(
    objectives: Objectives,
    space: Space = ONE,
    load: Offered | None = None,
    rate: float | None = None,
    tolerance: float = 0.01,
) -> tuple[Plan, Stage]:
    stage = Stage(load or offered(), BASE, objectives)
    return Search(stage, space, tolerance=tolerance).plan(rate=rate), stage


def rate_of(plan: Plan) -> float:
    return 0.0 if plan.chosen is None else plan.chosen.rate


# ---------------------------------------------------------------- capacity


@pytest.mark.parametrize("gaps", ["constant", "poisson"])
def test_the_rate_is_the_capacity_where_the_objective_is_about_the_queue(gaps: GapName) -> None:
    found, _ = plan(Objectives(ttft_s=0.3), load=offered(gaps, 500), tolerance=0.005)
    assert rate_of(found) == pytest.approx(CAPACITY, rel=0.02)


def test_without_objectives_the_rate_is_what_does_not_pile_up() -> None:
    found, _ = plan(Objectives(), load=offered("constant", 600), tolerance=0.005)
    assert rate_of(found) == pytest.approx(CAPACITY, rel=0.02)
    assert found.chosen is not None and found.chosen.limited_by == ("overload",)


def test_an_objective_on_steps_limits_the_rows_that_may_run() -> None:
    cost = PlainCost(0.005, row_s=0.001)  # 12 rows in 17 ms
    stage = Stage(offered("constant", 500), EngineSetup(cost=cost), Objectives(itl_s=0.0172, ttft_s=0.1))
    found = Search(stage, Space((12, 16), (512,))).plan()
    assert found.chosen is not None
    assert found.chosen.trial.latencies is not None
    assert found.chosen.trial.latencies.itl_s <= 0.0172
    num_decoding = 12 * (NUM_OUTPUT - 1) / NUM_OUTPUT  # the first token comes with the prompt
    assert found.chosen.rate == pytest.approx(12 / (NUM_OUTPUT * (0.005 + 0.001 * num_decoding)), rel=0.02)


def test_engines_behind_a_router_add_up() -> None:
    load = offered("constant", 200)
    one, _ = plan(Objectives(ttft_s=0.3), load=load)
    space = Space((NUM_SEQS,), (512,), fleets=fleets([3], ["round-robin"], []))
    three, _ = plan(Objectives(ttft_s=0.3), space, load)
    assert rate_of(three) == pytest.approx(3 * rate_of(one), rel=0.05)


def test_a_looser_objective_never_gives_a_lower_rate() -> None:
    load = offered(kind=Kind(prompt=LogNormal(200, 0.6, 900), output=LogNormal(10, 0.8, 60)), number=100)
    rates = [
        rate_of(plan(Objectives(ttft_s=ttft_s, itl_s=0.05), Space((4, 8), (128,)), load, tolerance=0.02)[0])
        for ttft_s in (0.1, 0.3, 1.0)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] > 0.0


def test_steps_that_take_longer_lower_the_rate_by_as_much() -> None:
    found, _ = plan(Objectives(ttft_s=1.0), load=offered("constant", 400), tolerance=0.005)
    slower, faster = found.band
    assert slower is not None and faster is not None
    assert slower == pytest.approx(rate_of(found) / 1.05, rel=0.01)
    assert faster == pytest.approx(rate_of(found) / 0.95, rel=0.01)


def test_an_objective_that_one_request_alone_misses_holds_at_no_rate() -> None:
    found, stage = plan(Objectives(e2e_s=0.5 * NUM_OUTPUT * STEP_S))
    assert found.chosen is None and not found.found
    figures = plan_figures(found, stage, band=0.05, tolerance=0.005, penalty=1.0)
    assert "No setting holds the objectives at any rate (E2E)" in to_lines(figures)
    assert found.alone is not None and found.alone.latencies is not None
    assert found.alone.latencies.e2e_s == pytest.approx(NUM_OUTPUT * STEP_S)


def test_requests_that_are_refused_or_dropped_are_misses() -> None:
    kind = Kind(prompt=Fixed(20), output=Fixed(NUM_OUTPUT), ttft_within_s=0.2)
    found, stage = plan(Objectives(), load=offered("constant", 500, kind=kind))
    assert rate_of(found) == pytest.approx(CAPACITY, rel=0.05)
    beyond = stage.run(Setting(NUM_SEQS, 512), 2.0 * CAPACITY, 500, to_end=True)
    assert "dropped" in beyond.missed
    goodput = stage.goodput(Setting(NUM_SEQS, 512), 2.0 * CAPACITY, 1.0)
    assert goodput.raw == pytest.approx(CAPACITY, rel=0.1)
    assert goodput.penalised == pytest.approx(0.0, abs=0.2 * CAPACITY)


# ---------------------------------------------------------------- settings


def test_a_larger_setting_is_listed_only_if_it_gives_more() -> None:
    found, _ = plan(Objectives(ttft_s=0.5), Space((4, 8, 16), (64, 512)), offered("constant", 240))
    settings = [(one.setting.max_num_seqs, one.setting.max_num_batched_tokens) for one in found.found]
    assert [num_seqs for num_seqs, _ in settings] == [4, 8, 16]
    assert [one.rate for one in found.found] == sorted(one.rate for one in found.found)
    rates = {setting: one.rate for setting, one in zip(settings, found.found, strict=True)}
    for (num_seqs, num_tokens), rate in rates.items():
        smaller = [
            r for (s, t), r in rates.items() if (s, t) != (num_seqs, num_tokens) and s <= num_seqs and t <= num_tokens
        ]
        assert all(rate > other for other in smaller)
    assert rate_of(found) == pytest.approx(2 * CAPACITY, rel=0.03)


def test_a_rate_that_is_asked_for_is_answered_with_the_fewest_engines() -> None:
    space = Space((NUM_SEQS,), (512,), fleets=fleets([1, 2, 4], ["round-robin"], []))
    found, _ = plan(Objectives(ttft_s=0.2), space, offered("constant", 250), rate=1.5 * CAPACITY)
    assert found.chosen is not None and found.chosen.setting.fleet.num_engines == 2
    assert found.asked is not None and found.asked.trial.holds
    assert found.asked.margin == pytest.approx(2.0 / 1.5 - 1.0, abs=0.04)
    assert found.asked.trial.backlog is not None and found.asked.trial.backlog.verdict is Verdict.STABLE


def test_a_rate_that_is_too_high_is_an_overload_with_a_negative_margin() -> None:
    found, stage = plan(Objectives(ttft_s=0.2), rate=2.0 * CAPACITY)
    assert found.asked is not None and not found.asked.trial.holds
    assert found.asked.margin == pytest.approx(-0.5, abs=0.1)
    assert found.asked.trial.backlog is not None and found.asked.trial.backlog.verdict is Verdict.OVERLOADED
    assert "OVERLOADED" in to_lines(plan_figures(found, stage, band=0.05, tolerance=0.005, penalty=1.0))


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    def figures(seed: int) -> dict[str, object]:
        found, stage = plan(Objectives(ttft_s=0.1), Space((4, 8), (64,)), offered(number=60, seed=seed), rate=20.0)
        return plan_figures(found, stage, band=0.05, tolerance=0.005, penalty=1.0)

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_what_cannot_be_tried_is_refused() -> None:
    with pytest.raises(InvalidOption, match="at least max_num_seqs"):
        Space((64,), (32,))
    with pytest.raises(InvalidOption, match="at least 1 engine"):
        Space((1,), (32,), fleets=(Fleet(1, "round-robin", (0, 1)),))
    with pytest.raises(InvalidOption, match="link"):
        plan(Objectives(), Space((8,), (64,), fleets=(Fleet(1, "round-robin", (1, 1)),)))
    with pytest.raises(InvalidOption, match="above 0"):
        Objectives(ttft_s=0.0)
    with pytest.raises(InvalidOption, match="rate"):
        Offered(lambda: ClosedLoop(Kind(), 5, 1.0, Contents(), 0, 10))


# ---------------------------------------------------------------- parts


def test_the_highest_rung_is_found_from_anywhere() -> None:
    for top in range(-40, 41):
        for start in (-35, 0, 13):
            for stride in (1, 4):
                assert highest(lambda rung, top=top: rung <= top, start, stride, 100) == top  # type: ignore[misc]


def test_a_ladder_has_two_ends() -> None:
    assert highest(lambda rung: True, 0, 3, 50) == 50
    assert highest(lambda rung: False, 0, 3, 50) is None
    assert highest(lambda rung: rung <= -50, 0, 3, 50) == -50


def test_a_coarse_search_stops_close_enough() -> None:
    found = highest(lambda rung: rung <= 33, 0, 8, 100, resolution=4)
    assert found is not None and 29 < found <= 33


def test_an_offered_load_is_the_same_at_every_rate() -> None:
    load = offered(number=50)
    slow, fast = list(load.at(1.0, 50)), list(load.at(4.0, 50))
    assert [one.prompt for one in slow] == [one.prompt for one in fast]
    assert [one.arrival for one in slow] == pytest.approx([4.0 * one.arrival for one in fast])
    assert 49 / (fast[-1].arrival - fast[0].arrival) == pytest.approx(4.0)


def test_what_follows_an_answer_is_drawn_anew_for_each_run() -> None:
    load = offered(kind=Kind(prompt=Fixed(20), output=Fixed(5), turns=Fixed(3), think_s=0.1), number=60)
    assert load.goes_on
    stage = Stage(load, BASE, Objectives(ttft_s=0.1))
    first, again = (stage.run(Setting(8, 512), 5.0, 60) for _ in range(2))
    assert first == again
    assert first.holds


def test_percentiles_count_those_who_never_came() -> None:
    values = [float(i) for i in range(1, 100)]
    assert _late(iter(values), 0, 50.0) == 50.0
    assert _late(iter(values), 1, 50.0) == 50.5
    assert _late(iter(values), 1, 99.5) == math.inf
    assert _late(iter([]), 5, 50.0) == math.inf
    assert _late(iter([]), 0, 50.0) == 0.0


def test_a_run_that_fails_for_certain_is_cut_short_and_only_that() -> None:
    stage = Stage(offered(), BASE, Objectives(ttft_s=0.1))
    setting = Setting(NUM_SEQS, 512)
    for factor in (0.5, 0.97, 1.05, 3.0):
        cut = stage.run(setting, factor * CAPACITY, 400)
        whole = stage.run(setting, factor * CAPACITY, 400, to_end=True)
        assert cut.holds == whole.holds
        assert set(cut.missed) <= set(whole.missed)
    assert stage.run(setting, 3.0 * CAPACITY, 400).latencies is None


def test_scaled_costs_lie_on_a_scaled_line() -> None:
    cost = scaled(PlainCost(0.01, 0.0013, 1.7e-7, 3e-5), 1.05)
    assert isinstance(cost, LineModel)
    decode = StepPlan(0, decodes=[0, 1, 2], num_context_tokens=12_345)
    assert cost(decode) == cost.decode_line(3).seconds(12_345)
    assert cost(decode) == pytest.approx(1.05 * PlainCost(0.01, 0.0013, 1.7e-7, 3e-5)(decode))
    mixed = StepPlan(0, decodes=[0], chunks=[Chunk(1, 0, 64, True)], num_context_tokens=50, num_chunk_tokens=64)
    assert cost(mixed) == 1.05 * PlainCost(0.01, 0.0013, 1.7e-7, 3e-5)(mixed)
    assert not isinstance(scaled(lambda plan: 2.0, 1.5), LineModel)
    assert scaled(lambda plan: 2.0, 1.5)(decode) == 3.0


def test_all_at_once_has_no_rate() -> None:
    def at_once() -> Workload:
        return [Asked(arrival=0.0, prompt=blocks(Part(1, 1, 5)), num_output=3)] * 4

    with pytest.raises(InvalidOption, match="rate"):
        Offered(at_once)


def test_the_policy_of_a_setting_is_its_own_and_the_rest_the_base_s() -> None:
    base = EngineSetup(cost=PlainCost(0.01), policy=Policy(prefill_first=True), block_size=32)
    setup = Setting(4, 100, "fair").setup(base)
    assert setup.policy == Policy(prefill_first=True, scheduling_policy="fair")
    assert (setup.max_num_seqs, setup.max_num_batched_tokens, setup.block_size) == (4, 100, 32)
