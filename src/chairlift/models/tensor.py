"""A weight as it lies in its file: shape, encoding and the mapped bytes, nothing decoded.

Decoding is `quantize`'s business, one tensor or one block of rows at a time: a model is never held decoded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Encoding(Enum):
    """How numbers are stored: (numbers per unit, bytes per unit). A row is a whole number of units.

    Source: GGUF, block layouts of ggml: Q8_0 = f16 d, 32 x i8; Q4_0 = f16 d, 16 bytes; Q4_1 = f16 d, f16 m, 16 bytes.
    In the 4-bit blocks byte j holds number j in its low half and number j + 16 in its high half.
    """

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q8_0 = ("Q8_0", 32, 34)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)

    def __init__(self, label: str, unit: int, unit_bytes: int) -> None:
        self.label = label
        self.unit = unit
        self.unit_bytes = unit_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored weight, row-major `[rows, cols]`; a vector of n numbers is `(1, n)`.

    `raw` is a view of the mapped file, `rows * row_bytes` bytes. With `interleaved_heads`, its rows (a vector's
    numbers) are those of so many heads whose rotary pair j is rows 2j and 2j + 1 of the head; the weight has them in
    rows j and j + head size / 2. Everything in `quantize` undoes this.
    """

    name: str
    shape: tuple[int, int]
    encoding: Encoding
    raw: memoryview
    interleaved_heads: int = 0

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def cols(self) -> int:
        return self.shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        return self.cols // self.encoding.unit * self.encoding.unit_bytes

    def rows_between(self, first: int, count: int) -> Tensor:
        """Some of its rows, where it holds several weights on top of each other."""
        raw = self.raw[first * self.row_bytes : (first + count) * self.row_bytes]
        return replace(self, shape=(count, self.cols), raw=raw)

    def numbers_between(self, first: int, count: int) -> Tensor:
        """Some numbers of a vector, where it holds several after each other."""
        size = self.encoding.unit_bytes
        return replace(self, shape=(1, count), raw=self.raw[first * size : (first + count) * size])
