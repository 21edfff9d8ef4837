"""The flags that say what is simulated: the scheduler's own, the device behind it, and how many engines there are."""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from chairlift.cli.numbers import count
from chairlift.cli.policy_flags import add_policy_flags, policy_options
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy, policy_of
from chairlift.sim.cost import (
    DEVICES,
    LESSON,
    MODELS,
    CostModel,
    HostCosts,
    Precision,
    SmoothCost,
    WatchedCost,
    device_named,
    num_kv_tokens,
    smooth_roofline,
    transformer_named,
)
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.cost.roofline import TOKEN_BYTES
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.fleet import MAX_ENGINES, EngineSetup
from chairlift.sim.router import ROUTERS
from chairlift.sim.rules.peak import PeakTokens

DEFAULT_MAX_NUM_SEQS = 256
MAX_NUM_SEQS = 1 << 16
MAX_NUM_BLOCKS = 1 << 27
"""As many take some gigabytes of memory here."""
DEFAULT_KV_CACHE_TOKENS = 1 << 20
"""Where no device says how many there are room for."""

MAX_PLAIN_COST_US = 1e12
"""A cost that is more than eleven days is a mistake."""


def add_simulated_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of one simulated engine."""
    group = parser.add_argument_group("limits and cache")
    group.add_argument(
        "--max-num-seqs",
        type=count,
        metavar="N",
        help=f"most sequences at once (default: {DEFAULT_MAX_NUM_SEQS}, or --max-num-batched-tokens if that is less)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=count,
        default=2048,
        metavar="TOKENS",
        help="most tokens computed in one step (default: %(default)s)",
    )
    group.add_argument(
        "--max-model-len",
        type=count,
        default=1 << 20,
        metavar="TOKENS",
        help="longest sequence, prompt and output together (default: what the cache can hold)",
    )
    group.add_argument(
        "--kv-cache-tokens",
        type=count,
        metavar="TOKENS",
        help="size of the cache (default: what fits beside the weights; with a calibration that of the engine it "
        "measured; else 1M)",
    )
    group.add_argument(
        "--block-size", type=count, default=16, metavar="TOKENS", help="of a cache block (default: %(default)s)"
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the keys and values of prompts that may come again (default: on)",
    )
    group.add_argument(
        "--max-step-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="longest step to plan for, as a server on a CPU does with 250 (default: 0, no such bound)",
    )
    group.add_argument(
        "--join-by-peak",
        type=count,
        nargs="?",
        const=0,
        metavar="DECODES",
        help="let one join if the most that all hold at one time fits into the cache, so that nobody is preempted, and "
        "the next only after so many decode steps (default: 0), as LightLLM and S-LoRA do with 10",
    )
    group.add_argument(
        "--adapter-tokens",
        type=count,
        default=0,
        metavar="TOKENS",
        help="with --join-by-peak: of the cache, for each principal who runs besides: 32 in S-LoRA, 4 for each of 8 "
        "ranks of an adapter (default: %(default)s)",
    )
    group.add_argument(
        "--charge-ahead",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="under fair scheduling, charge who joins for as much output as is expected; without, as it comes, as "
        "published for VTC (default: on)",
    )
    add_policy_flags(parser)
    _add_cost_flags(parser)


def _add_cost_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "device", "How long steps take: as calibrated, or by data sheets (expect 15 % of error)."
    )
    group.add_argument("--calibration", type=Path, metavar="FILE", help="what chairlift calibrate measured")
    group.add_argument(
        "--model",
        default="llama-3.1-8b",
        metavar="MODEL",
        help=f"a config.json, or one of {', '.join(MODELS)} (default: %(default)s)",
    )
    group.add_argument(
        "--device", default="h100", metavar="NAME", help=f"one of {', '.join(DEVICES)} (default: %(default)s)"
    )
    group.add_argument(
        "--tensor-parallel-size", type=count, default=1, metavar="N", help="devices of one engine (default: 1)"
    )
    group.add_argument(
        "--dtype", choices=tuple(TOKEN_BYTES), default="bfloat16", help="precision of the weights (default: bfloat16)"
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=tuple(TOKEN_BYTES),
        default="bfloat16",
        help="precision of cached keys and values (default: bfloat16)",
    )
    group.add_argument(
        "--host-step-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="what the processor does between two steps of the device (default: 0)",
    )
    group.add_argument(
        "--host-overlaps",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="while the device computes, so that only what is longer counts (default: off)",
    )
    group.add_argument(
        "--step-factor",
        type=float,
        default=1.0,
        metavar="F",
        help="each step takes F times as long as all that says (default: %(default)g)",
    )
    group.add_argument(
        "--plain-cost",
        type=plain_cost,
        metavar="STEP[:ROW[:CONTEXT[:CHUNK]]]",
        help="microseconds of a step, of a decoding row, of a cached token it reads, of a prompt token, instead of a "
        "device; or lesson, the roofline of that preset",
    )
    group.add_argument(
        "--noise",
        type=noise,
        default=0.0,
        metavar="SIGMA|measured",
        help="standard deviation of the logarithm of what multiplies each step's time; measured: by how much steps "
        "differed when --calibration was made (default: 0)",
    )


def noise(text: str) -> float | None:
    """A standard deviation; None for what was measured.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    if text == "measured":
        return None
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0.0 <= sigma < 10.0:
        raise argparse.ArgumentTypeError(f"neither a number of at least 0 and below 10 nor measured: {text!r}")
    return sigma


