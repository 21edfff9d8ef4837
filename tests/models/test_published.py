"""Configs that people really publish, abridged: parsed into what their cards say, or refused by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import ModelConfig
from chairlift.models.families import FAMILIES, family_of_json

FACTORS = [1.0 + 0.1 * j for j in range(48)]


def config(architecture: str, sizes: tuple[int, int, int, int, int, int], **more: Any) -> dict[str, Any]:
    """A `config.json`; sizes are hidden, intermediate, layers, heads, key/value heads, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {"architectures": [architecture], **dict(zip((*names, "vocab_size"), sizes, strict=True)), **more}


LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
GEMMA3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA3_27B = {
    **GEMMA3_4B,
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 168,
}
MISTRAL_SMALL = {
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "max_position_embeddings": 131072,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1e9,
    "sliding_window": None,
    "vocab_size": 131072,
}
EVERY_SIXTH = [{5: "full_attention"}.get(i % 6, "sliding_attention") for i in range(18)]

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama 2 7B": (
        config("LlamaForCausalLM", (4096, 11008, 32, 32, 32, 32000), max_position_embeddings=4096, rope_scaling=None,
               rms_norm_eps=1e-5, pretraining_tp=1, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False),
        {"head_size": 128, "max_model_len": 4096, "rope.theta": 1e4, "rope.scaling": "none", "activation": "silu"},
    ),
    "Llama 3.2 1B": (
        config("LlamaForCausalLM", (2048, 8192, 16, 32, 8, 128256), max_position_embeddings=131072, head_dim=64,
               rope_scaling=LLAMA3, rope_theta=5e5, tie_word_embeddings=True, eos_token_id=[128001, 128008, 128009]),
        {"head_size": 64, "max_model_len": 131072, "rope.factor": 32.0, "tie_embeddings": True},
    ),
    "LongChat 7B": (
        config("LlamaForCausalLM", (4096, 11008, 32, 32, 32, 32000), max_position_embeddings=2048,
               rope_scaling={"type": "linear", "factor": 8.0}),
        {"max_model_len": 16384, "rope.scaling": "linear"},
    ),
    "Mistral 7B v0.1": (
        config("MistralForCausalLM", (4096, 14336, 32, 32, 8, 32000), max_position_embeddings=32768,
               sliding_window=4096, model_type="mistral"),
        {"sliding_window": 4096, "sliding_layers": (), "max_model_len": 32768},
    ),
    "Mistral Nemo": (
        config("MistralForCausalLM", (5120, 14336, 40, 32, 8, 131072), max_position_embeddings=131072, head_dim=128,
               sliding_window=None, rope_theta=1e6),
        {"sliding_window": None, "head_size": 128, "q_size": 4096},
    ),
    "Mistral Small 3.1": (
        {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": MISTRAL_SMALL,
         "vision_config": {"hidden_size": 1024}, "vision_feature_layer": -1},
        {"hidden_size": 5120, "head_size": 128, "sliding_window": None, "tie_embeddings": False},
    ),
    "Qwen2.5 0.5B": (
        config("Qwen2ForCausalLM", (896, 4864, 24, 14, 2, 151936), max_position_embeddings=32768, rope_theta=1e6,
               max_window_layers=21, sliding_window=32768, use_sliding_window=False, tie_word_embeddings=True),
        {"attention_bias": True, "output_bias": False, "sliding_window": None, "head_size": 64},
    ),
    "Qwen2.5 7B with YaRN": (
        config("Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064), max_position_embeddings=32768, rope_theta=1e6,
               use_sliding_window=False,
               rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
        {"max_model_len": 131072, "rope.scaling": "yarn", "rope.amplitude": pytest.approx(1.1386294)},
    ),
    "Qwen3 0.6B": (
        config("Qwen3ForCausalLM", (1024, 3072, 28, 16, 8, 151936), max_position_embeddings=40960, head_dim=128,
               rope_theta=1e6, attention_bias=False, sliding_window=None, use_sliding_window=False,
               tie_word_embeddings=True, rms_norm_eps=1e-6, max_window_layers=28),
        {"qk_norm": "head", "q_size": 2048, "attention_bias": False, "sliding_window": None},
    ),
    "SmolLM3 3B": (
        config("SmolLM3ForCausalLM", (2048, 11008, 36, 16, 4, 128256), max_position_embeddings=65536,
               rope_theta=5e6, no_rope_layers=[1, 1, 1, 0] * 9, no_rope_layer_interval=4,
               layer_types=["full_attention"] * 36, sliding_window=None, use_sliding_window=False),
        {"unrotated_layers": (False, False, False, True) * 9, "tie_embeddings": True, "sliding_window": None},
    ),
    "Gemma 2 2B": (
        config("Gemma2ForCausalLM", (2304, 9216, 26, 8, 4, 256000), max_position_embeddings=8192, head_dim=256,
               sliding_window=4096, query_pre_attn_scalar=256, final_logit_softcapping=30.0,
               attn_logit_softcapping=50.0, hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid",
               hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6),
        {"tie_embeddings": True, "attention_scale": 0.0625, "sliding_window": 4096, "attention_softcap": 50.0,
         "logit_softcap": 30.0, "sliding_layers": (True, False) * 13, "activation": "gelu_tanh", "norm_offset": 1.0,
         "post_norms": True, "qk_norm": "none", "embedding_scale": 48.0, "max_model_len": 8192},
    ),
    "Gemma 2 27B": (
        config("Gemma2ForCausalLM", (4608, 36864, 46, 32, 16, 256000), head_dim=128, query_pre_attn_scalar=144),
        {"attention_scale": pytest.approx(1 / 12), "q_size": 4096, "sliding_layers": (True, False) * 23,
         "attention_softcap": 50.0, "logit_softcap": 30.0, "activation": "gelu_tanh", "tie_embeddings": True},
    ),
    "Gemma 2 without caps": (
        config("Gemma2ForCausalLM", (2304, 9216, 26, 8, 4, 256000), attn_logit_softcapping=None,
               final_logit_softcapping=None, layer_types=["full_attention"] * 26),
        {"attention_softcap": None, "logit_softcap": None, "sliding_layers": (False,) * 26},
    ),
    "Gemma 3 270M": (
        config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), max_position_embeddings=32768, head_dim=256,
               layer_types=EVERY_SIXTH, sliding_window=512, rope_theta=1e6, rope_local_base_freq=1e4,
               query_pre_attn_scalar=256, final_logit_softcapping=None, attn_logit_softcapping=None,
               use_bidirectional_attention=False, hidden_activation="gelu_pytorch_tanh", _sliding_window_pattern=6),
        {"tie_embeddings": True, "attention_scale": 0.0625, "sliding_window": 512, "rope.theta": 1e6,
         "local_rope.theta": 1e4, "activation": "gelu_tanh", "norm_offset": 1.0, "post_norms": True},
    ),
    "Gemma 3 1B": (
        config("Gemma3ForCausalLM", (1152, 6912, 26, 4, 1, 262144), max_position_embeddings=32768, head_dim=256,
               sliding_window=512, sliding_window_pattern=6, rope_theta=1000000, rope_scaling=None,
               rope_local_base_freq=10000, query_pre_attn_scalar=256, cache_implementation="hybrid"),
        {"sliding_layers": tuple((i + 1) % 6 != 0 for i in range(26)), "rope.scaling": "none"},
    ),
    "Gemma 3 4B": (
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA3_4B, "eos_token_id": [1, 106],
         "vision_config": {"hidden_size": 1152}, "mm_tokens_per_image": 256},
        {"num_heads": 8, "num_kv_heads": 4, "head_size": 256, "vocab_size": 262208, "max_model_len": 131072,
         "eos_token_ids": (1, 106), "rope.factor": 8.0, "local_rope.factor": 1.0, "tie_embeddings": True},
    ),
    "Gemma 3 27B": (
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA3_27B},
        {"attention_scale": pytest.approx(168**-0.5), "q_size": 4096, "hidden_size": 5376},
    ),
    "Phi-3 mini 4k": (
        config("Phi3ForCausalLM", (3072, 8192, 32, 32, 32, 32064), max_position_embeddings=4096, rope_scaling=None,
               original_max_position_embeddings=4096, sliding_window=2047, rms_norm_eps=1e-5, attention_bias=False),
        {"head_size": 96, "sliding_window": 2047, "rope.scaling": "none"},
    ),
    "Phi-3 mini 128k": (
        config("Phi3ForCausalLM", (3072, 8192, 32, 32, 32, 32064), max_position_embeddings=131072,
               original_max_position_embeddings=4096, sliding_window=262144,
               rope_scaling={"long_factor": FACTORS, "short_factor": FACTORS, "type": "su"}),
        {"rope.scaling": "longrope", "rope.amplitude": pytest.approx(1.1902381), "max_model_len": 131072},
    ),
    "Phi-4": (
        config("Phi3ForCausalLM", (5120, 17920, 40, 40, 10, 100352), max_position_embeddings=16384,
               original_max_position_embeddings=16384, rope_theta=250000, sliding_window=None, rope_scaling=None),
        {"head_size": 128, "sliding_window": None, "rope.dim": 128},
    ),
    "Phi-4 mini": (
        config("Phi3ForCausalLM", (3072, 8192, 32, 24, 8, 200064), max_position_embeddings=131072,
               original_max_position_embeddings=4096, partial_rotary_factor=0.75, tie_word_embeddings=True,
               rope_scaling={"long_factor": FACTORS, "short_factor": FACTORS, "type": "longrope"}),
        {"head_size": 128, "rope.dim": 96, "tie_embeddings": True},
    ),
    "OLMo 2 1B": (
        config("Olmo2ForCausalLM", (2048, 8192, 16, 16, 16, 100352), max_position_embeddings=4096, rope_theta=500000,
               rms_norm_eps=1e-6, attention_bias=False),
        {"qk_norm": "all_heads", "pre_norms": False, "post_norms": True, "norm_eps": 1e-6},
    ),
    "OLMo 3 7B": (
        config("Olmo3ForCausalLM", (4096, 11008, 32, 32, 32, 100278), max_position_embeddings=65536,
               rope_theta=500000, sliding_window=4096,
               rope_scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                             "original_max_position_embeddings": 8192, "rope_type": "yarn"}),
        {"sliding_window": 4096, "rope.amplitude": pytest.approx(1.2079442), "local_rope.scaling": "none",
         "local_rope.theta": 5e5, "max_model_len": 65536},
    ),
    "Granite 3.3 2B": (
        config("GraniteForCausalLM", (2048, 8192, 40, 32, 8, 49159), max_position_embeddings=131072, rope_theta=1e7,
               attention_multiplier=0.015625, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
               tie_word_embeddings=True, attention_bias=False, mlp_bias=False),
        {"attention_scale": 0.015625, "embedding_scale": 12.0, "logit_scale": 0.125, "residual_scale": 0.22},
    ),
    "StableLM 2 1.6B": (
        config("StableLmForCausalLM", (2048, 5632, 24, 32, 32, 100352), max_position_embeddings=4096,
               partial_rotary_factor=0.25, use_qkv_bias=True, layer_norm_eps=1e-5, rope_theta=10000),
        {"norm": "layer", "norm_bias": True, "attention_bias": True, "rope.dim": 16, "qk_norm": "none"},
    ),
    "StableLM 2 12B": (
        config("StableLmForCausalLM", (5120, 13824, 40, 32, 8, 100352), partial_rotary_factor=0.25, layer_norm_eps=1e-5,
               max_position_embeddings=4096, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=False),
        {"head_size": 160, "rope.dim": 40, "qk_norm": "each_head", "parallel_residual": True},
    ),
    "GPT-2": (
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "layer_norm_epsilon": 1e-05,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        {
            "intermediate_size": 3072,
            "head_size": 64,
            "max_model_len": 1024,
            "learned_positions": True,
            "gated": False,
            "norm": "layer",
            "activation": "gelu_tanh",
            "tie_embeddings": True,
        },
    ),
    "Cerebras-GPT 111M": (
        {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu", "n_embd": 768, "n_head": 12,
         "n_inner": 3072, "n_layer": 10, "n_positions": 2048, "scale_attn_weights": True, "vocab_size": 50257},
        {"activation": "gelu", "num_layers": 10, "scale_by_depth": False, "attention_scale": None},
    ),
    "GPT-2 small of Stanford CRFM": (
        {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "n_embd": 768, "n_head": 12,
         "n_layer": 12, "n_positions": 1024, "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
        {"scale_by_depth": True, "attention_scale": None, "head_size": 64},
    ),
    "ReluLLaMA 7B": (
        config("LlamaForCausalLM", (4096, 11008, 32, 32, 32, 32000), max_position_embeddings=4096, hidden_act="relu"),
        {"activation": "relu"},
    ),
    "Qwen3 30B-A3B as transformers 5 writes it": (
        config("Qwen3MoeForCausalLM", (2048, 6144, 48, 32, 4, 151936), num_local_experts=128, num_experts_per_tok=8,
               moe_intermediate_size=768, norm_topk_prob=True, use_sliding_window=True, sliding_window=4096,
               max_window_layers=28),
        {"num_experts": 128, "head_size": 64, "sliding_window": 4096, "sliding_layers": ()},
    ),
    "Gemma 3 with another activation": (
        config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), hidden_activation="silu"),
        {"activation": "silu"},
    ),
    "Qwen3 30B-A3B": (
        config("Qwen3MoeForCausalLM", (2048, 6144, 48, 32, 4, 151936), head_dim=128, num_experts=128,
               num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1,
               mlp_only_layers=[], rope_theta=1e6, use_sliding_window=False),
        {"num_experts": 128, "experts_per_token": 8, "expert_size": 768, "qk_norm": "head",
         "normalised_experts": True, "sliding_window": None, "dense_layers": ()},
    ),
    "Mixtral 8x7B": (
        config("MixtralForCausalLM", (4096, 14336, 32, 32, 8, 32000), num_local_experts=8, num_experts_per_tok=2,
               rms_norm_eps=1e-5, rope_theta=1e6, sliding_window=None),
        {"num_experts": 8, "experts_per_token": 2, "expert_size": 14336, "rope.theta": 1e6,
         "normalised_experts": True},
    ),
    "Qwen1.5 MoE A2.7B": (
        config("Qwen2MoeForCausalLM", (2048, 5632, 24, 16, 16, 151936), num_experts=60, num_experts_per_tok=4,
               moe_intermediate_size=1408, shared_expert_intermediate_size=5632, norm_topk_prob=False,
               decoder_sparse_step=1, rope_theta=1e6, use_sliding_window=False, max_window_layers=21),
        {"num_experts": 60, "experts_per_token": 4, "expert_size": 1408, "shared_expert_size": 5632,
         "normalised_experts": False, "attention_bias": True, "output_bias": False, "sliding_window": None},
    ),
    "GPT-OSS 20B": (
        config("GptOssForCausalLM", (2880, 2880, 24, 64, 8, 201088), head_dim=64, attention_bias=True,
               num_local_experts=32, num_experts_per_tok=4, experts_per_token=4, initial_context_length=4096,
               max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=150000, sliding_window=128,
               swiglu_limit=7.0, layer_types=["sliding_attention", "full_attention"] * 12, eos_token_id=200002,
               rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                             "original_max_position_embeddings": 4096, "truncate": False}),
        {"num_experts": 32, "experts_per_token": 4, "expert_size": 2880, "normalised_experts": True,
         "expert_bias": True, "attention_sinks": True, "output_bias": True, "swiglu_limit": 7.0,
         "swiglu_alpha": 1.702, "sliding_window": 128, "sliding_layers": (True, False) * 12, "rope.scaling": "yarn",
         "rope.truncate": False, "rope.original_max_model_len": 4096, "max_model_len": 131072},
    ),
}  # fmt: skip


