"""The numbers of a model from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.models.config import ModelConfig
from chairlift.models.fields import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_SIZE, Fields
from chairlift.models.files import shown
from chairlift.models.rope import Rope


def config_from_json(values: Mapping[str, Any], architecture: str, where: str) -> ModelConfig:
    """A Llama-like model from its `config.json`; `architecture` is the family's name.

    Raises:
        InvalidModel: a field is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    fields = Fields(values, where)
    if fields.get("quantization_config") is not None:
        raise fields.error("checkpoints quantised for other engines (quantization_config) are not supported")
    activation = fields.get("hidden_act")
    if activation not in (None, "silu"):
        raise fields.error(f"hidden_act {shown(activation)} is not supported, only silu")
    if fields.flag("rope_interleaved", False):
        raise fields.error("rope_interleaved is not supported")
    hidden_size = fields.integer("hidden_size", 1, MAX_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    head_size = fields.integer("head_dim", 2, 4096, max(hidden_size // num_heads, 1))
    max_model_len = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, 2048)
    rope = _rope_from_json(fields, head_size, max_model_len)
    if rope.scaling == "linear":
        max_model_len = min(int(max_model_len * rope.factor), MAX_CONTEXT)
    window = None
    if fields.get("model_type") == "mistral" and values.get("sliding_window", 4096) is not None:
        window = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    bos = fields.token_ids("bos_token_id", 1)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_SIZE),
        vocab_size=fields.integer("vocab_size", 1, MAX_SIZE),
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        sliding_window=window,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _rope_from_json(fields: Fields, head_size: int, max_model_len: int) -> Rope:
    """The rotary embedding: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of older files."""
    scaling = fields.fields("rope_parameters") or fields.fields("rope_scaling") or Fields({}, fields.where)
    theta_source = scaling if scaling.get("rope_theta") is not None else fields
    theta = theta_source.number("rope_theta", 1.0, 1e12, 10000.0)
    for source in (fields, scaling):
        if source.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise fields.error("partial_rotary_factor is not supported")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(head_size, theta)
    if kind == "linear":
        return Rope(head_size, theta, "linear", scaling.number("factor", 1.0, 1e4))
    if kind == "llama3":
        low = scaling.number("low_freq_factor", 1e-3, 1e4)
        return Rope(
            head_size,
            theta,
            "llama3",
            scaling.number("factor", 1.0, 1e4),
            low,
            scaling.number("high_freq_factor", low * (1 + 1e-6), 1e6),
            scaling.integer("original_max_position_embeddings", 1, MAX_CONTEXT, max_model_len),
        )
    raise fields.error(f"rope type {shown(kind)} is not supported, only default, linear and llama3")
