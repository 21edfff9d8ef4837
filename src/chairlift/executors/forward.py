"""A decoder in plain NumPy float32, one sequence at a time, written to be read.

The oracle: every executor is checked against it, and it is checked against Hugging Face transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from chairlift.models import Model, ModelConfig, Rope, to_float32
from chairlift.models.config import Activation

Floats = NDArray[np.float32]


class ReferenceModel:
    """A forward pass over float32 weights by canonical name: matrices `[rows, cols]`, vectors `[1, cols]`.

    `max_model_len` is the context that is served, which some ways to stretch a context depend on.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Floats], max_model_len: int | None = None) -> None:
        self.config = config
        self._weights = weights
        self._max_model_len = max_model_len or config.max_model_len

    def forward(self, token_ids: list[int], start: int, keys: list[Floats], values: list[Floats]) -> Floats:
        """Logits of tokens at positions start, start + 1, ...; their keys and values are written into the caches.

        Shapes:
            token_ids  [new]
            keys       [positions, kv_heads, head_size] for each layer, read up to start + new
            values     the same
            returns    [new, vocab]
        """
        config = self.config
        positions = np.arange(start, start + len(token_ids))
        x = self._weights["embed"][token_ids] * np.float32(config.embedding_scale)  # [new, hidden]
        if config.learned_positions:
            x = x + self._weights["positions"][positions]
        for i in range(config.num_layers):
            name = f"layers.{i}."
            h = self._norm(x, name + "attn_norm") if config.pre_norms else x
            attended = self._attention(h, i, positions, keys[i], values[i])
            if config.post_norms:
                attended = self._norm(attended, name + "attn_post_norm")
            x = x + attended * np.float32(config.residual_scale)
            if config.pre_norms and not config.parallel_residual:
                h = self._norm(x, name + "mlp_norm")
            elif not config.pre_norms:
                h = x
            y = self._mixture(h, name) if config.has_experts(i) else self._mlp(h, name)
            if config.post_norms:
                y = self._norm(y, name + "mlp_post_norm")
            x = x + y * np.float32(config.residual_scale)
        return _capped(
            self._linear(self._norm(x, "norm"), "head") * np.float32(config.logit_scale), config.logit_softcap
        )

    def _attention(self, h: Floats, layer: int, positions: NDArray[np.int64], keys: Floats, values: Floats) -> Floats:
        """What a layer's attention adds, `[new, hidden]`; writes the keys and values of the new positions."""
        config = self.config
        name = f"layers.{layer}."
        q, k = self._queries_or_keys(h, name + "q"), self._queries_or_keys(h, name + "k")
        rope = config.rope_of(layer)
        if rope is not None:
            inv_freq = np.array(rope.inv_freq(self._max_model_len), np.float32)
            q, k = (_rotate(y, positions, rope, inv_freq) for y in (q, k))
        keys[positions] = k
        values[positions] = self._linear(h, name + "v").reshape(len(positions), -1, config.head_size)
        end = int(positions[-1]) + 1
        window = config.window_of(layer) or end
        sinks = self._weights[name + "sinks"][0] if config.attention_sinks else None
        scale, cap = config.score_scale(layer), config.attention_softcap
        attended = _attend(q, keys[:end], values[:end], positions, window, scale, cap, sinks)
        return self._linear(attended, name + "o")

    def _queries_or_keys(self, h: Floats, name: str) -> Floats:
        """`[new, heads, head_size]`, normalised as the model wants."""
        config = self.config
        y = self._linear(h, name)
        if config.qk_norm == "all_heads":
            y = self._norm(y, name + "_norm")
        y = y.reshape(len(y), -1, config.head_size)
        if config.qk_norm == "head":
            y = self._norm(y, name + "_norm")
        elif config.qk_norm == "each_head":
            heads = [self._norm(y[:, n], f"{name}_norm.{n}") for n in range(y.shape[1])]
            y = np.stack(heads, axis=1)
        return y

    def _mlp(self, h: Floats, name: str) -> Floats:
        if not self.config.gated:
            return self._linear(activated(self._linear(h, name + "up"), self.config.activation), name + "down")
        gate = activated(self._linear(h, name + "gate"), self.config.activation)
        return self._linear(gate * self._linear(h, name + "up"), name + "down")

    def _mixture(self, h: Floats, name: str) -> Floats:
        """What the experts of each token add; the others are not computed."""
        config = self.config
        scores = self._linear(h, name + "router")
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        chosen = np.argsort(-weights, axis=-1, kind="stable")[:, : config.experts_per_token]
        y = np.zeros_like(h)
        for token, experts in enumerate(chosen):
            total = weights[token, experts].sum() if config.normalised_experts else np.float32(1)
            for expert in experts:
                added = self._expert(h[token : token + 1], f"{name}experts.{expert}.")[0]
                y[token] += weights[token, expert] / total * added
        if config.shared_expert_size:
            share = 1 + np.exp(-self._linear(h, name + "shared.router"))  # [new, 1]
            y += self._mlp(h, name + "shared.") / share
        return y

    def _expert(self, h: Floats, name: str) -> Floats:
        limit, alpha = self.config.swiglu_limit, np.float32(self.config.swiglu_alpha)
        if limit is None:
            return self._mlp(h, name)
        gate = np.minimum(self._linear(h, name + "gate"), np.float32(limit))
        up = np.clip(self._linear(h, name + "up"), np.float32(-limit), np.float32(limit))
        return self._linear(gate / (1 + np.exp(-alpha * gate)) * (up + 1), name + "down")

    def _linear(self, x: Floats, name: str) -> Floats:
        y: Floats = x @ self._weights[name].T
        bias = self._weights.get(name + "_bias")
        return y if bias is None else y + bias

    def _norm(self, x: Floats, name: str) -> Floats:
        """Along the last axis: mean square 1, or mean 0 and variance 1; then times the weight."""
        config = self.config
        if config.norm == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(config.norm_eps))
        y: Floats = x / scale * (self._weights[name] + np.float32(config.norm_offset))
        bias = self._weights.get(name + "_bias")
        return y if bias is None else y + bias


