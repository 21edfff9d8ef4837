"""Does the simulator predict what this engine does here? Calibrate, serve traffic that was not seen, calibrate again.

    calibrate --> (serve a scenario --> calibrate), all of them several times over --> predict the same requests

Loads are shares of what the simulator says can be served. A machine that others use too changes its pace between two
runs of the same requests: that spread bounds what any prediction can be held to, and stands beside each figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from chairlift.bench.in_process import Listener, Loop, Show, StartLoop, serve
from chairlift.bench.predicted import Comparison, Line
from chairlift.bench.report import Wanted, make_report
from chairlift.core.errors import ChairliftError
from chairlift.core.policy import Policy
from chairlift.core.types import Finish, Request, SamplingParams, StepOutput, StepPlan
from chairlift.metrics.latency import Summary
from chairlift.sim.arrivals import Arrivals, steady
from chairlift.sim.calibrate.calibration import Calibration
from chairlift.sim.calibrate.measured import RegimeError, error_of
from chairlift.sim.calibrate.traffic import StepTimes
from chairlift.sim.cost.smooth import HostCosts, SmoothCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.lengths import Lengths, LogNormal
from chairlift.sim.result import Result, latencies
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traffic import Kind, faster, open_loop
from chairlift.sim.workload import Asked, Blocks, Contents

METRICS = ("ttft", "itl", "e2el")
LADDER = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Loads at which the inter-token latency is measured, to find the highest that holds an objective."""
OBJECTIVE_AT = 2
"""The objective is what the simulator predicts at this place of the ladder, so that both sides of it are measured."""
CAPACITY_PERCENT = 99.0

Figures = Mapping[str, float]
"""Seconds by names such as `ttft mean`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Traffic of one kind at one load, a share of what can be served of it."""

    name: str
    load: float
    prompt: Lengths
    output: Lengths
    prefix: int = 0
    """Tokens that all prompts begin with."""
    burstiness: float = 1.0

    def asked(self, rate: float, num_requests: int, seed: int = 0) -> list[Asked]:
        """The requests, at `rate` of them a second."""
        kind = Kind(name=self.name, prompt=self.prompt, output=self.output, prefix=self.prefix)
        arrivals = Arrivals(steady(1.0), "gamma" if self.burstiness != 1.0 else "poisson", self.burstiness)
        return list(faster(open_loop(kind, arrivals, Contents(), seed, num_requests), rate))


SCENARIOS = (
    Scenario(name="chat", load=0.5, prompt=LogNormal(60, 0.8, 400), output=LogNormal(40, 0.7, 200)),
    Scenario(name="documents", load=0.7, prompt=LogNormal(300, 0.5, 900), output=LogNormal(25, 0.5, 80)),
    Scenario(name="prefix", load=0.8, prefix=384, prompt=LogNormal(40, 0.6, 200), output=LogNormal(50, 0.6, 200)),
    Scenario(name="bursts", load=0.6, prompt=LogNormal(100, 0.6, 400), output=LogNormal(30, 1.0, 300), burstiness=0.4),
)
SHORT = Scenario(name="short", load=0.7, prompt=LogNormal(16, 0.5, 60), output=LogNormal(8, 0.5, 24))
"""Of which enough requests can be served to know a 99th percentile, and a ladder can be climbed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine that can be started again and again, and how the simulator is told of it.

    `setup` lacks the cost of steps; `params` are how tokens are sampled.
    """

    start: StartLoop
    setup: EngineSetup
    vocab_size: int
    params: SamplingParams
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def requests(self, asked: Sequence[Asked]) -> list[Request]:
        """What the simulator is asked, for the engine: equal contents become equal tokens."""
        return [
            Request(
                number,
                spell(one.prompt, self.vocab_size),
                replace(self.params, max_tokens=one.num_output, ignore_eos=True),
            )
            for number, one in enumerate(asked)
        ]


