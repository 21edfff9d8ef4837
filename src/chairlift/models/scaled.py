"""Weights of safetensors checkpoints quantised for other engines, taken apart into a grid like GGUF's.

AWQ and GPTQ keep a weight transposed, eight numbers of four bits to a word: AWQ's are of eight rows in an order of its
own, GPTQ's of eight columns in order. compressed-tensors packs rows as they are, numbers raised by half of the
range. The zero points of all have a word for several rows. FP8 numbers are bytes, a table away from float32. Those of
MXFP4 are halves of bytes, a table away from integers, and their scales powers of two.

Source: the descriptions of these formats: AutoAWQ's GEMM version, GPTQ's formats 1 and 2, compressed-tensors'
pack-quantized, int-quantized and float-quantized, the block scales of DeepSeek V3, and the OCP
Microscaling formats 1.0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.models.grids import E2M1_PAIRS, E8M0_HALVED, Grid, GridShape
from chairlift.models.tensor import Encoding, Scaling, Tensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight rows the halves of a word are, from the lowest."""
_IN_ORDER = tuple(range(8))
_TRANSPOSED = (Encoding.AWQ4, Encoding.GPTQ4)


def _float8_values() -> Floats:
    """What the 256 bytes of E4M3 mean: no infinity, the largest magnitude is no number."""
    values = np.empty(256, np.float32)
    for byte in range(256):
        exponent, fraction = byte >> 3 & 15, byte & 7
        size = math.ldexp(fraction, -9) if exponent == 0 else math.ldexp(8 + fraction, exponent - 10)
        values[byte] = -size if byte & 128 else size
    values[[127, 255]] = np.nan
    return values


_FLOAT8 = _float8_values()


def grid_shape_of(tensor: Tensor) -> GridShape:
    """How the numbers of a weight with scales beside it are grouped."""
    scaling = tensor.scaling
    if scaling is None:
        return GridShape(tensor.cols, 0, wide=False)
    if tensor.encoding is Encoding.F4_E2M1:
        return GridShape(scaling.block[1], 5, wide=True)
    bits = {Encoding.I8: 8, Encoding.PACKED8: 8, Encoding.F8_E4M3: 0}.get(tensor.encoding, 4)
    wide = scaling.scales.encoding is not Encoding.F16
    return GridShape(_group(tensor, scaling), bits, has_offsets=not _is_symmetric(tensor, scaling), wide=wide)


def is_scaled_by_rows(tensor: Tensor) -> bool:
    """Whether what a row is multiplied by lies in rows too, so that one can be read without the others."""
    scaling = tensor.scaling
    if scaling is None or tensor.encoding in _TRANSPOSED:
        return False
    return scaling.block[0] == 1 and scaling.zeros is None and scaling.groups is None


def grid_of_rows(tensor: Tensor, first: int, last: int) -> Grid:
    """Rows first..last of a weight: numbers `[rows, groups, group]`."""
    scaling = tensor.scaling
    if scaling is None:
        numbers = _FLOAT8[_stored(tensor, tensor.rows, np.uint8)[first:last]]
        return Grid(numbers[:, None], np.ones((last - first, 1), np.float32))
    if tensor.encoding is Encoding.F4_E2M1:
        return _e2m1_rows(tensor, scaling, first, last)
    first, last = first + scaling.first_row, last + scaling.first_row
    symmetric = _is_symmetric(tensor, scaling)
    numbers = _numbers(tensor, scaling, first, last)
    scales = _per_group(tensor, scaling, _scales(tensor, scaling, first, last, scaling.scales))
    numbers = numbers.reshape(len(numbers), scales.shape[1], -1)
    if symmetric:
        if tensor.encoding in (Encoding.AWQ4, Encoding.GPTQ4, Encoding.PACKED4):
            numbers = np.subtract(numbers, np.uint8(8), out=numbers).view(np.int8)
        return Grid(numbers, scales)
    if scaling.offsets is not None:
        offsets = _scales(tensor, scaling, first, last, scaling.offsets)
        return Grid(numbers, scales, _per_group(tensor, scaling, offsets))
    zeros = _per_group(tensor, scaling, _zeros(tensor, scaling, first, last))
    return Grid(numbers, scales, -zeros * scales, zeros)


def _e2m1_rows(tensor: Tensor, scaling: Scaling, first: int, last: int) -> Grid:
    begin = scaling.first_row + first * tensor.step
    rows = slice(begin, begin + (last - first) * tensor.step, tensor.step)
    pairs = _stored(tensor, scaling.num_rows, np.uint8)[rows]
    scales = E8M0_HALVED[_stored(scaling.scales, scaling.num_rows, np.uint8)[rows]]
    numbers = np.take(E2M1_PAIRS.view(np.uint16)[:, 0], pairs).view(np.int8)
    return Grid(numbers.reshape(last - first, scales.shape[1], -1), scales)


def packed_rows(tensor: Tensor, first: int, last: int) -> Grid | None:
    """Rows first..last where four bits lie two to a byte in order, `[rows, cols / 2]` in place of the numbers.

    Signed, or 0..15 where there are offsets. None if a weight lies otherwise.
    """
    scaling = tensor.scaling
    if tensor.encoding is not Encoding.PACKED4 or scaling is None or scaling.zeros or scaling.groups:
        return None
    first, last = first + scaling.first_row, last + scaling.first_row
    halves = _stored(tensor, scaling.num_rows, np.uint8)[first:last]
    scales = _per_group(tensor, scaling, _scales(tensor, scaling, first, last, scaling.scales))
    if scaling.offsets is None:
        return Grid(halves ^ np.uint8(0x88), scales)
    return Grid(halves, scales, _per_group(tensor, scaling, _scales(tensor, scaling, first, last, scaling.offsets)))


