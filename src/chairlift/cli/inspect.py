"""`chairlift inspect`: what a model is, what it takes, and whether it runs here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, get_args

from chairlift.cli.numbers import count

if TYPE_CHECKING:
    from chairlift.executors.openvino.memory import CacheKind
    from chairlift.models.encoder import Encoder
    from chairlift.models.model import Model
    from chairlift.models.summary import ModelSummary

CONTEXTS = (2048, 8192, 32768, 131072)
CACHES: dict[CacheKind, str] = {"f32": "float32", "bf16": "bfloat16", "u8": "u8"}
EXIT_UNSUPPORTED = 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "inspect",
        help="show what a model is, what it takes and whether it runs here",
        description="Show a model's architecture and size, the memory that its weights and its cache take at each "
        "precision, and the tokens a second to expect from how fast this machine reads its memory, which is measured. "
        "The exit status is 1 for a model that cannot be computed here, with the reason.",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, a package's name, or org/name")
    parser.add_argument("--revision", metavar="REVISION", help="branch, tag or commit of a model on a hub")
    parser.add_argument("--json", action="store_true", help="the same as JSON, sizes in bytes")
    parser.add_argument(
        "--num-threads", type=count, metavar="N", help="threads that compute (default: all cores of this process)"
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Look, measure, print."""
    from chairlift.models.fetch import named_on_hub
    from chairlift.models.resolve import resolve
    from chairlift.models.summary import summarize

    name = arguments.model if arguments.revision is None else str(named_on_hub(arguments.model, arguments.revision))
    summary = summarize(resolve(name))
    facts = _facts(summary, arguments.num_threads)
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(_lines(facts)))
    return 0 if facts["supported"] else EXIT_UNSUPPORTED


# ---------------------------------------------------------------- as data


def _facts(summary: ModelSummary, num_threads: int | None) -> dict[str, Any]:
    from chairlift.models.model import Model

    opened = summary.opened
    problem, lacking = summary.problem, ""
    if problem is None and isinstance(opened, Model):
        problem, lacking = _text_problems(opened)
    facts: dict[str, Any] = {
        "name": summary.files.name,
        "path": str(summary.files.path),
        "format": "GGUF" if summary.files.kind == "gguf" else "safetensors",
        "architecture": summary.architecture,
        "kind": None if opened is None else "decoder" if isinstance(opened, Model) else "encoder",
        "supported": problem is None,
        "problem": problem,
        "chat_problem": lacking or None,
        "file_bytes": summary.file_bytes,
        "num_parameters": summary.num_parameters,
        "file_type": summary.file_type,
        "encodings": summary.encodings,
        "written": _written(opened) if isinstance(opened, Model) else None,
    }
    if opened is not None:
        config = opened.config
        facts |= {
            "max_model_len": config.max_model_len,
            "num_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "num_heads": config.num_heads,
            "vocab_size": config.vocab_size,
        }
    if isinstance(opened, Model):
        facts |= _shape_of(opened) | _needs(opened, num_threads)
    elif opened is not None:
        facts["precisions"] = {dtype: {"weight_bytes": size} for dtype, size in _weights_of(opened).items()}
    return facts


def _written(model: Model) -> dict[str, Any] | None:
    """What a folder's weights are in, if `chairlift quantize` wrote it."""
    prepared = model.prepared
    if prepared is None:
        return None
    return {
        "dtype": prepared.dtype,
        "num_wide_weights": len(prepared.wide_weights),
        "head_group": prepared.head_group,
        "input_group": prepared.input_group,
    }


def _weights_of(encoder: Encoder) -> dict[str, int]:
    """Memory of an encoder's weights at each precision; it keeps no cache."""
    from chairlift.executors.openvino.memory import encoder_weight_bytes
    from chairlift.executors.openvino.options import Dtype

    return {dtype: encoder_weight_bytes(encoder, dtype) for dtype in get_args(Dtype)}


def _text_problems(model: Model) -> tuple[str | None, str]:
    """What is wrong with its tokenizer, and with its chat template, which not everybody needs."""
    from chairlift.core.errors import InvalidModel
    from chairlift.text.loading import load_text

    try:
        return None, load_text(model).template_problem
    except InvalidModel as error:
        return str(error), ""


