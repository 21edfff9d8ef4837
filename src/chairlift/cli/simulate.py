"""`chairlift simulate`: the scheduler on a virtual clock, in seconds instead of hours and without a device."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chairlift.bench.status_line import StatusLine
from chairlift.cli.config import flag_of
from chairlift.cli.disaggregated_flags import add_split_flag, check_link, link, pool_setups
from chairlift.cli.garbage import SeldomCollected
from chairlift.cli.interrupt import EXIT_INTERRUPTED, Interrupt
from chairlift.cli.journal_flags import add_journal_flags
from chairlift.cli.numbers import named_limit
from chairlift.cli.options import add_config_flag
from chairlift.cli.report import SimulationRecord, add_window_flags, empty_figure, slots_window, write_page
from chairlift.cli.results import check_apart, check_path, write_json
from chairlift.cli.sim_engine_flags import add_fleet_flags, add_simulated_engine_flags, engine_lines, engine_setups
from chairlift.cli.sim_workload_flags import add_workload_flags, check_workload, given_flags, workload
from chairlift.core.errors import InvalidOption
from chairlift.journal.options import JournalOptions

if TYPE_CHECKING:
    from chairlift.journal.writer import Journal
    from chairlift.sim.fleet import EngineSetup, Follow
    from chairlift.sim.presets import Lesson, LessonRow
    from chairlift.sim.replica import Replica
    from chairlift.sim.result import Result
    from chairlift.sim.run import Simulation

PRESETS = ("lesson", "slots")
HEEDED_BY_PRESETS = ("preset", "disable_tqdm", "config", "run", "parser")
HEEDED_BY_LESSON = (
    *("max_concurrent", "plot", "max_num_seqs", "output"),
    *("request_rate", "num_prompts", "seed", "output_json"),
)
MAX_LESSON = 1 << 20
"""Requests that the lesson keeps in memory."""
MAX_SLOTS = 4096
"""Of the lesson: its cache has room for the longest answers in all of them, twice."""
MAX_OUTPUT = 1 << 20
INTERVAL_S = 0.5
"""Between two updates of the progress line."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "simulate",
        help="say how a workload would be served, without a device",
        description="Serve a workload with the scheduler of the server on a virtual clock. How long a step takes is "
        "said by a calibration or by the data sheet of a device. The same flags and seed give the same bytes.",
    )
    group = parser.add_argument_group("preset")
    group.add_argument(
        "--preset",
        choices=PRESETS,
        help="lesson: static, dynamic and continuous batching on the same traffic, one table; it heeds --max-num-seqs, "
        "--output, --request-rate, --num-prompts, --seed and --max-concurrent. slots: who sits in which of four slots",
    )
    group.add_argument(
        "--max-concurrent",
        metavar="N,...",
        help="with the lesson: continuous batching alone, with at most N of its slots taken, one line for each N",
    )
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="with the lesson: draw latency against throughput there, .png, .svg or .pdf (pip install chairlift[plot])",
    )
    add_workload_flags(parser)
    add_simulated_engine_flags(parser)
    add_fleet_flags(parser)
    add_split_flag(parser)
    group = parser.add_argument_group("run and results")
    group.add_argument("--until", type=float, metavar="SECONDS", help="stop the clock there, whatever is unfinished")
    group.add_argument(
        "--percentiles", default="50,90,95,99", metavar="P,...", help="of latencies (default: %(default)s)"
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        help="count as good what keeps these limits: ttft:200 tpot:50 e2el:9000",
    )
    group.add_argument(
        "--endless-cache", action="store_true", help="say as well what a prefix cache would find that never ends"
    )
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    group.add_argument("--requests-jsonl", type=Path, metavar="FILE", help="write a line for each request there")
    group.add_argument("--token-times", action="store_true", help="with the time of each token in those lines")
    group.add_argument("--report", type=Path, metavar="FILE", help="write a page of pictures there")
    add_window_flags(group)
    group.add_argument("--disable-tqdm", action="store_true", help="no progress line")
    add_journal_flags(parser)
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print a table.

    What a run has served is kept to its end: looking again and again for garbage in it finds none.

    Raises:
        InvalidOption: flags that make no sense.
    """
    written = {name: getattr(arguments, name) for name in ("output_json", "requests_jsonl", "report", "plot", "trace")}
    for name, path in written.items():
        if name != "trace":
            check_path(path)
    check_apart(**written, journal=None if arguments.journal is None else Path(arguments.journal))
    if arguments.plot is not None and arguments.preset != "lesson":
        raise InvalidOption("--plot draws the lesson; --report makes pictures of other runs")
    with SeldomCollected():
        return _run_preset(arguments) if arguments.preset is not None else _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    _check_flags(arguments)
    from chairlift.sim.disaggregated import DisaggregatedSimulation
    from chairlift.sim.fleet import make_fleet, pool_names
    from chairlift.sim.result import figures
    from chairlift.sim.router import make_router
    from chairlift.sim.run import Simulation
    from chairlift.sim.table import to_table

    percents = _numbers("--percentiles", arguments.percentiles)
    limits_ms = dict(limits := [_limit(text) for text in arguments.goodput or ()])
    if len(limits_ms) < len(limits):
        raise InvalidOption("--goodput takes one limit of each kind")
    record = None if arguments.report is None else SimulationRecord(slots_window(arguments))
    follow = None if record is None else record.follow
    setups, names, journal = engine_setups(arguments), list[str](), None
    if arguments.split is not None:
        setups, names = pool_setups(setups, arguments.split), pool_names(*arguments.split)
    if arguments.journal is None:
        fleet = make_fleet(setups, arguments.seed or 0, follow, names)
    else:
        replica, journal = _recorded(arguments, setups, follow)
        fleet = [replica]
    routers = make_router(arguments.router), make_router(arguments.router)
    pools = None
    if arguments.split is None:
        simulation = Simulation(workload(arguments), fleet, routers[0])
    else:
        num_prefill, _ = arguments.split
        pools = DisaggregatedSimulation(
            workload(arguments), fleet[:num_prefill], fleet[num_prefill:], link(arguments), routers
        )
        simulation = pools.simulation
    terminal = sys.stderr if sys.stderr.isatty() and not arguments.disable_tqdm else None
    progress = Progress(StatusLine(terminal, time.monotonic, INTERVAL_S))

    begun = time.monotonic()
    with Interrupt() as interrupt:

        def watch(simulation: Simulation) -> None:
            progress.show(simulation)
            if journal is not None:
                journal.write()
            if interrupt.asked:
                raise _Stopped

        try:
            simulation.run(math.inf if arguments.until is None else arguments.until, watch)
        except _Stopped:
            pass
        finally:
            progress.clear()
            if journal is not None:
                journal.close()
    if interrupt.asked:
        print(
            f"chairlift: stopped after {simulation.now:.2f} simulated seconds; this is how far it came", file=sys.stderr
        )
    result = simulation.result() if pools is None else pools.result()
    if not result.served:
        before = "" if arguments.until is None else f" before {arguments.until:g} s"
        raise InvalidOption(f"the workload asks nothing{before}")
    values = {"assumed": engine_lines(arguments), **figures(result, percents, limits_ms)}
    if arguments.endless_cache:
        values["endless_prefix_hit_rate"] = _endless_hit_rate(result)
    print(to_table(values, percents))
    _say_speed(result, time.monotonic() - begun)
    if arguments.output_json is not None:
        write_json(arguments.output_json, values)
    if arguments.requests_jsonl is not None:
        _write_requests(arguments.requests_jsonl, result, with_times=arguments.token_times)
    if record is not None:
        whole = None if pools is None else result
        write_page(arguments.report, [record.picture(arguments.report.stem, simulation.result(), whole)])
    return EXIT_INTERRUPTED if interrupt.asked else 0


class _Stopped(Exception):
    """Somebody pressed Ctrl-C, and the run is between two moments."""


def _check_flags(arguments: argparse.Namespace) -> None:
    """Raises InvalidOption for what would have no effect, or makes no sense."""
    check_workload(arguments)
    check_link(arguments)
    if arguments.until is not None and not arguments.until > 0.0:
        raise InvalidOption("--until must be above 0")
    for needed, names in (
        ("report", ("slots_from", "slots_until")),
        ("requests_jsonl", ("token_times",)),
        ("preset", ("max_concurrent",)),
    ):
        if getattr(arguments, needed) is None and (idle := given_flags(arguments, names)):
            raise InvalidOption(f"{flag_of(idle[0])} is about {flag_of(needed)}: leave it out, or say that too")


def _recorded(
    arguments: argparse.Namespace, setups: list[EngineSetup], follow: Follow | None
) -> tuple[Replica, Journal]:
    """An engine and its journal, which waits for the disk: there is nobody whom that would keep waiting."""
    from chairlift.journal.segments import SegmentFiles
    from chairlift.journal.writer import Journal

    if len(setups) != 1:
        raise InvalidOption("--journal records one engine: leave out the others")
    options = JournalOptions(arguments.journal_digest, arguments.journal_max_bytes, arguments.journal_segments)
    files = SegmentFiles(Path(arguments.journal), options.max_segments)
    scheduler = setups[0].scheduler()
    journal = Journal(options, files, clock=lambda: 0.0, capacity=sys.maxsize)
    journal.attach(scheduler)
    replica = setups[0].replica(
        "engine-0",
        noise_seed=(arguments.seed or 0) << 16,
        recorder=journal,
        on_step=None if follow is None else follow("engine-0", scheduler).on_step,
        scheduler=scheduler,
    )
    return replica, journal


def _endless_hit_rate(result: Result) -> float:
    """Of the prompts in the order in which they came, in blocks as those of the first engine."""
    from chairlift.sim.reuse import EndlessCache

    cache = EndlessCache(result.replicas[0].scheduler.kv.block_size)
    for served in result.served:
        cache.ask(served.asked.prompt)
    return cache.hit_rate


def _say_speed(result: Result, wall_s: float) -> None:
    """On standard error: it differs from run to run, as nothing else does."""
    if sys.stderr.isatty():
        rate = len(result.served) / wall_s if wall_s > 0 else 0.0
        print(f"simulated in {wall_s:.2f} s, {rate:.0f} requests/s", file=sys.stderr)


def _write_requests(path: Path, result: Result, *, with_times: bool) -> None:
    from chairlift.sim.result import request_figures

    try:
        with path.open("w", encoding="utf-8") as file:
            for served in result.served:
                file.write(json.dumps(request_figures(result, served, with_times=with_times)) + "\n")
    except OSError as error:
        raise InvalidOption(f"cannot write {path}: {error.strerror or error}") from error


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = (-1.0,)
    if not all(0.0 <= number <= 100.0 for number in numbers):
        raise InvalidOption(f"{flag} takes percentages such as 50,99, not {text!r}")
    return numbers


def _limit(text: str) -> tuple[str, float]:
    limit = named_limit(text)
    if limit is None or limit[0] not in ("ttft", "tpot", "e2el"):
        raise InvalidOption(f"--goodput takes limits such as ttft:200, tpot:50 or e2el:9000, not {text!r}")
    return limit


class Progress:
    """How far a simulation is, on one line of a terminal."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._num_before = 0

    def show(self, simulation: Simulation) -> None:
        passed_s = self._status.due()
        if passed_s is None:
            return
        rate = (simulation.num_ended - self._num_before) / passed_s
        self._num_before = simulation.num_ended
        num_open = len(simulation.served) - simulation.num_ended
        self._status.show(
            f"{simulation.now:.1f} s simulated, {simulation.num_ended} done, {num_open} in flight, "
            f"{rate:.0f} requests/s"
        )

    def clear(self) -> None:
        """Take the line away."""
        self._status.show("")


