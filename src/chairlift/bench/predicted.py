"""What was predicted beside what was measured: figures, verdicts, and both as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from chairlift.sim.calibrate.measured import RegimeError
from chairlift.sim.table import aligned

ALLOWED = {"mean": 0.05, "p50": 0.05, "p99": 0.10, "rate": 0.05}
"""How far off a prediction may be where repeats differ by less."""
SPREADS = 1.5
"""Times the spread of the repeats that a prediction may be off where they differ by more."""
HEADINGS = ("", "measured", "spread", "predicted", "off", "allowed", "", "before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: as measured in every repeat, and as predicted by the first calibration, the last, and all."""

    name: str
    measured: tuple[float, ...]
    before: float
    after: float
    predicted: float

    @property
    def middle(self) -> float:
        """The mean of the repeats."""
        return fmean(self.measured)

    @property
    def spread(self) -> float:
        """From the smallest to the largest repeat, as a share of their mean."""
        return (max(self.measured) - min(self.measured)) / self.middle if self.middle else 0.0

    @property
    def error(self) -> float:
        """Of the prediction by all calibrations, as a share of what was measured."""
        return self.predicted / self.middle - 1.0 if self.middle else math.inf

    @property
    def allowed(self) -> float:
        return max(ALLOWED[self.name.split()[-1]], SPREADS * self.spread)

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A scenario: its figures, and how far single steps are off, whoever was in them."""

    scenario: str
    rate: float
    num_requests: int
    lines: list[Line]
    steps: RegimeError | None = None
    objective_s: float | None = None
    """Of the inter-token latency, where the figure is the highest rate that holds it."""


def to_table(comparison: Comparison) -> str:
    """A comparison in lines, times in milliseconds."""
    rows = [HEADINGS]
    for line in comparison.lines:
        scale = 1.0 if line.name == "rate" else 1e3
        rows.append(
            (
                {"rate": "requests/s"}.get(line.name, line.name),
                f"{line.middle * scale:.2f}",
                f"{line.spread:.1%}",
                f"{line.predicted * scale:.2f}",
                f"{line.error:+.1%}",
                f"{line.allowed:.1%}",
                "ok" if line.holds else "OFF",
                f"{line.before * scale:.2f}",
                f"{line.after * scale:.2f}",
            )
        )
    head = f"{comparison.scenario}: {comparison.num_requests} requests at {comparison.rate:.2f} a second"
    if comparison.objective_s is not None:
        head = (
            f"{comparison.scenario}: highest rate with 99 % of inter-token latencies under "
            f"{comparison.objective_s * 1e3:.1f} ms"
        )
    tail = [] if comparison.steps is None else [_of_steps(comparison.steps)]
    return "\n".join([head, aligned(rows), *tail])


def _of_steps(error: RegimeError) -> str:
    return (
        f"the {error.num_steps} steps really taken: {error.total:+.1%} in all, {error.mean:.1%} each on average, "
        f"{error.median:.1%} in the median"
    )


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All of it as plain data."""
    return {"scenarios": [asdict(comparison) for comparison in comparisons]}
