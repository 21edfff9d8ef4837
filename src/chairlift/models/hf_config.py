"""The numbers of a model from a Hugging Face `config.json`: what all families write alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.models.config import Activation, ModelConfig, tokens_within
from chairlift.models.fields import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_SIZE, Fields
from chairlift.models.files import shown
from chairlift.models.rope import Rope, longrope_amplitude, yarn_amplitude

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""What files call them: four of the names are ways to write the same approximation."""


def config_from_json(values: Mapping[str, Any], architecture: str, where: str) -> ModelConfig:
    """A Llama-like model from its `config.json`; `architecture` is the family's name.

    Raises:
        InvalidModel: a field is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    fields = Fields(values, where)
    if fields.flag("rope_interleaved", False):
        raise fields.error("rope_interleaved is not supported")
    hidden_size = fields.integer("hidden_size", 1, MAX_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    head_size = fields.integer("head_dim", 2, 4096, max(hidden_size // num_heads, 1))
    max_model_len = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, 2048)
    rope = rope_from_json(fields, rope_fields(fields), head_size, max_model_len)
    vocab_size = fields.integer("vocab_size", 1, MAX_SIZE)
    bos = tokens_within(vocab_size, fields.token_ids("bos_token_id", 1))
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_SIZE),
        vocab_size=vocab_size,
        max_model_len=_stretched(rope, max_model_len),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        output_bias=fields.flag("attention_bias", False),
        activation=_activation(fields),
        mlp_bias=fields.flag("mlp_bias", False),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tokens_within(vocab_size, fields.token_ids("eos_token_id")),
    )


def _activation(fields: Fields) -> Activation:
    key = "hidden_activation" if fields.get("hidden_activation") is not None else "hidden_act"
    name = fields.get(key)
    if name is None:
        return "silu"
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise fields.error(f"{key} {shown(name)} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sliding_window(fields: Fields) -> int | None:
    """The window that a file gives to some or all layers."""
    return None if fields.get("sliding_window") is None else fields.integer("sliding_window", 1, MAX_CONTEXT)


def sliding_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers `layer_types` gives a window; () if it says nothing.

    Raises:
        InvalidModel: a kind of layer that is neither full nor sliding attention.
    """
    kinds = fields.get("layer_types")
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error(f"layer_types must be a list of {num_layers} names")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.error(f"layer type {shown(kind)} is not supported")
    return tuple(kind == "sliding_attention" for kind in kinds)


# ---------------------------------------------------------------- rotation


def rope_fields(fields: Fields) -> Fields:
    """What is said of the rotation: `rope_parameters` of transformers 5, or `rope_scaling` of older files.

    Where both are there, somebody has stretched a newer model as its card says, and the latter is meant.
    """
    for key in ("rope_scaling", "rope_parameters"):
        said = fields.fields(key)
        if said is not None and said.names:
            return said
    return Fields({}, fields.where)


