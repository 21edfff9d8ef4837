"""A decoder as two OpenVINO graphs: the body (embedded tokens to hidden states) and the head (to logits).

One builder for all families: what a layer computes follows from the model's config (see `ModelConfig`).

The body takes all tokens of a step, those of every sequence flattened into one row (selective batching, Yu et al. 2022,
Orca). The head is apart so that it can run in float32 where the body runs in bfloat16, and piece by piece when
the logits of a whole prompt are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Output, Type
from openvino import opset13 as op

from chairlift.executors.loading import LoadedBytes
from chairlift.executors.openvino.attention import AttentionShape, cache_parameters, parameter
from chairlift.executors.openvino.capped import Attention, attention_of
from chairlift.executors.openvino.experts import Clamped, Router, clamped_mixture, mixture
from chairlift.executors.openvino.layers import (
    Heads,
    LayerNorm,
    Norm,
    RmsNorm,
    Rotation,
    activated,
    product,
    scaled,
    split_columns,
)
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.weights import (
    Arena,
    Packed,
    dtype_of_rows,
    keeps_small_groups,
    pack,
    pack_experts,
)
from chairlift.models import Model, ModelConfig, Rope, to_float32

GROUPS: dict[Dtype, int] = {"float32": 0, "bfloat16": 0, "int8": 64, "int4": 32}
"""Numbers that share a scale, in weights and in the activations rounded to meet them; 0 where nothing is rounded."""
EXPERT_GROUP = 32
"""What experts in eight bits keep where the file has it."""
EMBEDDING_GROUP = 32
"""What Q8_0 has. An embedding is one row a token: its precision costs nothing."""

PRODUCTS = (("q", "k", "v"), ("o",), ("gate",), ("up",), ("down",))
"""Weights of a layer; those in one tuple are multiplied as one. The gate and up projections are not: splitting their
wide result again costs what the larger product saves."""
EXPERT_PARTS = (("gate",), ("up",), ("down",))
"""Weights of an expert; those of all experts are one constant."""
CLAMPED_PARTS = (("gate", "up"), ("down",))
"""The same where gate and up are multiplied as one, their rows interleaved: see `experts`."""
SHARED_PARTS = (("shared.gate",), ("shared.up",), ("shared.down",))


def weight_kinds(
    model: Model, dtype: Dtype, wide: Container[str] = (), head_group: int = GROUPS["int8"]
) -> dict[str, tuple[Dtype, int]]:
    """Precision of every weight of a model in `dtype`, and how many of its numbers share a scale.

    The head is among them even if it is the embedding: they are packed apart. Those named in `wide` are in bfloat16;
    of weights that are multiplied as one, the first one's name counts. So are those whose rows ask for it (see
    `dtype_of_rows`).
    """

    def kind(name: str, dtype: Dtype, group: int) -> tuple[Dtype, int]:
        if name in wide and dtype != "float32":
            dtype = "bfloat16"
        return dtype, group if GROUPS[dtype] else 0

    kinds: dict[str, tuple[Dtype, int]] = dict.fromkeys(model.weights.names, ("float32", 0))
    kinds["embed"] = kind("embed", head_dtype(dtype), EMBEDDING_GROUP)
    kinds["head"] = kind("head", head_dtype(dtype), head_group)
    for parts in product_names(model):
        group = GROUPS[dtype]
        if dtype == "int8" and is_expert(parts[0]) and keeps_small_groups([model.weights.tensor(n) for n in parts]):
            group = EXPERT_GROUP
        own = dtype_of_rows(model.weights.tensor(parts[0]).cols, dtype)
        kinds.update(dict.fromkeys(parts, kind(parts[0], own, group)))
    return kinds


def head_dtype(dtype: Dtype) -> Dtype:
    """Precision of the head and the embeddings: four bits are too few, the errors would go straight into the logits."""
    return "int8" if dtype == "int4" else dtype


def is_expert(name: str) -> bool:
    return ".experts." in name


def attention_shape(model: Model, layer: int) -> AttentionShape:
    config = model.config
    window = config.window_of(layer) or 0
    heads = config.num_heads, config.num_kv_heads, config.head_size
    return AttentionShape(*heads, window, config.score_scale(layer), config.attention_sinks, config.attention_softcap)


def attention_shapes(model: Model) -> set[AttentionShape]:
    """The different ones of all layers."""
    return {attention_shape(model, layer) for layer in range(model.config.num_layers)}


def num_packed_bytes(model: Model) -> int:
    """Bytes in the file of all weights that are packed."""
    names = ["head", *(name for parts in product_names(model) for name in parts)]
    return sum(model.weights.tensor(name).num_bytes for name in names)


def build_head(model: Model, dtype: Dtype, group: int, packed: Arena, wide: Container[str] = ()) -> ov.Model:
    """The graph from hidden states to logits; in eight bits, `group` numbers share a scale.

    `packed` takes its weights and must live until the graph has run once.
    """
    weight = pack([model.weights.tensor("head")], *weight_kinds(model, dtype, wide, group)["head"], packed)
    hidden = parameter("hidden", Type.f32, [-1, model.config.hidden_size])
    # Scaled before the product: the plugin would move a factor behind it into the weights, which then are not
    # recognised as compressed any more.
    cap = model.config.logit_softcap
    logits = product(scaled(hidden.output(0), model.config.logit_scale / (cap or 1.0)), weight)
    if cap is not None:
        logits = scaled(op.tanh(logits).output(0), cap)
    return ov.Model([op.result(logits)], [hidden], "head")


PackedLayers = dict[tuple[str, ...], Packed]
"""The weights of all layers, by the names of those that are multiplied as one."""


def pack_layers(
    model: Model,
    dtype: Dtype,
    packed: Sequence[Arena],
    experts: Arena,
    loaded: LoadedBytes,
    wide: Container[str] = (),
) -> PackedLayers:
    """The weights of each layer in its part of `packed`, which must live until the graph that shares them has run.

    Those of experts are in `experts`: the plugin lays them out while it compiles.
    """
    kinds = weight_kinds(model, dtype, wide)

    def pack_one(parts: tuple[str, ...]) -> Packed:
        tensors = [model.weights.tensor(name) for name in parts]
        if is_expert(parts[0]):
            weight = pack_experts(tensors, *kinds[parts[0]], experts, len(parts) // model.config.num_experts)
        else:
            weight = pack(tensors, *kinds[parts[0]], packed[_layer_of(parts[0])])
        loaded.add(sum(tensor.num_bytes for tensor in tensors))
        return weight

    names = product_names(model)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(names, pool.map(pack_one, names), strict=True))


def build_body(model: Model, max_model_len: int, layers: PackedLayers) -> ov.Model:
    """The graph from the embeddings of tokens to the hidden states of `output_rows`, normalised for the head.

    `max_model_len` is the context that is served, which some ways to stretch a context depend on.
    """
    return _Body(model, max_model_len, layers).build()


def product_names(model: Model) -> list[tuple[str, ...]]:
    """Weights of all layers, those together that are multiplied as one."""
    config = model.config
    products = [*PRODUCTS, *SHARED_PARTS]
    products += [_of_experts(config, parts) for parts in _expert_parts(config)]
    return [
        tuple(f"layers.{i}.{part}" for part in parts)
        for i in range(config.num_layers)
        for parts in products
        if parts and f"layers.{i}.{parts[0]}" in model.weights
    ]


def _expert_parts(config: ModelConfig) -> tuple[tuple[str, ...], ...]:
    return EXPERT_PARTS if config.swiglu_limit is None else CLAMPED_PARTS


def _of_experts(config: ModelConfig, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Weights of all experts that are one constant, named within their layer."""
    return tuple(f"experts.{n}.{part}" for n in range(config.num_experts) for part in parts)


