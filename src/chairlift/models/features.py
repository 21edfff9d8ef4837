"""What the configs of single families say beyond a Llama's: `..._from_json` of a `config.json`, `..._from_gguf`.

Those of Gemma are in `gemma`, those of GPT-2 and its kin in `gpt`.
"""

from __future__ import annotations

from dataclasses import replace

from chairlift.models.config import ModelConfig, all_but_every
from chairlift.models.fields import MAX_EXPERTS, MAX_LAYERS, MAX_SIZE, Fields
from chairlift.models.gguf_config import Metadata, sliding_pattern
from chairlift.models.hf_config import sliding_layers, sliding_window, two_ropes
from chairlift.models.rope import Rope


def mistral_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    layers = sliding_layers(fields, config.num_layers)
    return replace(config, sliding_window=sliding_window(fields), sliding_layers=layers)


def smollm3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Some layers are not rotated; only those may have a window."""
    rotated = fields.get("no_rope_layers")
    if rotated is None:
        interval = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
        unrotated = tuple((i + 1) % interval == 0 for i in range(config.num_layers))
    elif isinstance(rotated, list) and len(rotated) >= config.num_layers and all(one in (0, 1) for one in rotated):
        unrotated = tuple(one == 0 for one in rotated[: config.num_layers])
    else:
        raise fields.error(f"no_rope_layers must be a list of {config.num_layers} numbers, 0 or 1")
    config = replace(config, unrotated_layers=unrotated)
    if not fields.flag("use_sliding_window", False):
        return config
    sliding = sliding_layers(fields, config.num_layers) or unrotated
    return replace(config, sliding_window=sliding_window(fields), sliding_layers=sliding)


def smollm3_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    """The file does not say which layers are rotated: those of the published model."""
    return replace(config, unrotated_layers=tuple((i + 1) % 4 == 0 for i in range(config.num_layers)))


def qwen2_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(_qwen_windows(fields, config), attention_bias=True, output_bias=False)


def qwen3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(_qwen_windows(fields, config), qk_norm="head")


def qwen2moe_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows, if asked for, are in every other one of the lower layers."""
    config = replace(config, attention_bias=fields.flag("qkv_bias", True), output_bias=False)
    if fields.flag("use_sliding_window", False):
        first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
        lower = tuple(i < first and i % 2 == 0 for i in range(config.num_layers))
        sliding = sliding_layers(fields, config.num_layers) or lower
        config = replace(config, sliding_window=sliding_window(fields), sliding_layers=sliding)
    return replace(
        _qwen_experts(fields, config, 60, 4, 1408),
        shared_expert_size=fields.integer("shared_expert_intermediate_size", 1, MAX_SIZE, 5632),
    )


def qwen3moe_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows, if asked for, are in all layers."""
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else None
    return _qwen_experts(fields, replace(config, qk_norm="head", sliding_window=window), 128, 8, 768)


def _qwen_experts(fields: Fields, config: ModelConfig, count: int, chosen: int, size: int) -> ModelConfig:
    """Experts in every n-th layer but those that a list excepts; the others have one MLP."""
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    excepted = fields.get("mlp_only_layers") or []
    if not isinstance(excepted, list) or not all(type(i) is int and 0 <= i < config.num_layers for i in excepted):
        raise fields.error(f"mlp_only_layers must be a list of numbers of the {config.num_layers} layers")
    dense = tuple(i in excepted or (i + 1) % step != 0 for i in range(config.num_layers))
    return replace(
        _with_experts(fields, config, count, chosen),
        expert_size=fields.integer("moe_intermediate_size", 1, MAX_SIZE, size),
        dense_layers=dense if any(dense) else (),
        normalised_experts=fields.flag("norm_topk_prob", False),
    )


def mixtral_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return _with_experts(fields, replace(config, sliding_window=sliding_window(fields)), 8, 2)


def _with_experts(fields: Fields, config: ModelConfig, usual: int, usual_chosen: int) -> ModelConfig:
    """Files of every family may call their number by either name."""
    if config.activation != "silu":
        raise fields.error(f"experts with the activation {config.activation} are not supported")
    key = "num_experts" if fields.get("num_local_experts") is None else "num_local_experts"
    num_experts = fields.integer(key, 1, MAX_EXPERTS, usual)
    chosen = fields.integer("num_experts_per_tok", 1, num_experts, usual_chosen)
    return replace(config, num_experts=num_experts, experts_per_token=chosen, expert_size=config.intermediate_size)


def gptoss_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    config = _with_experts(fields, config, 128, 4)
    return _gptoss(
        replace(config, sliding_window=sliding_window(fields)),
        sliding_layers(fields, config.num_layers),
        fields.number("swiglu_limit", 1e-3, 1e6, _SWIGLU_LIMIT),
        fields.number("swiglu_alpha", 1e-3, 1e3, _SWIGLU_ALPHA),
    )


def gptoss_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """The file does not say that yarn's range of pairs is not rounded, nor where experts are cut."""
    layers = sliding_pattern(keys, config.num_layers, 2)
    return _gptoss(replace(config, rope=replace(config.rope, truncate=False)), layers, _SWIGLU_LIMIT, _SWIGLU_ALPHA)


_SWIGLU_LIMIT, _SWIGLU_ALPHA = 7.0, 1.702


def _gptoss(config: ModelConfig, layers: tuple[bool, ...], limit: float, alpha: float) -> ModelConfig:
    """Every other layer has a window, if nothing is said of it."""
    return replace(
        config,
        sliding_layers=layers or all_but_every(2, config.num_layers),
        attention_sinks=True,
        expert_bias=True,
        swiglu_limit=limit,
        swiglu_alpha=alpha,
    )


