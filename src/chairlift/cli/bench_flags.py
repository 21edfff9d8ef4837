"""The flags of a benchmark's load, named as in `vllm bench`, and what they say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from chairlift.bench.arrivals import Arrivals, RampUp
from chairlift.bench.datasets import Sample, custom_samples, random_samples, sharegpt_samples
from chairlift.bench.report import TITLES, Wanted
from chairlift.cli.numbers import named_limit
from chairlift.core.errors import InvalidOption

if TYPE_CHECKING:
    from chairlift.text.tokenizer import Tokenizer

BACKENDS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
"""Kind of API to its default endpoint."""


def add_dataset_flags(parser: argparse.ArgumentParser, *, num_prompts: int) -> None:
    group = parser.add_argument_group("dataset")
    group.add_argument(
        "--dataset-name", choices=("random", "sharegpt", "custom"), default="random", help="default: %(default)s"
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="for sharegpt a JSON file, for custom JSONL")
    group.add_argument("--num-prompts", type=int, default=num_prompts, metavar="N", help="default: %(default)s")
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="folder, GGUF file, installed model package or model on a hub (got without its weights) whose tokenizer "
        "counts lengths and makes random prompts of token ids (default: random words, counted as one token each)",
    )
    group.add_argument("--random-input-len", type=int, default=128, metavar="TOKENS", help="default: %(default)s")
    group.add_argument("--random-output-len", type=int, default=128, metavar="TOKENS", help="default: %(default)s")
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="R", help="lengths vary by this share (default: 0)"
    )
    group.add_argument(
        "--random-prefix-len", type=int, default=0, metavar="TOKENS", help="the same start of every prompt (default: 0)"
    )
    group.add_argument("--sharegpt-output-len", type=int, metavar="TOKENS", help="instead of the lengths in the file")
    group.add_argument("--custom-output-len", type=int, metavar="TOKENS", help="instead of the lengths in the file")
    group.add_argument(
        "--ignore-eos", action="store_true", help="answers go on to their full length (an extension of the API)"
    )


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--backend", choices=tuple(BACKENDS), default="openai", help="default: %(default)s")
    group.add_argument("--endpoint", metavar="PATH", help="default: the backend's own")
    group.add_argument("--model", metavar="NAME", help="model to ask (default: the first that the server names)")
    group.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="shape of the gaps: 1 Poisson, below 1 in bursts, above steadier (default: 1)",
    )
    group.add_argument("--max-concurrency", type=int, metavar="N", help="most requests in flight (closed loop)")
    group.add_argument("--no-stream", dest="stream", action="store_false", help="ask for whole responses")
    group.add_argument("--temperature", type=float, metavar="T", help="default: 0, the most likely token")
    group.add_argument("--top-p", type=float, metavar="P", help="default: the server's")
    group.add_argument("--top-k", type=int, metavar="K", help="default: the server's")
    group.add_argument("--min-p", type=float, metavar="P", help="default: the server's")
    group.add_argument("--extra-body", metavar="JSON", help="object whose fields go into every request")
    group.add_argument("--header", action="append", metavar="KEY=VALUE", help="header of every request; repeatable")
    group.add_argument(
        "--api-key", metavar="KEY", help="sent as bearer token (better given as CHAIRLIFT_API_KEY or OPENAI_API_KEY)"
    )
    group.add_argument(
        "--request-timeout", type=float, default=6 * 3600.0, metavar="SECONDS", help="default: six hours"
    )
    group.add_argument(
        "--num-warmups", type=int, default=1, metavar="N", help="requests before the clock starts (default: 1)"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress line")


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="NAMES",
        help=f"latencies to report, of {','.join(TITLES)} (default: %(default)s)",
    )
    group.add_argument("--metric-percentiles", default="99", metavar="LIST", help="such as 50,90,99.9 (default: 99)")
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        help="count as good what keeps these limits, such as ttft:200 tpot:50",
    )


def samples(arguments: argparse.Namespace, *, chat: bool) -> list[Sample]:
    """What the dataset flags say to ask.

    Raises:
        InvalidOption: flags or a file that make no sense.
        InvalidModel: no such tokenizer.
    """
    if arguments.num_prompts < 1:
        raise InvalidOption("--num-prompts must be at least 1")
    tokenizer = None if arguments.tokenizer is None else _tokenizer(arguments.tokenizer)
    num, seed = arguments.num_prompts, arguments.seed or 0
    if arguments.dataset_name == "random":
        made = random_samples(
            num,
            input_len=arguments.random_input_len,
            output_len=arguments.random_output_len,
            range_ratio=arguments.random_range_ratio,
            prefix_len=arguments.random_prefix_len,
            seed=seed,
            tokenizer=tokenizer,
        )
    elif arguments.dataset_path is None:
        raise InvalidOption(f"--dataset-name {arguments.dataset_name} needs --dataset-path")
    elif arguments.dataset_name == "sharegpt":
        made = sharegpt_samples(
            arguments.dataset_path, num, output_len=arguments.sharegpt_output_len, seed=seed, tokenizer=tokenizer
        )
    else:
        made = custom_samples(arguments.dataset_path, num, output_len=arguments.custom_output_len, tokenizer=tokenizer)
    return [_as_text(sample, tokenizer) for sample in made] if chat else made


def _tokenizer(name: str) -> Tokenizer:
    from chairlift.models.fetch import fetched_text
    from chairlift.text.loading import load_text
    from chairlift.worker.loading import getting

    return load_text(fetched_text(name, getting)).tokenizer


def _as_text(sample: Sample, tokenizer: Tokenizer | None) -> Sample:
    """A message is text: token ids become the text they stand for."""
    if isinstance(sample.prompt, str):
        return sample
    if tokenizer is None:
        raise InvalidOption("chat takes no token ids: give --tokenizer to make text of them")
    return replace(sample, prompt=tokenizer.decode(sample.prompt))


def arrivals(arguments: argparse.Namespace, request_rate: float) -> Arrivals:
    """Raises InvalidOption on a rate, burstiness or ramp that makes no sense."""
    return Arrivals(
        rate=request_rate,
        burstiness=arguments.burstiness,
        ramp_up=getattr(arguments, "ramp_up_strategy", None),
        ramp_start=getattr(arguments, "ramp_up_start_rps", None),
        ramp_end=getattr(arguments, "ramp_up_end_rps", None),
    )


def add_ramp_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ramp")
    group.add_argument("--ramp-up-strategy", choices=get_args(RampUp), help="move the rate over the run")
    group.add_argument("--ramp-up-start-rps", type=float, metavar="RATE", help="requests per second at first")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="RATE", help="requests per second at last")


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Raises InvalidOption on a name or number that makes no sense."""
    return Wanted(
        metrics=tuple(name.strip() for name in arguments.percentile_metrics.split(",") if name.strip()),
        percentiles=numbers("--metric-percentiles", arguments.metric_percentiles),
        goodput_ms=None if arguments.goodput is None else dict(map(_limit, arguments.goodput)),
    )


