"""`chairlift eval perplexity`: how well a model predicts a text, and what a precision costs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from chairlift.cli.numbers import count, dtype
from chairlift.core.errors import InvalidOption
from chairlift.worker.options import AskedDtype, KVCacheDtype

if TYPE_CHECKING:
    from chairlift.executors.openvino.choice import WeightChoice
    from chairlift.executors.openvino.program import Program
    from chairlift.models.model import Model

DEFAULT_CONTEXT = 512


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "eval", help="measure how well a model predicts a text", description="Measure the quality of a model."
    )
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(title="measures", metavar="MEASURE")
    perplexity = kinds.add_parser(
        "perplexity",
        help="of a text, by itself or against another precision or model",
        description="Perplexity of a text, cut into windows of which each is computed by itself. With --against also "
        "how much the perplexity changed, how often the best token is the same, and the Kullback-Leibler divergence of "
        "the distributions in nats, on average and of the hundredth token that is worst. Deterministic.",
    )
    perplexity.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, a package's name, or org/name")
    perplexity.add_argument("--text", type=Path, required=True, metavar="FILE", help="text in UTF-8")
    perplexity.add_argument(
        "--dtype",
        type=dtype,
        choices=get_args(AskedDtype),
        help="precision of the weights (default: int8, or the folder's own)",
    )
    perplexity.add_argument(
        "--kv-cache-dtype",
        type=dtype,
        choices=get_args(KVCacheDtype),
        default="auto",
        help="precision of cached keys and values (default: auto)",
    )
    perplexity.add_argument(
        "--against", metavar="DTYPE|MODEL", help="compare with this precision of the model, or with another model"
    )
    perplexity.add_argument(
        "--against-dtype",
        type=dtype,
        choices=get_args(AskedDtype),
        metavar="DTYPE",
        help="precision of the other model (default: float32)",
    )
    perplexity.add_argument(
        "--context",
        type=count,
        metavar="TOKENS",
        help=f"tokens of a window (default: {DEFAULT_CONTEXT}, or what the model was made for)",
    )
    perplexity.add_argument(
        "--stride",
        type=count,
        metavar="TOKENS",
        help="tokens from one window to the next; those that were counted before are then only the past of the others "
        "(default: a whole window)",
    )
    perplexity.add_argument("--max-tokens", type=count, metavar="N", help="stop after so many tokens of the text")
    perplexity.add_argument("--json", action="store_true", help="the same as JSON")
    perplexity.add_argument(
        "--num-threads", type=count, metavar="N", help="threads that compute (default: all cores of this process)"
    )
    perplexity.set_defaults(run=run, parser=perplexity)


def run(arguments: argparse.Namespace) -> int:
    """Read, compute, print."""
    from tqdm import tqdm

    from chairlift.executors.openvino.choice import choose_weights
    from chairlift.executors.openvino.evaluation import evaluate, windows_of
    from chairlift.text import load_text
    from chairlift.worker.fetch import model_here

    model = model_here(arguments.model)
    other, other_dtype = _other(arguments, model)
    text, tokenizer = _read(arguments.text), load_text(model).tokenizer
    tokens = tokenizer.encode(text, add_special_tokens=False)[: arguments.max_tokens]
    if other is not None and other is not model:
        if load_text(other).tokenizer.encode(text, add_special_tokens=False)[: arguments.max_tokens] != tokens:
            raise InvalidOption(f"{other.name} cuts the text into other tokens than {model.name}")
        if other.config.vocab_size != model.config.vocab_size:
            raise InvalidOption(f"{other.name} has another vocabulary than {model.name}")
    prefix = [token for token in tokenizer.encode("")[:1] if token == tokenizer.bos_token_id]
    context, stride = _sizes(arguments, len(prefix), [one for one in (model, other) if one is not None])
    windows = windows_of(tokens, prefix, context, stride)
    if not windows:
        raise InvalidOption(f"{arguments.text} has {len(tokens)} tokens: nothing to predict")

    weights = choose_weights(model, arguments.dtype)
    program = _program(model, weights, context, arguments.num_threads, arguments.kv_cache_dtype)
    beside = (
        None if other is None else _program(other, choose_weights(other, other_dtype), context, arguments.num_threads)
    )
    total = sum(len(window.tokens) for window in windows)
    with tqdm(desc="computing", total=total, unit=" tokens", disable=None, leave=False) as bar:
        measured = evaluate(program, beside, windows, bar.update).report()
    if weights.reason:
        print(f"chairlift eval: weights of {model.name} in {weights.reason}", file=sys.stderr)
    facts: dict[str, Any] = {
        "model": model.name,
        "dtype": arguments.dtype or weights.dtype,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "text": str(arguments.text),
        "tokens": len(tokens),
        "context": context,
        "stride": stride,
    }
    if other is not None:
        facts |= {"against": other.name, "against_dtype": other_dtype}
    facts |= measured
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(_lines(facts)))
    return 0


def _other(arguments: argparse.Namespace, model: Model) -> tuple[Model | None, AskedDtype]:
    """What is compared with, and in which precision.

    Raises:
        InvalidModel: it is neither a precision nor a model.
        InvalidOption: a precision of nothing, or two.
    """
    from chairlift.worker.fetch import model_here

    dtype: AskedDtype | None = arguments.against_dtype
    named = next((one for one in get_args(AskedDtype) if one == arguments.against), None)
    if dtype is not None and (arguments.against is None or named is not None):
        raise InvalidOption("against_dtype is the precision of the model that against names")
    if arguments.against is None:
        return None, "float32"
    if named is not None:
        return model, named
    return model_here(arguments.against), dtype or "float32"


def _read(path: Path) -> str:
    """The text of a file.

    Raises:
        InvalidOption: there is none.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def _sizes(arguments: argparse.Namespace, num_prefix: int, models: list[Model]) -> tuple[int, int]:
    """Tokens of a window and from one to the next.

    Raises:
        InvalidOption: a window that is longer than a model's context or too short, or a stride that leaves tokens out.
    """
    longest = min(model.config.max_model_len for model in models)
    context: int = arguments.context or min(DEFAULT_CONTEXT, longest)
    if context > longest:
        raise InvalidOption(f"context is {context}, but the model was made for {longest} tokens")
    room = context - num_prefix
    if room < 1 or context < 2:
        raise InvalidOption(f"context is {context}: nothing would be predicted")
    stride: int = room if arguments.stride is None else arguments.stride
    if not 0 < stride <= room:
        raise InvalidOption(f"stride is {stride}, but must be 1 to {room}: a window has so many tokens of text")
    return context, stride


