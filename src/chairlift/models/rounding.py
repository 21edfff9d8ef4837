"""Numbers rounded to a coarser form: bfloat16, int8 and int4 in groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel


def fitting_group(cols: int, group: int) -> int:
    while group > 8 and cols % group:
        group //= 2
    return cols if cols % group else group


def check_scalable(largest: NDArray[np.float32], limit: float, name: str) -> None:
    if not np.all(np.abs(largest) <= limit):
        raise InvalidModel(f"tensor {name} holds numbers that are not finite or too large")


def largest_magnitudes(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest magnitude of every row, `[rows]`; NaN if there is one.

    Magnitudes are compared as integers, which order floats without their sign and NaN above infinity; by halving
    the flat array while the row is short and its length even, else run by run: faster than a maximum along rows.
    """
    width = numbers.shape[1]
    bits = (numbers.view(np.uint32) & np.uint32(0x7FFFFFFF)).ravel()
    while width % 2 == 0 and width < 32:
        bits = np.maximum(bits[0::2], bits[1::2])
        width //= 2
    if width > 1:
        bits = np.maximum.reduceat(bits, np.arange(0, len(bits), width))
    return bits.view(np.float32)


def int8_scales(largest: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    """Scales that map the largest magnitude of a group to 127, never to 128, `[groups]`.

    Among the subnormal float16 the nearest one may be too small by more than half a step: the next is taken then.
    """
    check_scalable(largest, 127 * 65504.0, name)
    rounded = (largest * np.float32(1 / 127)).astype(np.float16)
    too_small = rounded.astype(np.float32) * np.float32(127.49) < largest
    if too_small.any():
        rounded[too_small] = np.nextafter(rounded[too_small], np.float16(np.inf))
    return rounded


def inverse(scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """1 / scale in float32, 0 where the scale is 0."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)


def round_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers, which are left alone, rounded to nearest, ties to even."""
    bits = numbers.view(np.uint32)
    raised = bits >> np.uint32(16)
    raised &= np.uint32(1)
    raised += np.uint32(0x7FFF)
    raised += bits
    rounded = raised.view("<u2")[..., 1::2]
    if np.isnan(numbers.max()):
        rounded[np.isnan(numbers)] = 0x7FC0
    return rounded


def round_int4(numbers: NDArray[np.float32], name: str) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Signed 4-bit numbers -8..7 `[groups, group]` and their scales `[groups]`, searched for the least squared error.

    The number of largest magnitude is tried as -7 to -9 (the scale may be negative; -9 is cut to -8, which
    serves the others). For given numbers q the best scale is x·q / q·q, and it removes (x·q)^2 / q·q of the error.
    """
    largest = largest_magnitudes(numbers)
    check_scalable(largest, 400_000.0, name)
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
    _round_to_int4(numbers, inverse(rounded), steps)
    return steps, rounded


def _round_to_int4(numbers: NDArray[np.float32], inverse: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    np.multiply(numbers, inverse[:, None], out=out)
    np.rint(out, out=out)
    np.clip(out, -8, 7, out=out)
