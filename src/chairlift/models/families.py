"""The families of models that are opened, and what each has that Llama has not (see `features`).

A family that joins adds an entry to `FAMILIES`; what its layers compute follows from its config alone, so that
executors know no families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import InvalidModel
from chairlift.models import features, gemma, gpt
from chairlift.models.family import Family
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.layout import Place, decoder_weights, fused


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
    supported = ", ".join(family.name for family in FAMILIES)  # not all of the long names: this is one line
    raise InvalidModel(f"{where}: architecture {shown(declared[0])} is not supported (those of {supported} are)")


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


# ---------------------------------------------------------------- the table

_GEMMA = decoder_weights(hf={"mlp_norm": "pre_feedforward_layernorm"})
_PERMUTED = decoder_weights(gguf_rotary=True)
_QKV = fused("self_attn.qkv_proj", {"q": "q", "k": "kv", "v": "kv"})
_GATE_UP = fused("mlp.gate_up_proj", {"gate": "mlp", "up": "mlp"})
_GGUF_QKV = fused("attn_qkv", {"q": "q", "k": "kv", "v": "kv"})
_GGUF_GATE_UP = fused("ffn_up", {"gate": "mlp", "up": "mlp"})
_GPT2_DEFAULTS: dict[str, Any] = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
_GPT2_NAMES = {"embed": "wte", "positions": "wpe", "norm": "ln_f", "attn_norm": "ln_1", "mlp_norm": "ln_2"}

FAMILIES = (
    Family("llama", ("LlamaForCausalLM",), ("llama",), _PERMUTED, has_experts=True),
    Family(
        "mistral",
        ("MistralForCausalLM", "MinistralForCausalLM"),
        (),
        _PERMUTED,
        hf_wrappers=("Mistral3ForConditionalGeneration",),
        defaults={
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        from_json=features.mistral_from_json,
    ),
    Family(
        "smollm3",
        ("SmolLM3ForCausalLM",),
        ("smollm3",),
        _PERMUTED,
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "rope_theta": 2e6,
        },
        from_json=features.smollm3_from_json,
        from_gguf=features.smollm3_from_gguf,
    ),
    Family(
        "qwen2",
        ("Qwen2ForCausalLM",),
        ("qwen2",),
        defaults={"max_position_embeddings": 32768, "sliding_window": 4096},
        from_json=features.qwen2_from_json,
    ),
    Family(
        "qwen3",
        ("Qwen3ForCausalLM",),
        ("qwen3",),
        defaults={"max_position_embeddings": 32768, "sliding_window": 4096, "head_dim": 128},
        from_json=features.qwen3_from_json,
        from_gguf=features.qwen3_from_gguf,
    ),
    Family(
        "qwen3moe",
        ("Qwen3MoeForCausalLM",),
        ("qwen3moe",),
        has_experts=True,
        defaults={"max_position_embeddings": 32768, "sliding_window": 4096, "num_key_value_heads": 4},
        from_json=features.qwen3moe_from_json,
        from_gguf=features.qwen3_from_gguf,
    ),
    Family(
        "qwen2moe",
        ("Qwen2MoeForCausalLM",),
        ("qwen2moe",),
        has_experts=True,
        defaults={"max_position_embeddings": 32768, "sliding_window": 4096},
        from_json=features.qwen2moe_from_json,
        from_gguf=features.qwen2moe_from_gguf,
    ),
    Family(
        "gpt-oss",
        ("GptOssForCausalLM",),
        ("gpt-oss",),
        decoder_weights(
            hf={
                "router": "mlp.router",
                **{
                    part: Place("mlp.experts.gate_up_proj", ("expert", "expert"), n, True, interleaved=True, bare=True)
                    for n, part in enumerate(("experts.{n}.gate", "experts.{n}.up"))
                },
                "experts.{n}.down": Place("mlp.experts.down_proj", transposed=True, bare=True),
            },
            gguf={"mlp_norm": "post_attention_norm"},
        ),
        has_experts=True,
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "sliding_window": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
        },
        from_json=features.gptoss_from_json,
        from_gguf=features.gptoss_from_gguf,
    ),
    Family(
        "mixtral",
        ("MixtralForCausalLM",),
        (),
        decoder_weights(
            hf={
                "router": "block_sparse_moe.gate",
                "experts.{n}.gate": "block_sparse_moe.experts.{n}.w1",
                "experts.{n}.up": "block_sparse_moe.experts.{n}.w3",
                "experts.{n}.down": "block_sparse_moe.experts.{n}.w2",
            }
        ),
        has_experts=True,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
        from_json=features.mixtral_from_json,
    ),
    Family(
        "gemma",
        ("GemmaForCausalLM",),
        ("gemma",),
        defaults={
            "num_key_value_heads": 16,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        from_json=gemma.gemma_from_json,
        from_gguf=gemma.gemma_from_gguf,
    ),
    Family(
        "gemma2",
        ("Gemma2ForCausalLM",),
        ("gemma2",),
        _GEMMA,
        defaults={
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "vocab_size": 256000,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": 256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        from_json=gemma.gemma2_from_json,
        from_gguf=gemma.gemma2_from_gguf,
    ),
    Family(
        "gemma3",
        ("Gemma3ForCausalLM",),
        ("gemma3",),
        _GEMMA,
        hf_wrappers=("Gemma3ForConditionalGeneration",),
        defaults={
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
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
        from_json=gemma.gemma3_from_json,
        from_gguf=gemma.gemma3_from_gguf,
    ),
    Family(
        "phi3",
        ("Phi3ForCausalLM",),
        ("phi3",),
        decoder_weights(hf={**_QKV, **_GATE_UP}, gguf={**_GGUF_QKV, **_GGUF_GATE_UP}),
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
        partial_rotation=True,
        from_json=features.phi3_from_json,
    ),
    Family(
        "olmo2",
        ("Olmo2ForCausalLM",),
        ("olmo2",),
        defaults={"rms_norm_eps": 1e-5},
        from_json=features.olmo2_from_json,
        from_gguf=features.olmo_from_gguf,
    ),
    Family(
        "olmo3",
        ("Olmo3ForCausalLM",),
        (),
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
        from_json=features.olmo3_from_json,
    ),
    Family(
        "olmoe",
        ("OlmoeForCausalLM",),
        ("olmoe",),
        has_experts=True,
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
        from_json=features.olmoe_from_json,
        from_gguf=features.olmoe_from_gguf,
    ),
    Family(
        "exaone4",
        ("Exaone4ForCausalLM",),
        ("exaone4",),
        defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
        from_json=features.exaone4_from_json,
        from_gguf=features.exaone4_from_gguf,
    ),
    Family(
        "seed_oss",
        ("SeedOssForCausalLM",),
        ("seed_oss",),
        decoder_weights(gguf={"mlp_norm": "post_attention_norm"}),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "max_position_embeddings": 524288,
        },
        from_json=features.seed_oss_from_json,
    ),
    Family(
        "arcee",
        ("ArceeForCausalLM",),
        ("arcee",),
        _PERMUTED,
        defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096},
        from_json=features.arcee_from_json,
        from_gguf=features.arcee_from_gguf,
    ),
    Family(
        "nemotron",
        ("NemotronForCausalLM",),
        ("nemotron",),
        defaults={"hidden_act": "relu2", "max_position_embeddings": 4096, "partial_rotary_factor": 0.5},
        partial_rotation=True,
        from_json=features.nemotron_from_json,
        from_gguf=features.nemotron_from_gguf,
    ),
    Family(
        "starcoder2",
        ("Starcoder2ForCausalLM",),
        ("starcoder2",),
        decoder_weights(hf={"up": "mlp.c_fc", "down": "mlp.c_proj"}),
        defaults={
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        },
        from_json=features.starcoder2_from_json,
        from_gguf=features.starcoder2_from_gguf,
    ),
    Family(
        "granite",
        ("GraniteForCausalLM",),
        ("granite",),
        _PERMUTED,
        from_json=features.granite_from_json,
        from_gguf=features.granite_from_gguf,
    ),
    Family(
        "stablelm",
        ("StableLmForCausalLM",),
        ("stablelm",),
        defaults={"max_position_embeddings": 4096, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
        partial_rotation=True,
        from_json=features.stablelm_from_json,
        from_gguf=features.stablelm_from_gguf,
    ),
    Family(
        "gpt2",
        ("GPT2LMHeadModel",),
        ("gpt2",),
        decoder_weights(
            hf_layer="h.{i}.",
            hf={
                **_GPT2_NAMES,
                **fused("attn.c_attn", {"q": "q", "k": "kv", "v": "kv"}, transposed=True),
                "o": Place("attn.c_proj", transposed=True),
                "up": Place("mlp.c_fc", transposed=True),
                "down": Place("mlp.c_proj", transposed=True),
            },
            gguf=_GGUF_QKV,
        ),
        defaults=_GPT2_DEFAULTS,
        renamed=gpt.gpt2_fields,
        hf_prefix="transformer.",
        hf_ignored=(".attn.bias", ".attn.masked_bias"),
        from_json=gpt.gpt2_from_json,
        from_gguf=gpt.gpt2_from_gguf,
    ),
    Family(
        "gpt_bigcode",
        ("GPTBigCodeForCausalLM",),
        ("starcoder",),
        decoder_weights(
            hf_layer="h.{i}.",
            hf={
                **_GPT2_NAMES,
                **fused("attn.c_attn", {"q": "q", "k": "kv", "v": "kv"}),
                "o": "attn.c_proj",
                "up": "mlp.c_fc",
                "down": "mlp.c_proj",
            },
            gguf=_GGUF_QKV,
        ),
        defaults={**_GPT2_DEFAULTS, "activation_function": "gelu_pytorch_tanh"},
        renamed=gpt.gpt2_fields,
        hf_prefix="transformer.",
        hf_ignored=(".attn.bias", ".attn.masked_bias"),
        from_json=gpt.gpt_bigcode_from_json,
        from_gguf=gpt.gpt2_from_gguf,
    ),
    Family(
        "gpt_neo",
        ("GPTNeoForCausalLM",),
        (),
        decoder_weights(
            hf_layer="h.{i}.",
            hf={
                **_GPT2_NAMES,
                "q": "attn.attention.q_proj",
                "k": "attn.attention.k_proj",
                "v": "attn.attention.v_proj",
                "o": "attn.attention.out_proj",
                "up": "mlp.c_fc",
                "down": "mlp.c_proj",
            },
        ),
        defaults={
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "vocab_size": 50257,
            "activation_function": "gelu_new",
            "tie_word_embeddings": True,
        },
        renamed=gpt.gpt_neo_fields,
        hf_prefix="transformer.",
        hf_ignored=(".attn.attention.bias", ".attn.attention.masked_bias"),
        from_json=gpt.gpt_neo_from_json,
    ),
)
