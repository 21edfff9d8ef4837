"""The operations of a layer as OpenVINO nodes, written so that the CPU plugin fuses each into one kernel."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Output, Shape, Type
from openvino import opset13 as op

from chairlift.executors.openvino.weights import BFloat16, Packed
from chairlift.models import Int4Groups, Int8Groups
from chairlift.models.config import Activation
from chairlift.models.groups import Scales


def share(array: NDArray[Any], kind: Type, shape: tuple[int, ...] | None = None) -> Output:
    """A constant that shares the memory of an array, which must outlive it; `shape` is needed for four-bit kinds."""
    tensor = ov.Tensor(array, Shape(list(shape or array.shape)), kind)
    return op.constant(tensor, shared_memory=True).output(0)


def ints(*values: int) -> Output:
    return op.constant(np.array(values, np.int32)).output(0)


def number(value: float) -> Output:
    return op.constant(np.float32(value)).output(0)


class Norm(Protocol):
    """Normalises along the last axis, then multiplies by a weight, of that width or broadcast to it."""

    def __call__(self, x: Output, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> Output: ...


class RmsNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` along the last axis.

    Layers share the small constants: every node of a graph costs time when it is compiled.
    """

    def __init__(self, eps: float) -> None:
        self._eps, self._one, self._two, self._last = number(eps), number(1), number(2), ints(-1)

    def __call__(self, x: Output, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> Output:
        mean = op.reduce_mean(op.power(x, self._two), self._last, True)
        scale = op.divide(self._one, op.sqrt(op.add(mean, self._eps)))
        return _biased(op.multiply(op.multiply(x, scale), op.constant(weight)).output(0), bias)


class LayerNorm:
    """`(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` along the last axis."""

    def __init__(self, eps: float) -> None:
        self._eps, self._last = eps, ints(-1)

    def __call__(self, x: Output, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> Output:
        normed = op.mvn(x, self._last, True, self._eps, "inside_sqrt")
        return _biased(op.multiply(normed, op.constant(weight)).output(0), bias)


def _biased(x: Output, bias: NDArray[np.float32] | None) -> Output:
    return x if bias is None else op.add(x, op.constant(bias)).output(0)


class Heads:
    """Between `[tokens, heads * head_size]` and `[tokens, heads, 1, head_size]`, the form that `Rotation` wants."""

    def __init__(self, head_size: int) -> None:
        self._head_size = head_size
        self._shapes: dict[int, tuple[Output, Output]] = {}

    def split(self, x: Output, num_heads: int) -> Output:
        return op.reshape(x, self._shape(num_heads)[0], False).output(0)

    def join(self, x: Output, num_heads: int) -> Output:
        return op.reshape(x, self._shape(num_heads)[1], False).output(0)

    def _shape(self, num_heads: int) -> tuple[Output, Output]:
        if num_heads not in self._shapes:
            heads = ints(-1, num_heads, 1, self._head_size)
            self._shapes[num_heads] = heads, ints(-1, num_heads * self._head_size)
        return self._shapes[num_heads]


class Rotation:
    """Rotary embedding at the positions of a step's tokens, for all layers that turn alike.

    The plugin recognises only this form: four dimensions, a split on axis 3, a concat on axis -1. `amplitude` is
    multiplied into cosines and sines; numbers of a head past those that `inv_freq` turns stay as they are.
    """

    def __init__(
        self, positions: Output, inv_freq: NDArray[np.float32], head_size: int, amplitude: float = 1.0
    ) -> None:
        wide = op.reshape(op.convert(positions, Type.f32), ints(-1, 1, 1, 1), False)
        angles = op.multiply(wide, op.constant(np.concatenate((inv_freq, inv_freq)).reshape(1, 1, 1, -1)))
        self._cos, self._sin = op.cos(angles).output(0), op.sin(angles).output(0)
        if amplitude != 1.0:
            self._cos, self._sin = (op.multiply(y, number(amplitude)).output(0) for y in (self._cos, self._sin))
        half = len(inv_freq)
        self._axis, self._halves, self._minus = op.constant(np.int32(3)), ints(half, half), number(-1)
        rest = head_size - 2 * half
        self._parts = ints(2 * half, rest) if rest else None

    def __call__(self, x: Output) -> Output:
        """Turn every head of `[tokens, heads, 1, head_size]`."""
        if self._parts is None:
            return self._turn(x)
        turned, rest = op.variadic_split(x, self._axis, self._parts).outputs()
        return op.concat([self._turn(turned), rest], -1).output(0)

    def _turn(self, x: Output) -> Output:
        a, b = op.variadic_split(x, self._axis, self._halves).outputs()
        turned = op.concat([op.multiply(b, self._minus).output(0), a], -1)
        return op.add(op.multiply(x, self._cos), op.multiply(turned, self._sin)).output(0)


def activated(x: Output, activation: Activation) -> Output:
    """The non-linear function of an MLP."""
    match activation:
        case "silu":
            return op.swish(x).output(0)
        case "gelu":
            return op.gelu(x, "erf").output(0)
        case "gelu_tanh":
            return op.gelu(x, "tanh").output(0)
        case "relu":
            return op.relu(x).output(0)
        case "relu2":
            positive = op.relu(x)
            return op.multiply(positive, positive).output(0)


def scaled(x: Output, factor: float) -> Output:
    """`x` times a number, and no node for 1."""
    return x if factor == 1.0 else op.multiply(x, number(factor)).output(0)


def split_columns(x: Output, sizes: list[int]) -> list[Output]:
    """Consecutive columns of a matrix, `[tokens, size]` each."""
    parts: list[Output] = op.variadic_split(x, op.constant(np.int32(1)), ints(*sizes)).outputs()
    return parts


# ---------------------------------------------------------------- products with weights


def product(x: Output, weight: Packed) -> Output:
    """`x` times the transpose of a weight, float32 `[tokens, rows]`."""
    match weight:
        case np.ndarray():
            return _matmul(x, share(weight, Type.f32))
        case BFloat16(bits):
            # A constant converted to float32 would be stored as float32: multiply in bfloat16.
            return op.convert(_matmul(op.convert(x, Type.bf16).output(0), share(bits, Type.bf16)), Type.f32).output(0)
        case Int8Groups(values, scales):
            return _matmul(x, _scaled(share(values, Type.i8), scales))
        case _:
            parts = [
                _four_bit_product(x, part) if isinstance(part, Int4Groups) else product(x, part) for part in weight
            ]
            return parts[0] if len(parts) == 1 else op.concat(parts, 1).output(0)


def _four_bit_product(x: Output, weight: Int4Groups) -> Output:
    """Where groups have an offset, the sums of x over each group times that are added to the symmetric product."""
    rows, num_groups, _ = weight.values.shape
    y = _matmul(x, _scaled(share(weight.values, Type.i4, (rows, num_groups, weight.group)), weight.scales))
    if weight.offsets is None:
        return y
    sums = op.reduce_sum(op.reshape(x, ints(-1, num_groups, weight.group), False), ints(2), False).output(0)
    offsets = share(weight.offsets.reshape(rows, num_groups), Type.f32)
    return op.add(y, _matmul(sums, offsets)).output(0)


def _scaled(values: Output, scales: Scales) -> Output:
    """Decompressed weights `[rows, cols]` from groups, in the form that the plugin fuses into the product."""
    rows, num_groups, group = values.get_shape()
    return scaled_groups(values, scales, (rows, num_groups * group))


def scaled_groups(values: Output, scales: Scales, shape: tuple[int, ...]) -> Output:
    """The same for any number of dimensions."""
    factors = _shared_scales(scales)
    wide = op.multiply(op.convert(values, factors.get_element_type()), factors)
    return op.convert(op.reshape(wide, ints(*shape), False), Type.f32).output(0)


def _shared_scales(scales: Scales) -> Output:
    return share(scales, Type.f32 if scales.dtype == np.float32 else Type.f16)


def _matmul(x: Output, weight: Output) -> Output:
    return op.matmul(x, weight, False, True).output(0)


def embedding(token_ids: Output, table: Packed) -> Output:
    """Rows of a table, float32 `[tokens, hidden]`."""
    match table:
        case np.ndarray():
            return _gather(share(table, Type.f32), token_ids)
        case BFloat16(bits):
            return op.convert(_gather(share(bits, Type.bf16), token_ids), Type.f32).output(0)
        case Int8Groups(values, scales):
            numbers = op.convert(_gather(share(values, Type.i8), token_ids), Type.f32)
            factors = op.convert(_gather(_shared_scales(scales), token_ids), Type.f32)
            width = values.shape[1] * values.shape[2]
            return op.reshape(op.multiply(numbers, factors), ints(-1, width), False).output(0)
        case _:
            raise TypeError("an embedding is not stored in four bits")


def _gather(table: Output, indices: Output) -> Output:
    return op.gather(table, indices, op.constant(np.int32(0))).output(0)