ALSO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Ministral 8B": (
        config("MinistralForCausalLM", (4096, 12288, 4, 32, 8, 131072), head_dim=128, sliding_window=32768,
               layer_types=["full_attention", *["sliding_attention"] * 3], rope_theta=1e8),
        {"sliding_layers": (False, True, True, True), "sliding_window": 32768, "max_model_len": 131072},
    ),
    "Gemma 2B": (
        config("GemmaForCausalLM", (2048, 16384, 18, 8, 1, 256000), head_dim=256, hidden_act="gelu",
               hidden_activation=None, max_position_embeddings=8192, rms_norm_eps=1e-6, rope_theta=10000.0),
        {"activation": "gelu_tanh", "embedding_scale": pytest.approx(2048**0.5), "norm_offset": 1.0,
         "tie_embeddings": True, "q_size": 2048, "kv_size": 256, "post_norms": False, "qk_norm": "none"},
    ),
    "CodeGemma 7B": (
        config("GemmaForCausalLM", (3072, 24576, 28, 16, 16, 256000), head_dim=256, hidden_act="gelu_pytorch_tanh"),
        {"activation": "gelu_tanh", "max_model_len": 8192, "q_size": 4096},
    ),
    "OLMoE 1B-7B": (
        config("OlmoeForCausalLM", (2048, 1024, 16, 16, 16, 50304), clip_qkv=None, num_experts=64,
               num_experts_per_tok=8, norm_topk_prob=False, max_position_embeddings=4096, rope_theta=10000.0),
        {"qk_norm": "all_heads", "num_experts": 64, "experts_per_token": 8, "normalised_experts": False,
         "expert_size": 1024, "pre_norms": True},
    ),
    "EXAONE 4.0 32B": (
        config("Exaone4ForCausalLM", (5120, 27392, 64, 40, 8, 102400), head_dim=128, max_position_embeddings=131072,
               sliding_window=4096, sliding_window_pattern="LLLG", rope_theta=1000000, rms_norm_eps=1e-5,
               rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192}),
        {"sliding_layers": (True, True, True, False) * 16, "unrotated_layers": (False, False, False, True) * 16,
         "qk_norm": "head", "pre_norms": False, "post_norms": True},
    ),
    "EXAONE 4.0 1.2B": (
        config("Exaone4ForCausalLM", (2048, 4096, 30, 32, 8, 102400), sliding_window=None, sliding_window_pattern=None,
               layer_types=["full_attention"] * 30, tie_word_embeddings=True),
        {"sliding_window": None, "sliding_layers": (), "unrotated_layers": ()},
    ),
    "Seed-OSS 36B": (
        config("SeedOssForCausalLM", (5120, 27648, 64, 80, 8, 155136), head_dim=128, attention_bias=True,
               attention_out_bias=False, mlp_bias=False, max_position_embeddings=524288, rope_theta=1e7,
               rope_scaling={"rope_type": "default"}),
        {"attention_bias": True, "output_bias": False, "q_size": 10240, "rope.scaling": "none"},
    ),
    "AFM 4.5B": (
        config("ArceeForCausalLM", (2560, 18432, 36, 20, 4, 128004), head_dim=128, hidden_act="relu2",
               max_position_embeddings=65536, rope_theta=10000.0,
               rope_scaling={"type": "yarn", "rope_type": "yarn", "factor": 20.0, "beta_fast": 32.0, "beta_slow": 1.0,
                             "mscale": 1.0, "original_max_position_embeddings": 4096}),
        {"activation": "relu2", "gated": False, "rope.factor": 20.0, "max_model_len": 81920},
    ),
    "Minitron 4B": (
        config("NemotronForCausalLM", (3072, 9216, 32, 24, 8, 256000), head_dim=128, hidden_act="relu2", norm_eps=1e-5,
               partial_rotary_factor=0.5, max_position_embeddings=4096, rope_theta=10000),
        {"norm": "layer", "norm_offset": 1.0, "norm_bias": True, "gated": False, "rope.dim": 64},
    ),
    "StarCoder2 3B": (
        config("Starcoder2ForCausalLM", (3072, 12288, 30, 24, 2, 49152), sliding_window=4096, use_bias=True,
               norm_epsilon=1e-5, max_position_embeddings=16384, rope_theta=999999.4420358813, eos_token_id=0),
        {"norm": "layer", "mlp_bias": True, "output_bias": True, "attention_bias": True, "tie_embeddings": True,
         "sliding_window": 4096, "gated": False, "activation": "gelu_tanh"},
    ),
    "StarCoderBase 1B": (
        {"architectures": ["GPTBigCodeForCausalLM"], "activation_function": "gelu_pytorch_tanh", "multi_query": True,
         "n_embd": 2048, "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 8192, "vocab_size": 49152},
        {"num_kv_heads": 1, "head_size": 128, "learned_positions": True, "max_model_len": 8192, "gated": False},
    ),
    "TinyStories 33M": (
        {"architectures": ["GPTNeoForCausalLM"], "attention_types": [[["global", "local"], 2]], "hidden_size": 768,
         "intermediate_size": None, "num_heads": 16, "num_layers": 4, "max_position_embeddings": 2048,
         "activation_function": "gelu_new", "window_size": 256, "vocab_size": 50257, "attention_layers": ["global"]},
        {"sliding_layers": (False, True, False, True), "sliding_window": 256, "attention_scale": 1.0,
         "intermediate_size": 3072, "attention_bias": False, "output_bias": True, "mlp_bias": True},
    ),
}  # fmt: skip
"""Those of families that joined last."""


