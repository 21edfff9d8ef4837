"""`chairlift calibrate`: what the steps of an engine cost, measured or out of a journal, for the simulator."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chairlift.cli.loading import loading
from chairlift.cli.numbers import count
from chairlift.cli.options import add_config_flag, add_engine_flags, ready_options
from chairlift.cli.results import check_path
from chairlift.core.errors import InvalidJournal, InvalidOption

if TYPE_CHECKING:
    from chairlift.sim.calibrate.calibration import Calibration
    from chairlift.sim.calibrate.measured import Measured
    from chairlift.sim.calibrate.sweep import Rig
    from chairlift.worker.build import LoadedModel
    from chairlift.worker.options import EngineOptions

DEFAULT_SECONDS = 60.0
MIN_SECONDS = 1.0
STRANGE_NOISE = 0.15
STRANGE_ERROR = 0.15
ENGINE_FIELDS = (
    "model",
    "dtype",
    "kv_cache_dtype",
    "max_num_seqs",
    "enable_prefix_caching",
    "num_threads",
    "batching",
    "scheduling_policy",
    "enable_chunked_prefill",
    "prefill_first",
)
"""Options that the file tells of the engine that was measured, beside its limits and its cache."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "calibrate",
        help="measure what the steps of an engine cost, for the simulator",
        description="Measure an engine on this machine, step by step, for about a minute, or read the steps of "
        "journals (--from-journal), and fit a cost model. A quarter of the steps is kept from the fit to say how far "
        "it is off.",
    )
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--from-journal",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="segments written by --journal, instead of measuring",
    )
    group.add_argument(
        "--from-profile",
        type=Path,
        metavar="PREFIX",
        help="tables of kernel times PREFIX__attention.csv(.gz), __dense and __per_sequence, instead of measuring",
    )
    group.add_argument(
        "--num-layers", type=count, metavar="N", help="of the profiled model (default: by the name in the prefix)"
    )
    group.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="how long to measure (default: %(default)g)",
    )
    group.add_argument("--max-context", type=int, default=4096, metavar="TOKENS", help="default: %(default)s")
    group.add_argument(
        "--output", type=Path, default=Path("calibration.json"), metavar="FILE", help="default: %(default)s"
    )
    add_engine_flags(parser, positional_model=True)
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure or read, fit, write the file and print how far off it is.

    Raises:
        ChairliftError: flags that make no sense, files that cannot be used, or too few steps.
    """
    from chairlift.sim.calibrate.calibration import encode

    check_path(arguments.output)
    if arguments.from_profile is not None:
        if arguments.from_journal is not None:
            raise InvalidOption("--from-journal and --from-profile exclude each other")
        calibration = _read_profile(arguments.from_profile, arguments.num_layers, arguments.max_context)
    elif arguments.from_journal is None:
        if not MIN_SECONDS <= arguments.seconds < float("inf") or arguments.max_context < 1:
            raise InvalidOption(f"--seconds must be at least {MIN_SECONDS:g}, and --max-context at least 1")
        calibration = _measure(ready_options(arguments), arguments.seconds, arguments.max_context)
    else:
        calibration = _read(arguments.from_journal)
    try:
        arguments.output.write_bytes(encode(calibration))
    except OSError as error:
        raise InvalidOption(f"cannot write {arguments.output}: {error.strerror or error}") from error
    print(summary(calibration))
    for doubt in doubts(calibration):
        print(f"chairlift: {doubt}", file=sys.stderr)
    print(f"Calibration written to {arguments.output}", file=sys.stderr)
    return 0


def doubts(calibration: Calibration) -> list[str]:
    """Why it should not be trusted, a sentence each."""
    sentences = []
    if calibration.noise > STRANGE_NOISE:
        sentences.append(f"steps of one shape differ by {calibration.noise:.0%}: something else used this machine")
    sentences += [
        f"{regime} steps: {error.mean:.0%} off on average" if error else f"{regime} steps were not checked: too few"
        for regime in ("decode", "prefill", "mixed")
        if (error := calibration.errors.get(regime)) is None or error.mean > STRANGE_ERROR
    ]
    return sentences


def summary(calibration: Calibration) -> str:
    """What was fitted and how far it is off, as lines of text."""
    from chairlift.sim.calibrate.measured import table

    c = calibration.coefficients
    rows = [
        ("weights", f"{c.weights_s * 1e3:.3f} ms", f"smooth maximum with the tokens, power {c.power:.2f}"),
        ("token", f"{c.token_s * 1e6:.2f} us", ""),
        ("output", f"{c.output_s * 1e6:.2f} us", "for each row that samples"),
        ("decode row", f"{c.decode.row_s * 1e6:.2f} us", f"{c.mixed.row_s * 1e6:.2f} us beside chunks"),
        (
            "cached token",
            f"{c.decode.context_token_s * 1e9:.2f} ns",
            f"{c.mixed.context_token_s * 1e9:.2f} ns beside chunks",
        ),
        (
            "shared token",
            f"-{c.decode.shared_saving_s * 1e9:.2f} ns",
            f"-{c.mixed.shared_saving_s * 1e9:.2f} ns beside chunks: of those, what another row reads as well",
        ),
        ("step", f"{c.decode.step_s * 1e3:.3f} ms", f"{c.mixed.step_s * 1e3:.3f} ms with chunks"),
        ("host", f"{c.host.step_s * 1e3:.3f} ms", f"and {c.host.row_s * 1e6:.2f} us for each row"),
        ("change", f"{c.change_s * 1e3:.3f} ms", "for a step of another size than the one before"),
        ("noise", f"{calibration.noise:.1%}", "of steps of one shape"),
    ]
    lines = [f"{name:<14}{value:>12}  {note}".rstrip() for name, value, note in rows]
    heading = f"Held out of {calibration.num_steps} measured steps, error of the predicted time:"
    return "\n".join([*lines, "", heading, table(dict(calibration.errors))])


# ---------------------------------------------------------------- measuring


def _measure(options: EngineOptions, seconds: float, max_context: int) -> Calibration:
    from chairlift.sim.calibrate.measuring import calibration_of, observe
    from chairlift.worker.build import load

    with loading(options.model, sys.stderr):
        loaded = load(options)
    observed = observe(
        rig_of(loaded),
        lambda listener: loaded.engine(options.policy(), observer=listener),
        seconds,
        max_context=max_context,
        say=_say,
    )
    return calibration_of(
        [observed], token_sizes(loaded), machine=machine_words(), engine=engine_words(options, loaded)
    )


def _say(what: str) -> None:
    """A line on the terminal."""
    if sys.stderr.isatty():
        print(f"Measuring {what} ...", file=sys.stderr, flush=True)


def rig_of(loaded: LoadedModel) -> Rig:
    """The model's executor for a sweep, on the wall clock; tokens are sampled as the model wants it."""
    from chairlift.core.types import SamplingParams
    from chairlift.sim.calibrate.sweep import Rig

    defaults: dict[str, Any] = dict(loaded.text.sampling_defaults)
    params = replace(SamplingParams(**defaults), max_tokens=1 << 20, ignore_eos=True)
    executor = loaded.executor
    return Rig(executor, loaded.limits, executor.cache_shape, loaded.model.config.vocab_size, params, time.perf_counter)