def _layer_of(name: str) -> int:
    return int(name.split(".")[1])


class _Body:
    """Adds one layer after the other to a graph."""

    def __init__(self, model: Model, max_model_len: int, weights: PackedLayers) -> None:
        config = model.config
        self._model = model
        self._config = config
        self._max_model_len = max_model_len
        self._weights = weights
        self._normalise: Norm = RmsNorm(config.norm_eps) if config.norm == "rms" else LayerNorm(config.norm_eps)
        self._heads = Heads(config.head_size)
        self._rotations: dict[Rope, Rotation] = {}

    def build(self) -> ov.Model:
        config = self._config
        embeddings = parameter("embeddings", Type.f32, [-1, config.hidden_size])
        positions = parameter("positions", Type.i32, [-1])
        output_rows = parameter("output_rows", Type.i32, [-1])
        attention = attention_of(attention_shapes(self._model))
        caches = [cache_parameters(layer) for layer in range(config.num_layers)]
        x = scaled(embeddings.output(0), config.embedding_scale)
        if config.learned_positions:
            # Positions past the last are those of companions, whose results nobody reads.
            last = op.minimum(positions, op.constant(np.int32(config.max_model_len - 1)))
            learned = op.constant(to_float32(self._model.weights.tensor("positions")))
            x = op.add(x, op.gather(learned, last, op.constant(np.int32(0)))).output(0)
        for layer in range(config.num_layers):
            name = f"layers.{layer}."
            h = self._norm(x, name + "attn_norm") if config.pre_norms else x
            attended = self._attention(h, layer, positions.output(0), caches[layer], attention)
            if layer == config.num_layers - 1:
                # Nobody reads the other rows any more.
                x, h, attended = (
                    op.gather(y, output_rows, op.constant(np.int32(0))).output(0) for y in (x, h, attended)
                )
            x = op.add(x, self._output(attended, name, "o", "attn_post_norm")).output(0)
            if not config.parallel_residual:
                h = self._norm(x, name + "mlp_norm") if config.pre_norms else x
            if config.has_experts(layer):
                x = op.add(x, self._mixture(h, name)).output(0)
            else:
                x = op.add(x, self._output(self._mlp(h, name), name, "down", "mlp_post_norm")).output(0)
        hidden = self._norm(x, "norm")
        inputs = [embeddings, positions, output_rows, *attention.parameters(), *(p for pair in caches for p in pair)]
        return ov.Model([op.result(hidden)], inputs, "body")

    def _output(self, x: Output, name: str, part: str, post_norm: str) -> Output:
        """What attention or MLP adds to what goes past it: `x` times their last weight."""
        scale = self._config.residual_scale
        if self._config.post_norms:
            return scaled(self._norm(self._product(x, name, part), name + post_norm), scale)
        return self._product(scaled(x, scale), name, part, bias_scale=scale)  # before the product, as in the head

    def _attention(
        self,
        h: Output,
        layer: int,
        positions: Output,
        caches: tuple[ov.op.Parameter, ov.op.Parameter],
        attention: Attention,
    ) -> Output:
        config = self._config
        name = f"layers.{layer}."
        sizes = [config.q_size, config.kv_size, config.kv_size]
        q, k, v = split_columns(self._product(h, name, "q", "k", "v"), sizes)
        rotate = self._rotation(layer, positions)
        q = self._prepared(q, name + "q_norm", config.num_heads, rotate)
        k = self._prepared(k, name + "k_norm", config.num_kv_heads, rotate)
        sinks = self._vector(name + "sinks") if config.attention_sinks else None
        return attention(q, k, v, caches, attention_shape(self._model, layer), sinks)

    def _prepared(self, x: Output, norm: str, num_heads: int, rotate: Rotation | None) -> Output:
        """Queries or keys `[tokens, heads * head_size]`, normalised and rotated as the layer wants."""
        kind = self._config.qk_norm
        if kind == "all_heads":
            x = self._norm(x, norm)
        if kind in ("none", "all_heads") and rotate is None:
            return x
        x = self._heads.split(x, num_heads)
        if kind == "head":
            x = self._normalise(x, self._norm_weight(norm))
        elif kind == "each_head":
            weights = [self._norm_weight(f"{norm}.{n}") for n in range(num_heads)]
            x = self._normalise(x, np.stack(weights).reshape(1, num_heads, 1, -1))
        if rotate is not None:
            x = rotate(x)
        return self._heads.join(x, num_heads)

    def _rotation(self, layer: int, positions: Output) -> Rotation | None:
        """How a layer turns queries and keys; layers that turn alike share their angles."""
        rope = self._config.rope_of(layer)
        if rope is None:
            return None
        if rope not in self._rotations:
            inv_freq = np.array(rope.inv_freq(self._max_model_len), np.float32)
            self._rotations[rope] = Rotation(positions, inv_freq, self._config.head_size, rope.amplitude)
        return self._rotations[rope]

    def _mlp(self, h: Output, name: str) -> Output:
        """All of it but the last product."""
        if not self._config.gated:
            return activated(self._product(h, name, "up"), self._config.activation)
        gate = activated(self._product(h, name, "gate"), self._config.activation)
        return op.multiply(gate, self._product(h, name, "up")).output(0)

    def _mixture(self, h: Output, name: str) -> Output:
        config = self._config
        weight = to_float32(self._model.weights.tensor(name + "router"))
        bias = self._vector(name + "router_bias") if config.expert_bias else None
        router = Router(weight, bias, config.experts_per_token, config.normalised_experts)
        each = [tuple(name + part for part in _of_experts(config, parts)) for parts in _expert_parts(config)]
        if config.swiglu_limit is None:
            gate, up, down = (self._weights[names] for names in each)
            y = mixture(h, router, gate, up, down)
        else:
            gate_up, down = (self._weights[names] for names in each)
            gate_up_bias, down_bias = (self._expert_biases(names) for names in each)
            clamped = Clamped(config.swiglu_limit, config.swiglu_alpha, gate_up_bias, down_bias)
            y = clamped_mixture(h, router, gate_up, down, clamped)
        if config.shared_expert_size:
            own = op.constant(to_float32(self._model.weights.tensor(name + "shared.router")))
            share = op.sigmoid(op.matmul(h, own, False, True))
            shared = self._product(self._mlp(h, name + "shared."), name, "shared.down")
            y = op.add(y, op.multiply(shared, share)).output(0)
        if config.post_norms:
            y = self._norm(y, name + "mlp_post_norm")
        return scaled(y, config.residual_scale)

    def _expert_biases(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """Of all experts, in the order of the rows of their weights, `[experts, rows]`."""
        experts = self._config.num_experts
        values = np.stack([self._vector(name + "_bias") for name in names])
        return np.ascontiguousarray(values.reshape(experts, -1, values.shape[1]).transpose(0, 2, 1)).reshape(
            experts, -1
        )

    def _norm(self, x: Output, name: str) -> Output:
        bias = self._vector(name + "_bias") if name + "_bias" in self._model.weights else None
        return self._normalise(x, self._norm_weight(name).reshape(1, -1), bias)

    def _norm_weight(self, name: str) -> NDArray[np.float32]:
        return self._vector(name) + np.float32(self._config.norm_offset)

    def _product(self, x: Output, name: str, *parts: str, bias_scale: float = 1.0) -> Output:
        """`x` times one weight, or several side by side, plus their biases if the model has them."""
        y = product(x, self._weights[tuple(name + part for part in parts)])
        if name + parts[0] + "_bias" in self._model.weights:
            bias = np.concatenate([self._vector(f"{name}{part}_bias") for part in parts]) * np.float32(bias_scale)
            y = op.add(y, op.constant(bias.reshape(1, -1))).output(0)
        return y

    def _vector(self, name: str) -> NDArray[np.float32]:
        return to_float32(self._model.weights.tensor(name)).ravel()
