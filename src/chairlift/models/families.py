"""Model families: by which names files declare them, and what they have that Llama has not.

A family that joins adds an entry to `FAMILIES`; what its layers compute follows from its config alone, so that
executors know no families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.gguf_config import Metadata, config_from_gguf, sliding_pattern
from chairlift.models.hf_config import config_from_json, rope_fields, rope_from_json, sliding_layers
from chairlift.models.layout import Weight, decoder_weights, fused
from chairlift.models.rope import Rope

FromJson = Callable[[Fields, ModelConfig], ModelConfig]
FromGGUF = Callable[[Metadata, ModelConfig], ModelConfig]


def _nothing_from_json(_: Fields, config: ModelConfig) -> ModelConfig:
    return config


def _nothing_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return config


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model: the names by which files declare it, what its config says beyond Llama's, and its weights.

    `defaults` are what its `config.json` means where it says nothing; `from_json` and `from_gguf` add what only this
    family has to a config read as a Llama's.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    weights: tuple[Weight, ...] = decoder_weights()
    hf_wrappers: tuple[str, ...] = ()
    """Models for texts and pictures whose text part is of this family; the rest of them is not opened."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    partial_rotation: bool = False
    """Whether its `partial_rotary_factor` means anything: the original code of the others does not look at it."""
    from_json: FromJson = _nothing_from_json
    from_gguf: FromGGUF = _nothing_from_gguf
    hf_ignored: tuple[str, ...] = (".rotary_emb.inv_freq", ".masked_bias")
    """Endings of tensor names that old checkpoints carry and nobody needs."""
    gguf_ignored: tuple[str, ...] = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

    def read_json(self, values: Mapping[str, Any], where: str) -> ModelConfig:
        """The config of a model of this family.

        Raises:
            InvalidModel: a field is missing, of the wrong type, out of bounds, or asks for something not supported.
        """
        if values["architectures"][0] in self.hf_wrappers:
            values = _text_part(values, where)
        values = {**self.defaults, **values}
        fields, config = Fields(values, where), config_from_json(values, self.name, where)
        if config.rope.dim != config.head_size and not self.partial_rotation:
            raise fields.error(f"partial_rotary_factor is not supported for {self.name}")
        return self.from_json(fields, config)

    def read_gguf(self, gguf: GGUF) -> ModelConfig:
        """The same from GGUF metadata.

        Raises:
            InvalidModel: a key is missing, of the wrong type, out of bounds, or asks for something not supported.
        """
        config = config_from_gguf(gguf, self.name)
        if config.rope.dim != config.head_size and any(weight.gguf_rotary for weight in self.weights):
            raise gguf.error("rotating only a part of each head is not supported in files that permute Q and K")
        return self.from_gguf(Metadata(gguf), config)


def _text_part(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The config of the text part of a model for texts and pictures; some fields are those of the whole."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise InvalidModel(f"{where}: text_config must be an object")
    shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id")
    return {**{key: values[key] for key in shared if key in values}, **text}


def family_of_json(values: Mapping[str, Any], where: str) -> Family:
    """The family that a `config.json` declares.

    Raises:
        InvalidModel: it declares none, or one that is not supported.
    """
    declared = values.get("architectures")
    if not isinstance(declared, list) or not declared or not isinstance(declared[0], str):
        raise InvalidModel(f"{where}: architectures must be a list of names")
    for family in FAMILIES:
        if declared[0] in family.hf_architectures + family.hf_wrappers:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.hf_architectures + family.hf_wrappers)
    raise InvalidModel(f"{where}: architecture {shown(declared[0])} is not supported ({supported} are)")


def family_of_gguf(gguf: GGUF) -> Family:
    """The family that a GGUF file declares.

    Raises:
        InvalidModel: it declares none, or one that is not supported.
    """
    declared = gguf.text("general.architecture")
    for family in FAMILIES:
        if declared in family.gguf_architectures:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise gguf.error(f"architecture {shown(declared)} is not supported ({supported} are)")


# ---------------------------------------------------------------- what single families have


def _window(fields: Fields) -> int | None:
    """The window that a file gives to some or all layers."""
    return None if fields.get("sliding_window") is None else fields.integer("sliding_window", 1, MAX_CONTEXT)


def _mistral_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, sliding_window=_window(fields), sliding_layers=sliding_layers(fields, config.num_layers))