def token_sizes(loaded: LoadedModel) -> tuple[int, ...]:
    """Sizes that the executor pads steps to."""
    from chairlift.executors.openvino.buckets import buckets_up_to

    return tuple(buckets_up_to(loaded.limits.max_num_batched_tokens))


def engine_words(options: EngineOptions, loaded: LoadedModel) -> dict[str, Any]:
    """What a calibration tells of the engine that was measured."""
    shape = loaded.executor.cache_shape
    return {name: getattr(options, name) for name in ENGINE_FIELDS} | {
        "max_num_batched_tokens": loaded.limits.max_num_batched_tokens,
        "max_model_len": loaded.limits.max_model_len,
        "num_blocks": shape.num_blocks,
        "block_size": shape.block_size,
    }


def machine_words() -> dict[str, str]:
    """What this machine calls itself."""
    import openvino

    import chairlift

    words = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "python": platform.python_version(),
        "openvino": str(openvino.__version__),
        "chairlift": chairlift.__version__,
    }
    return {name: word for name, word in words.items() if word}


def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


# ---------------------------------------------------------------- journals and profiles


def _read(paths: list[Path]) -> Calibration:
    """Raises InvalidJournal for a file that cannot be read, or is not a segment."""
    from chairlift.executors.openvino.buckets import buckets_up_to
    from chairlift.sim.calibrate.calibration import calibrate
    from chairlift.sim.calibrate.from_journal import steps_of_journal

    steps: list[Measured] = []
    for path in paths:
        first_group = 1 + steps[-1].group if steps else 0
        try:
            with path.open("rb") as file:
                steps += steps_of_journal(file, first_group)
        except OSError as error:
            raise InvalidJournal(f"{path}: {error.strerror or error}") from error
        except InvalidJournal as error:
            raise InvalidJournal(f"{path}: {error}") from error
    engine: dict[str, Any] = {"journal": ", ".join(path.name for path in paths)}
    most = max((step.shape.num_tokens for step in steps), default=1)
    return calibrate(steps, token_sizes=tuple(buckets_up_to(most)), source="journal", engine=engine)


def _read_profile(prefix: Path, num_layers: int | None, max_context: int) -> Calibration:
    """Raises InvalidOption for files that cannot be used, or a model that is not known by its name."""
    from chairlift.sim.calibrate.calibration import calibrate
    from chairlift.sim.calibrate.from_profile import steps_of_profile
    from chairlift.sim.cost.transformer import MODELS

    if num_layers is None:
        names = [name for name in MODELS if name in prefix.name.lower().split("__")]
        if not names:
            raise InvalidOption(f"no known model is named in {prefix.name}: give --num-layers")
        num_layers = MODELS[names[0]].num_layers
    steps = steps_of_profile(prefix, num_layers, max_context=max_context)
    engine: dict[str, Any] = {"profile": prefix.name, "num_layers": num_layers}
    return calibrate(steps, noise=0.0, source="profile", engine=engine)
