"""`chairlift bench`: serve (load on a server), throughput (offline), sweep (servers with different settings).

`compare-batching` and `fidelity` have modules of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chairlift.cli import bench_flags as flags
from chairlift.cli import compare_batching, fidelity
from chairlift.cli.loading import loading
from chairlift.cli.options import add_config_flag, add_engine_flags, ready_options
from chairlift.cli.results import check_path, write_json
from chairlift.core.errors import ChairliftError, InvalidOption

if TYPE_CHECKING:
    from chairlift.bench.arrivals import Arrivals
    from chairlift.bench.datasets import Sample
    from chairlift.bench.load import Load

_T = TypeVar("_T")

SWEPT = ("--max-num-seqs", "--max-num-batched-tokens", "--dtype", "--kv-cache-dtype")
"""Flags of `chairlift serve` that a sweep can vary."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and its forms."""
    bench = commands.add_parser("bench", help="measure a server, or the engine without one")
    bench.set_defaults(parser=bench)
    forms = bench.add_subparsers(title="forms", metavar="FORM")
    _add_serve(forms)
    _add_throughput(forms)
    _add_sweep(forms)
    compare_batching.add_form(forms)
    fidelity.add_form(forms)


def _add_serve(forms: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = forms.add_parser(
        "serve",
        help="put a load on a running OpenAI-compatible server",
        description="Put a load on a running OpenAI-compatible server: open loop with --request-rate, closed loop "
        "with --max-concurrency. Flags, table and JSON fields are those of vllm bench serve.",
    )
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", help="such as http://127.0.0.1:8000; or give --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    group.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    group.add_argument(
        "--ready-check-timeout-sec", type=float, default=0.0, metavar="SECONDS", help="wait so long for /health first"
    )
    flags.add_load_flags(parser)
    parser.add_argument("--request-rate", type=float, default=math.inf, metavar="RPS", help="default: inf, all at once")
    flags.add_ramp_flags(parser)
    flags.add_dataset_flags(parser, num_prompts=1000)
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    flags.add_report_flags(parser)
    group = parser.add_argument_group("result")
    group.add_argument("--save-result", action="store_true", help="write the figures to a JSON file")
    group.add_argument("--save-detailed", action="store_true", help="with the times and text of every request")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR", help="default: here")
    group.add_argument("--result-filename", metavar="NAME", help="default: made of backend, rate, model and time")
    group.add_argument("--label", help="name of the run in the result (default: the backend)")
    group.add_argument("--metadata", nargs="*", metavar="KEY=VALUE", help="further fields of the result")
    add_config_flag(parser)
    parser.set_defaults(run=run_serve, parser=parser)


