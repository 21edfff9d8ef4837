"""The checkpoints of `families.py` as GGUF files, converted as llama.cpp's converter does.

Imported by the tests and by `check_gguf_families.py`, which compares names and files with those of the `gguf` package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executors.families import CONFIGS, MIXTURES, OFFSET_NORMS, VOCAB_SIZE, head_size, usual, weights_of
from models.writers import GGUF_STEMS, encode, interleave, write_gguf

Floats = NDArray[np.float32]

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "granite": "granite",
    "stablelm": "stablelm",
    "gpt2": "gpt2",
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "gpt_oss": "gpt-oss",
    "gemma": "gemma",
    "olmoe": "olmoe",
    "exaone4": "exaone4",
    "seed_oss": "seed_oss",
    "arcee": "arcee",
    "nemotron": "nemotron",
    "starcoder2": "starcoder2",
    "gpt_bigcode": "starcoder",
}
PERMUTED = ("llama", "mistral", "mixtral", "smollm3", "granite", "arcee")
"""Whose converters put rotary pair j of a head of Q and K into its rows 2j and 2j + 1."""
_OF_QWEN = {"qwen2-window-yarn", "qwen3moe-sums", "qwen3moe-dense"}
NAMES = sorted(set(CONFIGS) - _OF_QWEN - {"dynamic", "yarn-mscale", "gpt2-depth", "gpt-neo"})
"""Those that the format can express: it knows no windows of Qwen's, no dynamic scaling, no mscale, only experts
whose weights are divided by their sum, in every layer, no scale of scores that falls with depth, and no GPT-Neo."""

_STEMS = {
    **GGUF_STEMS,
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm.norms": "attn_q_norm",
    "self_attn.k_layernorm.norms": "attn_k_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.sinks": "attn_sinks",
    "mlp.router": "ffn_gate_inp",
}
_GPT2_STEMS = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(hf_name: str, model_type: str) -> str:
    """The GGUF name of a tensor of one of these families."""
    stem, kind = hf_name.rsplit(".", 1)
    prefix = ""
    stem = stem.replace("transformer.h.", "model.layers.").removeprefix("transformer.")
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        prefix = f"blk.{layer}."
    post_norms = _POST_NORMS if model_type in ("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4") else {}
    if model_type in ("gpt_oss", "seed_oss"):
        post_norms = {"post_attention_layernorm": "post_attention_norm"}
    return f"{prefix}{ {**_STEMS, **_GPT2_STEMS, **post_norms}[stem] }.{kind}"


def tensors_of(name: str) -> dict[str, Floats]:
    """Converted weights by GGUF name, with what scales a rotation."""
    config = CONFIGS[name]
    kind = config["model_type"]
    tensors: dict[str, Floats] = {}
    heads: dict[str, list[Floats]] = {}
    for hf_name, numbers in weights_of(name).items():
        if kind == "gpt_oss" and "mlp.experts" in hf_name:
            tensors |= dict(_clamped_experts(hf_name, numbers))
            continue
        if hf_name.endswith("sinks"):
            hf_name += ".weight"
        if hf_name.endswith("shared_expert_gate.weight"):
            numbers = numbers[0]
        stem = hf_name.rsplit(".", 1)[0]
        if kind in OFFSET_NORMS and hf_name.endswith("norm.weight"):
            numbers = numbers + np.float32(1)
        if kind in PERMUTED and stem.endswith(("q_proj", "k_proj")):
            heads_key = "num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"
            numbers = interleave(numbers, config[heads_key])
        if kind == "gpt2" and numbers.ndim == 2 and ".h." in hf_name:
            numbers = np.ascontiguousarray(numbers.T)
        if ".experts." in hf_name:
            merged = gguf_name(re.sub(r"experts\.\d+\.", "experts.", hf_name), kind)
            heads.setdefault(merged, []).append(numbers)
            continue
        if ".norms." in hf_name:
            heads.setdefault(gguf_name(stem.rsplit(".", 1)[0] + ".weight", kind), []).append(numbers)
            continue
        tensors[gguf_name(hf_name, kind)] = numbers
    tensors.update({key: np.stack(parts) for key, parts in heads.items()})
    scaling = config.get("rope_scaling") or {}
    for one in ("long", "short"):
        if f"{one}_factor" in scaling:
            tensors[f"rope_factors_{one}.weight"] = np.array(scaling[f"{one}_factor"], np.float32)
    return tensors


def _clamped_experts(hf_name: str, numbers: Floats) -> Iterator[tuple[str, Floats]]:
    """The halves of gate and up apart, and rows where the checkpoint has columns."""
    _, _, layer, _, _, stem = hf_name.split(".")
    kind = "bias" if stem.endswith("_bias") else "weight"
    rows = numbers if kind == "bias" else numbers.transpose(0, 2, 1)
    parts = {"gate": rows[:, 0::2], "up": rows[:, 1::2]} if stem.startswith("gate_up") else {"down": rows}
    for part, values in parts.items():
        yield f"blk.{layer}.ffn_{part}_exps.{kind}", np.ascontiguousarray(values)


def metadata_of(name: str) -> dict[str, Any]:
    """What the converter writes of the config, and a vocabulary of made-up tokens."""
    config = usual(CONFIGS[name])
    kind = config["model_type"]
    size, context = head_size(config), config["max_position_embeddings"]
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": context,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        **_scaling(config),
    }
    if "rope_theta" in config and kind != "gemma2":
        keys["rope.freq_base"] = float(config["rope_theta"])
    if "head_dim" in config:
        keys |= {"attention.key_length": size, "attention.value_length": size}
    is_layer_norm = "layer_norm_eps" in config
    norm = "layer_norm_epsilon" if is_layer_norm else "layer_norm_rms_epsilon"
    keys[f"attention.{norm}"] = float(config["layer_norm_eps" if is_layer_norm else "rms_norm_eps"])
    if kind in ("phi3", "stablelm", "nemotron") or kind in PERMUTED:
        keys["rope.dimension_count"] = int(size * config.get("partial_rotary_factor", 1.0))
    if kind == "stablelm":
        keys["use_parallel_residual"] = config["use_parallel_residual"]
    if "sliding_window" in config or kind == "phi3":
        keys["attention.sliding_window"] = config.get("sliding_window", 0)
    if "layer_types" in config and kind not in ("gpt_oss", "gemma2"):  # whose readers know its pattern
        pattern = [one == "sliding_attention" for one in config["layer_types"]]
        keys["attention.sliding_window_pattern"] = np.array(pattern)
    if kind in MIXTURES:
        count = config.get("num_experts") or config["num_local_experts"]
        keys |= {"expert_count": count, "expert_used_count": config["num_experts_per_tok"]}
    if kind in ("qwen3_moe", "qwen2_moe"):
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if kind == "qwen2_moe":
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if kind == "gpt_oss":
        keys["expert_feed_forward_length"] = config["intermediate_size"]
    if kind == "gemma2":
        keys |= {
            "attn_logit_softcapping": float(config["attn_logit_softcapping"]),
            "final_logit_softcapping": float(config["final_logit_softcapping"]),
        }
    if kind == "granite":
        keys |= {
            "embedding_scale": float(config["embedding_multiplier"]),
            "attention.scale": float(config["attention_multiplier"]),
            "residual_scale": float(config["residual_multiplier"]),
            "logit_scale": float(config["logits_scaling"]),
        }
    arch = ARCHITECTURES[kind]
    return {
        "general.architecture": arch,
        **{f"{arch}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB_SIZE)],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def _scaling(config: dict[str, Any]) -> dict[str, Any]:
    context = config["max_position_embeddings"]
    both = config.get("rope_parameters") or {}
    scaling = both.get("full_attention") or config.get("rope_scaling") or {}
    original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    keys: dict[str, Any] = {}
    if original:
        keys["rope.scaling.original_context_length"] = original
    match scaling.get("rope_type") or scaling.get("type"):
        case "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
        case "yarn":
            keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": scaling["factor"]}
            if "attention_factor" in scaling:
                keys |= {
                    "rope.scaling.attn_factor": scaling["attention_factor"],
                    "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
                    "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
                    "rope.freq_base_swa": both["sliding_attention"]["rope_theta"],
                }
        case "longrope" if original:
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(context / original) / math.log(original))
    return keys


def write_gguf_checkpoint(name: str, path: Path, encoding: str = "F32") -> Path:
    """A GGUF file of a checkpoint: matrices in `encoding`, the rest in F32. In MXFP4 are experts only."""
    tensors = {key: encode(numbers, _encoding(key, numbers, encoding)) for key, numbers in tensors_of(name).items()}
    return write_gguf(path, metadata_of(name), tensors)


def _encoding(key: str, numbers: Floats, encoding: str) -> str:
    if encoding == "MXFP4":
        return encoding if key.endswith("_exps.weight") else "F32"
    return encoding if numbers.ndim > 1 and "_norm" not in key and not key.endswith(".bias") else "F32"
