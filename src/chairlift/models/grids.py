"""Blocks of GGUF files as small integers on a grid: `numbers * scales + offsets`, nothing rounded.

Every quantised type is such a grid, and an executor's packed form is another one: where the two agree the integers
are moved and the weight never exists as floating point.

Source: GGUF, block layouts of ggml. The bytes of several numbers are taken apart eight at a time, as 64-bit words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.models.tensor import Encoding

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the sixteen halves of IQ4 stand for."""
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice what the sixteen halves of MXFP4 stand for: integers."""


def _pairs(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """What both halves of every byte stand for, the low one first, `[256, 2]`."""
    return np.stack((np.tile(values, 16), np.repeat(values, 16)), axis=1)


_NONLINEAR_PAIRS = _pairs(_NONLINEAR)
E2M1_PAIRS = _pairs(_E2M1_DOUBLED)


def _e8m0_halved() -> Floats:
    """Half of what the 256 bytes of E8M0 mean: powers of two, and the last one no number."""
    values = np.array([math.ldexp(1.0, byte - 128) for byte in range(256)], np.float32)
    values[255] = np.nan
    return values


E8M0_HALVED = _e8m0_halved()


@dataclass(frozen=True, slots=True)
class Grid:
    """`numbers * scales + offsets`: numbers `[..., groups, group]`, scales and offsets float32 `[..., groups]`.

    Numbers are int8 (signed), uint8, or float32 where a type is no grid of integers (FP8). A type that states zero
    points means `(numbers - zeros) * scales`; its offsets are those, multiplied out.
    """

    numbers: NDArray[Any]
    scales: Floats
    offsets: Floats | None = None
    zeros: Floats | None = None

    def of_rows(self, num_rows: int) -> Grid:
        """The same, the blocks of a row side by side: numbers `[rows, groups, group]`."""
        shape = num_rows, -1
        offsets = None if self.offsets is None else self.offsets.reshape(shape)
        return Grid(self.numbers.reshape(num_rows, -1, self.numbers.shape[-1]), self.scales.reshape(shape), offsets)

    def write_float32(self, out: Floats) -> None:
        """The numbers themselves, in the order and the rounding of a scalar loop."""
        shaped = out.reshape(self.numbers.shape)
        shaped[...] = self.numbers
        if self.zeros is not None:
            shaped -= self.zeros[..., None]
        shaped *= self.scales[..., None]
        if self.offsets is not None and self.zeros is None:
            shaped += self.offsets[..., None]


@dataclass(frozen=True, slots=True)
class GridShape:
    """What is known of a weight's grid before it is read.

    `group` is how many numbers share a scale, `bits` how many each has (0: they are no integers), `wide` that a scale
    needs more than float16.
    """

    group: int
    bits: int
    has_offsets: bool = False
    wide: bool = False


def packed_of_blocks(encoding: Encoding, blocks: Bytes) -> Grid | None:
    """Blocks of four bits as executors have them, two numbers to a byte in order `[blocks, 1, bytes]`.

    Signed, or 0..15 where there are offsets. None of other types.
    """
    match encoding:
        case Encoding.Q4_0:
            return Grid((_packed(blocks, 2, 18, 16) ^ np.uint8(0x88))[:, None], _float16(blocks, 0))
        case Encoding.Q4_1:
            return Grid(_packed(blocks, 4, 20, 16)[:, None], _float16(blocks, 0), _float16(blocks, 2))
        case Encoding.Q4_K:
            return Grid(_packed(blocks, 16, 144, 32)[:, None], *_steps_and_offsets(blocks))
        case _:
            return None


def grid_of_blocks(encoding: Encoding, blocks: Bytes) -> Grid:
    """Blocks as stored, uint8 `[blocks, unit bytes]`, taken apart: numbers `[blocks, groups, group]`."""
    return _READERS[encoding](blocks)


# ---------------------------------------------------------------- bits and bytes


def _words(blocks: Bytes, first: int, last: int, word_bytes: int = 8) -> NDArray[Any]:
    """Bytes first..last of every block as words `[blocks, words]`."""
    return np.ascontiguousarray(blocks[:, first:last]).view(f"<u{word_bytes}")


def _bits(words: NDArray[Any], shift: int, width: int) -> NDArray[Any]:
    """Bits shift..shift+width of every byte, at the bottom of that byte."""
    mask = words.dtype.type(((1 << width) - 1) * (int("01" * words.dtype.itemsize, 16)))
    moved: NDArray[Any] = (words >> words.dtype.type(shift) if shift else words) & mask
    return moved


def _float16(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block, `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _halves(blocks: Bytes, at: int) -> NDArray[Any]:
    """Sixteen bytes of two halves each: the low ones, then the high ones; as words `[blocks, 2, 2]`."""
    packed = _words(blocks, at, at + 16)
    out = np.empty((len(packed), 2, 2), packed.dtype)
    for word in range(2):
        out[:, 0, word] = _bits(packed[:, word], 0, 4)
        out[:, 1, word] = _bits(packed[:, word], 4, 4)
    return out


def _looked_up(halves: NDArray[Any], pairs: NDArray[np.int8]) -> NDArray[np.int8]:
    """What the bytes of words `[blocks, ...]`, each below 16, stand for: `[blocks, numbers]`. The words are changed."""
    codes = halves.view(np.uint16)
    codes |= codes >> np.uint16(4)
    codes &= np.uint16(255)
    return np.take(pairs.view(np.uint16)[:, 0], codes).reshape(len(halves), -1).view(np.int8)


def _packed(blocks: Bytes, first: int, last: int, run: int) -> Bytes:
    """Runs of bytes whose low halves are numbers, then their high ones: two in order to a byte, `[blocks, bytes]`."""
    words = _words(blocks, first, last).reshape(-1, run // 8)
    out = np.empty((len(words), 2, run // 2), np.uint8)
    for half in range(2):
        numbers = _bits(words, 4 * half, 4)
        numbers |= numbers >> np.uint64(4)
        out[:, half] = numbers.view(np.uint8)[:, ::2]
    return out.reshape(len(blocks), -1)


def _signed(numbers: Bytes, middle: int) -> NDArray[np.int8]:
    """Numbers from which `middle` is taken, in place."""
    np.subtract(numbers, np.uint8(middle), out=numbers)
    return numbers.view(np.int8)


def _as_bytes(words: NDArray[Any], num_groups: int) -> Bytes:
    """Words `[blocks, ...]` as the numbers `[blocks, groups, group]` that they are."""
    return words.reshape(len(words), -1).view(np.uint8).reshape(len(words), num_groups, -1)


# ---------------------------------------------------------------- blocks of 32


def _q8_0(blocks: Bytes) -> Grid:
    return Grid(blocks[:, 2:].view(np.int8)[:, None], _float16(blocks, 0))


def _q4_0(blocks: Bytes) -> Grid:
    return Grid(_signed(_as_bytes(_halves(blocks, 2), 1), 8), _float16(blocks, 0))


def _q4_1(blocks: Bytes) -> Grid:
    return Grid(_as_bytes(_halves(blocks, 4), 1), _float16(blocks, 0), _float16(blocks, 2))


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits of a word, number j's being bit j, as 16 or 0."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[:, at : at + 4]), axis=1, bitorder="little")
    np.left_shift(bits, 4, out=bits)
    return bits[:, None]


def _q5_0(blocks: Bytes) -> Grid:
    numbers = _as_bytes(_halves(blocks, 6), 1)
    numbers |= _fifth_bits(blocks, 2)
    return Grid(_signed(numbers, 16), _float16(blocks, 0))


def _q5_1(blocks: Bytes) -> Grid:
    numbers = _as_bytes(_halves(blocks, 8), 1)
    numbers |= _fifth_bits(blocks, 4)
    return Grid(numbers, _float16(blocks, 0), _float16(blocks, 2))


def _iq4_nl(blocks: Bytes) -> Grid:
    return Grid(_looked_up(_halves(blocks, 2), _NONLINEAR_PAIRS)[:, None], _float16(blocks, 0))


def _mxfp4(blocks: Bytes) -> Grid:
    return Grid(_looked_up(_halves(blocks, 1), E2M1_PAIRS)[:, None], E8M0_HALVED[blocks[:, :1]])


# ---------------------------------------------------------------- blocks of 256


def _pairs_of_six_bits(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """The eight scales and eight minima of Q4_K and Q5_K, six bits each in bytes 4..16, `[blocks, 8]`."""
    a, b, c = (_words(blocks, at, at + 4, 4)[:, 0] for at in (4, 8, 12))
    scales, minima = np.empty((2, len(blocks), 2), "<u4")
    scales[:, 0], minima[:, 0] = _bits(a, 0, 6), _bits(b, 0, 6)
    scales[:, 1] = _bits(c, 0, 4) | _bits(a, 6, 2) << np.uint32(4)
    minima[:, 1] = _bits(c, 4, 4) | _bits(b, 6, 2) << np.uint32(4)
    return scales.view(np.uint8), minima.view(np.uint8)


def _quarters(blocks: Bytes, at: int) -> NDArray[Any]:
    """64 bytes of four 2-bit numbers; byte l of a half has numbers l, l + 32, l + 64, l + 96: `[blocks, 2, 4, 4]`."""
    packed = _words(blocks, at, at + 64).reshape(-1, 2, 4)
    out = np.empty((len(packed), 2, 4, 4), packed.dtype)
    for k in range(4):
        out[:, :, k] = _bits(packed, 2 * k, 2)
    return out


def _eighths(blocks: Bytes, at: int, weight: int) -> NDArray[Any]:
    """32 bytes of eight bits each: number 32 k + l is bit k of byte l; as `1 << weight` or 0, `[blocks, 8, 4]`."""
    packed = _words(blocks, at, at + 32)
    out = np.empty((len(packed), 8, 4), packed.dtype)
    for k in range(8):
        out[:, k] = _bits(packed, k, 1) << np.uint64(weight)
    return out


def _nibbles(blocks: Bytes, at: int) -> NDArray[Any]:
    """128 bytes of two halves: 32 bytes have 32 low ones, then 32 high ones; as words `[blocks, 8, 4]`."""
    packed = _words(blocks, at, at + 128).reshape(-1, 4, 4)
    out = np.empty((len(packed), 4, 2, 4), packed.dtype)
    out[:, :, 0] = _bits(packed, 0, 4)
    out[:, :, 1] = _bits(packed, 4, 4)
    return out.reshape(-1, 8, 4)


def _q2_k(blocks: Bytes) -> Grid:
    scales = _float16(blocks, 80) * (blocks[:, :16] & 15)
    offsets = -_float16(blocks, 82) * (blocks[:, :16] >> 4)
    return Grid(_as_bytes(_quarters(blocks, 16), 16), scales, offsets)


def _q3_k(blocks: Bytes) -> Grid:
    a, b, c = (_words(blocks, at, at + 4, 4)[:, 0] for at in (96, 100, 104))
    scales = np.empty((len(blocks), 4), "<u4")
    for k, low in enumerate((_bits(a, 0, 4), _bits(b, 0, 4), _bits(a, 4, 4), _bits(b, 4, 4))):
        scales[:, k] = low | _bits(c, 2 * k, 2) << np.uint32(4)
    numbers = _quarters(blocks, 32).reshape(-1, 8, 4)
    numbers |= _eighths(blocks, 0, 2)
    steps = _float16(blocks, 108) * _signed(scales.view(np.uint8), 32)
    return Grid(_signed(_as_bytes(numbers, 16), 4), steps)


def _steps_and_offsets(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and offsets of Q4_K and Q5_K, `[blocks, 8]`."""
    scales, minima = _pairs_of_six_bits(blocks)
    return _float16(blocks, 0) * scales, -_float16(blocks, 2) * minima