def weights_of(model: Model) -> dict[str, Floats]:
    """All weights of a model, decoded."""
    return {name: to_float32(model.weights.tensor(name)) for name in (*model.weights.names, "head")}


def forward(model: Model, token_ids: list[int], max_model_len: int | None = None) -> Floats:
    """Logits after each token of a whole sequence, `[tokens, vocab]`."""
    keys, values = empty_caches(model.config, len(token_ids))
    return ReferenceModel(model.config, weights_of(model), max_model_len).forward(token_ids, 0, keys, values)


def empty_caches(config: ModelConfig, num_positions: int) -> tuple[list[Floats], list[Floats]]:
    """Keys and values of each layer, `[positions, kv_heads, head_size]`."""
    shape = (num_positions, config.num_kv_heads, config.head_size)
    layers = range(config.num_layers)
    return [np.zeros(shape, np.float32) for _ in layers], [np.zeros(shape, np.float32) for _ in layers]


def activated(x: Floats, activation: Activation) -> Floats:
    """The non-linear function of an MLP."""
    y: Floats
    match activation:
        case "silu":
            with np.errstate(over="ignore"):
                y = x / (1 + np.exp(-x))
        case "gelu":
            erf = [math.erf(value) for value in (x / np.float32(2**0.5)).ravel()]
            y = np.float32(0.5) * x * (1 + np.array(erf, np.float32).reshape(x.shape))
        case "gelu_tanh":
            inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)
            y = np.float32(0.5) * x * (1 + np.tanh(inner))
        case "relu":
            y = np.maximum(x, 0)
        case "relu2":
            y = np.square(np.maximum(x, 0))
    return y


def _rotate(x: Floats, positions: NDArray[np.int64], rope: Rope, inv_freq: Floats) -> Floats:
    """Rotary embedding: in each head, the pair (j, j + half) is turned by position * inv_freq[j].

    Numbers of a head past `rope.dim` stay as they are.

    Shapes:
        x         [new, heads, head_size]
        inv_freq  [half]
        returns   [new, heads, head_size]
    """
    angles = positions[:, None, None].astype(np.float32) * inv_freq  # [new, 1, half]
    cos, sin = np.cos(angles) * np.float32(rope.amplitude), np.sin(angles) * np.float32(rope.amplitude)
    a, b, rest = np.split(x, [rope.dim // 2, rope.dim], axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)


def _capped(x: Floats, cap: float | None) -> Floats:
    """Numbers pressed into -cap .. cap; small ones stay nearly as they are."""
    return x if cap is None else np.tanh(x / np.float32(cap)) * np.float32(cap)


def _attend(
    q: Floats,
    k: Floats,
    v: Floats,
    positions: NDArray[np.int64],
    window: int,
    scale: float,
    cap: float | None,
    sinks: Floats | None,
) -> Floats:
    """Causal attention; query head h reads key/value head h // (heads / kv_heads).

    A head's sink is one more score, whose weight nobody gets.

    Shapes:
        q          [new, heads, head_size]
        k, v       [context, kv_heads, head_size]
        positions  [new]
        sinks      [heads]
        returns    [new, heads * head_size]
    """
    num_new, num_heads, head_size = q.shape
    group = num_heads // k.shape[1]
    q = q.reshape(num_new, -1, group, head_size)
    scores = _capped(np.einsum("nkgs,cks->kgnc", q, k, optimize=True) * np.float32(scale), cap)
    distance = positions[:, None] - np.arange(len(k))  # [new, context]
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks.reshape(-1, group, 1, 1), (*scores.shape[:-1], 1))
        scores = np.concatenate((scores, column), axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., : len(k)]
    attended: Floats = np.einsum("kgnc,cks->nkgs", weights, v, optimize=True).reshape(num_new, -1)
    return attended
