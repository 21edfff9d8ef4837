"""A Llama-family model as two OpenVINO graphs: the body (tokens to hidden states) and the head (to logits).

The body takes all tokens of a step, those of every sequence flattened into one row (selective batching, Yu et al. 2022,
Orca). The head is apart so that it can run in float32 where the body runs in bfloat16, and piece by piece when
the logits of a whole prompt are wanted.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Output, Type
from openvino import opset13 as op

from chairlift.executors.openvino.attention import (
    AttentionShape,
    Ragged,
    cache_parameters,
    paged_attention,
    parameter,
    ragged,
)
from chairlift.executors.openvino.layers import RmsNorm, Rotation, embedding, product, split_columns, swiglu
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.weights import Arena, Packed, pack
from chairlift.models import Model, to_float32

GROUPS: dict[Dtype, int] = {"float32": 0, "bfloat16": 0, "int8": 64, "int4": 32}
"""Numbers that share a scale, in weights and in the activations rounded to meet them; 0 where nothing is rounded."""
EMBEDDING_GROUP = 32
"""What Q8_0 has. An embedding is one row a token: its precision costs nothing."""

PRODUCTS = (("q", "k", "v"), ("o",), ("gate",), ("up",), ("down",))
"""Weights of a layer; those in one tuple are multiplied as one. The gate and up projections are not: splitting their
wide result again costs what the larger product saves."""


def head_dtype(dtype: Dtype) -> Dtype:
    """Precision of the head and the embeddings: four bits are too few, the errors would go straight into the logits."""
    return "int8" if dtype == "int4" else dtype


def attention_shape(model: Model) -> AttentionShape:
    config = model.config
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_size, config.sliding_window or 0)


def build_head(model: Model, dtype: Dtype, packed: Arena) -> ov.Model:
    """The graph from hidden states to logits. `packed` takes its weights and must live until the graph has run once."""
    kind = head_dtype(dtype)
    weight = pack([model.weights.tensor("head")], kind, GROUPS[kind], packed)
    hidden = parameter("hidden", Type.f32, [-1, model.config.hidden_size])
    return ov.Model([op.result(product(hidden.output(0), weight))], [hidden], "head")


def build_body(model: Model, dtype: Dtype, embeddings: Arena, packed: Arena) -> ov.Model:
    """The graph from token ids to the hidden states of `output_rows`, normalised for the head.

    `embeddings` takes what must live as long as the graph runs, `packed` what must live until it has run once.
    """
    layers = range(model.config.num_layers)
    names = [tuple(f"layers.{i}.{part}" for part in parts) for i in layers for parts in PRODUCTS]

    def pack_one(parts: tuple[str, ...]) -> Packed:
        return pack([model.weights.tensor(name) for name in parts], dtype, GROUPS[dtype], packed)

    table = pack([model.weights.tensor("embed")], head_dtype(dtype), EMBEDDING_GROUP, embeddings)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        weights = dict(zip(names, pool.map(pack_one, names), strict=True))
    return _Body(model, table, weights).build()


class _Body:
    """Adds one layer after the other to a graph."""

    def __init__(self, model: Model, table: Packed, weights: dict[tuple[str, ...], Packed]) -> None:
        self._model = model
        self._table = table
        self._norm = RmsNorm(model.config.rms_norm_eps)
        self._weights = weights
        self._shape = attention_shape(model)

    def build(self) -> ov.Model:
        config = self._model.config
        token_ids = parameter("token_ids", Type.i32, [-1])
        positions = parameter("positions", Type.i32, [-1])
        output_rows = parameter("output_rows", Type.i32, [-1])
        rows = ragged()
        caches = [cache_parameters(layer) for layer in range(config.num_layers)]
        rotate = Rotation(positions.output(0), np.array(config.rope.inv_freq(), np.float32))
        x = embedding(token_ids.output(0), self._table)
        for layer in range(config.num_layers):
            name = f"layers.{layer}."
            attended = self._attention(x, name, rotate, caches[layer], rows)
            if layer == config.num_layers - 1:
                # Nobody reads the other rows any more.
                x, attended = (op.gather(y, output_rows, op.constant(np.int32(0))).output(0) for y in (x, attended))
            x = op.add(x, self._product(attended, name, "o")).output(0)
            x = op.add(x, self._mlp(x, name)).output(0)
        hidden = self._norm(x, self._vector("norm"))
        inputs = [token_ids, positions, output_rows, *rows.parameters(), *(p for pair in caches for p in pair)]
        return ov.Model([op.result(hidden)], inputs, "body")

    def _attention(
        self,
        x: Output,
        name: str,
        rotate: Rotation,
        caches: tuple[ov.op.Parameter, ov.op.Parameter],
        rows: Ragged,
    ) -> Output:
        config = self._model.config
        h = self._norm(x, self._vector(name + "attn_norm"))
        sizes = [config.q_size, config.kv_size, config.kv_size]
        q, k, v = split_columns(self._product(h, name, "q", "k", "v"), sizes)
        q, k = rotate(q, config.num_heads), rotate(k, config.num_kv_heads)
        return paged_attention(q, k, v, caches, rows, self._shape)

    def _mlp(self, x: Output, name: str) -> Output:
        h = self._norm(x, self._vector(name + "mlp_norm"))
        return self._product(swiglu(self._product(h, name, "gate"), self._product(h, name, "up")), name, "down")

    def _product(self, x: Output, name: str, *parts: str) -> Output:
        """`x` times one weight, or several side by side, plus their biases if the model has them."""
        y = product(x, self._weights[tuple(name + part for part in parts)])
        if name + parts[0] + "_bias" in self._model.weights:
            bias = np.concatenate([self._vector(f"{name}{part}_bias") for part in parts])
            y = op.add(y, op.constant(bias.reshape(1, -1))).output(0)
        return y

    def _vector(self, name: str) -> NDArray[np.float32]:
        return to_float32(self._model.weights.tensor(name)).ravel()
