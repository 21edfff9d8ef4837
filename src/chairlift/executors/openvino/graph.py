"""A Llama-family model as two OpenVINO graphs: the body (tokens to hidden states) and the head (to logits).

The body takes all tokens of a step, those of every sequence flattened into one row (selective batching, Yu et al. 2022,
Orca). The head is apart so that it can run in float32 where the body runs in bfloat16, and piece by piece when
the logits of a whole prompt are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    Constants,
    Linear,
    embedding_bfloat16,
    embedding_float32,
    embedding_int8,
    linear_bfloat16,
    linear_float32,
    linear_int4,
    linear_int8,
    rms_norm,
    rope_tables,
    rotate,
    split_columns,
    swiglu,
)
from chairlift.models import Model, Tensor, to_float32

Dtype = Literal["float32", "bfloat16", "int8", "int4"]

INT8_GROUP = 64
"""Numbers that share a scale, in weights and in the activations rounded to meet them."""
INT4_GROUP = 32


@dataclass(slots=True)
class Graphs:
    """The two graphs, and the arrays that their constants share memory with: keep those as long as the graphs run."""

    body: ov.Model
    head: ov.Model
    constants: Constants


def attention_shape(model: Model) -> AttentionShape:
    config = model.config
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_size, config.sliding_window or 0)


def build(model: Model, dtype: Dtype) -> Graphs:
    """Both graphs of a model, with its weights in `dtype`."""
    constants = Constants()
    body = _Body(model, dtype, constants).build()
    hidden = parameter("hidden", Type.f32, [-1, model.config.hidden_size])
    # Four bits are too few for the head: its errors go straight into the logits.
    head_linear = _linear("int8" if dtype == "int4" else dtype, constants)
    logits = head_linear(hidden.output(0), [model.weights.tensor("head")])
    head = ov.Model([op.result(logits)], [hidden], "head")
    return Graphs(body, head, constants)


def _linear(dtype: Dtype, constants: Constants) -> Linear:
    match dtype:
        case "float32":
            return linear_float32(constants)
        case "bfloat16":
            return linear_bfloat16(constants)
        case "int8":
            return linear_int8(constants, INT8_GROUP)
        case "int4":
            return linear_int4(constants)


class _Body:
    """Builds the graph from token ids to the normalised hidden states of `output_rows`."""

    def __init__(self, model: Model, dtype: Dtype, constants: Constants) -> None:
        self._config = model.config
        self._weights = model.weights
        self._shape = attention_shape(model)
        self._dtype = dtype
        self._constants = constants
        self._linear = _linear(dtype, constants)

    def build(self) -> ov.Model:
        config = self._config
        token_ids = parameter("token_ids", Type.i32, [-1])
        positions = parameter("positions", Type.i32, [-1])
        output_rows = parameter("output_rows", Type.i32, [-1])
        rows = ragged()
        caches = [cache_parameters(layer) for layer in range(config.num_layers)]
        tables = rope_tables(positions.output(0), np.array(config.rope.inv_freq(), np.float32))
        x = self._embed(token_ids.output(0))
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
        config = self._config
        h = rms_norm(x, self._vector(name + "attn_norm"), config.rms_norm_eps)
        sizes = [config.q_size, config.kv_size, config.kv_size]
        q, k, v = split_columns(self._product(h, name, "q", "k", "v"), sizes)
        q = rotate(q, tables, config.num_heads, config.head_size)
        k = rotate(k, tables, config.num_kv_heads, config.head_size)
        return paged_attention(q, k, v, caches, rows, self._shape)

    def _mlp(self, x: Output, name: str) -> Output:
        h = rms_norm(x, self._vector(name + "mlp_norm"), self._config.rms_norm_eps)
        # Not merged like q, k and v: splitting the wide result again costs what the larger product saves.
        return self._product(swiglu(self._product(h, name, "gate"), self._product(h, name, "up")), name, "down")

    def _product(self, x: Output, name: str, *parts: str) -> Output:
        """`x` times one weight, or several side by side, plus their biases if the model has them."""
        y = self._linear(x, [self._weights.tensor(name + part) for part in parts])
        if name + parts[0] + "_bias" in self._weights:
            bias = np.concatenate([self._vector(f"{name}{part}_bias") for part in parts])
            y = op.add(y, op.constant(bias.reshape(1, -1))).output(0)
        return y

    def _embed(self, token_ids: Output) -> Output:
        tensor = self._weights.tensor("embed")
        match self._dtype:
            case "float32":
                return embedding_float32(self._constants, token_ids, tensor)
            case "bfloat16":
                return embedding_bfloat16(self._constants, token_ids, tensor)
            case _:
                return embedding_int8(self._constants, token_ids, tensor)

    def _vector(self, name: str) -> NDArray[np.float32]:
        tensor: Tensor = self._weights.tensor(name)
        return to_float32(tensor).ravel()