def qwen2moe_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """The file does not say whether the weights of the chosen experts are divided by their sum: they are not."""
    size = keys.size("expert_shared_feed_forward_length", MAX_SIZE)
    return replace(config, shared_expert_size=size, normalised_experts=False)


def qwen3_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm="head")


def _qwen_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows are off unless asked for, and then only in the upper layers."""
    if not fields.flag("use_sliding_window", False):
        return config
    first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    upper = tuple(i >= first for i in range(config.num_layers))
    sliding = sliding_layers(fields, config.num_layers) or upper
    return replace(config, sliding_window=sliding_window(fields), sliding_layers=sliding)


def phi3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, sliding_window=sliding_window(fields))


def olmo2_from_json(_: Fields, config: ModelConfig) -> ModelConfig:
    return _olmo2(config)


def olmo3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    rope, local_rope = two_ropes(fields, config, "rope_theta")
    return replace(
        _olmo2(config),
        rope=rope,
        local_rope=local_rope,
        sliding_window=sliding_window(fields),
        sliding_layers=sliding_layers(fields, config.num_layers) or all_but_every(4, config.num_layers),
    )


def olmo_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """OLMo 3 is OLMo 2 with windows; those layers are not stretched. Its file has yarn's amplitude as a whole."""
    config = _olmo2(config)
    if config.sliding_window is None:
        return config
    rope = config.rope
    local_rope = Rope(rope.dim, keys.number("rope.freq_base_swa", 1.0, 1e12, rope.theta))
    if rope.scaling == "yarn":
        rope = replace(rope, amplitude=keys.number("rope.scaling.attn_factor", 1e-3, 1e3, rope.amplitude))
    layers = sliding_pattern(keys, config.num_layers, 4)
    return replace(config, rope=rope, local_rope=local_rope, sliding_layers=layers)


def _olmo2(config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm="all_heads", pre_norms=False, post_norms=True)


def olmoe_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    if fields.get("clip_qkv") is not None:
        raise fields.error("clip_qkv is not supported")
    normalised = fields.flag("norm_topk_prob", False)
    config = replace(config, qk_norm="all_heads", normalised_experts=normalised)
    return _with_experts(fields, config, 64, 8)


def olmoe_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm="all_heads", normalised_experts=False)


def exaone4_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """With windows, layers without one are not rotated. A pattern is a number, or a word with an L for each window."""
    pattern, window = fields.get("sliding_window_pattern"), sliding_window(fields)
    if isinstance(pattern, str):
        pattern = len(pattern)
    layers = sliding_layers(fields, config.num_layers)
    if not layers and window is not None:
        if type(pattern) is not int or not 1 <= pattern <= MAX_LAYERS:
            raise fields.error("sliding_window_pattern must be a number of layers, or a letter for each")
        layers = all_but_every(pattern, config.num_layers)
    return _exaone4(replace(config, sliding_window=window), layers)


def exaone4_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    return _exaone4(config, sliding_pattern(keys, config.num_layers, 4) if config.sliding_window else ())


def _exaone4(config: ModelConfig, layers: tuple[bool, ...]) -> ModelConfig:
    unrotated = tuple(not sliding for sliding in layers) if config.sliding_window else ()
    sliding = layers if config.sliding_window else ()
    return replace(
        config, qk_norm="head", pre_norms=False, post_norms=True, sliding_layers=sliding, unrotated_layers=unrotated
    )


def seed_oss_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, output_bias=fields.flag("attention_out_bias", False))


def arcee_from_json(_: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, gated=False)


def arcee_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(config, gated=False, activation="relu2")


def nemotron_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    eps = fields.number("norm_eps", 0.0, 1.0, 1e-5)
    return replace(config, norm="layer", norm_bias=True, norm_offset=1.0, norm_eps=eps, gated=False)


def nemotron_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    """Norms have their offset in the file."""
    return replace(config, norm="layer", norm_bias=True, gated=False, activation="relu2")


def starcoder2_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    has_bias = fields.flag("use_bias", True)
    return replace(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=fields.number("norm_epsilon", 0.0, 1.0, 1e-5),
        gated=False,
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        sliding_window=sliding_window(fields),
    )


def starcoder2_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer", norm_bias=True, gated=False, activation="gelu_tanh")


def granite_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        embedding_scale=fields.number("embedding_multiplier", -1e6, 1e6, 1.0),
        attention_scale=fields.number("attention_multiplier", 1e-9, 1e6, 1.0),
        residual_scale=fields.number("residual_multiplier", -1e6, 1e6, 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )


def granite_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    scale = keys.number("attention.scale", 0.0, 1e6, 0.0)
    return replace(
        config,
        embedding_scale=keys.number("embedding_scale", -1e6, 1e6, 1.0),
        attention_scale=scale or None,
        residual_scale=keys.number("residual_scale", -1e6, 1e6, 1.0),
        logit_scale=1.0 / keys.number("logit_scale", 1e-6, 1e6, 1.0),
    )


def stablelm_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=fields.number("layer_norm_eps", 0.0, 1.0),
        attention_bias=fields.flag("use_qkv_bias", False),
        output_bias=False,
        qk_norm="each_head" if fields.flag("qk_layernorm", False) else "none",
        parallel_residual=fields.flag("use_parallel_residual", False),
    )


def stablelm_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """Files carry `use_parallel_residual` too, but some wrongly: who has no norm before the MLP needs none."""
    tensors = keys.gguf.tensors
    return replace(
        config,
        norm="layer",
        norm_bias=True,
        qk_norm="each_head" if "blk.0.attn_q_norm.weight" in tensors else "none",
        parallel_residual="blk.0.ffn_norm.weight" not in tensors,
    )