def parsed(values: dict[str, Any]) -> ModelConfig:
    return family_of_json(values, "config.json").read_json(values, "config.json")


def check(got: ModelConfig, wanted: dict[str, Any]) -> None:
    """A config has these values, by their paths in it."""
    for path, value in wanted.items():
        found: Any = got
        for part in path.split("."):
            found = getattr(found, part)
        assert found == value, path


@pytest.mark.parametrize("name", [*PUBLISHED, *ALSO])
def test_published_configs(name: str) -> None:
    values, wanted = (PUBLISHED | ALSO)[name]
    check(parsed(values), wanted)


def test_gpt_oss_that_says_nothing_is_the_published_one() -> None:
    """The larger one: defaults of the class."""
    got = parsed(config("GptOssForCausalLM", (2880, 2880, 36, 64, 8, 201088)))
    assert got.sliding_layers == (True, False) * 18 and got.sliding_window == 128 and got.head_size == 64
    assert (got.num_experts, got.experts_per_token, got.attention_bias) == (128, 4, True)
    assert (got.rope.theta, got.rope.factor, got.rope.truncate, got.max_model_len) == (150000.0, 32.0, False, 131072)


def test_every_other_layer_with_experts() -> None:
    more = {"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 16}
    got = parsed(config("Qwen3MoeForCausalLM", (64, 96, 6, 4, 4, 128), **more))
    assert got.dense_layers == (True, False, True, True, True, False)
    assert (got.intermediate_size, got.expert_size) == (96, 768)


def test_bases_of_both_kinds_of_layers() -> None:
    """Where the nested form does not name one, it is the family's."""
    nested = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    values = config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), rope_parameters=nested)
    got = parsed(values)
    assert got.local_rope is not None
    assert (got.rope.theta, got.rope.factor, got.local_rope.theta, got.local_rope.scaling) == (1e6, 8.0, 1e4, "none")


