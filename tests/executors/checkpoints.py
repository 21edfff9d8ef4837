"""Tiny random Llama checkpoints, the same on every machine: one for each feature that a graph can get wrong.

Imported by the tests and by `make_fixtures.py`, which runs where there is no Chairlift: NumPy only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.writers import encode, write_safetensors

VOCAB_SIZE = 120
NUM_TOKENS = 80
FIXTURES = Path(__file__).parent / "fixtures.npz"

_PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": _PLAIN,
    "tied": {**_PLAIN, "tie_word_embeddings": True},
    "grouped": {**_PLAIN, "num_attention_heads": 8, "num_key_value_heads": 2},
    "llama3": {**_PLAIN, "num_key_value_heads": 2, "rope_scaling": _LLAMA3},
    "linear": {**_PLAIN, "num_key_value_heads": 2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "window": {**_PLAIN, **_MISTRAL, "num_key_value_heads": 2},
    "biased": {**_PLAIN, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
}


def tokens_of(name: str) -> list[int]:
    """The sequence whose logits are stored for a checkpoint."""
    return [int(token) for token in np.random.default_rng(len(name)).integers(3, VOCAB_SIZE, NUM_TOKENS)]


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write `config.json` and `model.safetensors` into a new folder; returns the folder."""
    config = CONFIGS[name]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = weights_of(config, np.random.default_rng(sorted(CONFIGS).index(name)))
    write_safetensors(folder / "model.safetensors", {key: encode(value, "F32") for key, value in weights.items()})
    return folder


def weights_of(config: dict[str, Any], rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Random weights by their Hugging Face names.

    Scaled so that attention scores have a standard deviation near 3 and logits one near 5: differences in who attends
    to whom then show in the logits.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]

    def normal(rows: int, cols: int, scale: float) -> NDArray[np.float32]:
        weight: NDArray[np.float32] = (rng.standard_normal((rows, cols)) * scale / np.sqrt(cols)).astype(np.float32)
        return weight

    def around_one() -> NDArray[np.float32]:
        weight: NDArray[np.float32] = (1 + 0.2 * rng.standard_normal(hidden)).astype(np.float32)
        return weight

    weights = {"model.embed_tokens.weight": normal(VOCAB_SIZE, hidden, 5.0)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(VOCAB_SIZE, hidden, 5.0)
    weights["model.norm.weight"] = around_one()
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = around_one()
        weights[prefix + "post_attention_layernorm.weight"] = around_one()
        for name, rows, cols, scale in (
            ("self_attn.q_proj", q_size, hidden, 1.7),
            ("self_attn.k_proj", kv_size, hidden, 1.7),
            ("self_attn.v_proj", kv_size, hidden, 1.0),
            ("self_attn.o_proj", hidden, q_size, 1.0),
            ("mlp.gate_proj", inner, hidden, 1.0),
            ("mlp.up_proj", inner, hidden, 1.0),
            ("mlp.down_proj", hidden, inner, 1.0),
        ):
            weights[f"{prefix}{name}.weight"] = normal(rows, cols, scale)
            if config["attention_bias" if name.startswith("self_attn") else "mlp_bias"]:
                weights[f"{prefix}{name}.bias"] = (0.3 * rng.standard_normal(rows)).astype(np.float32)
    return weights
