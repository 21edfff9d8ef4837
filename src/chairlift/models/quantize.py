"""Weights in the precision an executor wants, decoded and rounded one block of rows at a time.

A block of rows is a few megabytes, and blocks of a large weight go to a few threads: NumPy leaves the interpreter
lock while it computes. No weight, and no model, is ever held decoded as a whole. All functions may be called from many
threads at once; for a whole model, mapping the weights over a pool of as many threads as cores is the fastest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.core.errors import InvalidModel
from chairlift.models.grids import BLOCK_SHAPES, Grid, GridShape, grid_of_blocks, packed_of_blocks
from chairlift.models.groups import Int4Groups, Int8Groups
from chairlift.models.rounding import (
    check_scalable,
    fitting_group,
    int8_scales,
    inverse,
    largest_magnitudes,
    round_bfloat16,
    round_int4,
)
from chairlift.models.scaled import grid_of_rows, grid_shape_of, is_scaled_by_rows, packed_rows
from chairlift.models.tensor import FLOATS, Encoding, Tensor

Number = TypeVar("Number", bound=np.generic)

BLOCK_NUMBERS = 1 << 19
"""Numbers decoded at a time by a thread, 2 MB as float32: with less, threads wait for the interpreter lock."""
MIN_THREADED_NUMBERS = 1 << 20
"""Below this a thread costs more than it saves."""


class Allocate(Protocol):
    """Memory for a result: as `numpy.empty`."""

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]: ...


# ---------------------------------------------------------------- what executors call


def to_float32(*tensors: Tensor, allocate: Allocate = np.empty, interleaved: int = 1) -> NDArray[np.float32]:
    """The weight as float32 `[rows, cols]`, exactly what its encoding says; several lie on top of each other.

    The rows of each next `interleaved` weights, which have equally many, are interleaved; so in all of these functions.
    """
    out: NDArray[np.float32] = allocate(_stacked_shape(tensors), np.float32)
    for tensor, part in _parts(tensors, out, interleaved):
        _fill_float32(tensor, part)
    return out


def to_bfloat16(*tensors: Tensor, allocate: Allocate = np.empty, interleaved: int = 1) -> NDArray[np.uint16]:
    """The weight's bfloat16 bits as uint16 `[rows, cols]`, rounded to nearest, ties to even; several are stacked."""
    out: NDArray[np.uint16] = allocate(_stacked_shape(tensors), np.uint16)
    for tensor, part in _parts(tensors, out, interleaved):
        _fill_bfloat16(tensor, part)
    return out


