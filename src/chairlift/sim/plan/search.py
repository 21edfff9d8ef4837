"""The search: the highest rate of each setting, and as few runs as that takes.

Rates are those of a ladder whose rungs lie `tolerance` apart, the same for all settings. Settings come in the order of
what they need. One must first beat, by a margin and on a short workload, every setting that needs no more than it does;
most do not, and are out after a single run that fails early. Limits are searched on one engine of the smallest fleet,
with the first order; the best of them then with the other orders and fleets. Who is left climbs on the whole workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.sim.plan.objectives import Goodput
from chairlift.sim.plan.setting import Setting, Space
from chairlift.sim.plan.trial import Stage, Trial

MARGIN = 0.03
"""By how much a setting must beat those that need no more than it does."""
SHORT = 4
"""A short workload is a part of so many of the whole,"""
LEAST_SHORT = 200
"""and has at least so many requests."""
NUM_LIMITS = 3
"""Pairs of limits that are tried with every order and fleet."""
NUM_FINALISTS = 8
REACH = 8.0
"""The ladder ends where a rate is exp(REACH) times as low or high as where the search begins."""

Listener = Callable[["Search"], None]


def highest(holds: Callable[[int], bool], start: int, stride: int, reach: int, resolution: int = 1) -> int | None:
    """The highest rung that holds, by steps that double from `start` on until one is passed, then by halves.

    None if no rung down to `start - reach` holds. If more than `reach` above do, the search ends there. What is given
    holds, and some rung at most `resolution` above it does not.
    """
    if holds(start):
        low, high = start, start + stride
        while holds(high):
            if high >= start + reach:
                return high
            stride *= 2
            low, high = high, min(high + stride, start + reach)
    else:
        if not holds(start - reach):
            return None
        high, low = start, start - stride
        while not holds(low):
            stride *= 2
            low, high = max(low - stride, start - reach), low
    while high - low > resolution:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Found:
    """A setting, the highest rate at which it holds the objectives, how it went there, and what fails above."""

    setting: Setting
    rate: float
    trial: Trial
    limited_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is said about a rate that was asked for. `margin` is the share by which it could grow, below 0 if it does
    not hold."""

    trial: Trial
    margin: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the search came to. `found` has those that reach a higher rate than all that need no more, the slowest
    first; `chosen` is one of them, None if no setting holds the objectives at any rate.

    `band` are the rates of the chosen setting with steps longer and shorter by a share. `alone` is what requests get
    however slowly they come, on the largest engine, if none is chosen.
    """

    found: tuple[Found, ...]
    chosen: Found | None
    asked: Asked | None
    band: tuple[float | None, float | None]
    goodput: Goodput | None
    num_settings: int
    num_trials: int
    alone: Trial | None = None


class Search:
    """Looks for the highest rate, telling `listener` after each run."""

    def __init__(
        self, stage: Stage, space: Space, *, tolerance: float = 0.01, listener: Listener | None = None
    ) -> None:
        if not 0.0 < tolerance <= 0.5:
            raise InvalidOption("the tolerance of a rate must be above 0 and at most 0.5")
        self.stage = stage
        self.space = space
        self.num_tried = 0
        """Settings that were looked at so far."""
        self.best_rate = 0.0
        self._listener = listener
        self._log_step = math.log1p(tolerance)
        self._reach = round(REACH / self._log_step)
        self._trials: dict[tuple[Setting, int, int, float], Trial] = {}
        num = stage.offered.num_requests
        self._num_short = min(num, max(LEAST_SHORT, num // SHORT))

    def plan(self, *, rate: float | None = None, band: float = 0.05, penalty: float = 1.0) -> Plan:
        """Search, and say what comes of `rate` requests a second if that is given."""
        self.best_rate = 0.0
        found = self._frontier(self._finals(self._short_rates()))
        chosen = self._choose(found, rate)
        asked: Asked | None = None
        edges: tuple[float | None, float | None] = None, None
        goodput: Goodput | None = None
        alone = self._alone() if chosen is None else None
        if chosen is not None:
            edges = self._rate_with(chosen, 1.0 + band), self._rate_with(chosen, 1.0 - band)
            goodput = self.stage.goodput(chosen.setting, chosen.rate if rate is None else rate, penalty)
            if rate is not None:
                asked = self._ask(chosen, rate)
        return Plan(tuple(found), chosen, asked, edges, goodput, self.num_tried, self.stage.num_trials, alone)

    # ------------------------------------------------------------ rungs

    def _rung(self, rate: float) -> int:
        return round(math.log(rate) / self._log_step)

    def _rate(self, rung: int) -> float:
        return math.exp(rung * self._log_step)

    def _trial(self, setting: Setting, rung: int, num_requests: int, step_factor: float = 1.0) -> Trial:
        key = setting, rung, num_requests, step_factor
        trial = self._trials.get(key)
        if trial is None:
            trial = self.stage.run(setting, self._rate(rung), num_requests, step_factor=step_factor)
            self._trials[key] = trial
            if trial.holds and step_factor == 1.0 and num_requests == self.stage.offered.num_requests:
                self.best_rate = max(self.best_rate, trial.rate)
            if self._listener is not None:
                self._listener(self)
        return trial

    def _climb(
        self, setting: Setting, start: int, num_requests: int, share: float, step_factor: float = 1.0
    ) -> int | None:
        """The highest rung of a setting, to a share of its rate; never closer than the ladder."""
        rungs = max(1, round(share / self._log_step))
        return highest(
            lambda rung: self._trial(setting, rung, num_requests, step_factor).holds,
            start,
            2 * max(rungs, self._margin // 2),
            self._reach,
            rungs,
        )

    @property
    def _margin(self) -> int:
        return max(1, round(MARGIN / self._log_step))

    # ------------------------------------------------------------ short workloads

    def _short_rates(self) -> dict[Setting, int]:
        """Rungs on the short workload of the settings that none beat which needs no more."""
        space = self.space
        first, policy = space.fleets[0], space.policies[0]
        rungs: dict[Setting, int] = {}
        start: int | None = None
        for num_seqs, num_tokens in space.limits:
            setting = Setting(num_seqs, num_tokens, policy, first)
            if start is None:
                start = self._rung(self.stage.saturated_rate(setting, self._num_short))
            self._qualify(setting, start, rungs)
        starts = {setting: rungs.get(setting, start or 0) for setting in self._promising(rungs)}
        for fleet in space.fleets:
            more = self._rung(fleet.num_engines / first.num_engines)
            for policy in space.policies:
                if (fleet, policy) != (first, space.policies[0]):
                    for like, rung in starts.items():
                        setting = Setting(like.max_num_seqs, like.max_num_batched_tokens, policy, fleet)
                        self._qualify(setting, rung + more, rungs)
        return rungs

    def _promising(self, rungs: dict[Setting, int]) -> list[Setting]:
        """Limits to try with every order and fleet: the best, and, for pools in which prompts disturb nobody, the
        largest."""
        best = sorted(rungs, key=lambda setting: rungs[setting], reverse=True)[:NUM_LIMITS]
        num_seqs, num_tokens = self.space.limits[-1]
        largest = Setting(num_seqs, num_tokens, self.space.policies[0], self.space.fleets[0])
        pools = any(fleet.split is not None for fleet in self.space.fleets)
        found = [*best, largest] if pools or not best else best
        return sorted(dict.fromkeys(found), key=lambda setting: setting.resources)

    def _qualify(self, setting: Setting, start: int, rungs: dict[Setting, int]) -> None:
        """Note the rung of a setting, if it beats all that need no more. Beginning at `start` if there are none."""
        self.num_tried += 1
        beaten = [rung for other, rung in rungs.items() if other.needs_no_more_than(setting)]
        if beaten:
            least = max(beaten) + self._margin
            if not self._trial(setting, least, self._num_short).holds:
                return
            start = max(start, least) if setting.fleet.num_engines > 1 else least
        rung = self._climb(setting, start, self._num_short, MARGIN / 2.0)
        if rung is not None:
            rungs[setting] = rung

    # ------------------------------------------------------------ the whole workload

    def _finals(self, rungs: dict[Setting, int]) -> list[Found]:
        """The exact rates of the settings that are not beaten; of too many, those with the highest."""
        staying = [setting for setting in rungs if not _is_beaten(setting, rungs)]
        staying.sort(key=lambda setting: rungs[setting], reverse=True)
        best_of: dict[int, Setting] = {}
        for setting in staying:
            best_of.setdefault(setting.fleet.num_engines, setting)
        chosen = [*best_of.values(), *(setting for setting in staying if setting not in best_of.values())]
        num = self.stage.offered.num_requests
        found = []
        for setting in chosen[: max(NUM_FINALISTS, len(best_of))]:
            rung = self._climb(setting, rungs[setting], num, 0.0)
            if rung is not None:
                above = self._trial(setting, rung + 1, num)
                trial = self._trial(setting, rung, num)
                found.append(Found(setting, trial.rate, trial, above.missed))
        return found

    def _frontier(self, found: list[Found]) -> list[Found]:
        """Those whose rate none reaches that needs no more, the slowest first."""
        rates = {one.setting: one.rate for one in found}
        return sorted(
            (one for one in found if not _is_beaten(one.setting, rates)),
            key=lambda one: (one.rate, one.setting.resources),
        )

    def _choose(self, found: list[Found], rate: float | None) -> Found | None:
        """The fastest; if a rate is asked for that some hold, the fastest of those with the fewest engines."""
        if not found:
            return None
        holding = [one for one in found if rate is not None and one.rate >= rate]
        fewest = min((one.setting.fleet.num_engines for one in holding), default=0)
        return max(
            [one for one in holding if one.setting.fleet.num_engines == fewest] or found, key=lambda one: one.rate
        )

    def _rate_with(self, found: Found, step_factor: float) -> float | None:
        """The highest rate of a setting if every step took so many times as long."""
        start = self._rung(found.rate / step_factor)
        rung = self._climb(found.setting, start, self.stage.offered.num_requests, 0.0, step_factor)
        return None if rung is None else self._rate(rung)

    def _alone(self) -> Trial:
        setting = Setting(*self.space.limits[-1], self.space.policies[0], self.space.fleets[0])
        rate = self.stage.saturated_rate(setting, self._num_short) * math.exp(-REACH)
        return self.stage.run(setting, rate, self._num_short, to_end=True)

    def _ask(self, chosen: Found, rate: float) -> Asked:
        trial = self.stage.run(chosen.setting, rate, self.stage.offered.num_requests, to_end=True)
        return Asked(trial, chosen.rate / rate - 1.0)


def _is_beaten(setting: Setting, reached: dict[Setting, int] | dict[Setting, float]) -> bool:
    """Whether another needs no more and reaches as much; of equals the first stays."""
    mine, others = reached[setting], list(reached)
    for place, other in enumerate(others):
        if other == setting or not other.needs_no_more_than(setting) or reached[other] < mine:
            continue
        are_equal = reached[other] == mine and setting.needs_no_more_than(other)
        if not are_equal or place < others.index(setting):
            return True
    return False