def _shape_of(model: Model) -> dict[str, Any]:
    """What of a decoder decides about its cache."""
    config = model.config
    windows = [config.window_of(layer) for layer in range(config.num_layers)]
    return {
        "num_kv_heads": config.num_kv_heads,
        "head_size": config.head_size,
        "sliding_window": config.sliding_window,
        "num_sliding_layers": sum(window is not None for window in windows),
        "rope_scaling": config.rope.scaling,
    }


def _needs(model: Model, num_threads: int | None) -> dict[str, Any]:
    """Memory and pace at each precision in which a model can be had, and memory of each kind of cache."""
    from chairlift.core.errors import InvalidModel, InvalidOption
    from chairlift.executors.bandwidth import measure_bandwidth
    from chairlift.executors.openvino.attention import BLOCK_SIZE
    from chairlift.executors.openvino.cache import available_bytes
    from chairlift.executors.openvino.choice import choose_weights, default_dtype
    from chairlift.executors.openvino.memory import memory_need, token_bytes
    from chairlift.executors.openvino.options import AskedDtype, Dtype
    from chairlift.executors.openvino.pace import expected_tokens_per_s

    bandwidth, available = measure_bandwidth(num_threads), available_bytes()
    config = model.config
    contexts = [length for length in CONTEXTS if length < config.max_model_len]
    contexts = [*contexts[:3], config.max_model_len]
    asked: tuple[AskedDtype, ...] = (*get_args(Dtype), "auto")
    default = default_dtype(model)
    precisions = {}
    for dtype in asked:
        try:
            chosen = choose_weights(model, dtype)
        except (InvalidModel, InvalidOption):  # it would be rounded twice, or a weight is not finite
            continue
        cache: CacheKind = "f32" if chosen.dtype == "float32" else "bf16"
        need = memory_need(model, chosen.dtype, cache, chosen.wide, chosen.head_group)
        precisions[dtype] = {
            "chosen": chosen.reason,
            "weight_bytes": need.weight_bytes,
            "loading_bytes": need.loading_bytes,
            "running_bytes": need.running_bytes,
            "text_bytes": need.text_bytes,
            "is_default": dtype == default,
            "fits": not available or need.with_cache(2 * BLOCK_SIZE * need.token_bytes) <= available,
            "cache_precision": CACHES[cache],
            "cache_bytes_per_token": need.token_bytes,
            "cache_bytes": {str(length): int(length * need.token_bytes) for length in contexts},
            "tokens_per_s": {
                str(length): round(expected_tokens_per_s(need, config.num_layers, length, bandwidth), 2)
                for length in (0, *contexts)
            },
        }
    caches = {
        name: {
            "bytes_per_token": token_bytes(config, kind),
            "bytes": {str(length): int(length * token_bytes(config, kind)) for length in contexts},
        }
        for kind, name in CACHES.items()
        if kind != "u8" or config.attention_softcap is None  # it could not be read
    }
    return {
        "available_bytes": available,
        "bandwidth_bytes_per_s": round(bandwidth),
        "precisions": precisions,
        "caches": caches,
    }


# ---------------------------------------------------------------- as text


def _lines(facts: dict[str, Any]) -> list[str]:
    from chairlift.models.files import shown_bytes

    lines = [f"{facts['name']}: {facts['format']}, {facts['path']}"]
    if facts["problem"] is not None:
        lines.append(f"  not supported: {facts['problem']}")
    if facts.get("chat_problem") is not None:
        lines.append(f"  no chat       {facts['chat_problem']}: it can continue texts, or chat by --chat-template")
    lines.append(f"  architecture  {facts['architecture']}{_shape_text(facts)}")
    if facts["num_parameters"]:
        total = sum(facts["encodings"].values())
        stored = ", ".join(f"{name} {100 * size / total:.0f} %" for name, size in facts["encodings"].items())
        count = facts["num_parameters"] / 1e6
        shown_count = f"{count:.1f} million" if count < 1e3 else f"{count / 1e3:.1f} billion"
        recipe = "" if facts.get("file_type") is None else f"{facts['file_type']}: "
        lines.append(f"  parameters    {shown_count}, as {recipe}{stored}")
    lines.append(f"  on disk       {shown_bytes(facts['file_bytes'])}")
    if facts["written"] is not None:
        lines.append(f"  written       {_written_text(facts['written'])}")
    if "max_model_len" in facts:
        lines.append(f"  context       {facts['max_model_len']} tokens{_window_text(facts)}")
    if "bandwidth_bytes_per_s" in facts:
        lines += _table(facts)
    elif "precisions" in facts:
        weights = ", ".join(
            f"{shown_bytes(need['weight_bytes'])} as {dtype}" for dtype, need in facts["precisions"].items()
        )
        lines.append(f"  weights       {weights}")
    return lines


