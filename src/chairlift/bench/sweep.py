"""The same load on servers with different settings: one table, and one plot of what the settings trade."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.bench.report import Report, to_json

PERCENTS = (50.0, 99.0)
LATENCIES = ("ttft", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep: the server's flags, the load's request rate, and what came of it."""

    flags: Mapping[str, str]
    request_rate: float
    report: Report

    @property
    def label(self) -> str:
        flags = ", ".join(f"{name.removeprefix('--')} {value}" for name, value in self.flags.items())
        return f"{flags}, {self.request_rate:g} req/s"

    def to_json(self) -> dict[str, Any]:
        flags = {name.removeprefix("--").replace("-", "_"): value for name, value in self.flags.items()}
        rate = self.request_rate if self.request_rate != float("inf") else "inf"
        return {"settings": flags, "request_rate": rate, **to_json(self.report)}


def settings(lists: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the flags' values, the last flag changing fastest."""
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def to_table(points: Sequence[Point]) -> str:
    """One line a run; latencies in ms."""
    flags = list(points[0].flags) if points else []
    head = [name.removeprefix("--") for name in flags] + ["rate", "req/s", "tok/s"]
    head += [f"{name} p{percent:g}" for name in ("TTFT", "ITL", "E2E") for percent in PERCENTS] + ["failed"]
    rows = [head]
    for point in points:
        report = point.report
        row = [point.flags[name] for name in flags]
        row += [
            f"{point.request_rate:g}",
            f"{report.per_s(len(report.answered)):.2f}",
            f"{report.per_s(report.num_output_tokens):.1f}",
        ]
        for name in LATENCIES:
            summary = report.latencies.get(name)
            row += ["-" if summary is None else f"{summary.percentiles[percent] * 1e3:.1f}" for percent in PERCENTS]
        rows.append([*row, str(report.load.num_failed)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def draw(points: Sequence[Point], figure: Any, path: Path) -> None:
    """Throughput and the latencies of each run, side by side, into an image file.

    `figure` is an empty matplotlib Figure: whoever has matplotlib passes one, so that nothing here needs it.
    """
    figure.set_size_inches(14, 4)
    axes = figure.subplots(1, 4)
    labels = [" / ".join([*point.flags.values(), f"{point.request_rate:g}"]) for point in points]
    places = list(range(len(points)))
    axes[0].bar(places, [point.report.per_s(point.report.num_output_tokens) for point in points])
    axes[0].set_title("output tokens per second")
    for axis, name in zip(axes[1:], LATENCIES, strict=True):
        for percent in PERCENTS:
            values = [
                summary.percentiles[percent] * 1e3 if (summary := point.report.latencies.get(name)) else float("nan")
                for point in points
            ]
            axis.plot(places, values, marker="o", label=f"p{percent:g}")
        axis.set_title(f"{name.upper()} in ms")
        axis.set_ylim(bottom=0)
        axis.legend()
    names = " / ".join([*(name.removeprefix("--") for name in points[0].flags), "req/s"]) if points else ""
    for axis in axes:
        axis.set_xticks(places, labels)
        axis.set_xlabel(names)
    figure.tight_layout()
    figure.savefig(path)
