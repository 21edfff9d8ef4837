"""A weight as it lies in its file: shape, encoding and the mapped bytes, nothing decoded.

Decoding is `quantize`'s business, one tensor or one block of rows at a time: a model is never held decoded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Encoding(Enum):
    """How numbers are stored: (numbers per unit, bytes per unit). A row is a whole number of units.

    Source: GGUF, block layouts of ggml. In the 4-bit blocks of 32, byte j holds number j in its low half and number
    j + 16 in its high half. The types after MXFP4 are those of safetensors checkpoints quantised for other engines;
    their scales stand beside them (`Scaling`), and the 4-bit ones are 32-bit words of eight numbers, those of F4_E2M1
    bytes of two, the even one in the low half.
    """

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q8_0 = ("Q8_0", 32, 34)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q2_K = ("Q2_K", 256, 84)
    Q3_K = ("Q3_K", 256, 110)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)
    IQ4_NL = ("IQ4_NL", 32, 18)
    IQ4_XS = ("IQ4_XS", 256, 136)
    MXFP4 = ("MXFP4", 32, 17)
    I8 = ("I8", 1, 1)
    U8 = ("U8", 1, 1)
    F8_E4M3 = ("F8_E4M3", 1, 1)
    I32 = ("I32", 1, 4)
    I64 = ("I64", 1, 8)
    AWQ4 = ("AWQ", 8, 4)
    GPTQ4 = ("GPTQ", 8, 4)
    PACKED4 = ("pack-quantized int4", 8, 4)
    PACKED8 = ("pack-quantized int8", 4, 4)
    F4_E2M1 = ("MXFP4", 2, 1)

    def __init__(self, label: str, unit: int, unit_bytes: int) -> None:
        self.label = label
        self.unit = unit
        self.unit_bytes = unit_bytes


FLOATS = (Encoding.F32, Encoding.F16, Encoding.BF16)
"""Numbers that are stored as what they are."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a weight of a quantised checkpoint is multiplied by: `(number - zero) * scale`.

    `block` is the (rows, cols) that share a scale. `groups` says for each column which group it belongs to, where that
    is not simply the next `block[1]` of them. The weight is `num_rows` rows of what is stored, from `first_row` on.
    AWQ and GPTQ store scales and zeros transposed, `[groups, rows]`.
    """

    scales: Tensor
    block: tuple[int, int]
    num_rows: int
    zeros: Tensor | None = None
    zeros_lack: int = 0
    """What is to be added to each stored zero: GPTQ's first format keeps them less one."""
    groups: Tensor | None = None
    first_row: int = 0
    offsets: Tensor | None = None
    """Instead of zeros: the weight is `number * scale + offset`."""


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
    scaling: Scaling | None = None
    columns: tuple[int, int] | None = None
    """Where it lies transposed: its rows are columns of what is stored, from this one on, of so many."""
    step: int = 1
    """Its rows (a vector's numbers) are every so manyth of what is stored: others lie between them."""

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

    @property
    def num_bytes(self) -> int:
        """Bytes of its numbers in the file; scales that stand beside them are not counted."""
        return self.rows * self.row_bytes

    def rows_between(self, first: int, count: int) -> Tensor:
        """Some of its rows, where it holds several weights on top of each other."""
        if self.columns is not None:
            begin = self.columns[0] + first * self.step
            return replace(self, shape=(count, self.cols), columns=(begin, self.columns[1]))
        if self.scaling is not None:
            first_row = self.scaling.first_row + first * self.step
            return replace(self, shape=(count, self.cols), scaling=replace(self.scaling, first_row=first_row))
        raw = self.raw[first * self.row_bytes : (first + count) * self.row_bytes]
        return replace(self, shape=(count, self.cols), raw=raw)

    def deinterleaved(self, part: int, count: int) -> Tensor:
        """One of `count` weights whose rows (of a vector: numbers) are interleaved."""
        if self.rows == 1:
            raw = self.raw[part * self.encoding.unit_bytes :]
            return replace(self, shape=(1, self.cols // count), raw=raw, step=count)
        return replace(self.rows_between(part, self.rows // count), step=count)

    def transposed(self) -> Tensor:
        """The weight whose columns are the rows that are stored. Only for plain floating point."""
        return replace(self, shape=(self.cols, self.rows), columns=(0, self.cols))

    def numbers_between(self, first: int, count: int) -> Tensor:
        """Some numbers of a vector, where it holds several after each other."""
        size = self.encoding.unit_bytes
        return replace(self, shape=(1, count), raw=self.raw[first * size : (first + count) * size])