def _written_text(written: dict[str, Any]) -> str:
    text = f"by chairlift quantize in {written['dtype']}"
    if written["dtype"] in ("int8", "int4"):
        text += f", {written['head_group']} numbers of the head share a scale"
    if written["input_group"] is not None:
        text += f", and {written['input_group']} of what weights are multiplied with"
    if written["num_wide_weights"]:
        text += f", {written['num_wide_weights']} weights in bfloat16"
    return text


def _shape_text(facts: dict[str, Any]) -> str:
    if "num_layers" not in facts:
        return ""
    heads = f"{facts['num_heads']} heads"
    if "head_size" in facts:
        heads += f" of {facts['head_size']} ({facts['num_kv_heads']} of keys and values)"
    layers = f"{facts['num_layers']} layers of {facts['hidden_size']}"
    return f" ({facts['kind']}): {layers}, {heads}, {facts['vocab_size']} tokens"


def _window_text(facts: dict[str, Any]) -> str:
    parts = []
    if facts.get("num_sliding_layers"):
        parts.append(f"{facts['num_sliding_layers']} of {facts['num_layers']} layers see {facts['sliding_window']}")
    if facts.get("rope_scaling") not in (None, "none"):
        parts.append(f"stretched by {facts['rope_scaling']}")
    return "".join(f"; {part}" for part in parts)


def _table(facts: dict[str, Any]) -> list[str]:
    """What the weights take at each precision, and what a cache of so many tokens does in each of its own."""
    from chairlift.models.files import shown_bytes

    precisions, caches = facts["precisions"], facts["caches"]
    contexts = list(next(iter(caches.values()))["bytes"])
    rows = [["precision", "weights", "loading", "running", "tok/s", ""]]
    for dtype, need in precisions.items():
        rates = need["tokens_per_s"]
        rows.append(
            [
                dtype,
                *(shown_bytes(need[f"{what}_bytes"]) for what in ("weight", "loading", "running")),
                f"{_rate(rates['0'])} .. {_rate(rates[contexts[-1]])}",
                "" if need["fits"] else "does not fit",
            ]
        )
    of_cache = [["cache", "a token", *contexts]]
    for name, cache in caches.items():
        of_cache.append(
            [name, f"{cache['bytes_per_token']:,.0f}", *(shown_bytes(cache["bytes"][length]) for length in contexts)]
        )
    free, speed = shown_bytes(facts["available_bytes"]), facts["bandwidth_bytes_per_s"] / 1e9
    text_bytes = next(iter(precisions.values()))["text_bytes"]
    chosen = {dtype: need["chosen"] for dtype, need in precisions.items() if need["chosen"]}
    return [
        "",
        *_aligned(rows),
        "",
        *_aligned(of_cache),
        "",
        *_unfit(precisions),
        *(f"  {dtype} is {reason.removeprefix(f'{dtype}, ')}." for dtype, reason in chosen.items()),
        f"  loading and running are with {shown_bytes(text_bytes)} of tokenizer and tables for answers in a form, and "
        "without the cache\n  and what Python imports.",
        f"  {free} of memory are free, read at {speed:.1f} GB/s just now. tok/s is what to expect from that speed of a "
        f"single answer, at\n  its beginning and at {contexts[-1]} tokens, with a cache in float32 beside float32, "
        "else in bfloat16; batches get more in all.",
    ]


def _unfit(precisions: dict[str, Any]) -> list[str]:
    """A line where the precision that is taken by itself does not fit in the memory that is free."""
    if not any(need["is_default"] and not need["fits"] for need in precisions.values()):
        return []
    default = next(dtype for dtype, need in precisions.items() if need["is_default"])
    others = [dtype for dtype, need in precisions.items() if need["fits"]]
    would = f"--dtype {' or '.join(others)} would" if others else "no precision does"
    return [f"  {default}, the default, does not fit in the memory that is free: {would}."]


def _rate(tokens_per_s: float) -> str:
    """Three digits, and never an exponent."""
    return f"{tokens_per_s:.3g}" if tokens_per_s < 999.5 else f"{tokens_per_s:.0f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]