def spell(prompt: object, vocab_size: int) -> list[int]:
    """Tokens of a drawn prompt: random ones, the same for the same content.

    Raises:
        TypeError: the prompt has no contents.
    """
    if not isinstance(prompt, Blocks):
        raise TypeError("only prompts of contents can be spelled")
    tokens: list[int] = []
    for part in prompt.parts:
        for content in range(part.first, part.last + 1):
            tokens += Random(content).choices(range(vocab_size), k=part.width)
    return tokens[: prompt.num_tokens]


# ---------------------------------------------------------------- what the simulator says


def costed(setup: EngineSetup, calibration: Calibration) -> EngineSetup:
    """The engine as it was measured, with steps that vary as they did."""
    return replace(setup, cost=SmoothCost(calibration.coefficients), deviations=calibration.deviations)


def predict(setup: EngineSetup, asked: Sequence[Asked]) -> Figures:
    """Latencies, in seconds."""
    return _figures(latencies(_simulated(setup, asked), (50.0, 99.0)))


def saturated_rate(setup: EngineSetup, scenario: Scenario, num_requests: int) -> float:
    """Requests a second that are served when all are there from the start."""
    asked = [replace(one, arrival=0.0) for one in scenario.asked(1.0, num_requests)]
    return num_requests / _simulated(setup, asked).duration_s


def _simulated(setup: EngineSetup, asked: Sequence[Asked]) -> Result:
    return simulate(asked, [setup.replica("engine")], RoundRobin())


def _figures(summaries: Mapping[str, Summary]) -> Figures:
    figures: dict[str, float] = {}
    for name in METRICS:
        summary = summaries[name]
        figures[f"{name} mean"] = summary.mean
        figures |= {f"{name} p{percent:g}": value for percent, value in summary.percentiles.items()}
    return figures


# ---------------------------------------------------------------- what the engine does


class _Watched:
    """Tells a recording and a list of step times the same."""

    def __init__(self, recording: Listener, steps: StepTimes) -> None:
        self._recording = recording
        self._steps = steps

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        self._recording.on_step(plan, output, begun, finished)
        self._steps.on_step(plan, output, begun, finished)

    def on_tokens(self, ids: Sequence[int], finishes: Sequence[Finish], now: float) -> None:
        self._recording.on_tokens(ids, finishes, now)


def measure(subject: Subject, asked: Sequence[Asked], show: Show) -> tuple[Figures, StepTimes]:
    """Latencies of a run, in seconds, and its steps.

    Raises:
        ChairliftError: a request failed, or the engine broke.
    """
    steps = StepTimes()

    def start(policy: Policy, recording: Listener) -> Loop:
        return subject.start(policy, _Watched(recording, steps))

    recording = serve(
        start,
        subject.setup.policy,
        subject.requests(asked),
        [one.arrival for one in asked],
        clock=subject.clock,
        sleep=subject.sleep,
        show=show,
    )
    failed = [exchange.error for exchange in recording.load.exchanges if exchange.error is not None]
    if failed:
        raise ChairliftError(f"{len(failed)} requests failed: {failed[0]}")
    report = make_report(recording.load, Wanted(METRICS, (50.0, 99.0)))
    return _figures(report.latencies), steps


# ---------------------------------------------------------------- side by side


@dataclass(frozen=True, slots=True)
class Predictions:
    """The same engine by the first calibration, the last, and all of them."""

    before: EngineSetup
    after: EngineSetup
    all: EngineSetup

    def of(self, figure: Callable[[EngineSetup], Figures]) -> Iterator[tuple[str, float, float, float]]:
        """Every figure three times, with its name."""
        figures = [figure(setup) for setup in (self.before, self.after, self.all)]
        for name in figures[0]:
            yield name, figures[0][name], figures[1][name], figures[2][name]


