"""`chairlift report`: pictures of a run, from the journal of a server or from a page of a simulation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chairlift.cli.results import check_path
from chairlift.core.errors import InvalidJournal, InvalidOption

if TYPE_CHECKING:
    from chairlift.core.engine import Observer
    from chairlift.core.scheduler import Scheduler
    from chairlift.report.data import Run
    from chairlift.report.outcomes import Outcomes
    from chairlift.report.owners import Names
    from chairlift.report.rows import About
    from chairlift.report.timeline import Budget, Timeline, Window
    from chairlift.sim.result import Result
    from chairlift.sim.served import Served

EXIT_DIFFERENT = 1
SUFFIXES = (".png", ".svg", ".pdf")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "report",
        help="make pictures of a run, or of two side by side",
        description="Make one self-contained page of what an engine did: who sat in which slot, the queue, the batch, "
        "the cache, latencies, and the service of each tenant. A run is a journal (a file that --journal wrote, also "
        "as digests) or a page that this or chairlift simulate --report made.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="one run, or two to compare")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument(
        "--png", type=Path, metavar="FOLDER", help="write each picture there as PNG (pip install chairlift[plot])"
    )
    add_window_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def add_window_flags(parser: argparse._ActionsContainer) -> None:
    """Which part of a long run the slots are shown of."""
    parser.add_argument(
        "--slots-from",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="show who sat in which slot from there on (default: 0); a page holds about 10,000 requests of it",
    )
    parser.add_argument("--slots-until", type=float, metavar="SECONDS", help="and up to there")


def run(arguments: argparse.Namespace) -> int:
    """Write a page, pictures, or both.

    Raises:
        InvalidOption: flags that make no sense, or a page that cannot be used.
        InvalidJournal: a journal that cannot be used.
    """
    if len(arguments.runs) > 2:
        raise InvalidOption("a report shows one run, or two side by side")
    if arguments.output is None and arguments.png is None:
        raise InvalidOption("say where: --output FILE for the page, --png FOLDER for pictures")
    check_path(arguments.output)
    window = slots_window(arguments)
    runs: list[Run] = []
    exit_status = 0
    for path in arguments.runs:
        found, is_whole = _load(path, window)
        runs += found
        if not is_whole:
            exit_status = EXIT_DIFFERENT
    if len(runs) > 2:
        raise InvalidOption("a report shows one run, or two side by side; these pages hold more")
    _tell_apart(runs)
    if arguments.output is not None:
        write_page(arguments.output, runs)
        print(f"wrote {arguments.output}")
    if arguments.png is not None:
        for path in _write_pictures(arguments.png, runs):
            print(f"wrote {path}")
    return exit_status


def slots_window(arguments: argparse.Namespace) -> Window:
    """Raises InvalidOption for a window that holds nothing."""
    from chairlift.report.timeline import Window

    begin = arguments.slots_from
    end = float("inf") if arguments.slots_until is None else arguments.slots_until
    if not 0.0 <= begin < end:
        raise InvalidOption("--slots-from must be at least 0 and below --slots-until")
    return Window(begin=begin, end=end)


def _load(path: Path, window: Window) -> tuple[list[Run], bool]:
    """The runs in a file, and whether a journal was pictured to its end."""
    from chairlift.journal.segments import OPENING
    from chairlift.report.from_journal import journal_run
    from chairlift.report.page import from_html

    try:
        with path.open("rb") as file:
            if file.read(len(OPENING)) == OPENING:
                file.seek(0)
                run_, replayed = journal_run(path.name, file, window=window)
                return [run_], replayed.difference is None
            file.seek(0)
            return from_html(file.read().decode("utf-8")), True
    except OSError as error:
        raise InvalidOption(f"{path}: {error.strerror or error}") from error
    except InvalidJournal as error:
        raise InvalidJournal(f"{path}: {error}") from error
    except ValueError as error:
        raise InvalidOption(f"{path} is neither a journal nor a page of a report: {error}") from error


def _tell_apart(runs: list[Run]) -> None:
    if len(runs) == 2 and runs[0].name == runs[1].name:
        for run_, letter in zip(runs, "AB", strict=True):
            run_.name = f"{run_.name} ({letter})"


def write_page(path: Path, runs: Sequence[Run]) -> None:
    """Raises InvalidOption if it cannot be written."""
    from chairlift.report.page import to_html

    try:
        path.write_text(to_html(list(runs)), encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"cannot write {path}: {error.strerror or error}") from error


def empty_figure(path: Path) -> Any:
    """A figure of matplotlib to be saved at this path; asked for before anything is measured.

    Raises:
        InvalidOption: matplotlib is not installed, or cannot write such a file.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidOption(f"a plot is one of {', '.join(SUFFIXES)}, not {path.name}")
    try:
        return import_module("matplotlib.figure").Figure()
    except ImportError as error:
        raise InvalidOption("--plot draws with matplotlib, which is not here: pip install chairlift[plot]") from error


