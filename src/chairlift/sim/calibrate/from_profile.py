"""Steps put together from a kernel profile: tables of how long each part of a layer takes by itself.

    PREFIX__attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us       one layer
    PREFIX__dense.csv          layer, tokens, time_us                                        one layer, or once a step
    PREFIX__per_sequence.csv   layer, sequences, time_us                                     once a step

Each row of the first is the attention of a step; the other two, between their knots on straight lines, give the rest.
A `.gz` behind the names means what it says.

    NAME.json    {prompt tokens: {output tokens: [rows at most, seconds of prefill, of all decodes; each by row]}}

is a server's profile of itself: whole steps of as many rows as fit, on which neither layers nor a longest context bear.

Source: the files of the profiler of LLMServingSim 2 (vLLM kernels), and of the artifact of VTC (S-LoRA).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost.shape import StepShape

ONCE = frozenset({"embedding", "final_layernorm"})
"""Dense parts that a step has once; every layer has the others."""
TWICE = frozenset({"layernorm"})
"""Parts that every layer has two of."""
MAX_FILE_BYTES = 256 << 20

Knots = tuple[NDArray[np.float64], NDArray[np.float64]]


def steps_of_profile(prefix: Path, num_layers: int, *, max_context: int = 4096) -> list[Measured]:
    """A step for each shape of attention in the profile with no context longer than `max_context`.

    Raises:
        InvalidOption: a file that is missing, or not such a table.
    """
    if prefix.suffix == ".json":
        return _whole_steps(prefix)
    dense = _knots(prefix, "dense", "tokens")
    heads = _knots(prefix, "per_sequence", "sequences")
    shapes: list[StepShape] = []
    attention_us: list[float] = []
    for row in _rows(prefix, "attention"):
        chunk, prefix_tokens, num_decodes, context = (
            int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        if max(prefix_tokens, context) <= max_context:
            chunks = ((prefix_tokens, chunk, True),) if chunk else ()
            shapes.append(StepShape(num_decodes, num_decodes * context, chunks))
            attention_us.append(row["time_us"])
    if not shapes:
        raise InvalidOption(f"{prefix}__attention.csv has no contexts up to {max_context}")
    tokens = np.array([shape.num_tokens for shape in shapes], np.float64)
    outputs = np.array([shape.num_outputs for shape in shapes], np.float64)
    step_us = num_layers * np.array(attention_us)
    for name, (at, times) in dense.items():
        step_us += (1 if name in ONCE else num_layers * (1 + (name in TWICE))) * np.interp(tokens, at, times)
    for at, times in heads.values():
        step_us += np.interp(outputs, at, times)
    groups = list(range(len(shapes)))
    Random(0).shuffle(groups)  # neighbours in the table differ in one number only
    return [
        Measured(shape, seconds / 1e6, group=group)
        for shape, seconds, group in zip(shapes, step_us.tolist(), groups, strict=True)
    ]


def _whole_steps(path: Path) -> list[Measured]:
    """All prompts of a batch at once, then the mean decode step: it is one at the mean context, for its time is linear
    in that.
    """
    try:
        rows = [
            (int(num_input), int(num_output), int(num_rows), float(prefill_s), float(decode_s))
            for num_input, outputs in json.loads(_bytes(path)).items()
            for num_output, (num_rows, prefill_s, decode_s) in outputs.items()
        ]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"{path} is no profile of prompts and outputs") from error
    steps: list[Measured] = []
    for num_input, num_output, num_rows, prefill_s, decode_s in rows:
        if min(num_input, num_output, num_rows) < 1 or not (0.0 < prefill_s < math.inf and 0.0 < decode_s < math.inf):
            raise InvalidOption(f"{path}: {num_input} and {num_output} tokens: numbers and seconds must be above 0")
        shape = StepShape(chunks=((0, num_input, True),) * num_rows)
        steps.append(Measured(shape, num_rows * prefill_s, group=len(steps)))
        if num_output > 1:
            shape = StepShape(num_rows, num_rows * (num_input + num_output // 2))
            steps.append(Measured(shape, num_rows * decode_s / (num_output - 1), group=len(steps)))
    return steps


def _knots(prefix: Path, table: str, size: str) -> Mapping[str, Knots]:
    """(sizes, microseconds) of each part, ascending."""
    parts: dict[str, list[tuple[float, float]]] = {}
    for row in _rows(prefix, table):
        parts.setdefault(row.layer, []).append((row[size], row["time_us"]))
    return {name: _columns(sorted(pairs)) for name, pairs in parts.items()}


def _columns(pairs: list[tuple[float, float]]) -> Knots:
    return np.array([size for size, _ in pairs]), np.array([time for _, time in pairs])


class _Row:
    """A row of a table: numbers, and the name of a part."""

    def __init__(self, values: Mapping[str, str], where: str) -> None:
        self._values = values
        self._where = where

    def __getitem__(self, name: str) -> float:
        try:
            return float(self._values[name])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidOption(f"{self._where}: no number in column {name!r}") from error

    @property
    def layer(self) -> str:
        return self._values.get("layer") or ""


def _rows(prefix: Path, table: str) -> Iterator[_Row]:
    plain = prefix.with_name(f"{prefix.name}__{table}.csv")
    packed = plain.with_name(f"{plain.name}.gz")
    path = plain if plain.is_file() else packed
    reader = csv.DictReader(io.StringIO(_bytes(path).decode("utf-8", errors="replace")))
    for values in reader:
        yield _Row(values, f"{path}:{reader.line_num}")


def _bytes(path: Path) -> bytes:
    """Of a file, unpacked if it ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidOption(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidOption(f"{path} is too large to be a profile")
    return data
