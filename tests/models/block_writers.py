"""Encoders of GGUF's block types, for tests: plain searches for the step, and the packing as the format says.

Nothing here is taken from `chairlift.models`, nor are the scalar decoders: two opinions about what the types mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[Any]

CODEBOOK = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
UNITS = {
    "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "IQ4_NL": (32, 18),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "IQ4_XS": (256, 136), "MXFP4": (32, 17),
}  # fmt: skip
"""Numbers and bytes of a block."""
SCALES_AT = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
    "MXFP4": [],
}  # fmt: skip
"""Where the float16 of a block lie: all other bytes may be anything, but for a last exponent of MXFP4."""
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""What sign-less numbers of two bits of exponent and one of fraction mean."""


# ---------------------------------------------------------------- from numbers to integers


def _inverse(steps: NDArray[Any]) -> NDArray[Any]:
    inverse: NDArray[Any] = np.divide(1, steps, out=np.zeros_like(steps), where=steps != 0)
    return inverse


def _float16(numbers: NDArray[Any]) -> NDArray[np.float16]:
    return numbers.astype("<f2")


def _symmetric(x: Floats, low: int, most: int) -> tuple[Bytes, NDArray[np.float16], NDArray[np.int64]]:
    """Blocks `[n, groups, group]` as numbers from `low` on, with integer scales up to `most`; shifted to start at 0."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=2, keepdims=True), 2)[..., 0]
    steps = extreme / low
    d = _float16(np.abs(steps).max(axis=1, keepdims=True) / most)
    scales = np.rint(steps * _inverse(d.astype(np.float64))).clip(-most, most).astype(np.int64)
    whole = (d.astype(np.float64) * scales)[..., None]
    numbers = np.clip(np.rint(x * _inverse(whole)), low, -low - 1) - low
    return numbers.astype(np.uint8), d, scales


def _affine(x: Floats, levels: int, most: int) -> tuple[Bytes, NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The same from 0 to `levels`, with integer scales and minima: numbers, d, dmin, scales, minima."""
    low = np.minimum(x.min(axis=2), 0)
    steps = (x.max(axis=2) - low) / levels
    d, dmin = (_float16(np.abs(part).max(axis=1, keepdims=True) / most) for part in (steps, low))
    scales = np.rint(steps * _inverse(d.astype(np.float64))).clip(0, most).astype(np.uint8)
    minima = np.rint(-low * _inverse(dmin.astype(np.float64))).clip(0, most).astype(np.uint8)
    offsets = (dmin.astype(np.float64) * minima)[..., None]
    numbers = np.clip(np.rint((x + offsets) * _inverse((d.astype(np.float64) * scales)[..., None])), 0, levels)
    return numbers.astype(np.uint8), d, dmin, scales, minima


def _nearest_in_codebook(x: NDArray[Any]) -> Bytes:
    nearest: Bytes = np.abs(x[..., None] - np.array(CODEBOOK)).argmin(axis=-1).astype(np.uint8)
    return nearest


# ---------------------------------------------------------------- from integers to bytes


def join(*parts: NDArray[Any]) -> bytes:
    """The parts of every block side by side."""
    columns = [np.ascontiguousarray(part).reshape(len(part), -1).view(np.uint8) for part in parts]
    return np.concatenate(columns, axis=1).tobytes()


def _halves_of_32(numbers: Bytes) -> Bytes:
    """`[n, 32]` in 16 bytes: number j low, number j + 16 high."""
    return (numbers[:, :16] & 15) | (numbers[:, 16:] & 15) << 4


def _bits_of_32(numbers: Bytes) -> Bytes:
    return np.packbits(numbers, axis=1, bitorder="little")


def _nibbles_of_256(numbers: Bytes) -> Bytes:
    """`[n, 256]` in 128 bytes: of every 64, number l low and number l + 32 high."""
    split = numbers.reshape(-1, 4, 2, 32) & 15
    return split[:, :, 0] | split[:, :, 1] << 4


def _quarters_of_256(numbers: Bytes) -> Bytes:
    """`[n, 256]` in 64 bytes: of every 128, numbers l, l + 32, l + 64, l + 96 from the lowest bits up."""
    split = numbers.reshape(-1, 2, 4, 32) & 3
    return split[:, :, 0] | split[:, :, 1] << 2 | split[:, :, 2] << 4 | split[:, :, 3] << 6


def _bits_of_256(numbers: Bytes) -> Bytes:
    """`[n, 256]` of 0 or 1 in 32 bytes: number 32 k + l is bit k of byte l."""
    return np.packbits(numbers.reshape(-1, 8, 32), axis=1, bitorder="little")


