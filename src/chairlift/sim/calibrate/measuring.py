"""All that an engine is measured by: steps of every kind, then traffic through its scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from chairlift.core.engine import Engine, Observer
from chairlift.sim.calibrate.calibration import Calibration, calibrate
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.calibrate.sweep import Rig, sweep
from chairlift.sim.calibrate.traffic import StepTimes, run_traffic

SWEEP_SHARE = 0.7
"""Of the time; the rest is traffic through the scheduler."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Steps of a sweep, several of each shape, and steps as a scheduler makes them."""

    repeats: list[Measured]
    traffic: list[Measured]


def observe(
    rig: Rig,
    engine: Callable[[Observer], Engine],
    seconds: float,
    *,
    seed: int = 0,
    max_context: int = 4096,
    say: Callable[[str], None] = lambda what: None,
) -> Observed:
    """Measure for about so long. `engine` puts a fresh one around the executor; `say` is told what is measured next.

    Another `seed` is of other shapes and other traffic.
    """
    say("steps of every kind")
    repeats = list(sweep(rig, seconds * SWEEP_SHARE, seed=seed, max_context=max_context))
    say("traffic")
    times = StepTimes()
    run_traffic(
        engine(times),
        rig.limits,
        lambda num_tokens: replace(rig.params, max_tokens=num_tokens),
        rig.vocab_size,
        rig.clock,
        seconds * (1.0 - SWEEP_SHARE),
        seed=seed,
    )
    return Observed(repeats, list(times.measured(first_group=0)))


def calibration_of(
    all_observed: Sequence[Observed],
    token_sizes: tuple[int, ...],
    *,
    machine: Mapping[str, str] | None = None,
    engine: Mapping[str, str | int | float | bool | None] | None = None,
) -> Calibration:
    """One calibration by what was measured at one time, or at several.

    Raises:
        InvalidOption: too few steps.
    """
    repeats: list[Measured] = []
    traffic: list[Measured] = []
    for observed in all_observed:
        repeats += _numbered_on(observed.repeats, repeats)
        traffic += _numbered_on(observed.traffic, traffic)
    return calibrate(
        repeats,
        traffic=_numbered_on(traffic, repeats),
        token_sizes=token_sizes,
        source="sweep",
        machine=machine,
        engine=engine,
    )


def _numbered_on(steps: Sequence[Measured], before: Sequence[Measured]) -> list[Measured]:
    """The steps with groups that none of those before has."""
    first = 1 + max((step.group for step in before), default=-1)
    return [replace(step, group=step.group + first) for step in steps]