def _q4_k(blocks: Bytes) -> Grid:
    return Grid(_as_bytes(_nibbles(blocks, 16), 8), *_steps_and_offsets(blocks))


def _q5_k(blocks: Bytes) -> Grid:
    numbers = _nibbles(blocks, 48)
    numbers |= _eighths(blocks, 16, 4)
    return Grid(_as_bytes(numbers, 8), *_steps_and_offsets(blocks))


def _q6_k(blocks: Bytes) -> Grid:
    low = _words(blocks, 0, 128).reshape(-1, 2, 8)
    numbers = _quarters(blocks, 128)
    numbers <<= np.uint64(4)
    halves = numbers.reshape(-1, 2, 2, 8)
    halves[:, :, 0] |= _bits(low, 0, 4)
    halves[:, :, 1] |= _bits(low, 4, 4)
    scales = _float16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return Grid(_signed(_as_bytes(numbers, 16), 32), scales)


def _iq4_xs(blocks: Bytes) -> Grid:
    packed = np.ascontiguousarray(blocks[:, 8:]).reshape(-1, 16)
    numbers = _looked_up(_halves(packed, 0), _NONLINEAR_PAIRS).reshape(-1, 8, 32)
    high = _words(blocks, 2, 4, 2)
    scales = np.empty((len(blocks), 8), np.uint8)
    scales[:, 0::2] = blocks[:, 4:8] & 15
    scales[:, 1::2] = blocks[:, 4:8] >> 4
    scales |= (((high >> np.arange(0, 16, 2, dtype=np.uint16)) & 3) << 4).astype(np.uint8)
    return Grid(numbers, _float16(blocks, 0) * _signed(scales, 32))


