"""`chairlift bench fidelity`: what the simulator predicts for this engine on this machine, beside what is measured."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.bench.in_process import Listener, Loop
from chairlift.cli.calibrate import engine_words, machine_words, rig_of, token_sizes
from chairlift.cli.loading import loading
from chairlift.cli.options import add_config_flag, add_engine_flags, ready_options
from chairlift.cli.results import check_path, write_json
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy

if TYPE_CHECKING:
    from chairlift.bench.fidelity import Subject
    from chairlift.cli.in_process import Progress
    from chairlift.sim.calibrate.calibration import Calibration
    from chairlift.sim.calibrate.measuring import Observed
    from chairlift.sim.fleet import EngineSetup
    from chairlift.worker.build import LoadedModel
    from chairlift.worker.options import EngineOptions

PARTS = ("chat", "documents", "prefix", "bursts", "short", "capacity")
MAX_NUM_SEQS = 32
"""Slots unless told otherwise: a sweep of many more rows takes long on a small machine."""


def add_form(forms: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the form of `chairlift bench`."""
    parser = forms.add_parser(
        "fidelity",
        help="calibrate the simulator, serve traffic it has not seen, and compare",
        description="Calibrate the simulator on this machine, serve traffic it has not seen, in this process and "
        "several times over, calibrate again after each run, and print what it predicts beside what was measured. "
        "Nothing else should use the machine meanwhile.",
    )
    group = parser.add_argument_group("runs")
    group.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    group.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each (default: %(default)s)")
    group.add_argument("--seconds", type=float, default=30.0, metavar="S", help="of each run (default: %(default)g)")
    group.add_argument(
        "--num-prompts", type=int, default=5000, metavar="N", help="requests of the part `short` (default: %(default)s)"
    )
    group.add_argument(
        "--calibration-seconds", type=float, default=15.0, metavar="S", help="each time (default: %(default)g)"
    )
    add_engine_flags(parser, positional_model=True)
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress line")
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser, max_num_seqs=MAX_NUM_SEQS)


def run(arguments: argparse.Namespace) -> int:
    """Measure, predict and print."""
    from chairlift.bench import fidelity as bench
    from chairlift.bench.predicted import to_json, to_table
    from chairlift.cli.in_process import Progress
    from chairlift.worker.build import load

    check_path(arguments.output_json)
    if arguments.repeats < 1 or arguments.num_prompts < 1:
        raise InvalidOption("--repeats and --num-prompts must be at least 1")
    if not (1.0 <= arguments.seconds < float("inf") and 1.0 <= arguments.calibration_seconds < float("inf")):
        raise InvalidOption("--seconds and --calibration-seconds must be at least 1")
    if arguments.journal is not None:
        raise InvalidOption("fidelity keeps no journal: leave out --journal")
    options = ready_options(arguments)
    with loading(options.model, sys.stderr):
        loaded = load(options)
    subject = _subject(options, loaded)
    progress = Progress(sys.stderr if sys.stderr.isatty() and not arguments.disable_tqdm else None, time.monotonic)

    def observe_more() -> None:
        observed.append(_observe(options, loaded, arguments.calibration_seconds, len(observed), progress))

    def calibrated(some: list[Observed]) -> EngineSetup:
        return bench.costed(subject.setup, _calibration(some, options, loaded))

    observed: list[Observed] = []
    observe_more()
    before = calibrated(observed)
    scenarios = {scenario.name: scenario for scenario in (*bench.SCENARIOS, bench.SHORT)}
    courses = []
    for part in arguments.parts:
        if part == "capacity":
            courses.append(bench.ladder_of(bench.SHORT, before, arguments.seconds))
        else:
            num_requests = arguments.num_prompts if part == "short" else None
            courses.append(bench.course_of(scenarios[part], before, arguments.seconds, num_requests))
    for _ in range(arguments.repeats):
        for course in courses:
            course.run(subject, progress.of)
            observe_more()
    progress.clear()
    predictions = bench.Predictions(before, calibrated(observed[-1:]), calibrated(observed))
    comparisons = [course.compare(predictions) for course in courses]
    print("\n\n".join(to_table(comparison) for comparison in comparisons))
    if arguments.output_json is not None:
        write_json(arguments.output_json, to_json(comparisons) | {"model": loaded.model.name})
    return 0


def _subject(options: EngineOptions, loaded: LoadedModel) -> Subject:
    from chairlift.bench.fidelity import Subject
    from chairlift.cli.in_process import EngineThread
    from chairlift.sim.cost.seed import LESSON
    from chairlift.sim.fleet import EngineSetup

    def start(policy: Policy, listener: Listener) -> Loop:
        return EngineThread(loaded.engine(policy, listener), listener, time.monotonic)

    limits, shape, rig = loaded.limits, loaded.executor.cache_shape, rig_of(loaded)
    setup = EngineSetup(
        cost=LESSON,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        policy=options.policy(),
    )
    return Subject(start, setup, rig.vocab_size, rig.params, time.monotonic, time.sleep)


def _observe(options: EngineOptions, loaded: LoadedModel, seconds: float, seed: int, progress: Progress) -> Observed:
    from chairlift.sim.calibrate.measuring import observe

    return observe(
        rig_of(loaded),
        lambda listener: loaded.engine(options.policy(), listener),
        seconds,
        seed=seed,
        say=lambda what: progress.say(f"measuring {what}"),
    )


def _calibration(observed: list[Observed], options: EngineOptions, loaded: LoadedModel) -> Calibration:
    from chairlift.sim.calibrate.measuring import calibration_of

    return calibration_of(observed, token_sizes(loaded), machine=machine_words(), engine=engine_words(options, loaded))
