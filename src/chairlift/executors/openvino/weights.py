"""Weights in the form that graph constants share: packed by several threads, in memory that can be given back.

The plugin lays weights out anew when it first runs and never looks at these again; without giving them back every
weight would be in memory twice.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.executors.openvino.options import Dtype
from chairlift.models import Int4Groups, Int8Groups, Tensor, suits_int4, to_bfloat16, to_float32, to_int4, to_int8
from chairlift.models.quantize import grid_shape

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BFloat16:
    """The bits of bfloat16 numbers, `[rows, cols]`."""

    bits: NDArray[np.uint16]


Packed = Floats | BFloat16 | Int8Groups | list[Int4Groups | Int8Groups]
"""One matrix, or several with equal columns on top of each other."""


@dataclass(slots=True)
class Arena:
    """Arrays in pages of their own, alive as long as the arena is.

    OpenVINO's constants do not keep the memory they share: a constant over a collected array is garbage, or a crash.
    """

    _maps: list[mmap.mmap] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]:
        """Room for an array, as `numpy.empty`."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._maps.append(memory)
        return np.frombuffer(memory, dtype).reshape(shape)

    @property
    def num_bytes(self) -> int:
        return sum(len(memory) for memory in self._maps)

    def release(self) -> None:
        """Give the pages back to the system. Reading an array afterwards gives zeros."""
        for memory in self._maps:
            memory.madvise(mmap.MADV_DONTNEED)

    def was_read(self) -> bool:
        """Whether anybody looked at an array since they were given back.

        Source: proc(5), /proc/pid/pagemap: 64 bits a page, the highest one says that the page is there.

        Raises:
            OSError: the system does not say it.
        """
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
            for memory in self._maps:
                first = np.frombuffer(memory, np.uint8).ctypes.data // mmap.PAGESIZE
                entries = os.pread(pages.fileno(), 8 * -(-len(memory) // mmap.PAGESIZE), 8 * first)
                if (np.frombuffer(entries, "<u8") >> np.uint64(63)).any():
                    return True
        return False


def dtype_of_rows(num_cols: int, dtype: Dtype) -> Dtype:
    """The precision of a weight in the body of a model in `dtype`, by the numbers of its rows.

    Where those are odd nothing is rounded: beside bfloat16 the plugin computes products with such weights wrongly in
    eight bits, from a few tokens on, and four bits cannot be packed two to a byte.
    """
    return "bfloat16" if num_cols % 2 == 1 and dtype in ("int8", "int4") else dtype


def gives_back_early(dtype: Dtype) -> bool:
    """Whether packed weights may be given back once a token was computed with them, before all sizes were run.

    Of float32 the plugin lays some out in one way for one token and in another for several. Of the others it did not
    wherever this was tried; should it do so on another machine, that is seen (`Arena.was_read`) and mended.
    """
    return dtype != "float32" and _sees_reads()


def _sees_reads() -> bool:
    """Whether `Arena.was_read` can be believed on this system."""
    arena = Arena()
    array = arena.empty((mmap.PAGESIZE,), np.uint8)
    array[:] = 1
    arena.release()
    try:
        return not arena.was_read() and not array.any() and arena.was_read()
    except OSError:
        return False


def trim_heap() -> None:
    """Give the system back what the allocator keeps of blocks that were decoded, a few megabytes for each thread.

    Only glibc can be told so; elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def pack(tensors: list[Tensor], dtype: Dtype, group: int, arena: Arena, interleaved: int = 1) -> Packed:
    """The tensors on top of each other, in `dtype`; `group` numbers share a scale, if there are scales.

    The rows of each next `interleaved` of them are interleaved.

    What four bits are too few for is in eight, in groups of the same size.
    """
    match dtype:
        case "float32":
            return to_float32(*tensors, allocate=arena.empty, interleaved=interleaved)
        case "bfloat16":
            return BFloat16(to_bfloat16(*tensors, allocate=arena.empty, interleaved=interleaved))
        case "int8":
            return to_int8(*tensors, group=group, allocate=arena.empty, interleaved=interleaved)
        case "int4":
            return [
                _four_bit(to_int4(tensor, group=group, allocate=arena.empty))
                if suits_int4(tensor)
                else to_int8(tensor, group=group, allocate=arena.empty)
                for tensor in tensors
            ]


def pack_experts(tensors: list[Tensor], dtype: Dtype, group: int, arena: Arena, interleaved: int = 1) -> Packed:
    """The same matrix of all experts on top of each other, in one form. Four bits with offsets are rounded to eight.

    The rows of the `interleaved` matrices of each expert, which follow each other, are interleaved.

    The products that gather tokens have no place for the sums that belong to offsets.
    """
    if dtype != "int4":
        return pack(tensors, dtype, group, arena, interleaved)
    if all(suits_expert_int4(tensor) for tensor in tensors):
        return [to_int4(*tensors, group=group, allocate=arena.empty, interleaved=interleaved)]
    return pack(tensors, "int8", group, arena, interleaved)


def suits_expert_int4(tensor: Tensor) -> bool:
    shape = grid_shape(tensor)
    return suits_int4(tensor) and (shape is None or not (shape.has_offsets or shape.wide))


def keeps_small_groups(tensors: list[Tensor]) -> bool:
    """Whether experts are taken over as they are in groups of 32, and would be rounded in larger ones.

    Nothing rounds the inputs of products that gather tokens, so their groups have no size to meet.
    """
    shapes = [grid_shape(tensor) for tensor in tensors]
    return all(shape is not None and shape.bits > 0 and not shape.has_offsets and shape.group == 32 for shape in shapes)


def _four_bit(packed: Int4Groups) -> Int4Groups:
    """Signed numbers -8..7 in every case: where there are offsets, they become those of the middle of the range.

    The integer kernels want symmetric weights. Those with offsets are `q * scale + offset` with q in 0..15, which is
    `(q - 8) * scale + (offset + 8 * scale)`. Changed in place.
    """
    if packed.offsets is not None:
        np.bitwise_xor(packed.values, 0x88, out=packed.values)
        np.add(packed.offsets, 8 * packed.scales.astype(np.float32), out=packed.offsets)
    return packed
