"""The flags that say how the engine schedules: how batches form, who goes first, how steps and memory are shared."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from chairlift.cli.numbers import count
from chairlift.core.policy import DYNAMIC_WAIT_S, SETTINGS, BatchingName, OrderName, Policy, ReservationName

DEFAULT = Policy()


def weights(text: str) -> dict[str, float]:
    """Weights by name, from a text such as a=2,b=1.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    result: dict[str, float] = {}
    for item in text.split(","):
        name, equals, weight = item.strip().rpartition("=")
        try:
            result[name.strip()] = float(weight)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise argparse.ArgumentTypeError(f"not weights such as name=2,other=1: {text!r}")
    return result


def add_policy_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the scheduler, named as in vLLM where it has them."""
    group = parser.add_argument_group("batches, steps and memory")
    group.add_argument(
        "--batching",
        choices=get_args(BatchingName),
        default=DEFAULT.batching,
        help="who may join when: a free slot at every step, or a batch at a time, which is held to its end; static "
        "waits until it is full or --max-batch-wait-ms, dynamic has a default for that (default: %(default)s)",
    )
    group.add_argument(
        "--max-batch-wait-ms",
        type=float,
        metavar="MS",
        help=f"how long the first of a static or dynamic batch waits for others (dynamic: {DYNAMIC_WAIT_S * 1e3:g})",
    )
    group.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=DEFAULT.enable_chunked_prefill,
        help="cut prompts into chunks that share steps with others; without, a prompt longer than "
        "--max-num-batched-tokens is refused (default: on)",
    )
    group.add_argument(
        "--prefill-first",
        action=argparse.BooleanOptionalAction,
        default=DEFAULT.prefill_first,
        help="a step computes prompts or decodes, prompts first: shows what mixed steps are for (default: off)",
    )
    group.add_argument(
        "--long-prefill-token-threshold",
        type=count,
        default=DEFAULT.long_prefill_token_threshold,
        metavar="TOKENS",
        help="most tokens of one prompt in a step that others want a part of (default: 0, no such bound)",
    )
    group.add_argument(
        "--itl-objective-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="inter-token latency to hold, by steering the number of sequences and the prompt tokens of a step "
        "(default: 0, none)",
    )
    group.add_argument(
        "--ttft-objective-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="time to first token to hold, by steering the prompt tokens of a step (default: 0, none)",
    )
    group.add_argument(
        "--kv-reservation",
        choices=get_args(ReservationName),
        default=DEFAULT.kv_reservation,
        help="cache for a sequence as it grows, or for its longest answer when it joins (default: %(default)s)",
    )
    group.add_argument(
        "--watermark",
        type=float,
        default=DEFAULT.watermark,
        metavar="SHARE",
        help="share of the cache left free when a sequence joins others (default: %(default)s)",
    )
    group = parser.add_argument_group("order")
    group.add_argument(
        "--scheduling-policy",
        choices=get_args(OrderName),
        default=DEFAULT.scheduling_policy,
        help="among requests of equal priority: first come, fair between users, or nearest deadline "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--tenant-weights",
        type=weights,
        default={},
        metavar="NAME=W,...",
        help="shares under fair, such as batch=1,chat=3 (default: 1 each)",
    )
    group.add_argument(
        "--priority-ageing-s",
        type=float,
        default=DEFAULT.priority_ageing_s,
        metavar="SECONDS",
        help="waiting so long lifts a request to the next better priority that waits; 0: never (default: %(default)g)",
    )
    group.add_argument(
        "--max-bypass",
        type=count,
        default=DEFAULT.max_bypass,
        metavar="N",
        help="how often later requests may pass one that does not fit yet (default: %(default)s)",
    )


def policy_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, by the names of `EngineOptions`."""
    return {name: getattr(arguments, name) for name in SETTINGS}
