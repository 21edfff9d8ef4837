"""Weights packed for an executor: small integers in groups that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scales = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Int8Groups:
    """`values * scales`: int8 `[rows, groups, group]`, scales `[rows, groups, 1]`, symmetric.

    Scales are float16, or float32 where the file's own ones do not fit.
    """

    values: NDArray[np.int8]
    scales: Scales

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

    `values` is uint8 `[rows, groups, group / 2]`; `scales` `[rows, groups, 1]` float16, or float32 where the file's own
    ones do not fit. Without `offsets` a half is a signed number -8..7 and the weight is `q * scale`. With
    `offsets` (float32) it is 0..15 and the weight `q * scale + offset`: the zero point -offset / scale may be
    any fraction, and rounding it to an integer would cost as much as four bits do.
    """

    values: NDArray[np.uint8]
    scales: Scales
    offsets: NDArray[np.float32] | None = None

    @property
    def group(self) -> int:
        """Numbers that share a scale."""
        return int(self.values.shape[2]) * 2

    def to_float32(self) -> NDArray[np.float32]:
        """float32 `[rows, cols]`: what a product with these weights uses."""
        halves = np.stack((self.values & 15, self.values >> 4), axis=-1).reshape(*self.values.shape[:2], -1)
        scales: NDArray[Any] = self.scales.astype(np.float32)
        if self.offsets is None:
            numbers = (halves.astype(np.int8) ^ 8) - 8
            return np.asarray((numbers * scales).reshape(halves.shape[0], -1), np.float32)
        return np.asarray((halves * scales + self.offsets).reshape(halves.shape[0], -1), np.float32)
