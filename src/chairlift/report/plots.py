"""The pictures of a page as PNG files, drawn with matplotlib, which is not among what Chairlift needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from chairlift.report.data import Distribution, Engine, Run, Steps

# Told apart by people who see few colours, and in grey; fillers and what is computed again are hatched as well.
DECODE, DECODE_2, CHUNK, PREFILL, FILLER = "#56b4e9", "#8fcdf2", "#e69f00", "#f7dfae", "#c9ced5"
PREEMPTED, ENDED_EARLY, WAITING, HELD, KEPT = "#c0392b", "#8e44ad", "#009e73", "#0072b2", "#c9ced5"
RUNS = (("#0072b2", "-", "o"), ("#d55e00", "--", "s"))
OWNERS = ("#0072b2", "#c98500", "#009e73", "#b8578f", "#d55e00", "#3a9ad6", "#7a7a00", "#6b6b6b")
LINES = ("-", "--", ":", "-.")
MAX_OWNERS = 8
LATENCIES = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "e2e": "end to end",
    "queue": "waiting to join",
}
EARLY = ("aborted", "deadline", "error")
DPI = 110
WIDE = 100.0
"""Between the ends of an axis that is logarithmic."""


def write_pictures(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write one file for each picture of the page, two runs side by side; engines below each other.

    Raises:
        OSError: a file cannot be written.
    """
    pictures: dict[str, Callable[[Sequence[Run]], Figure]] = {
        "slots": _all_slots,
        "queue": lambda runs: _over_time(runs, _queue),
        "batch": lambda runs: _over_time(runs, _batch),
        "cache": lambda runs: _over_time(runs, _cache),
        "service": lambda runs: _over_time(runs, _service),
        "latency": _latency,
    }
    written = []
    for name, draw in pictures.items():
        figure = draw(runs)
        FigureCanvasAgg(figure)
        path = folder / f"{name}.png"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # names may be in any script
            figure.savefig(path, dpi=DPI)
        written.append(path)
    return written


def _over_time(
    runs: Sequence[Run],
    draw: Callable[[Any, Run, Engine], None],
    height: Callable[[Engine], float] = lambda engine: 2.4,
) -> Figure:
    """A column for each run and a line for each engine, all on the same axes."""
    num_rows = max(len(run.engines) for run in runs)
    tallest = max((height(engine) for run in runs for engine in run.engines), default=2.4)
    figure = Figure(figsize=(11.0 if len(runs) == 1 else 15.0, tallest * num_rows + 0.6), layout="constrained")
    axes = figure.subplots(num_rows, len(runs), squeeze=False, sharex=True, sharey=True)
    for column, run in enumerate(runs):
        for row in range(num_rows):
            ax = axes[row][column]
            if row >= len(run.engines):
                ax.set_visible(False)
                continue
            engine = run.engines[row]
            draw(ax, run, engine)
            ax.set_xlim(0, max(1e-6, *(one.duration_s for one in runs)))
            ax.set_title(_plain(run.name if len(run.engines) == 1 else f"{run.name}, {engine.name}"), fontsize=10)
            ax.tick_params(labelbottom=row + 1 == len(run.engines))
        axes[len(run.engines) - 1][column].set_xlabel("seconds")
    return figure


def _all_slots(runs: Sequence[Run]) -> Figure:
    figure = _over_time(runs, _slots, lambda engine: 1.2 + min(0.16 * _num_used(engine), 9.0))
    figure.legend(
        handles=[
            Patch(color=CHUNK, label="prompt chunk"),
            Patch(facecolor=CHUNK, hatch="\\\\\\\\\\\\", label="computed again"),
            Patch(color=PREFILL, label="between chunks"),
            Patch(color=DECODE, label="decoding"),
            Patch(facecolor=FILLER, hatch="////", label="filler"),
            Line2D([], [], color=PREEMPTED, marker="<", ls="none", label="preempted"),
            Line2D([], [], color=ENDED_EARLY, marker="x", ls="none", label="ended early"),
        ],
        loc="outside lower center",
        ncols=7,
        fontsize=8,
        frameon=False,
    )
    return figure


def _num_used(engine: Engine) -> int:
    """Slots up to the last in which anybody sat: the lowest that are free are taken."""
    return max(engine.stays.slot, default=0) + 1


def _slots(ax: Any, run: Run, engine: Engine) -> None:
    stays, chunks = engine.stays, engine.chunks
    slot, joined, left = np.array(stays.slot), np.array(stays.joined), np.array(stays.left)
    decodes, held = np.array(stays.decodes_from), np.array(stays.held_until)
    why = np.array(stays.why)
    odd = np.array(stays.answer) % 2 == 1
    if len(slot):
        has_decoded = decodes >= 0
        _bars(ax, slot, joined, np.where(has_decoded, decodes, left), PREFILL)
        for mask, color in ((has_decoded & ~odd, DECODE), (has_decoded & odd, DECODE_2)):
            _bars(ax, slot[mask], decodes[mask], left[mask], color)
        _bars(ax, slot[held >= 0], left[held >= 0], held[held >= 0], FILLER, hatch="////")
    if chunks.stay:
        of, begin = np.array(chunks.stay), np.array(chunks.begin)
        end = begin + np.array(chunks.seconds)
        again = np.array(stays.again)[of]
        _bars(ax, slot[of][~again], begin[~again], end[~again], CHUNK)
        _bars(ax, slot[of][again], begin[again], end[again], CHUNK, hatch="\\\\\\\\\\\\")
    size = 9 if _num_used(engine) <= 64 else 3
    for reasons, color, marker in ((("preempted",), PREEMPTED, "<"), (EARLY, ENDED_EARLY, "x")):
        mask = np.isin(why, reasons)
        ax.scatter(left[mask], slot[mask] + 0.45, s=size, color=color, marker=marker, linewidths=1.0, zorder=3)
    ax.set_ylim(max(_num_used(engine), ax.get_ylim()[0]), 0)
    ax.set_ylabel("slot" if _num_used(engine) == engine.num_slots else f"slot (of {engine.num_slots})")