def _limit(text: str) -> tuple[str, float]:
    limit = named_limit(text)
    if limit is None:
        raise InvalidOption(f"--goodput takes limits such as ttft:200, not {text!r}")
    return limit


def numbers(flag: str, text: str) -> tuple[float, ...]:
    """Numbers between commas.

    Raises:
        InvalidOption: anything else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidOption(f"{flag} takes numbers such as 50,99, not {text!r}") from error


def extra_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the flags add to every request's body.

    Raises:
        InvalidOption: --extra-body is not a JSON object.
    """
    names = ("temperature", "top_p", "top_k", "min_p")
    fields = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.extra_body is None:
        return fields
    try:
        extra = json.loads(arguments.extra_body)
    except ValueError as error:
        raise InvalidOption(f"--extra-body is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise InvalidOption("--extra-body must be a JSON object")
    return fields | extra


def pairs(flag: str, items: Sequence[str] | None) -> dict[str, str]:
    """KEY=VALUE items.

    Raises:
        InvalidOption: an item without = or key, or with line breaks.
    """
    result = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or "\n" in item or "\r" in item:
            raise InvalidOption(f"{flag} takes KEY=VALUE, not {item!r}")
        result[key.strip()] = value.strip()
    return result


def headers(arguments: argparse.Namespace, api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Headers of every request."""
    given = pairs("--header", arguments.header)
    if api_key:
        given.setdefault("Authorization", f"Bearer {api_key}")
    return tuple(given.items())
