"""What the configs of GPT-2 and its kin say beyond a Llama's, as in `features`, and what they call by other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chairlift.models.config import ModelConfig
from chairlift.models.fields import MAX_CONTEXT, Fields
from chairlift.models.gguf_config import Metadata

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_GPT_NEO_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "activation_function": "hidden_act",
}


def gpt2_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(values, _GPT2_NAMES)


def gpt_neo_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(values, _GPT_NEO_NAMES)


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Fields as other families call them; the MLP is four times as wide as the rest if nothing is said."""
    given = {names.get(key, key): value for key, value in values.items()}
    if given.get("intermediate_size") is None and isinstance(given["hidden_size"], int):
        given["intermediate_size"] = 4 * given["hidden_size"]
    return given


def gpt2_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    if fields.flag("add_cross_attention", False):
        raise fields.error("add_cross_attention is not supported")
    return replace(
        _gpt2(config),
        norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        attention_scale=None if fields.flag("scale_attn_weights", True) else 1.0,
        scale_by_depth=fields.flag("scale_attn_by_inverse_layer_idx", False),
    )


def gpt2_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(_gpt2(config), activation="gelu_tanh")


def gpt_bigcode_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """All heads share one of keys and values; in the other form they would lie head by head."""
    if not fields.flag("multi_query", True):
        raise fields.error("multi_query false is not supported")
    return replace(gpt2_from_json(fields, config), num_kv_heads=1)


def gpt_neo_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Scores are not scaled, and a pattern of layers, so many times over, says which have a window."""
    return replace(
        _gpt2(config),
        norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        attention_bias=False,
        attention_scale=1.0,
        sliding_window=fields.integer("window_size", 1, MAX_CONTEXT, 256),
        sliding_layers=_local_layers(fields, config.num_layers),
    )


def _local_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    said = fields.get("attention_types")
    layers: list[bool] = []
    for one in [[["global", "local"], 12]] if said is None else said if isinstance(said, list) else [said]:
        match one:
            case [[*kinds], int(times)] if {"global", "local"}.issuperset(map(str, kinds)):
                # One more than there are layers is enough to see that it is too many.
                layers += ([kind == "local" for kind in kinds] * min(times, num_layers + 1))[: num_layers + 1]
            case _:
                raise fields.error("attention_types must be a list of lists of global and local, and how often")
        if len(layers) > num_layers:
            break
    return tuple(layers)


def _gpt2(config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        norm="layer",
        norm_bias=True,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        learned_positions=True,
        unrotated_layers=(True,) * config.num_layers,
    )
