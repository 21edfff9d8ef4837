"""One run of the search: a setting at a rate, and whether it keeps the objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.sim.disaggregated import DisaggregatedSimulation, Link, StagePrompt
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.plan.objectives import Goodput, Latencies, Objectives, goodput_of, latencies_of
from chairlift.sim.plan.offered import Offered
from chairlift.sim.plan.setting import Setting
from chairlift.sim.plan.verdict import Backlog, Verdict, judge
from chairlift.sim.result import Result
from chairlift.sim.run import Simulation
from chairlift.sim.served import Served

NUM_LOOKS = 24
"""How often a run is looked at while requests arrive, so that one that fails for certain need not be finished."""

GRACE_STEPS = 2.0
"""Who waits for so many steps is not in the queue yet."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How it went. Where the run was cut short there are no figures, only what was `missed`."""

    rate: float
    num_requests: int
    missed: tuple[str, ...]
    """Names of the objectives that were not kept; `overload` if the queue grows without bound."""
    latencies: Latencies | None = None
    backlog: Backlog | None = None
    output_tokens_per_s: float = 0.0
    num_lost_tokens: int = 0
    """See `sim/disaggregated.py`."""

    @property
    def holds(self) -> bool:
        return not self.missed


class Stage:
    """Runs trials: everything that is the same for all of them."""

    def __init__(
        self, offered: Offered, base: EngineSetup, objectives: Objectives, link: Link | None = None, seed: int = 0
    ) -> None:
        self.offered = offered
        self.base = base
        self.objectives = objectives
        self.link = link
        self.seed = seed
        self.num_trials = 0

    def run(
        self, setting: Setting, rate: float, num_requests: int, *, step_factor: float = 1.0, to_end: bool = False
    ) -> Trial:
        """One run; `to_end` even if it fails for certain before."""
        self.num_trials += 1
        simulation = self._simulation(setting, rate, num_requests, step_factor)
        late_tokens = None
        if not self.offered.goes_on:
            missed, late_tokens = self._run_in_looks(simulation, rate, num_requests, to_end)
            if missed:
                return Trial(rate, num_requests, missed)
        simulation.run()
        return self._trial(simulation, rate, num_requests, late_tokens)

    def goodput(self, setting: Setting, rate: float, penalty: float) -> Goodput:
        """Of the whole workload at a rate."""
        self.num_trials += 1
        simulation = self._simulation(setting, rate, self.offered.num_requests, 1.0)
        simulation.run()
        return goodput_of(simulation.result(), self.objectives, penalty)

    def saturated_rate(self, setting: Setting, num_requests: int) -> float:
        """Requests per second of a fleet that always has some waiting: where a search begins, whatever the objectives.

        Of sessions, whose rate depends on how long people think, that is too little.
        """
        self.num_trials += 1
        simulation = self._simulation(setting, math.inf, num_requests, 1.0)
        simulation.run()
        duration_s = simulation.result().duration_s
        return num_requests / duration_s if duration_s > 0.0 else self.offered.rate

    def _simulation(
        self, setting: Setting, rate: float, num_requests: int, step_factor: float
    ) -> Simulation | DisaggregatedSimulation:
        workload = self.offered.at(rate, num_requests)
        return setting.simulation(workload, self.base, self.link, self.seed, step_factor)

    def _trial(
        self,
        simulation: Simulation | DisaggregatedSimulation,
        rate: float,
        num_requests: int,
        late_tokens: int | None,
    ) -> Trial:
        result = simulation.result()
        latencies = latencies_of(result, self.objectives.percent)
        num_tokens = _num_decoded(result)
        late_share = None if late_tokens is None or not num_tokens else late_tokens / num_tokens
        backlog = judge(_waits(stages_of(simulation)), GRACE_STEPS * _step_s(result), late_share)
        missed = self.objectives.missed(latencies)
        if backlog.verdict is Verdict.OVERLOADED:
            missed = (*missed, "overload")
        duration_s = result.duration_s
        lost = simulation.num_lost_tokens if isinstance(simulation, DisaggregatedSimulation) else 0
        speed = result.num_output_tokens / duration_s if duration_s > 0.0 else 0.0
        return Trial(rate, num_requests, missed, latencies, backlog, speed, lost)

    def _run_in_looks(
        self, simulation: Simulation | DisaggregatedSimulation, rate: float, num_requests: int, to_end: bool
    ) -> tuple[tuple[str, ...], int]:
        """Run while requests arrive, or until an objective is lost: which one, and how many tokens were decoded in the
        second half."""
        ttft_s, e2e_s = self.objectives.ttft_s, self.objectives.e2e_s
        enough = self.objectives.num_misses_to_fail(num_requests)
        factor = self.offered.factor(rate)
        first, last = (self.offered.sample[i].arrival / factor for i in (0, num_requests - 1))
        num_before = 0
        for look in range(1, NUM_LOOKS + 1):
            now = first + (last - first) * look / NUM_LOOKS
            simulation.run(now)
            if 2 * look == NUM_LOOKS:
                num_before = _num_decoded(simulation.result())
            if to_end:
                continue
            stages = stages_of(simulation)
            if ttft_s < math.inf and _num_late(stages, now, ttft_s) >= enough:
                return ("TTFT",), 0
            if (
                e2e_s < math.inf
                and isinstance(simulation, Simulation)
                and _num_unfinished(stages, now, e2e_s) >= enough
            ):
                return ("E2E",), 0
        return (), _num_decoded(simulation.result()) - num_before


def stages_of(simulation: Simulation | DisaggregatedSimulation) -> Sequence[Served]:
    """What each engine was asked: a request in two pools is two."""
    inner = simulation.simulation if isinstance(simulation, DisaggregatedSimulation) else simulation
    return inner.served


def _num_decoded(result: Result) -> int:
    """Tokens that came by decoding, so far."""
    return sum(replica.tally.num_decode_tokens for replica in result.replicas)


def _step_s(result: Result) -> float:
    """The mean of all steps."""
    num_steps = sum(replica.tally.num_steps for replica in result.replicas)
    return sum(replica.tally.busy_s for replica in result.replicas) / max(num_steps, 1)


def _waits(stages: Iterable[Served]) -> list[tuple[float, float]]:
    """From arriving at an engine to joining there. Who never joined left when it ended."""
    waits = []
    for served in stages:
        if served.error is None:
            joined = [f.finished if f.first_scheduled is None else f.first_scheduled for f in served.finishes]
            waits.append((served.asked.arrival, min(joined, default=math.inf)))
    return waits


def _num_late(stages: Iterable[Served], now: float, ttft_s: float) -> int:
    num_late = 0
    for served in stages:
        prompt = served.asked.prompt
        if not (isinstance(prompt, StagePrompt) and prompt.decodes):
            first = now if served.first_token is None else served.first_token
            num_late += first - served.asked.arrival > ttft_s
    return num_late


def _num_unfinished(stages: Iterable[Served], now: float, e2e_s: float) -> int:
    num_late = 0
    for served in stages:
        finished = served.finished
        num_late += (now if finished is None else finished) - served.asked.arrival > e2e_s
    return num_late