def rope_from_json(fields: Fields, scaling: Fields, head_size: int, max_model_len: int) -> Rope:
    """The rotary embedding that `scaling` describes; what it does not say is in `fields`, as in older files.

    `max_model_len` is `max_position_embeddings` as the file has it.

    Raises:
        InvalidModel: a field is missing, out of bounds, or asks for something not supported.
    """
    if scaling.get("llama_4_scaling_beta") is not None:
        raise fields.error("scores that grow with the position (llama_4_scaling_beta) are not supported")
    theta = (scaling if scaling.get("rope_theta") is not None else fields).number("rope_theta", 1.0, 1e12, 10000.0)
    partial = scaling if scaling.get("partial_rotary_factor") is not None else fields
    dim = int(head_size * partial.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if dim < 2 or dim % 2:
        raise fields.error(f"partial_rotary_factor: {dim} numbers of a head cannot be rotated in pairs")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    original = scaling if fields.get("original_max_position_embeddings") is None else fields
    original_len = original.integer("original_max_position_embeddings", 2, MAX_CONTEXT, max(max_model_len, 2))
    match kind:
        case "default":
            return Rope(dim, theta)
        case "linear":
            return Rope(dim, theta, "linear", scaling.number("factor", 1.0, 1e4))
        case "dynamic":
            if dim < 4:
                raise fields.error(f"rope type dynamic needs at least 4 rotated numbers of a head, not {dim}")
            return Rope(dim, theta, "dynamic", scaling.number("factor", 1.0, 1e4), original_max_model_len=max_model_len)
        case "yarn" if scaling.get("short_factor") is None:
            return _yarn(scaling, dim, theta, max_model_len, original_len)
        case "longrope" | "su" | "yarn":  # the older names of longrope
            return _longrope(scaling, dim, theta, max_model_len, original_len)
        case "llama3":
            low = scaling.number("low_freq_factor", 1e-3, 1e4)
            high = scaling.number("high_freq_factor", low * (1 + 1e-6), 1e6)
            return Rope(dim, theta, "llama3", scaling.number("factor", 1.0, 1e4), low, high, original_len)
    supported = "default, linear, dynamic, yarn, longrope and llama3"
    raise fields.error(f"rope type {shown(kind)} is not supported, only {supported}")


def two_ropes(fields: Fields, config: ModelConfig, local_theta: str) -> tuple[Rope, Rope]:
    """The rotations of layers that see everything and of those with a window, which is not stretched.

    `local_theta` is the field that has the base of the latter in older files.
    """
    both, context = fields.fields("rope_parameters") or Fields({}, fields.where), config.max_model_len
    full = (both.fields("full_attention") or both).overruled_by(fields.fields("rope_scaling"))
    usual = Fields({"rope_theta": fields.number(local_theta, 1.0, 1e12)}, fields.where)
    local = usual.overruled_by(both.fields("sliding_attention"))
    original = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, context)
    ropes = (rope_from_json(fields, one, config.head_size, original) for one in (full, local))
    return next(ropes), next(ropes)


def _yarn(scaling: Fields, dim: int, theta: float, max_model_len: int, original_len: int) -> Rope:
    factor = scaling.number("factor", 1.0, 1e4, max(max_model_len / original_len, 1.0))
    usual = yarn_amplitude(
        factor, scaling.number("mscale", 0.0, 1e3, 0.0), scaling.number("mscale_all_dim", 0.0, 1e3, 0.0)
    )
    slow = scaling.number("beta_slow", 0.0, 1e6, 1.0) or 1.0
    fast = scaling.number("beta_fast", 0.0, 1e6, 32.0) or 32.0
    if not 1e-6 <= slow <= fast or theta <= 1.0:
        raise scaling.error(f"beta_slow {slow} must be 1e-06 to beta_fast, {fast}, and rope_theta above 1")
    return Rope(
        dim,
        theta,
        "yarn",
        factor,
        original_max_model_len=original_len,
        beta_fast=fast,
        beta_slow=slow,
        truncate=scaling.flag("truncate", True),
        amplitude=scaling.number("attention_factor", 1e-3, 1e3, usual),
    )


def _longrope(scaling: Fields, dim: int, theta: float, max_model_len: int, original_len: int) -> Rope:
    for key in ("short_mscale", "long_mscale"):
        if scaling.get(key) is not None:
            raise scaling.error(f"{key} is not supported")
    factor = scaling.number("factor", 1.0, 1e6, max(max_model_len / original_len, 1.0))
    return Rope(
        dim,
        theta,
        "longrope",
        factor,
        original_max_model_len=original_len,
        factors=scaling.numbers("short_factor", dim // 2, 1e-6, 1e9),
        long_factors=scaling.numbers("long_factor", dim // 2, 1e-6, 1e9),
        amplitude=scaling.number("attention_factor", 1e-3, 1e3, longrope_amplitude(factor, original_len)),
    )


def _stretched(rope: Rope, max_model_len: int) -> int:
    """The context that a model was made for: some scalings stretch the one in the file, others name it."""
    match rope.scaling:
        case "linear" | "dynamic":
            return min(int(max_model_len * rope.factor), MAX_CONTEXT)
        case "yarn":
            return max(max_model_len, min(int(rope.original_max_model_len * rope.factor), MAX_CONTEXT))
        case _:
            return max_model_len
