"""The lesson's table as a picture: what each way of batching, or each cap, gives in tokens and costs in latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PERCENTS = (("e2e_p50_s", "end to end, p50", "o", ":"), ("e2e_p99_s", "end to end, p99", "s", "-"))
COLORS = {"static": "#d55e00", "dynamic": "#009e73", "continuous": "#0072b2"}
NEAR = 0.06
"""Points closer than this part of an axis share a label."""


def draw_lesson(rows: Sequence[Mapping[str, Any]], figure: Any, path: Path) -> None:
    """End-to-end latency against throughput, a panel for each rate; rows as `LessonRow`, each with `max_concurrent`.

    `figure` is an empty matplotlib Figure: whoever has matplotlib passes one, so that nothing here needs it.
    """
    rates = sorted({row["rate"] for row in rows})
    figure.set_size_inches(6.5 * max(1, len(rates)), 4.6)
    figure.set_layout_engine("constrained")
    for axis, rate in zip(figure.subplots(1, max(1, len(rates)), squeeze=False)[0], rates, strict=False):
        _panel(axis, [row for row in rows if row["rate"] == rate])
        axis.set_title(f"{rate:g} requests per second")
    figure.savefig(path)


def _panel(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    tokens = [row["tokens_per_s"] for row in rows]
    is_capped = any(row["max_concurrent"] is not None for row in rows)
    for name, title, marker, line in PERCENTS:
        seconds = [row[name] for row in rows]
        if is_capped:
            axis.plot(tokens, seconds, color=COLORS["continuous"], lw=1, ls=line)
        colors = [COLORS[row["batching"]] for row in rows]
        axis.scatter(tokens, seconds, color=colors, marker=marker, zorder=3)
        axis.scatter([], [], color="#555555", marker=marker, label=title)
    most = 1.15 * max(tokens), 1.15 * max(row["e2e_p99_s"] for row in rows)
    for x, y, label in labels(rows, most):
        axis.annotate(label, (x, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=9)
    axis.set(xlabel="output tokens per second", ylabel="seconds", xlim=(0, most[0]), ylim=(0, most[1]))
    axis.grid(alpha=0.3)
    axis.legend(loc="best", fontsize=9, title="numbers: most that run at once" if is_capped else None)


def labels(rows: Sequence[Mapping[str, Any]], most: tuple[float, float]) -> list[tuple[float, float, str]]:
    """(x, y, what to write) at the points of p99; those that lie on each other share one."""
    found: list[tuple[float, float, list[str]]] = []
    for row in rows:
        x, y = row["tokens_per_s"], row["e2e_p99_s"]
        text = row["batching"] if row["max_concurrent"] is None else f"{row['max_concurrent']}"
        near = next(
            (one for one in found if abs(one[0] - x) < NEAR * most[0] and abs(one[1] - y) < NEAR * most[1]), None
        )
        if near is None:
            found.append((x, y, [text]))
        else:
            near[2].append(text)
    return [(x, y, ", ".join(texts)) for x, y, texts in found]