def _write_pictures(folder: Path, runs: Sequence[Run]) -> list[Path]:
    try:
        from chairlift.report.plots import write_pictures
    except ImportError as error:
        raise InvalidOption("--png draws with matplotlib, which is not here: pip install chairlift[plot]") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_pictures(folder, runs)
    except OSError as error:
        raise InvalidOption(f"cannot write to {folder}: {error.strerror or error}") from error


# ---------------------------------------------------------------- simulations


class SimulationRecord:
    """Follows the engines of a simulation, for its picture."""

    def __init__(self, window: Window, budget: Budget | None = None) -> None:
        from chairlift.report.outcomes import Outcomes
        from chairlift.report.timeline import Budget

        self._outcomes = Outcomes()
        self._window = window
        self._budget = Budget() if budget is None else budget
        self._timelines: list[Timeline] = []

    def follow(self, name: str, scheduler: Scheduler) -> Observer:
        """Hears of the steps of one engine; engines come in the order of their numbers."""
        from chairlift.report.timeline import Timeline

        timeline = Timeline(name, scheduler, self._outcomes, origin=0.0, window=self._window, budget=self._budget)
        self._timelines.append(timeline)
        return timeline

    def picture(self, name: str, stages: Result, whole: Result | None = None) -> Run:
        """Of the whole run, with those that no step told of: they never joined, or ended between steps.

        If a request went through several engines, as `stages` tells, `whole` tells of each request once: figures are of
        those.
        """
        from chairlift.report.build import make_run

        outcomes = self._outcomes
        outcomes.labels = {served.id: served.asked.label for served in stages.served if served.asked.label}
        for served in stages.served:
            if served.error is not None:
                outcomes.refuse(_about(served))
                continue
            timeline = self._timelines[served.replica]
            if all(finish.first_scheduled is None for finish in served.finishes) and not outcomes.knows(served.id):
                timeline.add(_about(served))
            for finish in served.finishes:
                timeline.end(finish)
        if whole is None:
            return make_run(name, "simulation", self._timelines, outcomes)
        note = "a request is two in the pictures of engines: one that prefills it, and one with the rest of its answer"
        return make_run(name, "simulation", self._timelines, _outcomes_of(whole, outcomes.names), [note])


def _about(served: Served) -> About:
    from chairlift.report.rows import About

    asked = served.asked
    return About(
        id=served.id,
        n=asked.n,
        arrival=asked.arrival,
        num_prompt_tokens=asked.prompt.num_tokens,
        priority=asked.priority,
        principal=asked.principal,
        tenant=asked.tenant,
    )


def _outcomes_of(result: Result, names: Names) -> Outcomes:
    """From every request at once, in the end."""
    from chairlift.report.outcomes import Outcomes

    outcomes = Outcomes(names)
    for served in result.served:
        if served.error is not None:
            outcomes.refuse(_about(served))
            continue
        outcomes.ask(_about(served))
        for finish in served.finishes:
            outcomes.end(finish)
    gaps = result.inter_token_latencies
    for gap, count in zip(gaps.values, gaps.counts, strict=True):
        outcomes.itl.add(gap, count)
    return outcomes
