"""Weights in the precision an executor wants, decoded and rounded one block of rows at a time.

A block of rows is a few megabytes, and blocks of a large weight go to a few threads: NumPy leaves the interpreter
lock while it computes. No model is ever held decoded as a whole. All functions may be called from many threads at
once; for a whole model, mapping the weights over a pool of as many threads as cores is the fastest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel
from chairlift.models.tensor import Encoding, Tensor

Number = TypeVar("Number", bound=np.generic)

BLOCK_NUMBERS = 1 << 19
"""Numbers decoded at a time by a thread, 2 MB as float32: with less, threads wait for the interpreter lock."""
MIN_THREADED_NUMBERS = 1 << 20
"""Below this a thread costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Int8Groups:
    """`values * scales`: int8 `[rows, groups, group]`, float16 `[rows, groups, 1]`, symmetric."""

    values: NDArray[np.int8]
    scales: NDArray[np.float16]

    @property
    def group(self) -> int:
        """Numbers that share a scale: as asked, or less if a row cannot be cut so."""
        return int(self.values.shape[2])

    def to_float32(self) -> NDArray[np.float32]:
        """float32 `[rows, cols]`: what a product with these weights uses."""
        wide = self.values.astype(np.float32) * self.scales.astype(np.float32)
        return wide.reshape(self.values.shape[0], -1)


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """Four-bit weights in groups, two to a byte: the low half is the even element along the row.

    `values` is uint8 `[rows, groups, group / 2]`; `scales` float16 `[rows, groups, 1]`. Without `zeros` a half is a
    signed number -8..7 and the weight is `q * scale`. With `zeros` (float16, keeping their fractions) it is 0..15 and
    the weight `(q - zero) * scale`; `offsets` (float16) say the same without the rounding of a division:
    `q * scale + offset`.
    """

    values: NDArray[np.uint8]
    scales: NDArray[np.float16]
    zeros: NDArray[np.float16] | None = None
    offsets: NDArray[np.float16] | None = None

    @property
    def group(self) -> int:
        """Numbers that share a scale."""
        return int(self.values.shape[2]) * 2

    def to_float32(self) -> NDArray[np.float32]:
        """float32 `[rows, cols]`: what a product with these weights uses, offsets taken exactly."""
        halves = np.stack((self.values & 15, self.values >> 4), axis=-1).reshape(*self.values.shape[:2], -1)
        scales = self.scales.astype(np.float32)
        if self.offsets is None:
            numbers = (halves.astype(np.int8) ^ 8) - 8
            return (numbers * scales).reshape(halves.shape[0], -1)
        return (halves * scales + self.offsets.astype(np.float32)).reshape(halves.shape[0], -1)


# ---------------------------------------------------------------- what executors call


def to_float32(tensor: Tensor) -> NDArray[np.float32]:
    """The weight as float32 `[rows, cols]`, exactly what its encoding says."""
    out = np.empty(tensor.shape, np.float32)
    _by_rows(tensor, lambda first, last: _decode_into(tensor, first, last, out[first:last]))
    return out


def to_bfloat16(tensor: Tensor) -> NDArray[np.uint16]:
    """The weight's bfloat16 bits as uint16 `[rows, cols]`, rounded to nearest, ties to even."""
    out = np.empty(tensor.shape, np.uint16)

    def block(first: int, last: int) -> None:
        if tensor.encoding is Encoding.BF16:
            out[first:last] = _in_order(tensor, _stored_rows(tensor, first, last).view("<u2"))
        else:
            out[first:last] = _round_bfloat16(_decode(tensor, first, last))

    _by_rows(tensor, block)
    return out


