"""`chairlift bench compare-batching`: one model, one traffic, three ways to form batches, one table."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from chairlift.bench import compare_batching as bench
from chairlift.bench.in_process import Listener, Loop
from chairlift.cli.loading import loading
from chairlift.cli.options import add_config_flag, add_engine_flags, ready_options
from chairlift.cli.results import check_path, write_json
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy

MAX_NUM_SEQS = 64
"""Slots unless told otherwise: more make a held batch longer still."""


def add_form(forms: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the form of `chairlift bench`."""
    parser = forms.add_parser(
        "compare-batching",
        help="serve the same traffic under static, dynamic and continuous batching, in one table",
        description="Serve the same traffic under static, dynamic and continuous batching, in this process, and print "
        "one table. A static batch starts when it is full or nothing more comes, a dynamic one when it has waited "
        "--max-batch-wait-ms as well; both are held to the end of their longest member.",
    )
    group = parser.add_argument_group("traffic", "Arrivals are a Poisson process, lengths of answers log-normal.")
    group.add_argument("--num-prompts", type=int, default=400, metavar="N", help="requests (default: %(default)s)")
    group.add_argument(
        "--request-rate",
        type=request_rate,
        metavar="RPS",
        help="requests per second (default: auto, measured: more than static batching can serve, less than continuous)",
    )
    group.add_argument("--prompt-tokens", type=int, default=16, metavar="N", help="of each (default: %(default)s)")
    group.add_argument(
        "--output-median", type=float, default=30.0, metavar="N", help="tokens of an answer (default: %(default)g)"
    )
    group.add_argument(
        "--output-sigma",
        type=float,
        default=1.0,
        metavar="S",
        help="standard deviation of the logarithm of an answer's tokens; 0: all equal (default: %(default)g)",
    )
    group.add_argument("--output-max", type=int, default=512, metavar="N", help="tokens at most (default: %(default)s)")
    add_engine_flags(parser, positional_model=True)
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress line")
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser, max_num_seqs=MAX_NUM_SEQS)


def request_rate(text: str) -> float | None:
    """Requests per second; None for auto.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    if text == "auto":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0.0:
        raise argparse.ArgumentTypeError(f"neither a rate above 0 nor auto: {text!r}")
    return rate


def run(arguments: argparse.Namespace) -> int:
    """Measure all three."""
    from chairlift.cli.in_process import EngineThread, Progress
    from chairlift.worker.build import load

    check_path(arguments.output_json)
    if arguments.batching != "continuous":
        raise InvalidOption("compare-batching serves under all three batchings: leave out --batching")
    if arguments.journal is not None:
        raise InvalidOption("compare-batching keeps no journal: leave out --journal")
    if arguments.prefill_first:
        raise InvalidOption("compare-batching serves under all three batchings: leave out --prefill-first")
    if arguments.max_batch_wait_ms is not None:
        arguments.batching = "dynamic"
    options = ready_options(arguments)
    traffic = bench.Traffic(
        num_prompts=arguments.num_prompts,
        prompt_tokens=arguments.prompt_tokens,
        output_median=arguments.output_median,
        output_sigma=arguments.output_sigma,
        output_max=arguments.output_max,
        seed=arguments.seed or 0,
    )
    with loading(options.model, sys.stderr):
        loaded = load(options)
    vocab_size = loaded.model.config.vocab_size

    def start(policy: Policy, listener: Listener) -> Loop:
        return EngineThread(loaded.engine(policy, listener), listener, time.monotonic)

    policy, max_num_seqs = options.policy(), options.max_num_seqs
    rate: float | None = arguments.request_rate
    capacity = None
    if rate is None:
        capacity = bench.measure_capacity(
            start, policy, traffic, vocab_size, max_num_seqs, clock=time.monotonic, sleep=time.sleep
        )
        rate = capacity.rate
        print(
            f"about {capacity.static:.2f} requests/s can be served in static batches, {capacity.continuous:.2f} "
            f"continuously: asking {rate:.2f}",
            file=sys.stderr,
        )
    progress = Progress(sys.stderr if sys.stderr.isatty() and not arguments.disable_tqdm else None, time.monotonic)
    rows = bench.compare(
        start,
        policy,
        traffic,
        rate,
        vocab_size,
        max_num_seqs,
        clock=time.monotonic,
        sleep=time.sleep,
        show=progress.of,
    )
    progress.clear()
    print(bench.to_headline(traffic, rate, max_num_seqs))
    print(bench.to_table(rows))
    print(bench.to_verdict(rows))
    if arguments.output_json is not None:
        figures = bench.to_json(traffic, rate, capacity, max_num_seqs, rows) | {"model": loaded.model.name}
        write_json(arguments.output_json, figures)
    return 0