def _six_bit_pairs(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight scales and eight minima of six bits in twelve bytes."""
    out = np.empty((len(scales), 12), np.uint8)
    out[:, :4] = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    out[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    out[:, 8:] = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return out


def _encode_q5_0(x: Floats) -> bytes:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), 1)
    d = _float16(extreme / -16)
    numbers = np.clip(np.rint(x * _inverse(d.astype(np.float64))) + 16, 0, 31).astype(np.uint8)
    return join(d, _bits_of_32(numbers >> 4), _halves_of_32(numbers))


def _encode_q5_1(x: Floats) -> bytes:
    low = _float16(x.min(axis=1, keepdims=True))
    d = _float16((x.max(axis=1, keepdims=True) - low) / 31)
    numbers = np.clip(np.rint((x - low.astype(np.float64)) * _inverse(d.astype(np.float64))), 0, 31).astype(np.uint8)
    return join(d, low, _bits_of_32(numbers >> 4), _halves_of_32(numbers))


def _encode_iq4_nl(x: Floats) -> bytes:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), 1)
    d = _float16(extreme / -127)
    return join(d, _halves_of_32(_nearest_in_codebook(x * _inverse(d.astype(np.float64)))))


def _encode_q2_k(x: Floats) -> bytes:
    numbers, d, dmin, scales, minima = _affine(x.reshape(-1, 16, 16), 3, 15)
    return join(scales | minima << 4, _quarters_of_256(numbers), d, dmin)


def _encode_q3_k(x: Floats) -> bytes:
    numbers, d, signed = _symmetric(x.reshape(-1, 16, 16), -4, 31)
    scales = (signed + 32).astype(np.uint8)
    packed = np.empty((len(scales), 12), np.uint8)
    packed[:, :8] = (scales[:, :8] & 15) | (scales[:, 8:] & 15) << 4
    packed[:, 8:] = sum((scales[:, 4 * k : 4 * k + 4] >> 4) << 2 * k for k in range(4))
    return join(_bits_of_256(numbers >> 2), _quarters_of_256(numbers), packed, d)


def _encode_q4_k(x: Floats) -> bytes:
    numbers, d, dmin, scales, minima = _affine(x.reshape(-1, 8, 32), 15, 63)
    return join(d, dmin, _six_bit_pairs(scales, minima), _nibbles_of_256(numbers))


def _encode_q5_k(x: Floats) -> bytes:
    numbers, d, dmin, scales, minima = _affine(x.reshape(-1, 8, 32), 31, 63)
    high = _bits_of_256(numbers >> 4)
    return join(d, dmin, _six_bit_pairs(scales, minima), high, _nibbles_of_256(numbers))


def _encode_q6_k(x: Floats) -> bytes:
    numbers, d, scales = _symmetric(x.reshape(-1, 16, 16), -32, 127)
    split = numbers.reshape(-1, 2, 2, 64) & 15
    low = split[:, :, 0] | split[:, :, 1] << 4
    return join(low, _quarters_of_256(numbers >> 4), scales.astype(np.int8), d)


def _encode_iq4_xs(x: Floats) -> bytes:
    blocks = x.reshape(-1, 8, 32)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), 2)[..., 0]
    steps = extreme / -127
    d = _float16(np.abs(steps).max(axis=1, keepdims=True) / 31)
    signed = np.rint(steps * _inverse(d.astype(np.float64))).clip(-32, 31)
    numbers = _nearest_in_codebook(blocks * _inverse((d * signed)[..., None].astype(np.float64)))
    scales = (signed + 32).astype(np.uint16)
    high = sum((scales[:, k] >> 4) << 2 * k for k in range(8))
    low = ((scales[:, 0::2] & 15) | (scales[:, 1::2] & 15) << 4).astype(np.uint8)
    packed = _halves_of_32(numbers.reshape(-1, 32)).reshape(-1, 128)
    return join(d, np.asarray(high, "<u2"), low, packed)


def mxfp4_codes(x: Floats) -> tuple[Bytes, Bytes]:
    """Blocks `[n, 32]` as the nearest of sixteen numbers `[n, 32]` and exponents `[n, 1]`, raised by 127."""
    most = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    exponents = np.floor(np.log2(np.maximum(most, 1e-30))) - 2  # 6 is the largest number: 1.5 * 2^2
    sizes = np.abs(x.astype(np.float64)) / np.exp2(exponents)
    codes = np.abs(sizes[..., None] - np.array(E2M1)).argmin(axis=-1) | np.where(x < 0, 8, 0)
    return codes.astype(np.uint8), (exponents + 127).astype(np.uint8)


def decode_mxfp4(codes: Bytes, exponents: Bytes) -> Floats:
    """What they mean, `[n, 32]`."""
    sizes = np.array(E2M1)[codes & 7] * np.where(codes & 8, -1.0, 1.0)
    return np.asarray(sizes * np.exp2(exponents.astype(np.float64) - 127), np.float32)


def _encode_mxfp4(x: Floats) -> bytes:
    codes, exponents = mxfp4_codes(x)
    return join(exponents, _halves_of_32(codes))


ENCODERS: dict[str, Callable[[Floats], bytes]] = {
    "Q5_0": _encode_q5_0,
    "Q5_1": _encode_q5_1,
    "IQ4_NL": _encode_iq4_nl,
    "Q2_K": _encode_q2_k,
    "Q3_K": _encode_q3_k,
    "Q4_K": _encode_q4_k,
    "Q5_K": _encode_q5_k,
    "Q6_K": _encode_q6_k,
    "IQ4_XS": _encode_iq4_xs,
    "MXFP4": _encode_mxfp4,
}
"""Blocks `[n, unit]` as their bytes."""


# ---------------------------------------------------------------- scalar decoders


def _scalar_q5_0(block: bytes) -> list[float]:
    step, high, *packed = struct.unpack("<eI16B", block)
    numbers = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    return [step * (number + (16 if high >> j & 1 else 0) - 16) for j, number in enumerate(numbers)]


def _scalar_q5_1(block: bytes) -> list[float]:
    step, low, high, *packed = struct.unpack("<eeI16B", block)
    numbers = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    return [step * (number + (16 if high >> j & 1 else 0)) + low for j, number in enumerate(numbers)]


def _scalar_iq4_nl(block: bytes) -> list[float]:
    step, *packed = struct.unpack("<e16B", block)
    return [step * CODEBOOK[byte & 15] for byte in packed] + [step * CODEBOOK[byte >> 4] for byte in packed]


def _quarter(packed: bytes, j: int) -> int:
    """Two bits of number j of 256."""
    return packed[j // 128 * 32 + j % 32] >> 2 * (j % 128 // 32) & 3


def _scalar_q2_k(block: bytes) -> list[float]:
    d, dmin = struct.unpack_from("<ee", block, 80)
    scale, quants = block[:16], block[16:80]
    return [d * (scale[j // 16] & 15) * _quarter(quants, j) - dmin * (scale[j // 16] >> 4) for j in range(256)]


def _scalar_q3_k(block: bytes) -> list[float]:
    (d,) = struct.unpack_from("<e", block, 108)
    high, quants, packed = block[:32], block[32:96], block[96:108]
    out = []
    for j in range(256):
        group = j // 16
        low = packed[group % 8] >> (4 if group >= 8 else 0) & 15
        scale = (low | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4) - 32
        number = _quarter(quants, j) - (0 if high[j % 32] >> j // 32 & 1 else 4)
        out.append(d * scale * number)
    return out


def _six_bits(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of one of eight groups."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def _scalar_q4_k(block: bytes) -> list[float]:
    d, dmin = struct.unpack_from("<ee", block, 0)
    out = []
    for j in range(256):
        scale, minimum = _six_bits(block[4:16], j // 32)
        byte = block[16 + j // 64 * 32 + j % 32]
        out.append(d * scale * (byte >> 4 if j % 64 >= 32 else byte & 15) - dmin * minimum)
    return out


def _scalar_q5_k(block: bytes) -> list[float]:
    d, dmin = struct.unpack_from("<ee", block, 0)
    out = []
    for j in range(256):
        scale, minimum = _six_bits(block[4:16], j // 32)
        byte = block[48 + j // 64 * 32 + j % 32]
        number = (byte >> 4 if j % 64 >= 32 else byte & 15) + 16 * (block[16 + j % 32] >> j // 32 & 1)
        out.append(d * scale * number - dmin * minimum)
    return out


def _scalar_q6_k(block: bytes) -> list[float]:
    (d,) = struct.unpack_from("<e", block, 208)
    scales = struct.unpack_from("<16b", block, 192)
    out = []
    for j in range(256):
        byte = block[j // 128 * 64 + j % 64]
        low = byte >> 4 if j % 128 >= 64 else byte & 15
        out.append(d * scales[j // 16] * ((low | _quarter(block[128:192], j) << 4) - 32))
    return out


def _scalar_iq4_xs(block: bytes) -> list[float]:
    d, high = struct.unpack_from("<eH", block, 0)
    out = []
    for j in range(256):
        group = j // 32
        scale = (block[4 + group // 2] >> 4 * (group % 2) & 15 | (high >> 2 * group & 3) << 4) - 32
        byte = block[8 + group * 16 + j % 16]
        out.append(d * scale * CODEBOOK[byte >> 4 if j % 32 >= 16 else byte & 15])
    return out


def e2m1(code: int) -> float:
    """By the definition: a sign, two bits of exponent raised by 1, one of fraction; without exponent, subnormal."""
    exponent, fraction = code >> 1 & 3, code & 1
    size = fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


def _scalar_mxfp4(block: bytes) -> list[float]:
    scale = 2.0 ** (block[0] - 127)
    return [scale * e2m1(byte & 15) for byte in block[1:]] + [scale * e2m1(byte >> 4) for byte in block[1:]]


_BLOCKS: dict[str, Callable[[bytes], list[float]]] = {
    "Q5_0": _scalar_q5_0,
    "Q5_1": _scalar_q5_1,
    "IQ4_NL": _scalar_iq4_nl,
    "Q2_K": _scalar_q2_k,
    "Q3_K": _scalar_q3_k,
    "Q4_K": _scalar_q4_k,
    "Q5_K": _scalar_q5_k,
    "Q6_K": _scalar_q6_k,
    "IQ4_XS": _scalar_iq4_xs,
    "MXFP4": _scalar_mxfp4,
}


def scalar(encoding: str, data: bytes) -> list[float]:
    """Blocks as float64, number by number."""
    size = UNITS[encoding][1]
    return [number for at in range(0, len(data), size) for number in _BLOCKS[encoding](data[at : at + size])]
