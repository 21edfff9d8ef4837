"""What Gemma's configs say beyond a Llama's, as in `features`."""

from __future__ import annotations

from dataclasses import replace

from chairlift.models.config import ModelConfig, all_but_every
from chairlift.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from chairlift.models.gguf_config import Metadata, sliding_pattern
from chairlift.models.hf_config import sliding_layers, sliding_window, two_ropes
from chairlift.models.rope import Rope

MAX_SCORE_CAP = 64.0
"""Executors add up exponentials of capped scores as they are, in float32."""
MAX_LOGIT_CAP = 1e6


def gemma_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The first models say GELU and mean its approximation."""
    _check_causal(fields)
    activation = "gelu_tanh" if config.activation == "gelu" else config.activation
    return replace(config, activation=activation, embedding_scale=config.hidden_size**0.5, norm_offset=1.0)


def gemma_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    """Norms have their offset in the file."""
    return replace(config, activation="gelu_tanh", embedding_scale=config.hidden_size**0.5)


def gemma2_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    _check_causal(fields)
    return replace(
        _gemma2(config, fields.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5),
        sliding_window=sliding_window(fields),
        sliding_layers=sliding_layers(fields, config.num_layers) or all_but_every(2, config.num_layers),
        attention_softcap=_cap(fields, "attn_logit_softcapping", MAX_SCORE_CAP),
        logit_softcap=_cap(fields, "final_logit_softcapping", MAX_LOGIT_CAP),
        norm_offset=1.0,
    )


def gemma2_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """As of Gemma 3. Older files say nothing of windows and caps: those of the published models."""
    width = config.hidden_size // config.num_heads if config.num_layers == 46 else config.head_size
    return replace(
        _gemma2(config, width**-0.5),
        activation="gelu_tanh",
        sliding_window=keys.size("attention.sliding_window", MAX_CONTEXT, 4096),
        sliding_layers=sliding_pattern(keys, config.num_layers, 2),
        attention_softcap=keys.number("attn_logit_softcapping", 1e-3, MAX_SCORE_CAP, 50.0),
        logit_softcap=keys.number("final_logit_softcapping", 1e-3, MAX_LOGIT_CAP, 30.0),
    )


def _gemma2(config: ModelConfig, attention_scale: float) -> ModelConfig:
    return replace(
        config,
        post_norms=True,
        attention_scale=attention_scale,
        embedding_scale=config.hidden_size**0.5,
    )


def gemma3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if fields.get(key) is not None:
            raise fields.error(f"{key} is not supported")
    _check_causal(fields)
    rope, local_rope = two_ropes(fields, config, "rope_local_base_freq")
    period = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, 6)
    return replace(
        _gemma3(config, fields.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5),
        max_model_len=fields.integer("max_position_embeddings", 1, MAX_CONTEXT),
        rope=rope,
        local_rope=local_rope,
        sliding_window=sliding_window(fields),
        sliding_layers=sliding_layers(fields, config.num_layers) or all_but_every(period, config.num_layers),
        norm_offset=1.0,
    )


def gemma3_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """Norms have their offset in the file; the scale of scores, which it does not say, follows from the size."""
    width = config.hidden_size // config.num_heads if config.num_layers == 62 else config.head_size
    local_rope = Rope(config.rope.dim, keys.number("rope.freq_base_swa", 1.0, 1e12, 10000.0))
    layers = sliding_pattern(keys, config.num_layers, 6)
    config = replace(config, activation="gelu_tanh", local_rope=local_rope, sliding_layers=layers)
    return _gemma3(config, width**-0.5)


def _gemma3(config: ModelConfig, attention_scale: float) -> ModelConfig:
    return replace(_gemma2(config, attention_scale), qk_norm="head")


def _cap(fields: Fields, key: str, most: float) -> float | None:
    return None if fields.get(key) is None else fields.number(key, 1e-3, most)


def _check_causal(fields: Fields) -> None:
    if fields.flag("use_bidirectional_attention", False):
        raise fields.error("use_bidirectional_attention is not supported")