def _group(tensor: Tensor, scaling: Scaling) -> int:
    """Columns that share a scale, in a form that divides the row."""
    return 1 if scaling.groups is not None else math.gcd(scaling.block[1], tensor.cols)


def _is_symmetric(tensor: Tensor, scaling: Scaling) -> bool:
    """Whether every zero point is the middle of the range."""
    if scaling.offsets is not None:
        return False
    if scaling.zeros is None:
        return True
    if tensor.encoding not in _TRANSPOSED:
        return False
    middle = (8 - scaling.zeros_lack) * 0x11111111
    return bool((np.frombuffer(scaling.zeros.raw, "<u4") == middle).all())


def _stored(tensor: Tensor, rows: int, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(tensor.raw, dtype).reshape(rows, -1)


# ---------------------------------------------------------------- numbers


def _numbers(tensor: Tensor, scaling: Scaling, first: int, last: int) -> NDArray[Any]:
    """Stored integers (float32 of FP8) of some rows, `[rows, cols]`; those of four bits are a fresh array."""
    rows = scaling.num_rows
    match tensor.encoding:
        case Encoding.AWQ4:
            return _split_rows(_stored(tensor, tensor.cols, "<u4"), first, last, _AWQ_ROWS)
        case Encoding.GPTQ4:
            return _split_columns(_stored(tensor, tensor.cols // 8, "<u4")[:, first:last].T)
        case Encoding.PACKED4:
            return _split_columns(_stored(tensor, rows, "<u4")[first:last])
        case Encoding.PACKED8:
            raised = _stored(tensor, rows, np.uint8)[first:last] ^ np.uint8(128)
            return raised.view(np.int8)
        case Encoding.I8:
            return _stored(tensor, rows, np.int8)[first:last]
        case _:
            return np.asarray(_FLOAT8[_stored(tensor, rows, np.uint8)[first:last]])


def _split_columns(words: NDArray[np.uint32]) -> Bytes:
    """Words of eight columns, lowest half first, `[rows, words]`: numbers 0..15 `[rows, cols]`."""
    pairs = np.ascontiguousarray(words).view(np.uint8).astype(np.uint16)
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def _split_rows(words: NDArray[np.uint32], first: int, last: int, order: tuple[int, ...]) -> Bytes:
    """Words of eight rows, `[cols, words]`: numbers 0..15 of rows first..last, `[rows, cols]`."""
    wide = np.ascontiguousarray(words[:, first // 8 : -(-last // 8)].T)
    out = np.empty((len(wide), 8, wide.shape[1]), np.uint8)
    for half, row in enumerate(order):
        out[:, row] = wide >> np.uint32(4 * half) & np.uint32(15)
    skipped = first % 8
    return out.reshape(-1, wide.shape[1])[skipped : skipped + last - first]


# ---------------------------------------------------------------- scales and zero points


def _scales(tensor: Tensor, scaling: Scaling, first: int, last: int, scales: Tensor) -> Floats:
    """Scales or offsets of some rows, `[rows, stored groups]`."""
    raw = _stored(scales, scales.rows, {Encoding.F32: "<f4", Encoding.F16: "<f2"}.get(scales.encoding, "<u2"))
    if tensor.encoding in _TRANSPOSED:
        raw = raw[:, first:last].T
    elif scaling.block[0] == 1:
        raw = raw[first:last]
    else:
        raw = raw[np.arange(first, last) // scaling.block[0]]
    if scales.encoding is Encoding.BF16:
        return np.ascontiguousarray(raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(raw, np.float32)


def _zeros(tensor: Tensor, scaling: Scaling, first: int, last: int) -> Floats:
    """Zero points of some rows on the scale of `_numbers`, `[rows, stored groups]`."""
    zeros = scaling.zeros
    if zeros is None:
        raise ValueError("no zero points")
    if tensor.encoding is Encoding.PACKED4:
        return _split_rows(_stored(zeros, zeros.rows, "<u4").T, first, last, _IN_ORDER).astype(np.float32)
    if tensor.encoding is Encoding.PACKED8:
        groups = zeros.cols
        raised = _stored(zeros, zeros.rows, np.uint8).reshape(-1, groups, 4).transpose(0, 2, 1).reshape(-1, groups)
        return raised[first:last].astype(np.float32) - 128
    if tensor.encoding not in _TRANSPOSED:
        return _stored(zeros, scaling.num_rows, np.int8)[first:last].astype(np.float32)
    words = _stored(zeros, zeros.rows, "<u4")
    if scaling.zeros_lack:
        # Added to whole words, as it was taken from them: a zero of 0 borrowed from its neighbour.
        words = words + np.uint32(scaling.zeros_lack * 0x11111111)
    order = _AWQ_ROWS if tensor.encoding is Encoding.AWQ4 else _IN_ORDER
    return _split_rows(words, first, last, order).astype(np.float32)


def _per_group(tensor: Tensor, scaling: Scaling, stored: Floats) -> Floats:
    """From stored groups to groups of `_group` columns."""
    if scaling.groups is not None:
        return stored[:, np.frombuffer(scaling.groups.raw, "<i4")]
    group = _group(tensor, scaling)
    if group == scaling.block[1]:
        return stored
    return stored[:, np.arange(0, tensor.cols, group) // scaling.block[1]]
