"""Steps that were measured, and how far a model is off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chairlift.metrics.latency import percentile
from chairlift.sim.cost.shape import REGIMES, Regime, StepShape


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: from where it was begun to where its result was there, and from there to where the next one began.

    `gap_s` is None where the next one did not begin at once. `group` is equal for repeats of one shape. `before` are
    the tokens of the step before; None if that is not known.
    """

    shape: StepShape
    step_s: float
    gap_s: float | None = None
    group: int = 0
    before: int | None = None

    @property
    def period_s(self) -> float:
        """What a simulator's clock moves by, with what is known of the gap."""
        return self.step_s + (self.gap_s or 0.0)


@dataclass(frozen=True, slots=True)
class RegimeError:
    """How far predictions are off, as shares of what was measured: mean, median and 95th percentile of the absolute
    error, and by how much all of it together was predicted too long (above 0) or too short."""

    num_steps: int
    mean: float
    median: float
    p95: float
    total: float

    def __str__(self) -> str:
        return (
            f"{self.num_steps:>7} {self.mean:>8.1%} {self.median:>8.1%} {self.p95:>8.1%} {self.total:>+8.1%}".rstrip()
        )


HEADINGS = f"{'steps':>7} {'mean':>8} {'median':>8} {'p95':>8} {'total':>8}"


def errors_of(predict: Callable[[StepShape], float], steps: Iterable[Measured]) -> dict[Regime, RegimeError]:
    """The error of a device's time in each regime that occurs, gaps apart."""
    pairs: dict[Regime, list[tuple[float, float]]] = {}
    for step in steps:
        pairs.setdefault(step.shape.regime, []).append((predict(step.shape), step.step_s))
    return {regime: error_of(pairs[regime]) for regime in REGIMES if regime in pairs}


def error_of(pairs: Sequence[tuple[float, float]]) -> RegimeError:
    """Of (predicted, measured) seconds."""
    off = sorted(abs(predicted / measured - 1.0) for predicted, measured in pairs)
    total = sum(predicted for predicted, _ in pairs) / sum(measured for _, measured in pairs) - 1.0
    return RegimeError(len(off), sum(off) / len(off), percentile(off, 50.0), percentile(off, 95.0), total)


def table(errors: dict[Regime, RegimeError]) -> str:
    """Lines under a heading, a regime each."""
    lines = [f"{'':<8}{HEADINGS}", *(f"{regime:<8}{error}" for regime, error in errors.items())]
    return "\n".join(line.rstrip() for line in lines)