def add_fleet_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of several engines."""
    group = parser.add_argument_group("fleet")
    group.add_argument("--replicas", type=count, default=1, metavar="N", help="engines (default: 1)")
    group.add_argument(
        "--replica",
        action="append",
        metavar="FLAG=VALUE,...",
        help="engines that differ from the others in these flags, such as count=2,device=a100-80gb,max-num-seqs=64; "
        "may be repeated, and takes the place of --replicas",
    )
    group.add_argument(
        "--router",
        choices=tuple(ROUTERS),
        default="least-queued",
        help="which engine serves a request (default: %(default)s)",
    )


def plain_cost(text: str) -> CostModel:
    """Raises argparse.ArgumentTypeError for what is no cost."""
    if text == "lesson":
        return LESSON
    try:
        micros = [float(field) for field in text.split(":")]
        if max(micros) > MAX_PLAIN_COST_US:
            raise ValueError(text)
        return PlainCost(*(value * 1e-6 for value in micros))
    except (ValueError, TypeError, InvalidOption) as error:
        raise argparse.ArgumentTypeError(f"not a cost such as 5000:20:0.05:30: {text!r}") from error


def engine_setups(arguments: argparse.Namespace) -> list[EngineSetup]:
    """The engines that these flags describe.

    Raises:
        InvalidOption: a value out of range, or a name that nothing has.
    """
    if not arguments.replica:
        if not 1 <= arguments.replicas <= MAX_ENGINES:
            raise InvalidOption(f"--replicas must be between 1 and {MAX_ENGINES}")
        return [engine_setup(arguments)] * arguments.replicas
    if arguments.replicas != 1:
        raise InvalidOption("--replica takes the place of --replicas: leave one of them out")
    setups: list[EngineSetup] = []
    for text in arguments.replica:
        number, overridden = _override(arguments, text)
        if not 1 <= number <= MAX_ENGINES - len(setups):
            raise InvalidOption(f"--replica: a fleet has at least 1 engine of each kind, and at most {MAX_ENGINES}")
        setups += [engine_setup(overridden)] * number
    return setups


def engine_lines(arguments: argparse.Namespace) -> list[str]:
    """What is assumed of each kind of engine, for who reads the results."""
    if not arguments.replica:
        return [engine_line(arguments)]
    kinds = [_override(arguments, text) for text in arguments.replica]
    return [f"{number} x {engine_line(overridden)}" for number, overridden in kinds]


def engine_line(arguments: argparse.Namespace, *, limits: bool = True) -> str:
    """Model, device, cache and limits of one engine."""
    setup = engine_setup(arguments)
    num_tokens = setup.num_blocks * setup.block_size
    kept = "" if setup.enable_prefix_caching else ", no prefix cache"
    parts = [_device_line(arguments), f"cache of {num_tokens} tokens in blocks of {setup.block_size}{kept}"]
    if limits:
        policy = setup.policy
        batching = "" if policy.batching == "continuous" else f"{policy.batching} batching, "
        parts.append(
            f"{batching}{setup.max_num_seqs} sequences and {setup.max_num_batched_tokens} tokens a step at most, "
            f"{policy.scheduling_policy}"
        )
    return "; ".join(parts)


def _device_line(arguments: argparse.Namespace) -> str:
    if isinstance(cost := arguments.plain_cost, PlainCost):
        micros = (cost.step_s, cost.row_s, cost.context_token_s, cost.chunk_token_s)
        text = "steps of {:g} us, {:g} a row, {:g} a cached token, {:g} a prompt token".format(
            *(round(seconds * 1e6, 9) for seconds in micros)
        )
    elif cost is not None:
        text = "the device of the lesson"
    elif arguments.calibration is not None:
        text = f"as calibrated in {arguments.calibration}"
    else:
        number = arguments.tensor_parallel_size
        device = arguments.device if number == 1 else f"{number} x {arguments.device}"
        cached = "" if arguments.kv_cache_dtype == arguments.dtype else f", cached in {arguments.kv_cache_dtype}"
        text = f"{arguments.model} ({arguments.dtype}{cached}) on {device}, by data sheet"
    if arguments.step_factor != 1.0:
        text += f", steps times {arguments.step_factor:g}"
    return text if not arguments.noise else f"{text}, noise {arguments.noise:g}"


class _Overrides(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidOption(f"--replica: {message}")


def _override(arguments: argparse.Namespace, text: str) -> tuple[int, argparse.Namespace]:
    """How many engines, and their flags: those of the command with what `text` says of these."""
    argv, number = [], 1
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        name = name.replace("_", "-")
        if name == "count" and equals:
            try:
                number = count(value)
            except argparse.ArgumentTypeError as error:
                raise InvalidOption(f"--replica: {error}") from error
            continue
        argv.append(f"--{name}={value}" if equals else f"--{name}")
    parser = _Overrides(add_help=False, allow_abbrev=False)
    add_simulated_engine_flags(parser)
    return number, parser.parse_args(argv, copy.copy(arguments))


def engine_setup(arguments: argparse.Namespace) -> EngineSetup:
    """One engine.

    Raises:
        InvalidOption: see `engine_setups`.
    """
    cost, num_tokens, deviations = _cost(arguments)
    if arguments.noise is None and not deviations:
        raise InvalidOption("--noise measured needs a --calibration that was made on a machine")
    num_tokens = num_tokens if arguments.kv_cache_tokens is None else arguments.kv_cache_tokens
    if arguments.block_size < 1 or num_tokens < arguments.block_size:
        raise InvalidOption("the cache must hold a block, and a block a token")
    if num_tokens // arguments.block_size > MAX_NUM_BLOCKS:
        raise InvalidOption(f"--kv-cache-tokens must be at most {MAX_NUM_BLOCKS} times --block-size")
    max_num_seqs = arguments.max_num_seqs
    if max_num_seqs is None:
        max_num_seqs = max(1, min(DEFAULT_MAX_NUM_SEQS, arguments.max_num_batched_tokens))
    if max_num_seqs > MAX_NUM_SEQS:
        raise InvalidOption(f"--max-num-seqs must be at most {MAX_NUM_SEQS}")
    num_blocks, rule = num_tokens // arguments.block_size, None
    if arguments.join_by_peak is not None:
        rule = PeakTokens(num_tokens, arguments.join_by_peak, arguments.adapter_tokens)
        # The rule says what fits: last blocks that are not full must not say otherwise.
        num_blocks += max_num_seqs
    return EngineSetup(
        cost=scaled(cost, arguments.step_factor),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_model_len=arguments.max_model_len,
        num_blocks=num_blocks,
        block_size=arguments.block_size,
        enable_prefix_caching=arguments.enable_prefix_caching,
        policy=simulated_policy(arguments),
        noise=arguments.noise or 0.0,
        deviations=deviations if arguments.noise is None else (),
        join_rule=rule,
    )


def simulated_policy(arguments: argparse.Namespace) -> Policy:
    """What the scheduler is told. Unlike a server, a simulation may let a static batch wait until nothing more comes.

    Raises:
        InvalidOption: a value that makes no sense.
    """
    policy = policy_of(policy_options(arguments), max_step_s=arguments.max_step_ms / 1e3)
    return replace(policy, charges_ahead=arguments.charge_ahead)


def _cost(arguments: argparse.Namespace) -> tuple[CostModel, int, tuple[float, ...]]:
    """What steps cost, how many tokens the cache holds if nobody says, and by how much steps differed if measured."""
    if arguments.plain_cost is not None:
        return arguments.plain_cost, DEFAULT_KV_CACHE_TOKENS, ()
    if not 0.0 <= arguments.host_step_ms < float("inf"):
        raise InvalidOption("--host-step-ms must be at least 0")
    host = HostCosts(step_s=arguments.host_step_ms / 1e3, overlaps=arguments.host_overlaps)
    if arguments.calibration is not None:
        from chairlift.sim.calibrate.calibration import load_calibration

        calibration = load_calibration(arguments.calibration)
        cost = calibration.cost(lambda text: print(f"chairlift: {text}", file=sys.stderr))
        if isinstance(cost, WatchedCost) and isinstance(cost.cost, SmoothCost) and arguments.host_step_ms:
            cost = WatchedCost(cost.cost.with_host(host), cost.spans, cost.warn)
        return cost, calibration.num_cache_tokens or DEFAULT_KV_CACHE_TOKENS, calibration.deviations
    model, device = transformer_named(arguments.model), device_named(arguments.device)
    num_devices, precision = arguments.tensor_parallel_size, Precision(arguments.dtype, arguments.kv_cache_dtype)
    cost = smooth_roofline(model, device, num_devices=num_devices, precision=precision, host=host)
    return cost, num_kv_tokens(model, device, num_devices=num_devices, precision=precision), ()