def to_int8(*tensors: Tensor, group: int = 64, allocate: Allocate = np.empty, interleaved: int = 1) -> Int8Groups:
    """The weight in int8 groups along its rows; several with equal columns are stacked.

    Where the file's own groups are symmetric and a multiple of `group` they are taken over, exactly; else each group
    is scaled by its largest magnitude. If `group` does not divide a row, half of it is tried, and so on down to 8;
    then the whole row is one group.

    Raises:
        InvalidModel: a weight holds a number that is not finite, or too large for a float16 scale.
    """
    rows, cols = _stacked_shape(tensors)
    group = fitting_group(cols, group)
    kept = [_kept_by_int8(tensor, group) for tensor in tensors]
    wide = any(shape is not None and shape.wide for shape in kept)
    values = allocate((rows, cols // group, group), np.int8)
    scales = allocate((rows, cols // group, 1), np.float32 if wide else np.float16)
    for shape, (tensor, part), (_, part_scales) in zip(
        kept, _parts(tensors, values, interleaved), _parts(tensors, scales, interleaved), strict=True
    ):
        (_round_to_int8 if shape is None else _keep_int8)(tensor, Int8Groups(part, part_scales))
    return Int8Groups(values, scales)


def to_int4(*tensors: Tensor, group: int = 32, allocate: Allocate = np.empty, interleaved: int = 1) -> Int4Groups:
    """The weight in 4-bit groups; several with equal columns are stacked, all of them with offsets or none.

    Where the file's own groups have at most four bits and are a multiple of `group` they are taken over, exactly. The
    rest is rounded to signed numbers whose scale is chosen for the least squared error.

    Raises:
        InvalidModel: a weight holds a number that is not finite, or its rows cannot be cut into even groups.
        ValueError: some have offsets and some have none.
    """
    rows, cols = _stacked_shape(tensors)
    group = fitting_group(cols, group)
    if group % 2:
        raise InvalidModel(f"tensor {tensors[0].name}: rows of {cols} numbers cannot be packed two to a byte")
    kept = [_kept_by_int4(tensor, group) for tensor in tensors]
    with_offsets = {shape is not None and shape.has_offsets for shape in kept}
    if len(with_offsets) > 1:
        raise ValueError("numbers with offsets and signed ones cannot lie on top of each other")
    wide = any(shape is not None and shape.wide for shape in kept)
    values = allocate((rows, cols // group, group // 2), np.uint8)
    scales = allocate((rows, cols // group, 1), np.float32 if wide else np.float16)
    offsets = allocate(scales.shape, np.float32) if True in with_offsets else None
    for shape, tensor, part in zip(kept, tensors, _places(tensors, interleaved), strict=True):
        out = Int4Groups(values[part], scales[part], None if offsets is None else offsets[part])
        (_round_to_int4 if shape is None else _keep_int4)(tensor, out)
    return Int4Groups(values, scales, offsets)


def rows_at(tensor: Tensor, rows: NDArray[np.integer]) -> Tensor:
    """Some rows of a weight without interleaved heads, by their numbers and in any order: a copy of what is stored."""
    scaling = tensor.scaling
    if tensor.columns is not None or (scaling is not None and not is_scaled_by_rows(tensor)):
        exact = np.concatenate([to_float32(tensor.rows_between(row, 1)) for row in rows.tolist()])
        return Tensor(tensor.name, exact.shape, Encoding.F32, exact.reshape(-1).view(np.uint8).data)
    if scaling is not None:
        rows = rows + scaling.first_row
        offsets = None if scaling.offsets is None else rows_at(scaling.offsets, rows)
        scales = rows_at(scaling.scales, rows)
        scaling = replace(scaling, scales=scales, offsets=offsets, num_rows=len(rows), first_row=0)
    stored = np.frombuffer(tensor.raw, np.uint8).reshape(-1, tensor.row_bytes)[rows]
    return replace(tensor, shape=(len(rows), tensor.cols), raw=stored.reshape(-1).data, scaling=scaling)


def is_kept_by_int8(tensor: Tensor, group: int) -> bool:
    """Whether `to_int8` takes the file's own numbers over, so that nothing is rounded."""
    return _kept_by_int8(tensor, fitting_group(tensor.cols, group)) is not None


def int8_bytes(tensor: Tensor, group: int) -> int:
    """Memory that `to_int8` takes for a weight alone."""
    group = fitting_group(tensor.cols, group)
    kept = _kept_by_int8(tensor, group)
    scale_bytes = 4 if kept and kept.wide else 2
    return tensor.rows * (tensor.cols + tensor.cols // group * scale_bytes)


def int4_bytes(tensor: Tensor, group: int) -> int:
    """Memory that `to_int4` takes for a weight."""
    group = fitting_group(tensor.cols, group)
    kept = _kept_by_int4(tensor, group)
    group_bytes = (4 if kept and kept.wide else 2) + (4 if kept and kept.has_offsets else 0)
    return tensor.rows * (tensor.cols // 2 + tensor.cols // group * group_bytes)


def _kept_by_int8(tensor: Tensor, group: int) -> GridShape | None:
    """The grid of a weight whose own numbers fit eight bits in groups of `group`; None if it has to be rounded."""
    shape = grid_shape(tensor)
    fits = shape is not None and shape.bits > 0 and not shape.has_offsets and shape.group % group == 0
    return shape if fits else None


def _kept_by_int4(tensor: Tensor, group: int) -> GridShape | None:
    """The same of four bits, which may have offsets."""
    shape = grid_shape(tensor)
    fits = shape is not None and 0 < shape.bits <= 4 and shape.group % group == 0
    return shape if fits else None


def suits_int4(tensor: Tensor) -> bool:
    """Whether four bits are for this weight.

    Those of a file are kept; floating point is rounded, which is what was asked for. But what a file holds quantised in
    5 to 8 bits, or on the crooked scales of IQ4 and MXFP4, was worth that to its maker: rounding the nine matrices of
    Gemma 3 270M Q4_K_M that are Q8_0 a second time cost more than all else together. And numbers of two or three bits
    in groups of 16 take as much room as eight bits, and more time.
    """
    if tensor.encoding in _WORTH_EIGHT_BITS:
        return False
    return tensor.scaling is None or tensor.scaling.groups is None


_WORTH_EIGHT_BITS = frozenset(
    (
        Encoding.Q8_0,
        Encoding.Q5_0,
        Encoding.Q5_1,
        Encoding.Q2_K,
        Encoding.Q3_K,
        Encoding.Q5_K,
        Encoding.Q6_K,
        Encoding.IQ4_NL,
        Encoding.IQ4_XS,
        Encoding.MXFP4,
        Encoding.F4_E2M1,
        Encoding.I8,
        Encoding.PACKED8,
        Encoding.F8_E4M3,
    )
)


# ---------------------------------------------------------------- one weight into its place


def _fill_float32(tensor: Tensor, out: NDArray[np.float32]) -> None:
    _by_rows(tensor, lambda first, last: _decode_into(tensor, first, last, out[first:last]))


def _fill_bfloat16(tensor: Tensor, out: NDArray[np.uint16]) -> None:
    def block(first: int, last: int) -> None:
        if tensor.encoding is Encoding.BF16:
            out[first:last] = _in_order(tensor, _stored_rows(tensor, first, last).view("<u2"))
        else:
            out[first:last] = round_bfloat16(_decode(tensor, first, last))

    _by_rows(tensor, block)


def _round_to_int8(tensor: Tensor, out: Int8Groups) -> None:
    _, num_groups, group = out.values.shape

    def block(first: int, last: int) -> None:
        numbers = _decode(tensor, first, last).reshape(-1, group)
        rounded = int8_scales(largest_magnitudes(numbers), tensor.name)
        out.scales[first:last] = rounded.reshape(-1, num_groups, 1)
        numbers *= inverse(rounded)[:, None]
        np.rint(numbers, out=numbers)
        out.values[first:last] = numbers.reshape(-1, num_groups, group)

    _by_rows(tensor, block)


def _keep_int8(tensor: Tensor, out: Int8Groups) -> None:
    """The file's numbers, moved."""

    def block(first: int, last: int) -> None:
        grid = _grid(tensor, first, last)
        check_scalable(grid.scales, _FLOAT32_MAX, tensor.name)
        out.values[first:last].reshape(grid.numbers.shape)[...] = grid.numbers
        out.scales[first:last, :, 0] = _repeated(grid.scales, out.values.shape[1])

    _by_rows(tensor, block)


def _round_to_int4(tensor: Tensor, out: Int4Groups) -> None:
    num_groups, group = out.values.shape[1], out.group

    def block(first: int, last: int) -> None:
        numbers, rounded = round_int4(_decode(tensor, first, last).reshape(-1, group), tensor.name)
        halves = _two_to_a_byte(numbers.astype(np.int8).view(np.uint8))
        out.values[first:last] = halves.reshape(-1, num_groups, group // 2)
        out.scales[first:last] = rounded.reshape(-1, num_groups, 1)

    _by_rows(tensor, block)


def _keep_int4(tensor: Tensor, out: Int4Groups) -> None:
    """The file's numbers, packed in another order if they are not in ours."""

    def block(first: int, last: int) -> None:
        packed = _packed(tensor, first, last)
        grid = packed or _grid(tensor, first, last)
        check_scalable(grid.scales, _FLOAT32_MAX, tensor.name)
        if grid.offsets is not None and out.offsets is not None:
            check_scalable(grid.offsets, _FLOAT32_MAX, tensor.name)
            out.offsets[first:last, :, 0] = _repeated(grid.offsets, out.values.shape[1])
        halves = _two_to_a_byte(grid.numbers.view(np.uint8)) if packed is None else packed.numbers.reshape(-1)
        out.values[first:last] = halves.reshape(-1, *out.values.shape[1:])
        out.scales[first:last, :, 0] = _repeated(grid.scales, out.values.shape[1])

    _by_rows(tensor, block)


_FLOAT32_MAX = float(np.finfo(np.float32).max)


def _two_to_a_byte(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The low halves of numbers `[..., even]` packed flat, the even one in the low half."""
    pairs = np.ascontiguousarray(numbers).reshape(-1).view("<u2")
    return ((pairs & np.uint16(0x0F)) | (pairs >> np.uint16(4) & np.uint16(0xF0))).astype(np.uint8)


def _repeated(per_group: NDArray[np.float32], num_groups: int) -> NDArray[np.float32]:
    """Of the file's groups, `[rows, groups]`, for so many smaller ones."""
    times = num_groups // per_group.shape[1]
    return per_group if times == 1 else np.repeat(per_group, times, axis=1)


# ---------------------------------------------------------------- blocks of rows


def _stacked_shape(tensors: tuple[Tensor, ...]) -> tuple[int, int]:
    return sum(tensor.rows for tensor in tensors), tensors[0].cols


def _parts(tensors: tuple[Tensor, ...], out: NDArray[Number], interleaved: int) -> list[tuple[Tensor, NDArray[Number]]]:
    """Each weight with its rows of the result."""
    return [(tensor, out[place]) for tensor, place in zip(tensors, _places(tensors, interleaved), strict=True)]


def _places(tensors: tuple[Tensor, ...], interleaved: int) -> list[slice]:
    """Which rows of the result are each weight's."""
    places, first = [], 0
    for at in range(0, len(tensors), interleaved):
        end = first + sum(tensor.rows for tensor in tensors[at : at + interleaved])
        places += [slice(first + n, end, interleaved) for n in range(interleaved)]
        first = end
    return places


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
    if tensor.columns is not None:
        begin, width = tensor.columns
        numbers = np.frombuffer(tensor.raw, f"<u{tensor.encoding.unit_bytes}").reshape(tensor.cols, width)
        rows = slice(begin + first * tensor.step, begin + last * tensor.step, tensor.step)
        return np.ascontiguousarray(numbers[:, rows].T).view(np.uint8)
    if tensor.step > 1:
        return np.ascontiguousarray(_numbers_apart(tensor)).view(np.uint8)
    stored = np.frombuffer(tensor.raw, np.uint8).reshape(tensor.rows, tensor.row_bytes)
    if not tensor.interleaved_heads or tensor.rows == 1:
        return stored[first:last]
    return stored[_file_order(tensor.rows, tensor.interleaved_heads)[first:last]]


def _numbers_apart(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a vector between which others lie, `[1, cols]`."""
    return np.frombuffer(tensor.raw, f"<u{tensor.encoding.unit_bytes}")[:: tensor.step][None]


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
    match tensor.encoding:
        case Encoding.F32:
            out[:] = _stored_rows(tensor, first, last).view("<f4")
        case Encoding.F16:
            out[:] = _stored_rows(tensor, first, last).view("<f2")
        case Encoding.BF16:
            stored = _stored_rows(tensor, first, last).view("<u2")
            np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32)
        case _:
            _grid(tensor, first, last).write_float32(out)
    if tensor.interleaved_heads and tensor.rows == 1:
        out[:] = _in_order(tensor, out)


def grid_shape(tensor: Tensor) -> GridShape | None:
    """How the numbers of a weight are grouped; None if it is plain floating point."""
    if tensor.encoding in FLOATS:
        return None
    return BLOCK_SHAPES.get(tensor.encoding) or grid_shape_of(tensor)


@np.errstate(over="ignore", invalid="ignore")
def _grid(tensor: Tensor, first: int, last: int) -> Grid:
    """Rows first..last of a quantised weight: numbers `[rows, groups, group]`."""
    if tensor.encoding not in BLOCK_SHAPES:
        return grid_of_rows(tensor, first, last)
    blocks = _stored_rows(tensor, first, last).reshape(-1, tensor.encoding.unit_bytes)
    return grid_of_blocks(tensor.encoding, blocks).of_rows(last - first)


@np.errstate(over="ignore", invalid="ignore")
def _packed(tensor: Tensor, first: int, last: int) -> Grid | None:
    """The same of four bits, two numbers to a byte in order, where that is less work than one by one."""
    if tensor.encoding not in BLOCK_SHAPES:
        return packed_rows(tensor, first, last)
    blocks = _stored_rows(tensor, first, last).reshape(-1, tensor.encoding.unit_bytes)
    packed = packed_of_blocks(tensor.encoding, blocks)
    return packed and packed.of_rows(last - first)


def _in_order(tensor: Tensor, rows: NDArray[Number]) -> NDArray[Number]:
    """A vector's numbers in the weight's order; a matrix, whose rows are in order already, as it is."""
    if not tensor.interleaved_heads or tensor.rows > 1:
        return rows
    return rows[:, _file_order(tensor.cols, tensor.interleaved_heads)]
