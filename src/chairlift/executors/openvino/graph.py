"""A Llama-family model as two OpenVINO graphs: the body (tokens to hidden states) and the head (to logits).

The body takes all tokens of a step, those of every sequence flattened into one row (selective batching, Yu et al. 2022,
Orca). The head is apart so that it can run in float32 where the body runs in bfloat16, and piece by piece when
the logits of a whole prompt are wanted.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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
from chairlift.executors.openvino.layers import (
    embedding,
    product,
    rms_norm,
    rope_tables,
    rotate,
    split_columns,
    swiglu,
)
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


@dataclass(slots=True)
class Graphs:
    """The two graphs, and the memory that their constants share.

    `embeddings` is needed as long as the graphs run; `packed` only until they have run once.
    """

    body: ov.Model
    head: ov.Model
    embeddings: Arena
    packed: Arena


def head_dtype(dtype: Dtype) -> Dtype:
    """Precision of the head and the embeddings: four bits are too few, the errors would go straight into the logits."""
    return "int8" if dtype == "int4" else dtype


def attention_shape(model: Model) -> AttentionShape:
    config = model.config
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_size, config.sliding_window or 0)


def build(model: Model, dtype: Dtype) -> Graphs:
    """Both graphs of a model, with its weights in `dtype`."""
    embeddings, packed = Arena(), Arena()
    outer = head_dtype(dtype)

    def pack_one(names: tuple[str, ...]) -> Packed:
        tensors = [model.weights.tensor(name) for name in names]
        if names == ("embed",):
            return pack(tensors, outer, EMBEDDING_GROUP, embeddings)
        kind = outer if names == ("head",) else dtype
        return pack(tensors, kind, GROUPS[kind], packed)

    layers = range(model.config.num_layers)
    names = [tuple(f"layers.{i}.{part}" for part in parts) for i in layers for parts in PRODUCTS]
    names += [("embed",), ("head",)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        weights = dict(zip(names, pool.map(pack_one, names), strict=True))
    hidden = parameter("hidden", Type.f32, [-1, model.config.hidden_size])
    head = ov.Model([op.result(product(hidden.output(0), weights["head",]))], [hidden], "head")
    return Graphs(_Body(model, weights).build(), head, embeddings, packed)


class _Body:
    """Builds the graph from token ids to the normalised hidden states of `output_rows`."""

    def __init__(self, model: Model, weights: dict[tuple[str, ...], Packed]) -> None:
        self._model = model
        self._weights = weights
        self._shape = attention_shape(model)

    def build(self) -> ov.Model:
        config = self._model.config
        token_ids = parameter("token_ids", Type.i32, [-1])
        positions = parameter("positions", Type.i32, [-1])
        output_rows = parameter("output_rows", Type.i32, [-1])
        rows = ragged()
        caches = [cache_parameters(layer) for layer in range(config.num_layers)]
        tables = rope_tables(positions.output(0), np.array(config.rope.inv_freq(), np.float32))
        x = embedding(token_ids.output(0), self._weights["embed",])
        for layer in range(config.num_layers):
            name = f"layers.{layer}."
            attended = self._attention(x, name, tables, caches[layer], rows)
            if layer == config.num_layers - 1:
                # Nobody reads the other rows any more.
                x, attended = (op.gather(y, output_rows, op.constant(np.int32(0))).output(0) for y in (x, attended))
            x = op.add(x, self._product(attended, name, "o")).output(0)
            x = op.add(x, self._mlp(x, name)).output(0)
        hidden = rms_norm(x, self._vector("norm"), config.rms_norm_eps)
        inputs = [token_ids, positions, output_rows, *rows.parameters(), *(p for pair in caches for p in pair)]
        return ov.Model([op.result(hidden)], inputs, "body")

    def _attention(
        self,
        x: Output,
        name: str,
        tables: tuple[Output, Output],
        caches: tuple[ov.op.Parameter, ov.op.Parameter],
        rows: Ragged,
    ) -> Output:
        config = self._model.config
        h = rms_norm(x, self._vector(name + "attn_norm"), config.rms_norm_eps)
        sizes = [config.q_size, config.kv_size, config.kv_size]
        q, k, v = split_columns(self._product(h, name, "q", "k", "v"), sizes)
        q = rotate(q, tables, config.num_heads, config.head_size)
        k = rotate(k, tables, config.num_kv_heads, config.head_size)
        return paged_attention(q, k, v, caches, rows, self._shape)

    def _mlp(self, x: Output, name: str) -> Output:
        h = rms_norm(x, self._vector(name + "mlp_norm"), self._model.config.rms_norm_eps)
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
