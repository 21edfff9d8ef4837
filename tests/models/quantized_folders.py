"""Folders as other engines quantise them: a tiny Llama in the layouts of AWQ, GPTQ, FP8 and compressed-tensors.

Each writer says what the numbers are afterwards, by the formula `(number - zero) * scale` of its format's description.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.writers import Encoded, Floats, TinyLlama, encode, write_safetensors

GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
IN_ORDER = list(range(8))

Written = tuple[dict[str, Encoded], Floats]
"""The tensors of one weight by the ending of their names, and its numbers."""


def quantized_folder(tiny: TinyLlama, kind: str, folder: Path) -> dict[str, Floats]:
    """Write a checkpoint whose projections are quantised; all its weights as float32, by their plain names."""
    write, config = KINDS[kind]
    tensors: dict[str, Encoded] = {}
    meant: dict[str, Floats] = {}
    for name, numbers in tiny.weights.items():
        if name.endswith("_proj.weight"):
            parts, meant[name] = write(numbers)
            tensors |= {f"{name.removesuffix('.weight')}.{end}": part for end, part in parts.items()}
        else:
            tensors[name], meant[name] = encode(numbers, "F16"), numbers
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**tiny.config, "quantization_config": config}))
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return meant


# ---------------------------------------------------------------- numbers, scales, zero points


def to_words(numbers: NDArray[Any], order: list[int], bits: int = 4) -> NDArray[np.uint32]:
    """Along the last axis, so many to a word; the lowest bits are those of number `order[0]`."""
    per_word = 32 // bits
    split = numbers.astype(np.uint64).reshape(*numbers.shape[:-1], -1, per_word)
    words = np.zeros(split.shape[:-1], np.uint64)
    for i in range(per_word):
        words |= split[..., order[i]] << np.uint64(bits * i)
    return words.astype(np.uint32)


def affine(numbers: Floats, group: int = GROUP, levels: int = 15) -> tuple[NDArray[Any], NDArray[Any], Floats]:
    """Numbers 0..levels `[rows, cols]`, zeros and float16 scales `[rows, groups]`."""
    split = numbers.reshape(len(numbers), -1, group)
    low, high = np.minimum(split.min(axis=2), 0), np.maximum(split.max(axis=2), 0)
    scales = ((high - low) / levels).astype(np.float16).astype(np.float32)
    zeros = np.clip(np.rint(-low / scales), 0, levels).astype(np.int64)
    quants = np.clip(np.rint(split / scales[..., None]) + zeros[..., None], 0, levels).astype(np.int64)
    return quants.reshape(numbers.shape), zeros, scales


def symmetric(numbers: Floats, group: int, most: int) -> tuple[NDArray[Any], Floats]:
    """Signed numbers `[rows, cols]` and bfloat16 scales `[rows, groups]`."""
    split = numbers.reshape(len(numbers), -1, group)
    scales = (np.abs(split).max(axis=2) / most).view(np.uint32) & np.uint32(0xFFFF0000)
    wide = scales.view(np.float32)
    quants = np.clip(np.rint(split / wide[..., None]), -most - 1, most).astype(np.int64)
    return quants.reshape(numbers.shape), wide


def meant_by(quants: NDArray[Any], zeros: NDArray[Any] | int, scales: Floats) -> Floats:
    """`(number - zero) * scale`, float64 rounded once."""
    group = quants.shape[1] // scales.shape[1]
    wide = np.repeat(scales.astype(np.float64), group, axis=1)
    shift = zeros if isinstance(zeros, int) else np.repeat(zeros, group, axis=1)
    return ((quants - shift) * wide).astype(np.float32)


def ints(array: NDArray[Any], kind: str) -> Encoded:
    return kind, array.shape, np.ascontiguousarray(array).tobytes()


# ---------------------------------------------------------------- formats


def _awq(numbers: Floats) -> Written:
    quants, zeros, scales = affine(numbers)
    parts = {
        "qweight": ints(to_words(quants.T, AWQ_ORDER), "I32"),
        "qzeros": ints(to_words(zeros.T, AWQ_ORDER), "I32"),
        "scales": encode(scales.T, "F16"),
    }
    return parts, meant_by(quants, zeros, scales)


def _gptq(
    numbers: Floats, lack: int = 1, same_zeros: bool = False, order: NDArray[Any] | None = None, bias: bool = False
) -> Written:
    """`order` says which group each column belongs to, as activation order leaves them."""
    quants, zeros, scales = affine(numbers)
    if same_zeros:
        zeros = np.full_like(zeros, 8)
    groups = np.arange(numbers.shape[1]) // GROUP
    if order is not None:
        groups = np.random.default_rng(0).permutation(groups)
    words = to_words(zeros.T, IN_ORDER) - np.uint32(lack * 0x11111111)
    parts = {
        "qweight": ints(np.ascontiguousarray(to_words(quants, IN_ORDER).T), "I32"),
        "qzeros": ints(words, "I32"),
        "scales": encode(scales.T, "F16"),
        "g_idx": ints(groups.astype(np.int32), "I32"),
    }
    if bias:
        parts["bias"] = encode(np.zeros(len(numbers), np.float32), "F16")
    wide = scales[:, groups].astype(np.float64)
    return parts, ((quants - zeros[:, groups]) * wide).astype(np.float32)


def _packed(numbers: Floats, bits: int = 4, with_zeros: bool = False) -> Written:
    half, order = 1 << (bits - 1), list(range(32 // bits))
    zeros: NDArray[Any] | int = 0
    if with_zeros:
        quants, raised, scales = affine(numbers, levels=2 * half - 1)
        quants, zeros = quants - half, raised - half
    else:
        quants, scales = symmetric(numbers, GROUP, half - 1)
    parts = {
        "weight_packed": ints(to_words(quants + half, order, bits), "I32"),
        "weight_scale": encode(scales, "F32" if with_zeros else "BF16"),
        "weight_shape": ints(np.array(numbers.shape, np.int64), "I64"),
    }
    if not isinstance(zeros, int):
        parts["weight_zero_point"] = ints(to_words((zeros + half).T, order, bits).T, "I32")
    return parts, meant_by(quants, zeros, scales)


def _int8(numbers: Floats, per: str = "row", with_zeros: bool = False) -> Written:
    group = GROUP if per == "group" else numbers.shape[1]
    quants, scales = symmetric(numbers, group, 127)
    parts = {"weight": ints(quants.astype(np.int8), "I8"), "weight_scale": encode(scales, "BF16")}
    zeros: NDArray[Any] | int = 0
    if with_zeros:
        zeros = np.random.default_rng(0).integers(-9, 9, scales.shape)
        parts["weight_zero_point"] = ints(zeros.astype(np.int8), "I8")
    return parts, meant_by(quants, zeros, scales)


def float8_values() -> NDArray[np.float64]:
    """What the bytes 0..126 of E4M3 mean: sign, four bits of exponent, three of fraction."""
    values = []
    for byte in range(127):
        exponent, fraction = byte >> 3, byte & 7
        values.append(fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.array(values)


def _float8(numbers: Floats, rows: int = 0, cols: int = 0, name: str = "weight_scale") -> Written:
    """A scale for blocks of (rows, cols); 0 for all."""
    height, width = rows or len(numbers), cols or numbers.shape[1]
    down, across = (-(-size // step) for size, step in zip(numbers.shape, (height, width), strict=True))
    scales = np.empty((down, across), np.float32)
    meant = np.empty(numbers.shape, np.float64)
    stored = np.empty(numbers.shape, np.uint8)
    values = float8_values()
    for i in range(down):
        for j in range(across):
            place = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
            scales[i, j] = np.abs(numbers[place]).max() / 448
            nearest = np.abs(np.abs(numbers[place])[..., None] / scales[i, j] - values).argmin(axis=-1)
            stored[place] = nearest | np.where(numbers[place] < 0, 128, 0)
            meant[place] = np.sign(numbers[place]) * values[nearest] * scales[i, j]
    kept = scales.reshape(()) if down == across == 1 else scales
    parts = {"weight": ints(stored, "F8_E4M3"), name: encode(kept, "F32")}
    return parts, meant.astype(np.float32)


def _with_input_scale(written: Written) -> Written:
    parts, meant = written
    return {**parts, "input_scale": encode(np.array(0.5, np.float32), "F32")}, meant


def _compressed(format_: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": ["lm_head"]}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}

KINDS: dict[str, tuple[Callable[[Floats], Written], dict[str, Any]]] = {
    "awq": (_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}),
    "gptq": (_gptq, _GPTQ),
    "gptq with biases of zeros": (lambda x: _gptq(x, bias=True), _GPTQ),
    "gptq v2": (lambda x: _gptq(x, lack=0), {**_GPTQ, "checkpoint_format": "gptq_v2"}),
    "gptq symmetric": (lambda x: _gptq(x, same_zeros=True), {**_GPTQ, "sym": True}),
    "gptq activation order": (lambda x: _gptq(x, order=np.arange(1)), {**_GPTQ, "desc_act": True}),
    "packed int4": (_packed, _compressed("pack-quantized", num_bits=4, group_size=GROUP)),
    "packed int4 with zeros": (lambda x: _packed(x, with_zeros=True), _compressed("pack-quantized", num_bits=4)),
    "packed int8": (lambda x: _packed(x, 8), _compressed("pack-quantized", num_bits=8)),
    "packed int8 with zeros": (lambda x: _packed(x, 8, True), _compressed("pack-quantized", num_bits=8)),
    "int8 per row": (_int8, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "int8 in groups": (lambda x: _int8(x, "group"), _compressed("int-quantized", num_bits=8)),
    "int8 with zeros": (lambda x: _int8(x, with_zeros=True), _compressed("int-quantized", num_bits=8)),
    "fp8": (lambda x: _with_input_scale(_float8(x)), {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 per row": (lambda x: _float8(x, rows=1), _compressed("float-quantized", num_bits=8, strategy="channel")),
    "fp8 in blocks": (
        lambda x: _float8(x, 48, 40, "weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 40]},
    ),
}
