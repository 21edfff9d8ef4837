"""`chairlift plan`: which rate can be served within latency objectives, and with which settings."""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from chairlift.bench.status_line import StatusLine
from chairlift.cli.config import flag_of
from chairlift.cli.disaggregated_flags import add_link_flags, check_link, link, split
from chairlift.cli.interrupt import EXIT_INTERRUPTED
from chairlift.cli.numbers import count
from chairlift.cli.options import add_config_flag
from chairlift.cli.results import check_path, write_json
from chairlift.cli.sim_engine_flags import add_simulated_engine_flags, engine_line, engine_setup
from chairlift.cli.sim_workload_flags import add_workload_flags, check_workload, workload
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import OrderName

if TYPE_CHECKING:
    from chairlift.sim.plan.offered import Offered
    from chairlift.sim.plan.report import Again
    from chairlift.sim.plan.search import Search
    from chairlift.sim.plan.setting import Space

MAX_NUM_SEQS = (16, 32, 64, 128, 256)
MAX_NUM_BATCHED_TOKENS = (256, 512, 1024, 2048, 4096, 8192)
"""What is tried of what nobody says."""
DEFAULT_ROUTER = "least-queued"
INTERVAL_S = 0.2
"""Between two updates of the progress line."""

Item = TypeVar("Item")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "plan",
        conflict_handler="resolve",
        help="find the highest rate within latency objectives, and the settings for it",
        description="Simulate a workload at many rates and with many settings: the highest rate that holds the "
        "objectives, the settings that reach it as flags of chairlift serve, and how sure that is. All runs are asked "
        "the same, only faster or slower. The same flags and seed give the same bytes.",
    )
    group = parser.add_argument_group("objectives", "Without any: the highest rate that does not pile up.")
    for name, what in (("ttft", "time to first token"), ("itl", "inter-token latency"), ("e2e", "end-to-end latency")):
        group.add_argument(f"--p99-{name}-ms", type=float, metavar="MS", help=f"{what} that all but 1 %% keep")
    group.add_argument(
        "--objective-percentile",
        type=float,
        default=99.0,
        metavar="P",
        help="another percentile for all of them (default: %(default)g)",
    )
    add_workload_flags(parser)
    add_simulated_engine_flags(parser)
    _add_space_flags(parser)
    add_link_flags(parser)
    group = parser.add_argument_group("search and results")
    group.add_argument(
        "--tolerance", type=float, default=0.01, metavar="SHARE", help="of a rate (default: %(default)g)"
    )
    group.add_argument(
        "--step-time-band",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="say the rate for steps so much longer and shorter too (default: %(default)g)",
    )
    group.add_argument(
        "--late-penalty",
        type=float,
        default=1.0,
        metavar="N",
        help="what a late or dropped request takes off the penalised goodput, in good ones (default: %(default)g)",
    )
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write the plan there")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress line")
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser, request_rate=None)