UNSAID: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_model_len": 2048, "num_kv_heads": 8, "rope.theta": 1e4, "norm_eps": 1e-6},
    "MistralForCausalLM": {"max_model_len": 131072, "num_kv_heads": 8, "sliding_window": 4096},
    "MixtralForCausalLM": {"max_model_len": 131072, "num_kv_heads": 8, "sliding_window": None, "rope.theta": 1e6},
    "SmolLM3ForCausalLM": {"max_model_len": 32768, "num_kv_heads": 4, "rope.theta": 2e6, "tie_embeddings": True},
    "Qwen2ForCausalLM": {"max_model_len": 32768, "sliding_window": None, "head_size": 64},
    "Qwen3ForCausalLM": {"max_model_len": 32768, "sliding_window": None, "head_size": 128},
    "Qwen3MoeForCausalLM": {"max_model_len": 32768, "num_kv_heads": 4, "head_size": 64, "num_experts": 128},
    "Gemma3ForCausalLM": {"max_model_len": 131072, "num_kv_heads": 4, "head_size": 256, "local_rope.theta": 1e4},
    "Phi3ForCausalLM": {"max_model_len": 4096, "sliding_window": None, "norm_eps": 1e-5},
    "Olmo3ForCausalLM": {"max_model_len": 2048, "sliding_window": 4096, "rope.theta": 5e5, "norm_eps": 1e-5},
    "GraniteForCausalLM": {"attention_scale": 1.0, "embedding_scale": 1.0, "logit_scale": 1.0},
    "StableLmForCausalLM": {"max_model_len": 4096, "rope.dim": 16, "attention_bias": False, "norm_eps": 1e-5},
    "OlmoeForCausalLM": {"max_model_len": 4096, "num_experts": 64, "experts_per_token": 8, "norm_eps": 1e-5},
    "SeedOssForCausalLM": {"max_model_len": 524288, "head_size": 128, "attention_bias": True, "output_bias": False},
    "ArceeForCausalLM": {"max_model_len": 4096, "activation": "relu2", "norm_eps": 1e-5},
    "NemotronForCausalLM": {"max_model_len": 4096, "activation": "relu2", "rope.dim": 32, "norm_eps": 1e-5},
    "Starcoder2ForCausalLM": {"max_model_len": 4096, "num_kv_heads": 2, "mlp_bias": True, "sliding_window": None},
}
"""What a config of each class means where it says nothing but sizes. Source: the classes of transformers 5.24."""