# ---------------------------------------------------------------- presets


def _run_preset(arguments: argparse.Namespace) -> int:
    from chairlift.report.lesson import draw_lesson
    from chairlift.sim.presets import slot_lines

    heeded = {*HEEDED_BY_PRESETS, *(HEEDED_BY_LESSON if arguments.preset == "lesson" else ())}
    names = (name for name in vars(arguments) if name not in heeded)
    if idle := given_flags(arguments, names):
        raise InvalidOption(f"a preset knows what it serves: leave out {', '.join(map(flag_of, idle))}")
    if arguments.preset == "slots":
        print("\n".join(slot_lines()))
        return 0
    figure = None if arguments.plot is None else empty_figure(arguments.plot)
    lesson, caps = _lesson(arguments), _caps(arguments.max_concurrent)
    if max(caps, default=0) > lesson.max_num_seqs:
        raise InvalidOption(f"--max-concurrent is at most the {lesson.max_num_seqs} slots: ask for more --max-num-seqs")
    rows = _print_lesson(lesson, caps, sys.stdout)
    if figure is not None:
        draw_lesson(rows, figure, arguments.plot)
    if arguments.output_json is not None:
        write_json(arguments.output_json, rows)
    return 0


def _caps(text: str | None) -> list[int]:
    try:
        caps = [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        caps = [0]
    if any(cap < 1 for cap in caps):
        raise InvalidOption(f"--max-concurrent takes numbers such as 16,32,48, not {text!r}")
    return caps


def _lesson(arguments: argparse.Namespace) -> Lesson:
    """The lesson with what the flags change in it."""
    from chairlift.sim.lengths import Fixed, LogNormal, parse_lengths
    from chairlift.sim.presets import Lesson

    lesson = Lesson()
    traffic = lesson.traffic
    for name, bound in (("num_prompts", MAX_LESSON), ("max_num_seqs", MAX_SLOTS)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= bound:
            raise InvalidOption(f"{flag_of(name)} of the lesson must be between 1 and {bound}")
    rate = arguments.request_rate
    if rate is not None and not 0.0 < rate < math.inf:
        raise InvalidOption("--request-rate must be above 0 and finite")
    if arguments.num_prompts is not None:
        traffic = replace(traffic, num_requests=arguments.num_prompts)
    if arguments.seed is not None:
        traffic = replace(traffic, seed=arguments.seed)
    if arguments.output is not None:
        match parse_lengths(arguments.output):
            case Fixed(tokens):
                traffic = replace(traffic, output_tokens=tokens)
            case LogNormal(median, sigma, most):
                traffic = replace(
                    traffic,
                    output_log_mean=math.log(median),
                    output_log_sigma=sigma,
                    output_max=int(min(most, MAX_OUTPUT)),
                )
            case _:
                raise InvalidOption("the lesson's answers have one length, or lognormal:MEDIAN:SIGMA:MOST")
    lesson = replace(lesson, traffic=traffic)
    if arguments.max_num_seqs is not None:
        lesson = replace(lesson, max_num_seqs=arguments.max_num_seqs)
    if rate is not None:
        lesson = replace(lesson, rates=(rate,))
    return lesson


def _print_lesson(lesson: Lesson, caps: list[int], out: IO[str]) -> list[dict[str, Any]]:
    """The table, a line as soon as it is known; gives its rows as data."""
    from chairlift.sim.presets import COLUMNS, lesson_line

    rows: list[dict[str, Any]] = []

    def note(row: LessonRow, lesson: Lesson) -> None:
        names = row.__slots__
        rows.append({name: getattr(row, name) for name in names} | {"max_concurrent": lesson.max_concurrent})

    print(lesson.heading(), file=out)
    for rate in lesson.rates:
        print(f"\n{lesson.rate_heading(rate)}", file=out)
        print(f"at most{COLUMNS[7:]}" if caps else COLUMNS, file=out, flush=True)
        for cap in caps:
            capped = replace(lesson, max_concurrent=cap)
            note(row := capped.run(rate, "continuous"), capped)
            print(f"{cap:<11}{lesson_line(row)[11:]}", file=out, flush=True)
        for batching in () if caps else lesson.batchings:
            note(row := lesson.run(rate, batching), lesson)
            print(lesson_line(row), file=out, flush=True)
    return rows