_READERS: dict[Encoding, Callable[[Bytes], Grid]] = {
    Encoding.Q8_0: _q8_0,
    Encoding.Q4_0: _q4_0,
    Encoding.Q4_1: _q4_1,
    Encoding.Q5_0: _q5_0,
    Encoding.Q5_1: _q5_1,
    Encoding.IQ4_NL: _iq4_nl,
    Encoding.MXFP4: _mxfp4,
    Encoding.Q2_K: _q2_k,
    Encoding.Q3_K: _q3_k,
    Encoding.Q4_K: _q4_k,
    Encoding.Q5_K: _q5_k,
    Encoding.Q6_K: _q6_k,
    Encoding.IQ4_XS: _iq4_xs,
}
BLOCK_SHAPES = {
    Encoding.Q8_0: GridShape(32, 8),
    Encoding.Q4_0: GridShape(32, 4),
    Encoding.Q4_1: GridShape(32, 4, has_offsets=True),
    Encoding.Q5_0: GridShape(32, 5),
    Encoding.Q5_1: GridShape(32, 5, has_offsets=True),
    Encoding.IQ4_NL: GridShape(32, 8),
    Encoding.MXFP4: GridShape(32, 5, wide=True),
    Encoding.Q2_K: GridShape(16, 2, has_offsets=True, wide=True),
    Encoding.Q3_K: GridShape(16, 3, wide=True),
    Encoding.Q4_K: GridShape(32, 4, has_offsets=True, wide=True),
    Encoding.Q5_K: GridShape(32, 5, has_offsets=True, wide=True),
    Encoding.Q6_K: GridShape(16, 6, wide=True),
    Encoding.IQ4_XS: GridShape(32, 8, wide=True),
}
"""Of GGUF's quantised types. The halves of IQ4 stand for numbers of eight bits."""