def _bars(ax: Any, slot: Any, begin: Any, end: Any, color: str, hatch: str | None = None) -> None:
    corners = [(begin, slot), (end, slot), (end, slot + 0.9), (begin, slot + 0.9)]
    shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    ax.add_collection(
        PolyCollection(
            list(shapes), facecolors=color, edgecolors="#6d747c" if hatch else "none", hatch=hatch, linewidths=0
        )
    )


def _queue(ax: Any, run: Run, engine: Engine) -> None:
    waiting = engine.waiting
    times = [*waiting.time, run.duration_s]
    if waiting.high:
        ax.fill_between(times, _held(waiting.low), _held(waiting.high), step="post", color=WAITING, alpha=0.25, lw=0)
    ax.fill_between(times, _held(waiting.value), step="post", color=WAITING, alpha=0.4, lw=0)
    ax.plot(times, _held(waiting.value), drawstyle="steps-post", color=WAITING, lw=1)
    ax.set_ylabel("waiting")
    ax.set_ylim(bottom=0)


def _held(values: Sequence[float]) -> list[float]:
    """The last value once more, for the end of the run."""
    return [*values, values[-1]] if values else []


def _batch(ax: Any, run: Run, engine: Engine) -> None:
    steps = engine.steps
    base: Any = 0.0
    for values, color, hatch, label in (
        (steps.decodes, DECODE, None, "decoding"),
        (steps.chunks, CHUNK, None, "prefilling"),
        (steps.fillers, FILLER, "////", "fillers"),
    ):
        times, rows = _with_gaps(steps, values)
        ax.fill_between(
            times, base, base + rows, step="post", color=color, hatch=hatch, edgecolor="#6d747c", lw=0, label=label
        )
        base = base + rows
    ax.axhline(engine.num_slots, color="black", lw=0.8, ls="--")
    ax.set_ylabel("rows")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper right", fontsize=8)


def _with_gaps(steps: Steps, values: Sequence[float]) -> tuple[Any, Any]:
    """Rows over all time: each step's until its end, then none until the next begins."""
    begin, end = np.array(steps.begin), np.array(steps.end)
    rows = np.array(values) * np.array(steps.busy)
    times = np.stack([begin, end], axis=1).ravel()
    return times, np.stack([rows, np.zeros_like(rows)], axis=1).ravel()


def _cache(ax: Any, run: Run, engine: Engine) -> None:
    steps = engine.steps
    held = 100 * np.array(steps.held) / engine.num_blocks
    kept = 100 * np.array(steps.kept) / engine.num_blocks
    ax.fill_between(steps.end, held + kept, step="post", color=KEPT, lw=0, label="free, can be found again")
    ax.fill_between(steps.end, held, step="post", color=HELD, lw=0, label="in use")
    ax.set_ylabel("% of blocks")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper right", fontsize=8)


def _service(ax: Any, run: Run, engine: Engine) -> None:
    curves = engine.curves
    order = sorted(range(len(curves.service)), key=lambda owner: -(curves.service[owner] or [0.0])[-1])
    for place, owner in enumerate(order[:MAX_OWNERS]):
        ax.plot(
            [0.0, *curves.time],
            [0.0, *curves.service[owner]],
            color=OWNERS[place],
            ls=LINES[place % len(LINES)],
            label=_plain(run.groups[owner].name or "(no name)"),
        )
    if order:
        ax.legend(loc="upper left", fontsize=8)
    ax.set_ylabel(f"service ({curves.input_weight:g} in, {curves.output_weight:g} out)")
    ax.set_ylim(bottom=0)


def _latency(runs: Sequence[Run]) -> Figure:
    figure = Figure(figsize=(14.0, 3.4 + 0.4 * len(runs)), layout="constrained")
    for ax, (key, title) in zip(figure.subplots(1, len(LATENCIES)), LATENCIES.items(), strict=True):
        for run, (color, line, marker) in zip(runs, RUNS, strict=False):
            if (found := run.latencies.get(key)) is not None:
                _cdf(ax, found, _plain(run.name), color, line, marker)
        ax.set_title(title, fontsize=10)
        if _is_wide([found.value for run in runs if (found := run.latencies.get(key)) is not None]):
            ax.set_xscale("log")
            ax.xaxis.set_minor_formatter(NullFormatter())
        else:
            ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_xlabel("seconds")
        ax.set_ylim(0, 1.02)
        ax.grid(alpha=0.3)
        if ax.has_data():
            ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    return figure


def _is_wide(distributions: Sequence[Sequence[float]]) -> bool:
    """Whether values differ by so much that powers of ten are at least two marks of their axis."""
    values = [value for one in distributions for value in one if value > 0.0]
    return bool(values) and max(values) >= WIDE * min(values)


def _cdf(ax: Any, found: Distribution, name: str, color: str, line: str, marker: str) -> None:
    label = f"{name}\np50 {found.p50:.3g} s, p99 {found.p99:.3g} s"
    ax.plot(found.value, found.share, color=color, ls=line, drawstyle="steps-post", label=label)
    ax.plot([found.p50, found.p99], [0.5, 0.99], color=color, ls="none", marker=marker, ms=5)


def _plain(text: str) -> str:
    """Names as they are: a dollar sign begins a formula otherwise, a first underscore hides a line of the legend."""
    shown = "".join(one if one.isprintable() else "\ufffd" for one in text)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return f"\u200b{shown}".replace("$", r"\$")
