"""The operations of a layer as OpenVINO nodes, written so that the CPU plugin fuses each into one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Output, Shape, Type
from openvino import opset13 as op

from chairlift.models import Int4Groups, Int8Groups, Tensor, to_bfloat16, to_float32, to_int4, to_int8

Linear = Callable[[Output, list[Tensor]], Output]
"""`linear(x, tensors)`: x times the transpose of the tensors' rows, one after the other; float32 `[tokens, rows]`."""


@dataclass(slots=True)
class Constants:
    """Makes graph constants that share memory with NumPy arrays, and keeps those alive.

    OpenVINO does not: a constant over a collected array is garbage, or a crash.
    """

    arrays: list[NDArray[Any]] = field(default_factory=list)

    def share(self, array: NDArray[Any], kind: Type, shape: tuple[int, ...] | None = None) -> Output:
        """A constant of element type `kind` over an array; for four-bit kinds `shape` counts halves of bytes."""
        array = np.ascontiguousarray(array)
        self.arrays.append(array)
        tensor = ov.Tensor(array, Shape(list(shape or array.shape)), kind)
        return op.constant(tensor, shared_memory=True).output(0)


def ints(*values: int) -> Output:
    return op.constant(np.array(values, np.int32)).output(0)


def number(value: float) -> Output:
    return op.constant(np.float32(value)).output(0)


def rms_norm(x: Output, weight: NDArray[np.float32], eps: float) -> Output:
    """`x / sqrt(mean(x^2) + eps) * weight` along the last axis."""
    mean = op.reduce_mean(op.power(x, number(2)), ints(-1), True)
    scale = op.divide(number(1), op.sqrt(op.add(mean, number(eps))))
    return op.multiply(op.multiply(x, scale), op.constant(weight.reshape(1, -1))).output(0)


def rope_tables(positions: Output, inv_freq: NDArray[np.float32]) -> tuple[Output, Output]:
    """Cosines and sines of every token, `[tokens, 1, 1, head_size]`."""
    wide = op.reshape(op.convert(positions, Type.f32), ints(-1, 1, 1, 1), False)
    frequencies = op.constant(np.concatenate((inv_freq, inv_freq)).reshape(1, 1, 1, -1))
    angles = op.multiply(wide, frequencies)
    return op.cos(angles).output(0), op.sin(angles).output(0)


def rotate(x: Output, tables: tuple[Output, Output], num_heads: int, head_size: int) -> Output:
    """Rotary embedding of `[tokens, heads * head_size]`.

    The plugin recognises only this form: four dimensions, a split on axis 3, a concat on axis -1.
    """
    cos, sin = tables
    x = op.reshape(x, ints(-1, num_heads, 1, head_size), False).output(0)
    half = head_size // 2
    a, b = op.variadic_split(x, op.constant(np.int32(3)), ints(half, half)).outputs()
    turned = op.concat([op.multiply(b, number(-1)).output(0), a], -1)
    y = op.add(op.multiply(x, cos), op.multiply(turned, sin))
    return op.reshape(y, ints(-1, num_heads * head_size), False).output(0)


def swiglu(gate: Output, up: Output) -> Output:
    """`silu(gate) * up`."""
    return op.multiply(op.swish(gate), up).output(0)


def split_columns(x: Output, sizes: list[int]) -> list[Output]:
    """Consecutive columns of a matrix, `[tokens, size]` each."""
    parts: list[Output] = op.variadic_split(x, op.constant(np.int32(1)), ints(*sizes)).outputs()
    return parts


# ---------------------------------------------------------------- products with weights


def linear_float32(constants: Constants) -> Linear:
    """Weights in float32."""

    def linear(x: Output, tensors: list[Tensor]) -> Output:
        weight = np.concatenate([to_float32(tensor) for tensor in tensors])
        return _matmul(x, constants.share(weight, Type.f32))

    return linear


