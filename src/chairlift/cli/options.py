"""The flags that say which model runs and how: shared by every command that starts an engine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

from chairlift.cli.embedding_flags import add_embedding_flags, embedding_options
from chairlift.cli.journal_flags import add_journal_flags, journal_options
from chairlift.cli.numbers import count, dtype
from chairlift.cli.policy_flags import add_policy_flags, policy_options
from chairlift.core.types import SamplingParams
from chairlift.worker.options import DEFAULT_MAX_NUM_SEQS, AskedDtype, EngineOptions, KVCacheDtype


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with any of these flags, without the hyphens in front; the command line overrides it",
    )


def add_engine_flags(parser: argparse.ArgumentParser, *, positional_model: bool = False) -> None:
    """Flags of the engine, named as in vLLM."""
    group = parser.add_argument_group("engine")
    what = (
        "a folder, a .gguf file, the name of an installed model package (default: the one set-up installs), or a name "
        "on a hub: org/name[@revision][:Q4_K_M], got at the first time"
    )
    if positional_model:
        group.add_argument("model_tag", nargs="?", metavar="MODEL", help=what)
        group.add_argument("--model", metavar="MODEL", help="the same, for a file or the environment")
    else:
        group.add_argument(
            "--model", metavar="MODEL", help=f"{what}; only by this flag: what stands alone is the prompt"
        )
    group.add_argument("--revision", metavar="REVISION", help="branch, tag or commit of a model on a hub")
    group.add_argument(
        "--dtype",
        type=dtype,
        choices=get_args(AskedDtype),
        help="precision of the weights; int8 and int4 are quantised in groups, auto picks for each weight (default: "
        "int8, or what chairlift quantize wrote)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        type=dtype,
        choices=get_args(KVCacheDtype),
        default="auto",
        help="precision of cached keys and values (default: auto, float32 with float32 weights, else bfloat16)",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=count,
        metavar="BYTES",
        help="size of the cache, such as 2G (default: a share of the free memory)",
    )
    group.add_argument(
        "--max-model-len",
        type=count,
        metavar="TOKENS",
        help="longest sequence, prompt and output together (default: what the model was made for)",
    )
    group.add_argument(
        "--max-num-seqs",
        type=count,
        default=DEFAULT_MAX_NUM_SEQS,
        metavar="N",
        help="most sequences computed at once (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=count,
        metavar="TOKENS",
        help="most tokens computed in one step (default: measured, so that a step stays short)",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the keys and values of prompts that may come again (default: on)",
    )
    group.add_argument(
        "--num-threads", type=count, metavar="N", help="threads that compute (default: all cores of this process)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="makes sampling without a seed in the request repeatable")
    add_embedding_flags(parser)
    add_policy_flags(parser)
    add_journal_flags(parser)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of how tokens are chosen; what is not given is the model's own default."""
    group = parser.add_argument_group("sampling", "What is not given is as the model's makers recommend.")
    group.add_argument(
        "--max-tokens", type=count, metavar="N", help="longest answer (default: the rest of the context)"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 takes the most likely token every time")
    group.add_argument("--top-p", type=float, metavar="P", help="smallest set of tokens with this probability")
    group.add_argument("--top-k", type=int, metavar="K", help="only the K most likely tokens")
    group.add_argument("--min-p", type=float, metavar="P", help="only tokens this likely relative to the best")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1 discourages repeating")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")


def sampling_params(arguments: argparse.Namespace, default: SamplingParams) -> SamplingParams:
    """`default` with what the sampling flags said.

    Raises:
        InvalidRequest: a value out of range.
    """
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return replace(default, **given, stop=tuple(arguments.stop or ()))


def engine_options(arguments: argparse.Namespace) -> EngineOptions:
    """What the engine flags said. A model named by position comes before `--model`, which is then a configured default.

    Raises:
        InvalidOption: a value out of range.
    """
    return EngineOptions(
        model=model_name(arguments),
        dtype=arguments.dtype,
        kv_cache_dtype=arguments.kv_cache_dtype,
        kv_cache_memory_bytes=arguments.kv_cache_memory_bytes,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        enable_prefix_caching=arguments.enable_prefix_caching,
        num_threads=arguments.num_threads,
        seed=arguments.seed,
        **embedding_options(arguments),
        **policy_options(arguments),
        **journal_options(arguments),
    )


def ready_options(arguments: argparse.Namespace) -> EngineOptions:
    """What the engine flags said, of models that lie on this machine: those of a hub are got.

    Raises:
        InvalidOption: a value out of range.
        InvalidModel: a model cannot be got.
    """
    from chairlift.worker.fetch import with_models_here

    return with_models_here(engine_options(arguments))


def model_name(arguments: argparse.Namespace) -> str:
    """The model that the flags name, with the revision that they say.

    Raises:
        InvalidOption: a revision of what has none.
    """
    from chairlift.models.fetch import named_on_hub
    from chairlift.models.resolve import DEFAULT_MODEL

    named = (getattr(arguments, "model_tag", None), arguments.model, DEFAULT_MODEL)
    name = next(name for name in named if name is not None)
    return name if arguments.revision is None else str(named_on_hub(name, arguments.revision))
