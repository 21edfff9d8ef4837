"""The tiny model is worth testing with: its logits differ clearly, its attention is far from uniform."""

import numpy as np
import pytest
from numpy.typing import NDArray

from models.writers import TinyLlama, encode, tiny_llama

Floats = NDArray[np.float64]


def norm(x: Floats, weight: NDArray[np.float32]) -> Floats:
    scaled: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-5) * weight
    return scaled


def forward(tiny: TinyLlama, tokens: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Logits `[tokens, vocab]` and the attention of the last token, `[layers * heads, tokens]`; no biases."""
    config, weights, size = tiny.config, tiny.weights, tiny.head_size
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    count = len(tokens)
    angles = np.arange(count)[:, None] * config["rope_theta"] ** (-np.arange(0, size, 2) / size)
    turn = np.exp(1j * angles)[:, None]

    def rotated(x: Floats) -> Floats:
        pairs = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    x = weights["model.embed_tokens.weight"][tokens].astype(np.float64)
    seen = []
    for i in range(config["num_hidden_layers"]):
        w = {k.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): v for k, v in weights.items()}
        h = norm(x, w["input_layernorm"])
        q = rotated((h @ w["self_attn.q_proj"].T).reshape(count, num_heads, size))
        k = rotated((h @ w["self_attn.k_proj"].T).reshape(count, num_kv_heads, size))
        v = (h @ w["self_attn.v_proj"].T).reshape(count, num_kv_heads, size)
        k, v = (np.repeat(kv, num_heads // num_kv_heads, axis=1) for kv in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(size) + np.triu(np.full((count, count), -np.inf), 1)
        attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        seen.append(attention[:, -1])
        x = x + np.einsum("hts,shd->thd", attention, v).reshape(count, -1) @ w["self_attn.o_proj"].T
        h = norm(x, w["post_attention_layernorm"])
        gate = h @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(x, weights["model.norm.weight"]) @ head.T, np.concatenate(seen)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_attention_of_the_tiny_model(seed: int, tied: bool) -> None:
    tiny = tiny_llama(seed, tied=tied)
    tokens = np.random.default_rng(seed).integers(0, 128, 48)
    logits, attention = forward(tiny, tokens)
    assert logits.std() >= 3.0
    entropy = -(attention * np.log(attention + 1e-300)).sum(axis=-1)
    assert entropy.mean() < 0.6 * np.log(48)
    assert len(set(logits.argmax(axis=-1).tolist())) > 12


def test_weights_are_exact_in_sixteen_bits() -> None:
    for numbers in tiny_llama(0, attention_bias=True).weights.values():
        np.testing.assert_array_equal(numbers.astype(np.float16).astype(np.float32), numbers)
        _, _, data = encode(numbers, "BF16")
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        np.testing.assert_array_equal(bits.view(np.float32).reshape(numbers.shape), numbers)


def test_the_same_seed_gives_the_same_model() -> None:
    first, again, other = tiny_llama(1), tiny_llama(1), tiny_llama(2)
    name = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_array_equal(first.weights[name], again.weights[name])
    assert (first.weights[name] != other.weights[name]).mean() > 0.9