def to_int8(tensor: Tensor, group: int = 64) -> Int8Groups:
    """The weight in int8 groups along its rows, each scaled by its largest magnitude.

    If `group` does not divide a row, half of it is tried, and so on down to 8; then the whole row is one group.

    Raises:
        InvalidModel: the weight holds a number that is not finite, or too large for a float16 scale.
    """
    group = _fitting_group(tensor.cols, group)
    num_groups = tensor.cols // group
    values = np.empty((tensor.rows, num_groups, group), np.int8)
    scales = np.empty((tensor.rows, num_groups, 1), np.float16)

    def block(first: int, last: int) -> None:
        numbers = _decode(tensor, first, last).reshape(-1, group)
        rounded = _int8_scales(_largest(numbers), tensor)
        scales[first:last] = rounded.reshape(-1, num_groups, 1)
        numbers *= _inverse(rounded)[:, None]
        np.rint(numbers, out=numbers)
        values[first:last] = numbers.reshape(-1, num_groups, group)

    _by_rows(tensor, block)
    return Int8Groups(values, scales)


def to_int4(tensor: Tensor, group: int = 32) -> Int4Groups:
    """The weight in 4-bit groups. Q4_0 and Q4_1 are repacked as they are when `group` is 32; the rest is rounded.

    Q4_0 becomes signed numbers with its own scales, Q4_1 unsigned ones with scales, offsets and zero points.
    Everything else becomes signed numbers whose scale is chosen for the least squared error.

    Raises:
        InvalidModel: the weight holds a number that is not finite, or its rows cannot be cut into even groups.
    """
    if tensor.encoding in (Encoding.Q4_0, Encoding.Q4_1) and group == tensor.encoding.unit:
        return _repack_int4(tensor)
    group = _fitting_group(tensor.cols, group)
    if group % 2:
        raise InvalidModel(f"tensor {tensor.name}: rows of {tensor.cols} numbers cannot be packed two to a byte")
    num_groups = tensor.cols // group
    values = np.empty((tensor.rows, num_groups, group // 2), np.uint8)
    scales = np.empty((tensor.rows, num_groups, 1), np.float16)

    def block(first: int, last: int) -> None:
        numbers, rounded = _round_int4(_decode(tensor, first, last).reshape(-1, group), tensor)
        halves = numbers.astype(np.int8).view(np.uint8) & 15
        values[first:last] = (halves[:, 0::2] | halves[:, 1::2] << 4).reshape(-1, num_groups, group // 2)
        scales[first:last] = rounded.reshape(-1, num_groups, 1)

    _by_rows(tensor, block)
    return Int4Groups(values, scales)


# ---------------------------------------------------------------- blocks of rows


def _by_rows(tensor: Tensor, block: Callable[[int, int], None]) -> None:
    """Call `block(first, last)` for all rows, cut into blocks; on several threads if there is enough to do."""
    size = max(1, BLOCK_NUMBERS // tensor.cols)
    starts = range(0, tensor.rows, size)
    num_threads = min(_num_cores(), 8, len(starts))
    if num_threads < 2 or tensor.rows * tensor.cols < MIN_THREADED_NUMBERS:
        for first in starts:
            block(first, min(first + size, tensor.rows))
        return
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(lambda first: block(first, min(first + size, tensor.rows)), starts))


def _num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stored_rows(tensor: Tensor, first: int, last: int) -> NDArray[np.uint8]:
    """Bytes of rows first..last of the weight, `[rows, row_bytes]`, in the weight's order."""
    stored = np.frombuffer(tensor.raw, np.uint8).reshape(tensor.rows, tensor.row_bytes)
    if not tensor.interleaved_heads or tensor.rows == 1:
        return stored[first:last]
    return stored[_file_order(tensor.rows, tensor.interleaved_heads)[first:last]]


def _file_order(count: int, num_heads: int) -> NDArray[np.int64]:
    """Where the rows of `num_heads` heads lie in a file that interleaves them, `[count]`."""
    return np.arange(count, dtype=np.int64).reshape(num_heads, -1, 2).transpose(0, 2, 1).reshape(-1)


def _decode(tensor: Tensor, first: int, last: int) -> NDArray[np.float32]:
    """Rows first..last as float32 `[rows, cols]`, a fresh array."""
    out = np.empty((last - first, tensor.cols), np.float32)
    _decode_into(tensor, first, last, out)
    return out


@np.errstate(over="ignore", invalid="ignore")
def _decode_into(tensor: Tensor, first: int, last: int, out: NDArray[np.float32]) -> None:
    stored = _stored_rows(tensor, first, last)
    match tensor.encoding:
        case Encoding.F32:
            out[:] = stored.view("<f4")
        case Encoding.F16:
            out[:] = stored.view("<f2")
        case Encoding.BF16:
            np.left_shift(stored.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)
        case Encoding.Q8_0:
            blocks = stored.reshape(-1, 34)
            numbers = out.reshape(-1, 32)
            numbers[:] = blocks[:, 2:].view(np.int8)
            numbers *= _float16_at(blocks, 0)
        case Encoding.Q4_0:
            blocks = stored.reshape(-1, 18)
            numbers = out.reshape(-1, 32)
            numbers[:] = _halves(blocks[:, 2:])
            numbers -= 8
            numbers *= _float16_at(blocks, 0)
        case Encoding.Q4_1:
            blocks = stored.reshape(-1, 20)
            numbers = out.reshape(-1, 32)
            numbers[:] = _halves(blocks[:, 4:])
            numbers *= _float16_at(blocks, 0)
            numbers += _float16_at(blocks, 2)
    if tensor.interleaved_heads and tensor.rows == 1:
        out[:] = _in_order(tensor, out)


def _in_order(tensor: Tensor, rows: NDArray[Number]) -> NDArray[Number]:
    """A vector's numbers in the weight's order; a matrix, whose rows are in order already, as it is."""
    if not tensor.interleaved_heads or tensor.rows > 1:
        return rows
    return rows[:, _file_order(tensor.cols, tensor.interleaved_heads)]


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The 32 four-bit numbers of every block of 16 bytes, uint8 `[blocks, 32]`: low halves first."""
    packed = np.ascontiguousarray(packed)
    numbers = np.empty((len(packed), 32), np.uint8)
    np.bitwise_and(packed, 15, out=numbers[:, :16])
    np.right_shift(packed, 4, out=numbers[:, 16:])
    return numbers


def _float16_at(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float32]:
    """The float16 at `offset` of every block, as float32 `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


# ---------------------------------------------------------------- rounding


def _fitting_group(cols: int, group: int) -> int:
    while group > 8 and cols % group:
        group //= 2
    return cols if cols % group else group


def _check_scalable(largest: NDArray[np.float32], limit: float, tensor: Tensor) -> None:
    if not np.all(np.abs(largest) <= limit):
        raise InvalidModel(f"tensor {tensor.name} holds numbers that are not finite or too large")


def _largest(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest magnitude of every row, `[rows]`; NaN if there is one.

    Magnitudes are compared as integers, which order floats without their sign and NaN above infinity, and by halving
    the flat array while the row length is even: five times as fast as a maximum along rows of 64.
    """
    width = numbers.shape[1]
    bits = (numbers.view(np.uint32) & np.uint32(0x7FFFFFFF)).ravel()
    while width % 2 == 0:
        bits = np.maximum(bits[0::2], bits[1::2])
        width //= 2
    if width > 1:
        bits = bits.reshape(-1, width).max(axis=1)
    return bits.view(np.float32)


def _int8_scales(largest: NDArray[np.float32], tensor: Tensor) -> NDArray[np.float16]:
    """Scales that map the largest magnitude of a group to 127, never to 128, `[groups]`.

    Among the subnormal float16 the nearest one may be too small by more than half a step: the next is taken then.
    """
    _check_scalable(largest, 127 * 65504.0, tensor)
    rounded = (largest * np.float32(1 / 127)).astype(np.float16)
    too_small = rounded.astype(np.float32) * np.float32(127.49) < largest
    if too_small.any():
        rounded[too_small] = np.nextafter(rounded[too_small], np.float16(np.inf))
    return rounded


def _inverse(scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """1 / scale in float32, 0 where the scale is 0."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)


def _round_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    missing = np.isnan(numbers)
    if missing.any():
        rounded[missing] = 0x7FC0
    return rounded


def _round_int4(numbers: NDArray[np.float32], tensor: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Signed 4-bit numbers -8..7 `[groups, group]` and their scales `[groups]`, searched for the least squared error.

    The number of largest magnitude is tried as -7 to -9 (the scale may be negative; -9 is cut to -8, which
    serves the others). For given numbers q the best scale is x·q / q·q, and it removes (x·q)^2 / q·q of the error.
    """
    largest = _largest(numbers)
    _check_scalable(largest, 400_000.0, tensor)
    extreme = np.where(numbers.max(axis=1) == largest, largest, -largest)
    per_number = np.divide(np.float32(1), extreme, out=np.zeros_like(extreme), where=largest > 1e-30)
    steps = np.empty_like(numbers)
    scales = np.zeros_like(extreme)
    removed = np.zeros_like(extreme)
    for target in (-9.0, -8.5, -8.0, -7.5, -7.0):
        _round_to_int4(numbers, per_number * np.float32(target), steps)
        dots = np.einsum("ij,ij->i", numbers, steps)
        squares = np.einsum("ij,ij->i", steps, steps)
        fitted = np.divide(dots, squares, out=np.zeros_like(dots), where=squares > 0)
        better = fitted * dots > removed
        removed[better] = (fitted * dots)[better]
        scales[better] = fitted[better]
    rounded = scales.astype(np.float16)
    _round_to_int4(numbers, _inverse(rounded), steps)
    return steps, rounded


def _round_to_int4(numbers: NDArray[np.float32], inverse: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    np.multiply(numbers, inverse[:, None], out=out)
    np.rint(out, out=out)
    np.clip(out, -8, 7, out=out)


def _repack_int4(tensor: Tensor) -> Int4Groups:
    """Q4_0 or Q4_1 as groups of 32, bit for bit: only the order of the halves changes."""
    signed = tensor.encoding is Encoding.Q4_0
    num_groups = tensor.cols // 32
    head = 2 if signed else 4
    values = np.empty((tensor.rows, num_groups, 16), np.uint8)
    scales = np.empty((tensor.rows, num_groups, 1), np.float16)
    zeros = None if signed else np.empty_like(scales)
    offsets = None if signed else np.empty_like(scales)

    def block(first: int, last: int) -> None:
        blocks = _stored_rows(tensor, first, last).reshape(-1, tensor.encoding.unit_bytes)
        pairs = np.ascontiguousarray(blocks[:, head:]).view("<u2")
        packed = values[first:last].reshape(-1, 16)
        packed[:, :8] = (pairs & 0x0F) | (pairs >> 4 & 0xF0)
        packed[:, 8:] = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
        steps = _float16_at(blocks, 0)
        _check_scalable(steps, 65504.0, tensor)
        if zeros is None or offsets is None:
            packed ^= 0x88
        else:
            lows = _float16_at(blocks, 2)
            _check_scalable(lows, 65504.0, tensor)
            flat = (steps == 0) | (np.abs(lows) > np.abs(steps) * 60000)
            # (q - zero) * 0 cannot say `offset`, so a flat group is 0 - (-1) times it.
            packed[flat[:, 0]] = 0
            fractions = np.divide(-lows, steps, out=np.full_like(lows, -1.0), where=~flat)
            zeros[first:last] = fractions.reshape(-1, num_groups, 1)
            offsets[first:last] = lows.reshape(-1, num_groups, 1)
            steps = np.where(flat, lows, steps)
        scales[first:last] = steps.reshape(-1, num_groups, 1)

    _by_rows(tensor, block)
    return Int4Groups(values, scales, zeros, offsets)