def _smollm3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
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
    return replace(config, sliding_window=_window(fields), sliding_layers=sliding)


def _smollm3_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    """The file does not say which layers are rotated: those of the published model."""
    return replace(config, unrotated_layers=tuple((i + 1) % 4 == 0 for i in range(config.num_layers)))


def _qwen2_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(_qwen_windows(fields, config), attention_bias=True, output_bias=False)


def _qwen3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(_qwen_windows(fields, config), qk_norm="head")


def _qwen3_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm="head")


def _qwen_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows are off unless asked for, and then only in the upper layers."""
    if not fields.flag("use_sliding_window", False):
        return config
    first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    upper = tuple(i >= first for i in range(config.num_layers))
    sliding = sliding_layers(fields, config.num_layers) or upper
    return replace(config, sliding_window=_window(fields), sliding_layers=sliding)


def _two_ropes(fields: Fields, config: ModelConfig, local_theta: str) -> tuple[Rope, Rope]:
    """The rotations of layers that see everything and of those with a window, which is not stretched.

    `local_theta` is the field that has the base of the latter in older files.
    """
    both, context = rope_fields(fields), config.max_model_len
    full = both.fields("full_attention") or both
    local = both.fields("sliding_attention")
    if local is None:
        local = Fields({"rope_theta": fields.number(local_theta, 1.0, 1e12)}, fields.where)
    original = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, context)
    ropes = (rope_from_json(fields, one, config.head_size, original) for one in (full, local))
    return next(ropes), next(ropes)


def _gemma3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if fields.get(key) is not None:
            raise fields.error(f"{key} is not supported")
    if fields.flag("use_bidirectional_attention", False):
        raise fields.error("use_bidirectional_attention is not supported")
    rope, local_rope = _two_ropes(fields, config, "rope_local_base_freq")
    period = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, 6)
    return replace(
        _gemma3(config, fields.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5),
        max_model_len=fields.integer("max_position_embeddings", 1, MAX_CONTEXT),
        rope=rope,
        local_rope=local_rope,
        sliding_window=_window(fields),
        sliding_layers=sliding_layers(fields, config.num_layers) or _all_but_every(period, config),
        norm_offset=1.0,
    )


def _gemma3_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """Norms have their offset in the file; the scale of scores, which it does not say, follows from the size."""
    width = config.hidden_size // config.num_heads if config.num_layers == 62 else config.head_size
    local_rope = Rope(config.rope.dim, keys.number("rope.freq_base_swa", 1.0, 1e12, 10000.0))
    layers = sliding_pattern(keys, config.num_layers, 6)
    return replace(_gemma3(config, width**-0.5), local_rope=local_rope, sliding_layers=layers)


def _gemma3(config: ModelConfig, attention_scale: float) -> ModelConfig:
    return replace(
        config,
        activation="gelu_tanh",
        qk_norm="head",
        post_norms=True,
        attention_scale=attention_scale,
        embedding_scale=config.hidden_size**0.5,
    )


def _all_but_every(period: int, config: ModelConfig) -> tuple[bool, ...]:
    return tuple((i + 1) % period != 0 for i in range(config.num_layers))


def _phi3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, sliding_window=_window(fields))


def _olmo2_from_json(_: Fields, config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm="all_heads", pre_norms=False, post_norms=True)


def _olmo3_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    rope, local_rope = _two_ropes(fields, config, "rope_theta")
    return replace(
        _olmo2_from_json(fields, config),
        rope=rope,
        local_rope=local_rope,
        sliding_window=_window(fields),
        sliding_layers=sliding_layers(fields, config.num_layers) or _all_but_every(4, config),
    )


def _olmo_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """OLMo 3 is OLMo 2 with windows; those layers are not stretched. Its file has yarn's amplitude as a whole."""
    config = replace(config, qk_norm="all_heads", pre_norms=False, post_norms=True)
    if config.sliding_window is None:
        return config
    rope = config.rope
    local_rope = Rope(rope.dim, keys.number("rope.freq_base_swa", 1.0, 1e12, rope.theta))
    if rope.scaling == "yarn":
        rope = replace(rope, amplitude=keys.number("rope.scaling.attn_factor", 1e-3, 1e3, rope.amplitude))
    layers = sliding_pattern(keys, config.num_layers, 4)
    return replace(config, rope=rope, local_rope=local_rope, sliding_layers=layers)


