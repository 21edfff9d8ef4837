"""An encoder as an OpenVINO graph: padded texts of similar lengths in, one vector each out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Output, Type
from openvino import opset13 as op

from chairlift.executors.openvino.attention import parameter
from chairlift.executors.openvino.graph import GROUPS
from chairlift.executors.openvino.layers import activated, embedding, ints, product
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.weights import Arena, Packed, dtype_of_rows, pack
from chairlift.models.encoder import Encoder
from chairlift.models.quantize import to_float32

PRODUCTS = (("q", "k", "v"), ("o",), ("up",), ("down",))
"""Weights of a layer; those in one tuple are multiplied as one."""


@dataclass(frozen=True, slots=True)
class EncoderGraph:
    """A graph, and the memory that its constants share: it must live as long as what is compiled from it.

    Inputs, for `texts` padded to `length` tokens:
        token_ids  int32   [texts, length]
        types      int32   [texts, length]     0 for the first text of a pair, 1 for the second
        positions  int32   [1, length]
        mask       float32 [texts, 1, 1, length]   0 for tokens, a large negative number for padding
        weights    float32 [texts, 1, length]      what each token's state counts for in the text's vector
    Output: float32 [texts, outputs].
    """

    model: ov.Model
    memory: Arena


def build_encoder(encoder: Encoder, dtype: Dtype) -> EncoderGraph:
    """The graph of an encoder whose products are computed in `dtype`."""
    memory = Arena()
    return EncoderGraph(_Builder(encoder, dtype, memory).build(), memory)


class _Builder:
    def __init__(self, encoder: Encoder, dtype: Dtype, memory: Arena) -> None:
        self._encoder = encoder
        self._config = encoder.config
        self._dtype = dtype
        self._memory = memory

    def build(self) -> ov.Model:
        config = self._config
        token_ids = parameter("token_ids", Type.i32, [-1, -1])
        types = parameter("types", Type.i32, [-1, -1])
        positions = parameter("positions", Type.i32, [1, -1])
        mask = parameter("mask", Type.f32, [-1, 1, 1, -1])
        weights = parameter("weights", Type.f32, [-1, 1, -1])
        x = self._embedded(token_ids.output(0), types.output(0), positions.output(0))
        for layer in range(config.num_layers):
            name = f"layers.{layer}."
            attended = self._linear(self._attention(x, name, mask.output(0)), name, "o")
            x = self._norm(op.add(attended, x).output(0), name + "attn_norm")
            x = self._norm(op.add(self._mlp(x, name), x).output(0), name + "mlp_norm")
        pooled = op.squeeze(op.matmul(weights, x, False, False), ints(1)).output(0)
        if config.head != "none":
            pooled = self._linear(op.tanh(self._linear(pooled, "", "pooler")).output(0), "", "classifier")
        inputs = [token_ids, types, positions, mask, weights]
        return ov.Model([op.result(pooled)], inputs, "encoder")

    def _embedded(self, token_ids: Output, types: Output, positions: Output) -> Output:
        # Four bytes a number are read once for each token: a table in two is as good for any precision but float32.
        kind: Dtype = "float32" if self._dtype == "float32" else "bfloat16"
        x = embedding(token_ids, pack([self._encoder.weights.tensor("embed")], kind, 0, self._memory))
        for name, indices in (("positions", positions), ("types", types)):
            table = pack([self._encoder.weights.tensor(name)], "float32", 0, self._memory)
            x = op.add(x, embedding(indices, table)).output(0)
        return self._norm(x, "embed_norm")

    def _attention(self, x: Output, name: str, mask: Output) -> Output:
        config = self._config
        qkv = self._linear(x, name, "q", "k", "v")
        heads = op.reshape(qkv, ints(0, 0, 3 * config.num_heads, config.head_size), True)
        parts = op.split(op.transpose(heads, ints(0, 2, 1, 3)), op.constant(np.int32(1)), 3).outputs()
        attended = op.scaled_dot_product_attention(*parts, mask)
        return op.reshape(op.transpose(attended, ints(0, 2, 1, 3)), ints(0, 0, config.hidden_size), True).output(0)

    def _mlp(self, x: Output, name: str) -> Output:
        return self._linear(activated(self._linear(x, name, "up"), self._config.activation), name, "down")

    def _linear(self, x: Output, name: str, *parts: str) -> Output:
        """`x` times one weight, or several side by side, plus their biases."""
        tensors = [self._encoder.weights.tensor(name + part) for part in parts]
        small = parts[0] in ("pooler", "classifier")
        dtype: Dtype = "float32" if small else dtype_of_rows(tensors[0].cols, self._dtype)
        weight: Packed = pack(tensors, dtype, GROUPS[dtype], self._memory)
        bias = np.concatenate([self._vector(f"{name}{part}_bias") for part in parts])
        return op.add(product(x, weight), op.constant(bias)).output(0)

    def _norm(self, x: Output, name: str) -> Output:
        """Mean 0 and variance 1 along the last axis, then weight and bias."""
        eps = self._config.norm_eps
        normed = op.mvn(x, ints(-1), True, eps, "inside_sqrt")
        scaled = op.multiply(normed, op.constant(self._vector(name)))
        return op.add(scaled, op.constant(self._vector(name + "_bias"))).output(0)

    def _vector(self, name: str) -> NDArray[np.float32]:
        return to_float32(self._encoder.weights.tensor(name)).ravel()
