"""The flags of prefill and decode pools: how keys and values get from one to the other."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from chairlift.cli.config import flag_of
from chairlift.cli.numbers import count
from chairlift.core.errors import InvalidOption

if TYPE_CHECKING:
    from chairlift.sim.disaggregated import Link
    from chairlift.sim.fleet import EngineSetup


def add_link_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the link between the pools."""
    group = parser.add_argument_group("link between prefill and decode engines")
    group.add_argument(
        "--kv-link-gb-s",
        type=float,
        default=25.0,
        metavar="GB/S",
        help="bandwidth of one transfer in gigabytes a second (default: %(default)g, as 200 Gbit/s)",
    )
    group.add_argument(
        "--kv-link-ms", type=float, default=0.1, metavar="MS", help="latency of a transfer (default: %(default)g)"
    )
    group.add_argument(
        "--kv-token-bytes",
        type=count,
        metavar="BYTES",
        help="keys and values of one token (default: as of --model in --kv-cache-dtype)",
    )


def add_split_flag(parser: argparse.ArgumentParser) -> None:
    """The flag that makes two pools of a fleet, with those of the link between them."""
    add_link_flags(parser)
    group = parser.add_argument_group("fleet")
    group.add_argument(
        "--split",
        type=split,
        metavar="P:D",
        help="the first P engines compute prompts and the other D decode; without --replica they are all alike",
    )


def check_link(arguments: argparse.Namespace) -> None:
    """Raises InvalidOption for flags of a link that is not there."""
    default = arguments.parser.get_default
    for name in ("kv_link_gb_s", "kv_link_ms", "kv_token_bytes"):
        if not arguments.split and getattr(arguments, name) != default(name):
            raise InvalidOption(f"{flag_of(name)} is of the link that --split makes: leave it out")


def pool_setups(setups: list[EngineSetup], pools: tuple[int, int]) -> list[EngineSetup]:
    """Engines for two pools, of those that the flags of a fleet describe: as many, or one for all to be like.

    Raises:
        InvalidOption: another number.
    """
    from chairlift.sim.fleet import MAX_ENGINES

    num_prefill, num_decode = pools
    if num_prefill + num_decode > MAX_ENGINES:
        raise InvalidOption(f"--split makes at most {MAX_ENGINES} engines")
    if len(setups) == 1:
        setups = setups * (num_prefill + num_decode)
    if len(setups) != num_prefill + num_decode:
        raise InvalidOption(f"--split {num_prefill}:{num_decode} is not of {len(setups)} engines")
    decode = [replace(setup, enable_prefix_caching=True) for setup in setups[num_prefill:]]
    return [*setups[:num_prefill], *decode]


def link(arguments: argparse.Namespace) -> Link:
    """The link that these flags describe.

    Raises:
        InvalidOption: a value out of range, or a model that nobody knows.
    """
    from chairlift.sim.cost.roofline import TOKEN_BYTES
    from chairlift.sim.cost.transformer import transformer_named
    from chairlift.sim.disaggregated import Link

    token_bytes = arguments.kv_token_bytes
    if token_bytes is None:
        numbers = transformer_named(arguments.model).num_kv_numbers
        token_bytes = math.ceil(numbers * TOKEN_BYTES[arguments.kv_cache_dtype])
    if not arguments.kv_link_gb_s > 0.0 or not 0.0 <= arguments.kv_link_ms < math.inf:
        raise InvalidOption("--kv-link-gb-s must be above 0, and --kv-link-ms at least 0")
    return Link(token_bytes=token_bytes, bandwidth=arguments.kv_link_gb_s * 1e9, latency_s=arguments.kv_link_ms / 1e3)


def split(text: str) -> tuple[int, int]:
    """Numbers of prefill and decode engines from a text such as 1:3.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    prefill, colon, decode = text.partition(":")
    try:
        pools = int(prefill), int(decode)
    except ValueError:
        pools = 0, 0
    if not colon or min(pools) < 1:
        raise argparse.ArgumentTypeError(f"not prefill and decode engines such as 1:3: {text!r}")
    return pools