def linear_bfloat16(constants: Constants) -> Linear:
    """Weights in bfloat16, multiplied as such: a constant converted to float32 would be stored as float32."""

    def linear(x: Output, tensors: list[Tensor]) -> Output:
        weight = constants.share(np.concatenate([to_bfloat16(tensor) for tensor in tensors]), Type.bf16)
        product = _matmul(op.convert(x, Type.bf16).output(0), weight)
        return op.convert(product, Type.f32).output(0)

    return linear


def linear_int8(constants: Constants, group: int) -> Linear:
    """Weights in int8 groups."""

    def linear(x: Output, tensors: list[Tensor]) -> Output:
        packed = [to_int8(tensor, group) for tensor in tensors]
        values = np.concatenate([p.values for p in packed])
        scales = np.concatenate([p.scales for p in packed])
        return _matmul(x, _scaled(constants.share(values, Type.i8), constants.share(scales, Type.f16)))

    return linear


def linear_int4(constants: Constants) -> Linear:
    """Weights in four-bit groups of 32; those with offsets (Q4_1) stay exact.

    The integer kernels want symmetric weights. Q4_1's are `q * d + m` with q in 0..15, which is `(q - 8) * d` plus a
    constant c = m + 8 d for each group: so the product is a symmetric one, plus the sums of x over each group times c.
    """

    def linear(x: Output, tensors: list[Tensor]) -> Output:
        parts = [_int4_product(constants, x, to_int4(tensor)) for tensor in tensors]
        if len(parts) == 1:
            return parts[0]
        return op.concat(parts, 1).output(0)

    return linear


def _int4_product(constants: Constants, x: Output, packed: Int4Groups) -> Output:
    rows, num_groups, _ = packed.values.shape
    values, shape = packed.values, (rows, num_groups, packed.group)
    if packed.offsets is None:
        return _matmul(x, _scaled(constants.share(values, Type.i4, shape), constants.share(packed.scales, Type.f16)))
    weight = _scaled(constants.share(values ^ 0x88, Type.i4, shape), constants.share(packed.scales, Type.f16))
    sums = op.reduce_sum(op.reshape(x, ints(-1, num_groups, packed.group), False), ints(2), False).output(0)
    centres = packed.offsets.astype(np.float32) + 8 * packed.scales.astype(np.float32)
    correction = _matmul(sums, constants.share(centres.reshape(rows, num_groups), Type.f32))
    return op.add(_matmul(x, weight), correction).output(0)


def _scaled(values: Output, scales: Output) -> Output:
    """Decompressed weights `[rows, cols]` from groups, in the form that the plugin fuses into the product."""
    rows, num_groups, group = values.get_shape()
    wide = op.multiply(op.convert(values, Type.f16), scales)
    return op.convert(op.reshape(wide, ints(rows, num_groups * group), False), Type.f32).output(0)


def _matmul(x: Output, weight: Output) -> Output:
    return op.matmul(x, weight, False, True).output(0)


# ---------------------------------------------------------------- embeddings


def embedding_float32(constants: Constants, token_ids: Output, tensor: Tensor) -> Output:
    return _gather(constants.share(to_float32(tensor), Type.f32), token_ids)


def embedding_bfloat16(constants: Constants, token_ids: Output, tensor: Tensor) -> Output:
    rows = _gather(constants.share(to_bfloat16(tensor), Type.bf16), token_ids)
    return op.convert(rows, Type.f32).output(0)


def embedding_int8(constants: Constants, token_ids: Output, tensor: Tensor) -> Output:
    """Groups of 32, which is what Q8_0 has: a row is read only once a step, so its precision costs nothing."""
    packed: Int8Groups = to_int8(tensor, 32)
    values = op.convert(_gather(constants.share(packed.values, Type.i8), token_ids), Type.f32)
    scales = op.convert(_gather(constants.share(packed.scales, Type.f16), token_ids), Type.f32)
    return op.reshape(op.multiply(values, scales), ints(-1, tensor.cols), False).output(0)


def _gather(table: Output, indices: Output) -> Output:
    return op.gather(table, indices, op.constant(np.int32(0))).output(0)