@dataclass(frozen=True, slots=True)
class Course:
    """A scenario at one rate or, with an objective, at several; and what came of each run, repeat by repeat."""

    scenario: Scenario
    rates: tuple[float, ...]
    num_requests: int
    objective_s: float | None = None
    runs: list[list[tuple[Figures, StepTimes]]] = field(default_factory=list)

    def run(self, subject: Subject, show: Callable[[str], Show]) -> None:
        """Serve it once more."""
        self.runs.append(
            [
                measure(subject, self.asked(rate), show(f"{self.scenario.name}, {rate:.2f} requests/s"))
                for rate in self.rates
            ]
        )

    def asked(self, rate: float) -> list[Asked]:
        return self.scenario.asked(rate, self.num_requests)

    def compare(self, predictions: Predictions) -> Comparison:
        """What was predicted beside what was measured."""
        if self.objective_s is None:
            figures = predictions.of(lambda setup: predict(setup, self.asked(self.rates[0])))
            repeats = [run[0][0] for run in self.runs]
        else:
            figures = predictions.of(lambda setup: self._capacity([predict(setup, self.asked(r)) for r in self.rates]))
            repeats = [self._capacity([figures for figures, _ in run]) for run in self.runs]
        return Comparison(
            scenario=self.scenario.name,
            rate=self.rates[0],
            num_requests=self.num_requests,
            lines=[
                Line(
                    name=name, measured=tuple(r[name] for r in repeats), before=before, after=after, predicted=predicted
                )
                for name, before, after, predicted in figures
            ],
            steps=self._step_error(predictions.all),
            objective_s=self.objective_s,
        )

    def _capacity(self, ladder: Sequence[Figures]) -> Figures:
        latencies_s = [figures[f"itl p{CAPACITY_PERCENT:g}"] for figures in ladder]
        return {"rate": highest_rate(self.rates, latencies_s, self.objective_s or math.inf)}

    def _step_error(self, setup: EngineSetup) -> RegimeError | None:
        """Of the times of the steps that were really taken, without what lies between them."""
        if not isinstance(setup.cost, SmoothCost):
            return None
        device = setup.cost.with_host(HostCosts())
        return error_of(
            [
                (device.of_shape(step.shape, step.before), step.step_s)
                for run in self.runs
                for _, times in run
                for step in times.measured(first_group=0)
            ]
        )


def highest_rate(rates: Sequence[float], latencies_s: Sequence[float], objective_s: float) -> float:
    """The rate at which a latency, measured at ascending rates, first passes the objective.

    Between two rates the logarithm of the latency is taken to grow in proportion to the rate. All below: the highest
    rate; all above: the lowest.
    """
    if latencies_s[0] > objective_s:
        return rates[0]
    for i in range(1, len(rates)):
        if latencies_s[i] > objective_s:
            low, high = math.log(latencies_s[i - 1]), math.log(latencies_s[i])
            return rates[i - 1] + (rates[i] - rates[i - 1]) * (math.log(objective_s) - low) / (high - low)
    return rates[-1]


def course_of(scenario: Scenario, setup: EngineSetup, seconds: float, num_requests: int | None = None) -> Course:
    """The scenario at its load for about so long, or with so many requests."""
    rate = scenario.load * saturated_rate(setup, scenario, 1000)
    return Course(scenario, (rate,), num_requests or max(1, math.ceil(rate * seconds)))


def ladder_of(scenario: Scenario, setup: EngineSetup, seconds: float) -> Course:
    """The scenario at the loads of the ladder, and an objective that the one in the middle is predicted to meet."""
    most = saturated_rate(setup, scenario, 1000)
    rates = tuple(load * most for load in LADDER)
    num_requests = max(1, math.ceil(rates[OBJECTIVE_AT] * seconds))
    course = Course(scenario, rates, num_requests)
    objective_s = predict(setup, course.asked(rates[OBJECTIVE_AT]))[f"itl p{CAPACITY_PERCENT:g}"]
    return replace(course, objective_s=objective_s)