def _add_space_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of what is tried. Some take the place of flags of a single engine that take one value."""
    group = parser.add_argument_group("what is tried", "Each takes values with commas between them.")
    group.add_argument(
        "--max-num-seqs",
        type=_list_of(count),
        default=MAX_NUM_SEQS,
        metavar="N,...",
        help=f"most sequences at once (default: {','.join(map(str, MAX_NUM_SEQS))})",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=_list_of(count),
        default=MAX_NUM_BATCHED_TOKENS,
        metavar="TOKENS,...",
        help=f"most tokens computed in one step (default: {','.join(map(str, MAX_NUM_BATCHED_TOKENS))})",
    )
    group.add_argument(
        "--scheduling-policy",
        type=_list_of(_order),
        metavar="NAME,...",
        help=f"of {', '.join(get_args(OrderName))} (default: fcfs, and those that the workload has something for)",
    )
    group.add_argument(
        "--replicas", type=_list_of(count), metavar="N,...", help="engines (default: 1, or none if there is a --split)"
    )
    group.add_argument(
        "--router",
        type=_list_of(_router),
        default=(DEFAULT_ROUTER,),
        metavar="NAME,...",
        help=f"which of several engines serves a request (default: {DEFAULT_ROUTER})",
    )
    group.add_argument(
        "--split",
        type=_list_of(split),
        default=(),
        metavar="P:D,...",
        help="P engines that compute prompts and D that decode, with a link between them",
    )
    group = parser.add_argument_group("arrivals")
    group.add_argument(
        "--request-rate",
        type=float,
        metavar="RPS",
        help="say whether this rate holds too, and choose the fewest engines for it",
    )


def _list_of(item: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    def items(text: str) -> tuple[Item, ...]:
        return tuple(item(part.strip()) for part in text.split(","))

    return items


def _order(text: str) -> str:
    return _one_of(text, get_args(OrderName))


def _router(text: str) -> str:
    from chairlift.sim.router import ROUTERS

    return _one_of(text, tuple(ROUTERS))


def _one_of(text: str, names: tuple[str, ...]) -> str:
    if text not in names:
        raise argparse.ArgumentTypeError(f"not one of {', '.join(names)}: {text!r}")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the plan.

    Raises:
        InvalidOption: flags that make no sense.
    """
    check_path(arguments.output_json)
    from chairlift.sim.plan.objectives import Objectives
    from chairlift.sim.plan.offered import Offered
    from chairlift.sim.plan.report import plan_figures, to_lines
    from chairlift.sim.plan.search import Search
    from chairlift.sim.plan.trial import Stage

    rate = arguments.request_rate
    if rate is not None and not 0.0 < rate < math.inf:
        raise InvalidOption("--request-rate must be above 0")
    if not 0.0 < arguments.step_time_band < 1.0:
        raise InvalidOption("--step-time-band must be above 0 and below 1")
    if not 0.0 <= arguments.late_penalty < math.inf:
        raise InvalidOption("--late-penalty must be at least 0")
    if not 0.0 < arguments.tolerance <= 0.5:
        raise InvalidOption("--tolerance must be above 0 and at most 0.5")
    if not 0.0 < arguments.objective_percentile < 100.0:
        raise InvalidOption("--objective-percentile must be above 0 and below 100")
    if min(*arguments.max_num_seqs, *arguments.max_num_batched_tokens) < 1:
        raise InvalidOption("--max-num-seqs and --max-num-batched-tokens must be at least 1")
    if arguments.users is not None:
        raise InvalidOption("users who wait for their answers have no rate: leave out --users")
    check_workload(arguments, rate_is_asked=True)
    check_link(arguments)
    objectives = Objectives(
        ttft_s=_bound(arguments, "p99_ttft_ms"),
        itl_s=_bound(arguments, "p99_itl_ms"),
        e2e_s=_bound(arguments, "p99_e2e_ms"),
        percent=arguments.objective_percentile,
    )
    asked, one = copy.copy(arguments), copy.copy(arguments)
    asked.request_rate = 1.0 if rate is None else rate
    one.max_num_seqs, one.max_num_batched_tokens = arguments.max_num_seqs[0], arguments.max_num_batched_tokens[0]
    one.scheduling_policy = "fcfs"
    offered = Offered(lambda: workload(asked))
    stage = Stage(
        offered, engine_setup(one), objectives, link(arguments) if arguments.split else None, arguments.seed or 0
    )
    terminal = sys.stderr if sys.stderr.isatty() and not arguments.disable_tqdm else None
    progress = Progress(StatusLine(terminal, time.monotonic, INTERVAL_S))
    search = Search(stage, _space(arguments, offered), tolerance=arguments.tolerance, listener=progress.show)
    try:
        plan = search.plan(rate=rate, band=arguments.step_time_band, penalty=arguments.late_penalty)
    except KeyboardInterrupt:
        progress.clear()
        best = f"; {search.best_rate:.2f} requests/s hold so far" if search.best_rate else ""
        print(f"chairlift: stopped after {search.num_tried} settings in {stage.num_trials} runs{best}", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        progress.clear()
    figures = plan_figures(
        plan,
        stage,
        band=arguments.step_time_band,
        tolerance=arguments.tolerance,
        penalty=arguments.late_penalty,
        again=_again(arguments),
    )
    figures["assumed"] = engine_line(one, limits=False)
    print(to_lines(figures))
    if arguments.output_json is not None:
        write_json(arguments.output_json, figures)
    return 0


def _bound(arguments: argparse.Namespace, name: str) -> float:
    milliseconds = getattr(arguments, name)
    if milliseconds is None:
        return math.inf
    if not milliseconds > 0.0:
        raise InvalidOption(f"{flag_of(name)} must be above 0")
    return float(milliseconds) / 1e3


def _again(arguments: argparse.Namespace) -> Again:
    from chairlift.sim.plan.report import Again

    return Again(arguments.speed_up, arguments.duration)


def _space(arguments: argparse.Namespace, offered: Offered) -> Space:
    from chairlift.sim.plan.setting import Space, fleets

    replicas = arguments.replicas or (() if arguments.split else (1,))
    return Space(
        arguments.max_num_seqs,
        arguments.max_num_batched_tokens,
        arguments.scheduling_policy or _orders(offered),
        fleets(replicas, arguments.router, arguments.split),
    )


def _orders(offered: Offered) -> tuple[OrderName, ...]:
    """Those that do not all do the same on a workload."""
    orders: list[OrderName] = ["fcfs"]
    if offered.differ(lambda asked: asked.priority):
        orders.append("priority")
    if offered.differ(lambda asked: (asked.principal, asked.tenant)):
        orders.append("fair")
    if offered.differ(lambda asked: (asked.ttft_within_s, asked.e2e_within_s)):
        orders.append("deadline")
    return tuple(orders)


class Progress:
    """How far a search is, on one line of a terminal."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status

    def show(self, search: Search) -> None:
        if self._status.due() is None:
            return
        best = f", {search.best_rate:.2f} requests/s hold so far" if search.best_rate else ""
        self._status.show(f"{search.num_tried} settings tried, {search.stage.num_trials} runs{best}")

    def clear(self) -> None:
        """Take the line away."""
        self._status.show("")
