"""Predictions beside measurements, on an engine whose steps cost what a known model says, and on one that is slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chairlift.bench import fidelity as bench
from chairlift.bench.fidelity import Course, Predictions, Scenario, Subject, highest_rate, spell
from chairlift.bench.in_process import Listener, Show
from chairlift.bench.predicted import Line, to_json, to_table
from chairlift.core.errors import ChairliftError
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.calibrate.measuring import Observed, calibration_of
from chairlift.sim.cost.shape import StepShape
from chairlift.sim.cost.smooth import ChunkCosts, Coefficients, RowCosts, SmoothCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.lengths import LogNormal
from chairlift.sim.workload import Part, blocks
from virtual_engine import VirtualEngine

VOCAB_SIZE = 300
COST = SmoothCost(
    Coefficients(
        weights_s=0.004,
        token_s=0.0003,
        decode=RowCosts(0.001, 0.0002, 1e-7),
        mixed=RowCosts(0.001, 0.0003, 2e-7),
        chunks=ChunkCosts(0.0001, 0.0001),
    )
)
SETUP = EngineSetup(cost=COST, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512, num_blocks=256)
SCENARIO = Scenario(
    name="mixture", load=0.6, prefix=32, prompt=LogNormal(20, 0.5, 90), output=LogNormal(12, 0.5, 40), burstiness=0.5
)


def say_nothing(name: str) -> Show:
    return lambda load, num_tokens: None


class VirtualLoop:
    """Serves what it was given on the other virtual clock there is, once nothing more comes."""

    def __init__(self, engine: VirtualEngine, listener: Listener, error: str | None) -> None:
        self._engine = engine
        self._listener = listener
        self._error = error
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def close(self) -> None:
        self._engine.run(self._requests)

    def stop(self) -> None:
        raise AssertionError("nobody should want that")

    def wait(self, timeout_s: float) -> bool:
        served = self._engine.served.values()
        moments = [(time, one.request.id, False) for one in served for time in one.token_times]
        moments += [(finish.finished, one.request.id, True) for one in served for finish in one.finishes]
        for now, request_id, is_end in sorted(moments):
            finishes = [replace(f, error=self._error) for f in self._engine.served[request_id].finishes if is_end]
            self._listener.on_tokens([] if is_end else [request_id], finishes, now)
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def subject(factor: float = 1.0, error: str | None = None) -> Subject:
    """An engine whose steps take `factor` times as long as the model says."""
    clock = Clock()

    def start(policy: Policy, listener: Listener) -> VirtualLoop:
        clock.now = 0.0
        scheduler = Scheduler(
            Limits(SETUP.max_num_seqs, SETUP.max_num_batched_tokens, SETUP.max_model_len),
            CacheShape(SETUP.num_blocks, SETUP.block_size),
            vocab_size=VOCAB_SIZE,
            policy=policy,
        )
        engine = VirtualEngine(scheduler, lambda plan: factor * COST(plan), on_step=listener.on_step)
        return VirtualLoop(engine, listener, error)

    clock.now = 0.0
    return Subject(start, SETUP, VOCAB_SIZE, SamplingParams(), clock, clock.sleep)


def predictions(setup: EngineSetup = SETUP) -> Predictions:
    return Predictions(setup, setup, setup)


def zeroed(course: Course, under: Subject, times: int = 2) -> Course:
    for _ in range(times):
        under.clock.now = 0.0  # type: ignore[attr-defined]
        course.run(under, say_nothing)
    return course


# ---------------------------------------------------------------- scenarios


def test_an_engine_that_costs_what_the_model_says_is_predicted_exactly() -> None:
    course = zeroed(bench.course_of(SCENARIO, SETUP, 20.0), subject())
    assert 100 < course.num_requests < 1000
    comparison = course.compare(predictions())
    assert [line.name for line in comparison.lines] == [
        f"{metric} {statistic}" for metric in ("ttft", "itl", "e2el") for statistic in ("mean", "p50", "p99")
    ]
    for line in comparison.lines:
        assert line.measured[0] == line.measured[1] and line.spread == 0.0
        assert line.error == pytest.approx(0.0, abs=1e-9), line.name
        assert line.holds
    assert comparison.steps is not None and comparison.steps.mean == pytest.approx(0.0, abs=1e-9)


def test_an_engine_that_is_slower_is_found_out() -> None:
    course = zeroed(bench.course_of(SCENARIO, SETUP, 20.0), subject(factor=1.25))
    comparison = course.compare(predictions())
    assert comparison.steps is not None and comparison.steps.total == pytest.approx(1 / 1.25 - 1.0)
    assert all(line.error < -0.15 and not line.holds for line in comparison.lines)
    printed = to_table(comparison)
    assert printed.count("OFF") == 9 and "-20.0% in all" in printed


def test_the_three_predictions_stand_side_by_side() -> None:
    course = zeroed(bench.course_of(SCENARIO, SETUP, 5.0), subject(), times=1)
    slow = replace(SETUP, cost=SmoothCost(replace(COST.coefficients, token_s=0.0004)))
    slower = replace(SETUP, cost=SmoothCost(replace(COST.coefficients, token_s=0.0006)))
    line = course.compare(Predictions(SETUP, slower, slow)).lines[0]
    assert line.measured[0] == pytest.approx(line.before) and line.before < line.predicted < line.after


def test_a_request_that_fails_ends_it() -> None:
    with pytest.raises(ChairliftError, match="requests failed: broken"):
        zeroed(bench.course_of(SCENARIO, SETUP, 1.0), subject(error="broken"))


def test_equal_contents_are_spelled_equally() -> None:
    one = spell(blocks(Part(1, 1, 8), Part(2, 3, 4)), VOCAB_SIZE)
    other = spell(blocks(Part(1, 1, 8), Part(3, 3, 4)), VOCAB_SIZE)
    assert len(one) == 16 and len(other) == 12 and set(one) <= set(range(VOCAB_SIZE))
    assert one[:8] == other[:8] and one[12:] == other[8:] != one[8:12]
    assert spell(replace(blocks(Part(1, 1, 8)), num_tokens=5), VOCAB_SIZE) == one[:5]


# ---------------------------------------------------------------- the highest rate


def test_the_highest_rate_that_holds_an_objective() -> None:
    course = zeroed(bench.ladder_of(SCENARIO, SETUP, 20.0), subject())
    comparison = course.compare(predictions())
    (line,) = comparison.lines
    assert line.name == "rate" and line.error == pytest.approx(0.0, abs=1e-9)
    assert course.rates[0] < line.predicted < course.rates[-1]
    assert "highest rate with 99 % of inter-token latencies under" in to_table(comparison)
    slower = zeroed(bench.ladder_of(SCENARIO, SETUP, 20.0), subject(factor=1.1)).compare(predictions()).lines[0]
    assert slower.error > 0.05 and not slower.holds


def test_between_two_rates_the_logarithm_grows_evenly() -> None:
    rates = (1.0, 2.0, 4.0)
    assert highest_rate(rates, (0.01, 0.02, 0.08), 0.04) == pytest.approx(3.0)
    assert highest_rate(rates, (0.01, 0.02, 0.08), 0.02) == 2.0
    assert highest_rate(rates, (0.01, 0.02, 0.08), 0.5) == 4.0
    assert highest_rate(rates, (0.01, 0.02, 0.08), 0.005) == 1.0
    assert highest_rate(rates, (0.01, 0.02, 0.01), 0.015) == pytest.approx(1.0 + math.log(1.5) / math.log(2.0))


# ---------------------------------------------------------------- verdicts


def line(name: str, predicted: float, *measured: float) -> Line:
    return Line(name=name, measured=measured, before=predicted, after=predicted, predicted=predicted)


@pytest.mark.parametrize(
    ("name", "predicted", "measured", "holds"),
    [
        ("itl mean", 1.049, (1.0, 1.0), True),
        ("itl mean", 1.051, (1.0, 1.0), False),
        ("itl p99", 1.099, (1.0, 1.0), True),
        ("itl p99", 0.899, (1.0, 1.0), False),
        ("rate", 0.949, (1.0, 1.0), False),
        ("itl p50", 1.14, (0.95, 1.05), True),  # repeats differ by 10 %: 15 % are allowed
        ("itl p50", 1.16, (0.95, 1.05), False),
    ],
)
def test_what_is_allowed(name: str, predicted: float, measured: Sequence[float], holds: bool) -> None:
    assert line(name, predicted, *measured).holds is holds


def test_figures_as_data() -> None:
    course = zeroed(bench.course_of(SCENARIO, SETUP, 2.0), subject(), times=1)
    (scenario,) = to_json([course.compare(predictions())])["scenarios"]
    assert scenario["scenario"] == "mixture" and len(scenario["lines"]) == 9
    assert scenario["lines"][0]["measured"] == (scenario["lines"][0]["before"],)


def test_steps_are_watched_beside_tokens() -> None:
    asked = SCENARIO.asked(10.0, 3)
    steps = bench.measure(subject(), asked, say_nothing(""))[1]
    num_sampled = sum(step.shape.num_outputs for step in steps.measured(first_group=0))
    assert num_sampled == sum(one.num_output for one in asked)


# ---------------------------------------------------------------- one calibration of several


def test_measurements_of_several_times_are_one_calibration() -> None:
    def observed(factor: float) -> Observed:
        shapes = [StepShape(rows, rows * 50) for rows in range(1, 17)]
        shapes += [StepShape(chunks=((0, tokens, True),)) for tokens in range(1, 17)]
        shapes += [StepShape(rows, rows * 50, ((0, 4, True),)) for rows in range(1, 17)]
        steps = [Measured(shape, factor * COST.of_shape(shape), group=group) for group, shape in enumerate(shapes)]
        return Observed([step for step in steps for _ in range(3)], [replace(step, gap_s=0.0) for step in steps])

    one, other = observed(1.0), observed(1.2)
    both = calibration_of([one, other], ())
    assert both.num_steps == 2 * (len(one.repeats) + len(one.traffic))
    shape = StepShape(8, 400)
    alone = [SmoothCost(calibration_of([each], ()).coefficients).of_shape(shape) for each in (one, other)]
    assert alone[0] == pytest.approx(COST.of_shape(shape), rel=0.01)
    assert alone[0] < SmoothCost(both.coefficients).of_shape(shape) < alone[1]