def _program(
    model: Model, weights: WeightChoice, context: int, num_threads: int | None, kv_cache_dtype: KVCacheDtype = "auto"
) -> Program:
    """A model that is loaded for one window at a time.

    Raises:
        InvalidOption: it does not fit into memory, or not with this cache.
    """
    import openvino as ov

    from chairlift.executors.openvino.memory import cache_kind, check_memory
    from chairlift.executors.openvino.options import ExecutorOptions
    from chairlift.executors.openvino.program import Program
    from chairlift.worker.loading import LoadingBar

    options = ExecutorOptions(
        max_num_seqs=1,
        max_model_len=context,
        dtype=weights.dtype,
        wide_weights=weights.wide,
        head_group=weights.head_group,
        input_group=weights.input_group,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=num_threads,
        whole_context=True,
    )
    check_memory(model, options, cache_kind(ov.Core(), options, model.config))
    return Program(model, options, LoadingBar(model.name))


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['model']} in {facts['dtype']}: {facts['predictions']} of {facts['tokens']} tokens predicted, "
        f"in windows of {facts['context']}, {facts['stride']} apart",
        f"  perplexity     {facts['perplexity']:.4f}",
    ]
    if "against" in facts:
        change = f"{facts['perplexity_change_percent']:+.3f} %"
        lines += [
            f"against {facts['against']} in {facts['against_dtype']}:",
            f"  perplexity     {facts['against_perplexity']:.4f}, changed by {change}",
            f"  same best      {facts['same_best_percent']:.2f} % of the tokens",
            f"  KL divergence  mean {facts['kl_mean']:.3g}, 99th percentile {facts['kl_p99']:.3g} nats",
        ]
    return lines