def _add_throughput(forms: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "measure the engine in this process, without a server"
    parser = forms.add_parser("throughput", help=what, description=f"{what.capitalize()}: all prompts at once.")
    add_engine_flags(parser, positional_model=True)
    parser.add_argument("--concurrency", type=int, metavar="N", help="the same as --max-num-seqs")
    flags.add_dataset_flags(parser, num_prompts=64)
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    add_config_flag(parser)
    parser.set_defaults(run=run_throughput, parser=parser)


def _add_sweep(forms: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = forms.add_parser(
        "sweep",
        help="compare settings: a server for each, the same load on all, one table and, if wanted, a plot",
        description="Start a server for each combination of the swept flags, put the same load on each, and print one "
        "table. Lists are separated by commas: --max-num-seqs 16,64,256.",
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="model to serve (default: as for serve)")
    group = parser.add_argument_group("swept")
    for name in SWEPT:
        group.add_argument(name, metavar="LIST", help="values for that flag of serve (default: its own)")
    group.add_argument("--request-rate", default="inf", metavar="LIST", help="in requests per second (default: inf)")
    parser.add_argument("--serve-args", default="", metavar="FLAGS", help="further flags of serve, quoted as one")
    parser.add_argument("--ready-timeout", type=float, default=300.0, metavar="SECONDS", help="default: %(default)s")
    flags.add_load_flags(parser)
    flags.add_dataset_flags(parser, num_prompts=200)
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png, .svg or .pdf (needs matplotlib)")
    add_config_flag(parser)
    parser.set_defaults(run=run_sweep, parser=parser)


# ---------------------------------------------------------------- the load, shared by serve and sweep


@dataclass(frozen=True, slots=True)
class _Questions:
    """What to ask, and how; the same for every server and rate."""

    samples: Sequence[Sample]
    extra: Mapping[str, Any]
    headers: tuple[tuple[str, str], ...]


def _questions(arguments: argparse.Namespace) -> _Questions:
    """Raises InvalidOption on flags that make no sense, before anybody is asked anything."""
    if arguments.max_concurrency is not None and arguments.max_concurrency < 1:
        raise InvalidOption("--max-concurrency must be at least 1")
    if arguments.request_timeout <= 0.0:
        raise InvalidOption("--request-timeout must be positive")
    return _Questions(
        extra=flags.extra_fields(arguments),
        headers=flags.headers(arguments, arguments.api_key or os.environ.get("OPENAI_API_KEY")),
        samples=flags.samples(arguments, chat=arguments.backend == "openai-chat"),
    )


async def _measure(
    base_url: str, questions: _Questions, arrivals: Arrivals, arguments: argparse.Namespace
) -> tuple[Load, str]:
    """Put a load on a server. Returns what came of it and the name of the model asked.

    Raises:
        ChairliftError: the server names no model, or fails the first warm-up.
    """
    from chairlift.bench.http_client import HttpClient
    from chairlift.bench.load import run_load
    from chairlift.bench.openai_client import Form, OpenAIClient, first_model, wait_until_ready
    from chairlift.bench.progress import ProgressLine

    clock = time.perf_counter
    samples = questions.samples
    http = HttpClient(base_url, clock=clock, timeout_s=arguments.request_timeout)
    try:
        if timeout := getattr(arguments, "ready_check_timeout_sec", 0.0):
            await wait_until_ready(http, timeout)
        form = Form(
            model=arguments.model or await first_model(http, questions.headers),
            path=arguments.endpoint or flags.BACKENDS[arguments.backend],
            chat=arguments.backend == "openai-chat",
            stream=arguments.stream,
            ignore_eos=arguments.ignore_eos,
            extra=questions.extra,
            headers=questions.headers,
        )
        client = OpenAIClient(http, form, clock)
        for i in range(arguments.num_warmups):
            exchange = await client.ask(samples[i % len(samples)])
            if exchange.error is not None:
                raise ChairliftError(f"the server failed the warm-up: {exchange.error}")
        progress = ProgressLine(sys.stderr, lambda: client.num_chunks, clock)

        def show(load: Load) -> None:
            progress.load = None if arguments.disable_tqdm else load

        async with progress.shown():
            load = await run_load(
                samples,
                arrivals.times(len(samples), arguments.seed),
                client.ask,
                max_concurrency=arguments.max_concurrency,
                clock=clock,
                on_start=show,
            )
        return load, form.model
    finally:
        await http.close()


def _run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run on uvloop where there is one: its sockets cost the client half as much."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        factory = import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _print_errors(load: Load) -> None:
    errors = Counter(exchange.error for exchange in load.exchanges if exchange.error is not None)
    for error, count in errors.most_common(5):
        print(f"{count} failed: {error}", file=sys.stderr)


# ---------------------------------------------------------------- serve


def run_serve(arguments: argparse.Namespace) -> int:
    """Measure a running server; status 1 if no request succeeded."""
    from chairlift.bench.report import make_report, to_json, to_text

    if arguments.save_result or arguments.save_detailed:
        check_path(arguments.result_dir / (arguments.result_filename or "result.json"))
    wanted = flags.wanted(arguments)
    metadata = flags.pairs("--metadata", arguments.metadata)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    base_url = arguments.base_url or f"http://{host}:{arguments.port}"
    arrivals = flags.arrivals(arguments, arguments.request_rate)
    load, model = _run_loop(_measure(base_url, _questions(arguments), arrivals, arguments))
    report = make_report(load, wanted)
    rate = arguments.request_rate if math.isfinite(arguments.request_rate) else None
    print(to_text(report, max_concurrency=arguments.max_concurrency, request_rate=rate))
    _print_errors(load)
    if arguments.save_result or arguments.save_detailed:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        result = {
            "date": now,
            "backend": arguments.backend,
            "label": arguments.label,
            "model_id": model,
            "tokenizer_id": arguments.tokenizer,
            "num_prompts": arguments.num_prompts,
            "request_rate": "inf" if rate is None else rate,
            "burstiness": arguments.burstiness,
            "max_concurrency": arguments.max_concurrency,
            **metadata,
            **to_json(report, detailed=arguments.save_detailed),
        }
        limit = "" if arguments.max_concurrency is None else f"-concurrency{arguments.max_concurrency}"
        label = arguments.label or arguments.backend
        default = f"{label}-{arguments.request_rate}qps{limit}-{model.rpartition('/')[2]}-{now}.json"
        path = arguments.result_dir / (arguments.result_filename or default)
        write_json(path, result)
        print(f"Result written to {path}", file=sys.stderr)
    return 0 if report.answered else 1


# ---------------------------------------------------------------- throughput


def run_throughput(arguments: argparse.Namespace) -> int:
    """Measure the engine in this process."""
    from chairlift.bench.throughput import measure_throughput
    from chairlift.llm import LLM
    from chairlift.worker.build import build

    check_path(arguments.output_json)
    options = ready_options(arguments)
    if arguments.concurrency is not None:
        options = replace(options, max_num_seqs=arguments.concurrency)
    samples = flags.samples(arguments, chat=False)
    begun = time.perf_counter()
    with loading(options.model, sys.stderr):
        built = build(options)
    load_s = time.perf_counter() - begun
    with LLM.from_built(built) as llm:
        throughput = measure_throughput(
            llm,
            samples,
            ignore_eos=arguments.ignore_eos,
            clock=time.perf_counter,
            use_tqdm=not arguments.disable_tqdm and sys.stderr.isatty(),
        )
    print(throughput.to_text())
    print(f"Model ready after {load_s:.2f} s")
    if arguments.output_json is not None:
        figures = throughput.to_json() | {"load_s": load_s, "max_num_seqs": options.max_num_seqs}
        write_json(arguments.output_json, figures)
    return 0


# ---------------------------------------------------------------- sweep


def run_sweep(arguments: argparse.Namespace) -> int:
    """Measure a server for each setting; status 1 if a load was answered by none."""
    from chairlift.bench import sweep
    from chairlift.bench.report import Wanted, make_report
    from chairlift.bench.server_process import served

    check_path(arguments.output_json)
    check_path(arguments.plot)
    figure = None if arguments.plot is None else _figure()
    given = {name: getattr(arguments, name.removeprefix("--").replace("-", "_")) for name in SWEPT}
    lists = {name: [part.strip() for part in text.split(",")] for name, text in given.items() if text is not None}
    rates = flags.numbers("--request-rate", arguments.request_rate)
    questions = _questions(arguments)
    loads = [(rate, flags.arrivals(arguments, rate)) for rate in rates]
    command = [sys.executable, "-m", "chairlift", "serve"]
    command += [*([arguments.model_tag] if arguments.model_tag else []), *shlex.split(arguments.serve_args)]
    points: list[sweep.Point] = []

    async def measure_all() -> None:
        for setting in sweep.settings(lists):
            server = [*command, *(word for pair in setting.items() for word in pair)]
            async with served(server, clock=time.perf_counter, ready_timeout_s=arguments.ready_timeout) as url:
                for rate, arrivals in loads:
                    load, _ = await _measure(url, questions, arrivals, arguments)
                    points.append(sweep.Point(setting, rate, make_report(load, Wanted(percentiles=sweep.PERCENTS))))
                    print(f"measured {points[-1].label}", file=sys.stderr)
                    _print_errors(load)

    _run_loop(measure_all())
    print(sweep.to_table(points))
    if arguments.output_json is not None:
        write_json(arguments.output_json, [point.to_json() for point in points])
    if figure is not None:
        sweep.draw(points, figure, arguments.plot)
        print(f"Plot written to {arguments.plot}", file=sys.stderr)
    return 0 if all(point.report.answered for point in points) else 1


def _figure() -> Any:
    """An empty matplotlib figure; asked for before anything is measured.

    Raises:
        InvalidOption: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib.figure").Figure()
    except ImportError as error:
        raise InvalidOption("--plot needs matplotlib: pip install matplotlib") from error