def _granite_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        embedding_scale=fields.number("embedding_multiplier", -1e6, 1e6, 1.0),
        attention_scale=fields.number("attention_multiplier", 1e-9, 1e6, 1.0),
        residual_scale=fields.number("residual_multiplier", -1e6, 1e6, 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )


def _granite_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    scale = keys.number("attention.scale", 0.0, 1e6, 0.0)
    return replace(
        config,
        embedding_scale=keys.number("embedding_scale", -1e6, 1e6, 1.0),
        attention_scale=scale or None,
        residual_scale=keys.number("residual_scale", -1e6, 1e6, 1.0),
        logit_scale=1.0 / keys.number("logit_scale", 1e-6, 1e6, 1.0),
    )


def _stablelm_from_json(fields: Fields, config: ModelConfig) -> ModelConfig:
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


def _stablelm_from_gguf(keys: Metadata, config: ModelConfig) -> ModelConfig:
    """Files carry `use_parallel_residual` too, but some wrongly: who has no norm before the MLP needs none."""
    tensors = keys.gguf.tensors
    return replace(
        config,
        norm="layer",
        norm_bias=True,
        qk_norm="each_head" if "blk.0.attn_q_norm.weight" in tensors else "none",
        parallel_residual="blk.0.ffn_norm.weight" not in tensors,
    )


# ---------------------------------------------------------------- the table

_PERMUTED = decoder_weights(gguf_rotary=True)
_QKV = fused("self_attn.qkv_proj", {"q": "q", "k": "kv", "v": "kv"})
_GATE_UP = fused("mlp.gate_up_proj", {"gate": "mlp", "up": "mlp"})
_GGUF_QKV = fused("attn_qkv", {"q": "q", "k": "kv", "v": "kv"})
_GGUF_GATE_UP = fused("ffn_up", {"gate": "mlp", "up": "mlp"})

FAMILIES = (
    Family("llama", ("LlamaForCausalLM",), ("llama",), _PERMUTED),
    Family(
        "mistral",
        ("MistralForCausalLM",),
        (),
        _PERMUTED,
        hf_wrappers=("Mistral3ForConditionalGeneration",),
        defaults={"sliding_window": 4096},
        from_json=_mistral_from_json,
    ),
    Family(
        "smollm3",
        ("SmolLM3ForCausalLM",),
        ("smollm3",),
        _PERMUTED,
        defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
        from_json=_smollm3_from_json,
        from_gguf=_smollm3_from_gguf,
    ),
    Family("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), defaults={"sliding_window": 4096}, from_json=_qwen2_from_json),
    Family(
        "qwen3",
        ("Qwen3ForCausalLM",),
        ("qwen3",),
        defaults={"sliding_window": 4096, "head_dim": 128},
        from_json=_qwen3_from_json,
        from_gguf=_qwen3_from_gguf,
    ),
    Family(
        "gemma3",
        ("Gemma3ForCausalLM",),
        ("gemma3",),
        decoder_weights(hf={"mlp_norm": "pre_feedforward_layernorm"}),
        hf_wrappers=("Gemma3ForConditionalGeneration",),
        defaults={
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": 256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        from_json=_gemma3_from_json,
        from_gguf=_gemma3_from_gguf,
    ),
    Family(
        "phi3",
        ("Phi3ForCausalLM",),
        ("phi3",),
        decoder_weights(hf={**_QKV, **_GATE_UP}, gguf={**_GGUF_QKV, **_GGUF_GATE_UP}),
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
        partial_rotation=True,
        from_json=_phi3_from_json,
    ),
    Family(
        "olmo2",
        ("Olmo2ForCausalLM",),
        ("olmo2",),
        defaults={"rms_norm_eps": 1e-5},
        from_json=_olmo2_from_json,
        from_gguf=_olmo_from_gguf,
    ),
    Family(
        "olmo3",
        ("Olmo3ForCausalLM",),
        (),
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
        from_json=_olmo3_from_json,
    ),
    Family(
        "granite",
        ("GraniteForCausalLM",),
        ("granite",),
        _PERMUTED,
        from_json=_granite_from_json,
        from_gguf=_granite_from_gguf,
    ),
    Family(
        "stablelm",
        ("StableLmForCausalLM",),
        ("stablelm",),
        defaults={"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
        partial_rotation=True,
        from_json=_stablelm_from_json,
        from_gguf=_stablelm_from_gguf,
    ),
)
