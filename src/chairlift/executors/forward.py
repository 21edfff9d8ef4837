"""A Llama-family model in plain NumPy float32, one sequence at a time, written to be read.

The oracle: every executor is checked against it, and it is checked against Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from chairlift.models import Model, ModelConfig, to_float32

Floats = NDArray[np.float32]


class ReferenceModel:
    """A forward pass over float32 weights by canonical name: matrices `[rows, cols]`, vectors `[1, cols]`."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Floats]) -> None:
        self.config = config
        self._weights = weights
        self._inv_freq = np.array(config.rope.inv_freq(), np.float32)

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
        x = self._weights["embed"][token_ids]  # [new, hidden]
        for i in range(config.num_layers):
            name = f"layers.{i}."
            h = _rms_norm(x, self._weights[name + "attn_norm"], config)
            q = self._rotate(self._linear(h, name + "q"), positions)  # [new, heads, head_size]
            keys[i][positions] = self._rotate(self._linear(h, name + "k"), positions)
            values[i][positions] = self._linear(h, name + "v").reshape(len(positions), -1, config.head_size)
            end = start + len(token_ids)
            x = x + self._linear(_attention(q, keys[i][:end], values[i][:end], positions, config), name + "o")
            h = _rms_norm(x, self._weights[name + "mlp_norm"], config)
            gate = self._linear(h, name + "gate")
            with np.errstate(over="ignore"):
                silu = gate / (1 + np.exp(-gate))
            x = x + self._linear(silu * self._linear(h, name + "up"), name + "down")
        return self._linear(_rms_norm(x, self._weights["norm"], config), "head")

    def _linear(self, x: Floats, name: str) -> Floats:
        y: Floats = x @ self._weights[name].T
        bias = self._weights.get(name + "_bias")
        return y if bias is None else y + bias

    def _rotate(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        """Rotary embedding: in each head, the pair (j, j + half) is turned by position * inv_freq[j].

        Shapes:
            x        [new, heads * head_size]
            returns  [new, heads, head_size]
        """
        x = x.reshape(len(positions), -1, self.config.head_size)
        angles = positions[:, None, None].astype(np.float32) * self._inv_freq  # [new, 1, half]
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def weights_of(model: Model) -> dict[str, Floats]:
    """All weights of a model, decoded."""
    return {name: to_float32(model.weights.tensor(name)) for name in (*model.weights.names, "head")}


def forward(model: Model, token_ids: list[int]) -> Floats:
    """Logits after each token of a whole sequence, `[tokens, vocab]`."""
    keys, values = empty_caches(model.config, len(token_ids))
    return ReferenceModel(model.config, weights_of(model)).forward(token_ids, 0, keys, values)


def empty_caches(config: ModelConfig, num_positions: int) -> tuple[list[Floats], list[Floats]]:
    """Keys and values of each layer, `[positions, kv_heads, head_size]`."""
    shape = (num_positions, config.num_kv_heads, config.head_size)
    layers = range(config.num_layers)
    return [np.zeros(shape, np.float32) for _ in layers], [np.zeros(shape, np.float32) for _ in layers]


def _rms_norm(x: Floats, weight: Floats, config: ModelConfig) -> Floats:
    scale = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(config.rms_norm_eps))
    y: Floats = x / scale * weight
    return y


def _attention(q: Floats, k: Floats, v: Floats, positions: NDArray[np.int64], config: ModelConfig) -> Floats:
    """Causal attention; query head h reads key/value head h // (heads / kv_heads).

    Shapes:
        q          [new, heads, head_size]
        k, v       [context, kv_heads, head_size]
        positions  [new]
        returns    [new, heads * head_size]
    """
    num_new, num_heads, head_size = q.shape
    group = num_heads // k.shape[1]
    q = q.reshape(num_new, -1, group, head_size)
    scores = np.einsum("nkgs,cks->kgnc", q, k) * np.float32(head_size**-0.5)
    distance = positions[:, None] - np.arange(len(k))  # [new, context]
    window = config.sliding_window or len(k)
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: Floats = np.einsum("kgnc,cks->nkgs", weights, v).reshape(num_new, -1)
    return attended