@pytest.mark.parametrize("architecture", UNSAID)
def test_what_a_config_does_not_say(architecture: str) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8}
    check(parsed({"architectures": [architecture], "vocab_size": 128, **sizes}), UNSAID[architecture])


def test_the_text_part_of_a_model_for_pictures_may_be_all_usual() -> None:
    """What is written of it are differences."""
    mistral = parsed({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"hidden_size": 5120}})
    check(mistral, {"hidden_size": 5120, "num_layers": 32, "num_kv_heads": 8, "vocab_size": 32000, "head_size": 160})
    gemma = parsed({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}})
    check(gemma, {"hidden_size": 2304, "num_layers": 26, "intermediate_size": 9216, "vocab_size": 262208})


SMALL = (64, 64, 4, 4, 4, 128)
LONG = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
TWO_WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stretched later": (
        config("Qwen3ForCausalLM", SMALL, rope_parameters={"rope_type": "default"}, rope_theta=1e6,
               rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
        {"rope.scaling": "yarn", "rope.theta": 1e6, "max_model_len": 131072},
    ),
    "nothing added": (
        config("LlamaForCausalLM", SMALL, rope_parameters={"rope_theta": 5e5}, rope_scaling={}),
        {"rope.scaling": "none", "rope.theta": 5e5},
    ),
    "stretched later, of two": (
        config("Gemma3ForCausalLM", SMALL, rope_scaling={"rope_type": "linear", "factor": 8},
               rope_parameters={"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}),
        {"rope.scaling": "linear", "rope.theta": 5e5, "local_rope.theta": 2e4, "local_rope.scaling": "none"},
    ),
    "stretched, of the usual base": (
        config("Gemma3ForCausalLM", SMALL, rope_parameters={
            "full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear", "factor": 2}}),
        {"rope.theta": 1e6, "local_rope.scaling": "linear", "local_rope.theta": 1e4, "local_rope.factor": 2.0},
    ),
    "not as usual in the family": (
        config("GptOssForCausalLM", SMALL, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        {"rope.scaling": "none", "rope.theta": 5e5},
    ),
    "as usual in the family": (
        config("GptOssForCausalLM", SMALL, rope_scaling=None),
        {"rope.scaling": "yarn", "rope.theta": 150000.0, "rope.factor": 32.0},
    ),
    "the outer of two contexts": (
        config("Phi3ForCausalLM", (3072, 64, 4, 32, 32, 128), max_position_embeddings=131072,
               original_max_position_embeddings=4096,
               rope_scaling={"type": "longrope", "original_max_position_embeddings": 8192, **LONG}),
        {"rope.original_max_model_len": 4096, "rope.amplitude": pytest.approx(1.1902381)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_WAYS)
def test_two_ways_to_say_how_a_model_turns(name: str) -> None:
    values, wanted = TWO_WAYS[name]
    check(parsed(values), wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            config("DeepseekV3ForCausalLM", (7168, 18432, 61, 128, 128, 129280)),
            "DeepseekV3ForCausalLM is not supported",
        ),
        (config("CohereForCausalLM", (8192, 22528, 40, 64, 64, 256000)), "CohereForCausalLM is not supported"),
        (config("PhiForCausalLM", (2560, 10240, 32, 32, 32, 51200)), "PhiForCausalLM is not supported"),
        (config("Phi3SmallForCausalLM", (4096, 14336, 32, 32, 8, 100352)), "Phi3SmallForCausalLM is not supported"),
        (config("Qwen2VLForConditionalGeneration", (1536, 8960, 28, 12, 2, 151936)), "Qwen2VLForConditionalGen"),
        (
            {
                "architectures": ["Mistral3ForConditionalGeneration"],
                "text_config": {
                    **MISTRAL_SMALL,
                    "model_type": "ministral3",
                    "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "llama_4_scaling_beta": 0.1},
                },
            },
            "llama_4_scaling_beta",
        ),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config must be an object"),
        (
            config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), use_bidirectional_attention=True),
            "use_bidirectional_attention",
        ),
        (
            config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), final_logit_softcapping=30.0),
            "final_logit_softcapping",
        ),
        (
            config("Gemma3ForCausalLM", (640, 2048, 18, 4, 1, 262144), layer_types=["full_attention"] * 17),
            "layer_types must be a list of 18",
        ),
        (config("SmolLM3ForCausalLM", (2048, 11008, 4, 16, 4, 128), no_rope_layers=[1, 1]), "no_rope_layers"),
        (config("GraniteForCausalLM", (2048, 8192, 4, 32, 8, 128), logits_scaling=0), "logits_scaling must be a"),
        (config("StableLmForCausalLM", (2048, 8192, 4, 32, 8, 128), qk_layernorm="yes"), "qk_layernorm must be true"),
        (config("Qwen2ForCausalLM", (64, 64, 4, 4, 4, 128), hidden_act="mish"), "hidden_act mish"),
        ({"architectures": ["GPT2LMHeadModel"], "activation_function": "tanh"}, "hidden_act tanh"),
        (config("Qwen3MoeForCausalLM", (64, 64, 4, 4, 4, 128), mlp_only_layers=[4]), "numbers of the 4 layers"),
        (config("Qwen3MoeForCausalLM", (64, 64, 4, 4, 4, 128), decoder_sparse_step=0), "decoder_sparse_step must be"),
        (config("Qwen3MoeForCausalLM", (64, 64, 4, 4, 4, 128), num_experts=4), "num_experts_per_tok must be"),
        (config("MixtralForCausalLM", (64, 64, 4, 4, 4, 128), hidden_act="gelu_new"), "activation gelu_tanh"),
        (
            config("Gemma2ForCausalLM", (64, 64, 4, 4, 4, 128), attn_logit_softcapping=100.0),
            "attn_logit_softcapping must be a number between 0.001 and 64",
        ),
        (config("Gemma2ForCausalLM", (64, 64, 4, 4, 4, 128), use_bidirectional_attention=True), "use_bidirectional"),
        (config("GptOssForCausalLM", (64, 64, 4, 4, 4, 128), swiglu_limit=0), "swiglu_limit must be a number"),
        (config("GptOssForCausalLM", (64, 64, 4, 4, 4, 128), num_experts_per_tok=129), "num_experts_per_tok must be"),
        ({"architectures": ["GPT2LMHeadModel"], "n_embd": "768"}, "hidden_size must be an integer"),
        ({"architectures": ["GPT2LMHeadModel"], "add_cross_attention": True}, "add_cross_attention"),
        ({"architectures": ["GPTBigCodeForCausalLM"], "multi_query": False}, "multi_query false is not supported"),
        ({"architectures": ["GPTNeoForCausalLM"], "num_layers": 3}, "4 kinds of layers for 3"),
        ({"architectures": ["GPTNeoForCausalLM"], "attention_types": [[["far"], 24]]}, "attention_types must be"),
        (config("OlmoeForCausalLM", (64, 64, 4, 4, 4, 128), clip_qkv=8.0), "clip_qkv is not supported"),
        (config("GemmaForCausalLM", (64, 64, 4, 4, 4, 128), use_bidirectional_attention=True), "use_bidirectional"),
        (
            config("Exaone4ForCausalLM", (64, 64, 4, 4, 4, 128), sliding_window_pattern=0),
            "sliding_window_pattern must be",
        ),
    ],
)
def test_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel) as error:
        parsed(values)
    assert message in str(error.value)


ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**70,
    0.5,
    1e-300,
    1e300,
    "",
    "yarn",
    [],
    [1],
    [[]],
    {},
    {"rope_type": 1},
]


