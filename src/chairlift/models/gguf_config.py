"""The numbers of a model from GGUF metadata."""

from __future__ import annotations

import math

from chairlift.models.config import ModelConfig
from chairlift.models.fields import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_SIZE
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.rope import Rope
from chairlift.models.tensor import Encoding


def config_from_gguf(gguf: GGUF, architecture: str) -> ModelConfig:
    """A Llama-like model from GGUF metadata; biases and a head of its own are seen from the tensors.

    Raises:
        InvalidModel: a key is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    prefix = gguf.text("general.architecture")

    def size(key: str, high: int, default: int | None = None) -> int:
        value = gguf.integer(f"{prefix}.{key}", default)
        if not 1 <= value <= high:
            raise gguf.error(f"{prefix}.{key} must be between 1 and {high}, not {value}")
        return value

    if gguf.integer(f"{prefix}.expert_count", 0):
        raise gguf.error("mixtures of experts are not supported")
    hidden_size = size("embedding_length", MAX_SIZE)
    num_heads = size("attention.head_count", MAX_HEADS)
    head_size = size("attention.key_length", 4096, max(hidden_size // num_heads, 1))
    if size("attention.value_length", 4096, head_size) != head_size:
        raise gguf.error("keys and values of different sizes are not supported")
    if size("rope.dimension_count", 4096, head_size) != head_size:
        raise gguf.error("rotating only a part of each head is not supported")
    embed = gguf.tensors.get("token_embd.weight")
    if embed is None:
        raise gguf.error("tensor token_embd.weight is missing")
    eps = gguf.number(f"{prefix}.attention.layer_norm_rms_epsilon")
    if not 0.0 <= eps <= 1.0:
        raise gguf.error(f"{prefix}.attention.layer_norm_rms_epsilon must be between 0 and 1")
    vocab_size = size("vocab_size", MAX_SIZE, embed.rows)
    for name in ("tokens", "token_type", "scores"):
        key = f"tokenizer.ggml.{name}"
        if gguf.has(key) and gguf.num_elements(key) != vocab_size:
            raise gguf.error(f"{key} has {gguf.num_elements(key)} entries for a vocabulary of {vocab_size}")
    window = f"{prefix}.attention.sliding_window"
    ends = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    bos = "tokenizer.ggml.bos_token_id"
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=size("block_count", MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=size("attention.head_count_kv", MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=size("feed_forward_length", MAX_SIZE),
        vocab_size=vocab_size,
        max_model_len=size("context_length", MAX_CONTEXT),
        rms_norm_eps=eps,
        rope=_rope_from_gguf(gguf, prefix, head_size),
        tie_embeddings="output.weight" not in gguf.tensors,
        sliding_window=(gguf.integer(window) or None) if gguf.has(window) else None,
        attention_bias="blk.0.attn_q.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_up.bias" in gguf.tensors,
        bos_token_id=gguf.integer(bos) if gguf.has(bos) else None,
        eos_token_ids=tuple(dict.fromkeys(gguf.integer(key) for key in ends if gguf.has(key))),
    )


def _rope_from_gguf(gguf: GGUF, prefix: str, head_size: int) -> Rope:
    theta = gguf.number(f"{prefix}.rope.freq_base", 10000.0)
    if not 1.0 <= theta <= 1e12:
        raise gguf.error(f"{prefix}.rope.freq_base must be between 1 and 1e12")
    kind = gguf.text(f"{prefix}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise gguf.error(f"rope scaling {shown(kind)} is not supported, only none and linear")
    factors = gguf.tensors.get("rope_freqs.weight")
    if factors is not None:
        if factors.encoding is not Encoding.F32 or factors.shape != (1, head_size // 2):
            raise gguf.error(f"rope_freqs.weight must hold {head_size // 2} numbers as F32")
        values = tuple(factors.raw.cast("f"))
        if not all(0.0 < value < math.inf for value in values):
            raise gguf.error("rope_freqs.weight must hold positive numbers")
        return Rope(head_size, theta, "factors", factors=values)
    old_factor = gguf.number(f"{prefix}.rope.scale_linear", 1.0)
    factor = gguf.number(f"{prefix}.rope.scaling.factor", old_factor) if kind == "linear" else old_factor
    if not 1.0 <= factor <= 1e4:
        raise gguf.error(f"rope scaling factor {factor} is not between 1 and 10000")
    return Rope(head_size, theta) if factor == 1.0 else Rope(head_size, theta, "linear", factor)