@pytest.mark.parametrize("name", [*PUBLISHED, *(pytest.param(name, marks=pytest.mark.long) for name in ALSO)])
def test_odd_values_are_refused_or_make_sense(name: str) -> None:
    """Every field of every config with every odd value: read and used, or one line."""
    values, _ = (PUBLISHED | ALSO)[name]
    keys = set(values) | {key for family in FAMILIES for key in family.defaults} | {"rope_parameters", "layer_types"}
    for key in sorted(keys - {"architectures", "text_config"}):
        for odd in ODD:
            try:
                got = parsed({**values, key: odd})
            except InvalidModel as error:
                assert str(error).isprintable()
                continue
            for layer in (0, got.num_layers - 1):
                rope = got.rope_of(layer)
                assert rope is None or len(rope.inv_freq(got.max_model_len)) == rope.dim // 2
                assert got.window_of(layer) is None or isinstance(got.window_of(layer), int)


@pytest.mark.parametrize("key", ["rope_type", "factor", "beta_fast", "beta_slow", "mscale", "attention_factor",
                                 "original_max_position_embeddings", "rope_theta", "low_freq_factor", "short_factor",
                                 "long_factor", "partial_rotary_factor", "full_attention"])  # fmt: skip
@pytest.mark.parametrize(
    "name", ["Qwen2.5 7B with YaRN", "Phi-3 mini 128k", "Llama 3.2 1B", "OLMo 3 7B", "LongChat 7B"]
)
def test_odd_values_of_scaling(name: str, key: str) -> None:
    values, _ = PUBLISHED[name]
    for kind in (values["rope_scaling"].get("rope_type"), "dynamic", "yarn"):
        for odd in ODD:
            try:
                got = parsed({**values, "rope_scaling": {**values["rope_scaling"], "rope_type": kind, key: odd}})
            except InvalidModel as error:
                assert str(error).isprintable()
                continue
            for max_model_len in (1, got.max_model_len):
                assert len(got.rope.inv_freq(max_model_len)) == got.rope.dim // 2


def test_every_field_of_a_config_is_plain() -> None:
    """Configs are compared and printed: nothing in them is an object with an identity."""
    for values, _ in PUBLISHED.values():
        one, other = parsed(values), parsed(values)
        assert one == other
        assert all(field.name in repr(one) for field in fields(one))
