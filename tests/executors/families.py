"""Tiny random checkpoints of every family, the same on every machine, and what transformers computes with them.

Imported by the tests and by `make_family_fixtures.py`, which runs where there is no Chairlift: NumPy only. Names and
shapes of the weights are written down here once more, from what transformers loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.block_writers import decode_mxfp4, mxfp4_codes
from models.writers import encode, write_safetensors

VOCAB_SIZE = 120
NUM_TOKENS = 80
POSITIONS = (0, 1, 2, 7, 15, 22, 23, 24, 25, 31, 32, 33, 47, 50, 63, 64, 72, 77, 78, 79)
"""Whose logits are stored: around windows, blocks and original contexts, and the last ones."""
FIXTURES = Path(__file__).parent / "family_fixtures.npz"

_PLAIN: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _family(model_type: str, architecture: str, **changes: Any) -> dict[str, Any]:
    return {**_PLAIN, "model_type": model_type, "architectures": [architecture], **changes}


_LLAMA = _family("llama", "LlamaForCausalLM", head_dim=32, attention_bias=False, mlp_bias=False)
_QWEN2 = _family("qwen2", "Qwen2ForCausalLM")
_QWEN3 = _family("qwen3", "Qwen3ForCausalLM", head_dim=64, attention_bias=False)
_GEMMA3 = _family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    hidden_activation="gelu_pytorch_tanh",
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=256,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    sliding_window=24,
    query_pre_attn_scalar=400,
    rope_theta=1e6,
    rope_local_base_freq=1e4,
    rope_scaling={"rope_type": "linear", "factor": 8.0},
    tie_word_embeddings=True,
    attention_bias=False,
)
_GEMMA2 = _family(
    "gemma2",
    "Gemma2ForCausalLM",
    hidden_activation="gelu_pytorch_tanh",
    num_hidden_layers=3,
    head_dim=64,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    sliding_window=24,
    query_pre_attn_scalar=48,
    attn_logit_softcapping=4.0,
    final_logit_softcapping=10.0,
    tie_word_embeddings=True,
    attention_bias=False,
)
_GEMMAS = ("gemma2", "gemma3_text")
_PHI3 = _family("phi3", "Phi3ForCausalLM", original_max_position_embeddings=256)
_OLMO = {"num_hidden_layers": 3, "attention_bias": False}
_STABLELM = _family(
    "stablelm",
    "StableLmForCausalLM",
    partial_rotary_factor=0.25,
    layer_norm_eps=1e-5,
    use_qkv_bias=True,
    qk_layernorm=False,
    use_parallel_residual=False,
)
_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "norm_epsilon": "layer_norm_eps",
    "norm_eps": "layer_norm_eps",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
}
_QWEN3_MOE = _family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    head_dim=32,
    attention_bias=False,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=64,
    norm_topk_prob=True,
    mlp_only_layers=[],
    decoder_sparse_step=1,
)
_QWEN2_MOE = _family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=96,
    norm_topk_prob=False,
)
_GPT_OSS = _family(
    "gpt_oss",
    "GptOssForCausalLM",
    intermediate_size=64,
    num_hidden_layers=3,
    num_key_value_heads=2,
    head_dim=64,
    attention_bias=True,
    num_local_experts=6,
    num_experts_per_tok=2,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    sliding_window=24,
    swiglu_limit=7.0,
    rope_theta=150000.0,
    rope_scaling={
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
    },
)
_LONG = {
    "type": "longrope",
    "short_factor": [1.0 + 0.02 * j for j in range(12)],
    "long_factor": [1.1 + 0.3 * j for j in range(12)],
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {**_QWEN2, "tie_word_embeddings": True},
    "qwen2-window-yarn": {
        **_QWEN2,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "qwen3": _QWEN3,
    "mistral": _family(
        "mistral", "MistralForCausalLM", num_key_value_heads=1, head_dim=48, sliding_window=24, attention_bias=False
    ),
    "smollm3": _family(
        "smollm3",
        "SmolLM3ForCausalLM",
        num_hidden_layers=4,
        no_rope_layers=[1, 1, 1, 0],
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
    ),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "phi3-long": {
        **_PHI3,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
        "rope_scaling": _LONG,
    },
    "phi3-short": {
        **_PHI3,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 0.75,
        "rope_scaling": _LONG,
        "tie_word_embeddings": True,
    },
    "phi3-window": {**_PHI3, "sliding_window": 24},
    "olmo2": _family("olmo2", "Olmo2ForCausalLM", **_OLMO),
    "olmo3": _family(
        "olmo3",
        "Olmo3ForCausalLM",
        **_OLMO,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=24,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.3,
                "beta_fast": 1.5,
                "beta_slow": 0.5,
            },
        },
    ),
    "granite": _family(
        "granite",
        "GraniteForCausalLM",
        attention_bias=True,
        mlp_bias=False,
        embedding_multiplier=3.0,
        attention_multiplier=0.3,
        residual_multiplier=0.6,
        logits_scaling=2.0,
    ),
    "stablelm": _STABLELM,
    "stablelm-parallel": {
        **_STABLELM,
        "use_qkv_bias": False,
        "qk_layernorm": True,
        "use_parallel_residual": True,
    },
    "gpt2": _GPT2,
    "gpt2-depth": {**_GPT2, "activation_function": "gelu", "scale_attn_by_inverse_layer_idx": True},
    "qwen3moe": _QWEN3_MOE,
    "qwen3moe-sums": {**_QWEN3_MOE, "norm_topk_prob": False},
    "mixtral": _family(
        "mixtral",
        "MixtralForCausalLM",
        head_dim=32,
        sliding_window=24,
        attention_bias=False,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen3moe-dense": {**_QWEN3_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    "qwen2moe": _QWEN2_MOE,
    "gpt-oss": _GPT_OSS,
    "dynamic": {**_LLAMA, "max_position_embeddings": 32, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {**_LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}},
    "yarn-mscale": {
        **_LLAMA,
        "head_dim": 80,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "mscale": 2.0,
            "mscale_all_dim": 0.5,
            "truncate": False,
        },
    },
}
CONFIGS |= {
    "gemma": _family(
        "gemma", "GemmaForCausalLM", head_dim=64, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True
    ),
    "olmoe": _family(
        "olmoe", "OlmoeForCausalLM", intermediate_size=64, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False
    ),
    "exaone4": _family(
        "exaone4",
        "Exaone4ForCausalLM",
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=24,
        sliding_window_pattern=2,
    ),
    "seed-oss": _family(
        "seed_oss", "SeedOssForCausalLM", head_dim=32, attention_bias=True, attention_out_bias=False, mlp_bias=False
    ),
    "arcee": _family("arcee", "ArceeForCausalLM", head_dim=32, hidden_act="relu2"),
    "nemotron": _family(
        "nemotron",
        "NemotronForCausalLM",
        head_dim=32,
        hidden_act="relu2",
        norm_eps=1e-5,
        partial_rotary_factor=0.5,
        attention_bias=False,
        mlp_bias=False,
    ),
    "starcoder2": _family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        hidden_act="gelu_pytorch_tanh",
        norm_epsilon=1e-5,
        sliding_window=24,
        use_bias=True,
        tie_word_embeddings=True,
    ),
    "gpt-bigcode": {
        **_GPT2,
        "model_type": "gpt_bigcode",
        "architectures": ["GPTBigCodeForCausalLM"],
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
    },
    "gpt-neo": {
        "model_type": "gpt_neo",
        "architectures": ["GPTNeoForCausalLM"],
        "hidden_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 192,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 24,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 96,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
_JOINED = ("gpt2", "qwen3moe", "qwen3moe-sums", "mixtral", "gpt2-depth", "qwen3moe-dense", "qwen2moe", "gemma2")
LATEST = ("gemma", "olmoe", "exaone4", "seed-oss", "arcee", "nemotron", "starcoder2", "gpt-bigcode", "gpt-neo")
"""Of those that joined last; what of them others show as well is tried in the long tier."""
_SEEDS = {
    **{name: 100 + n for n, name in enumerate(_JOINED)},
    **{name: 120 + n for n, name in enumerate(LATEST)},
    "qwen3moe-dense": 110,
    "gpt-oss": 137,
}
"""Of those that joined later: the others' seeds are their places in the list without them. The last two are such that
no token of much weight has experts that tie within the rounding of bfloat16."""
LOGIT_SCALES = {"granite": 6.7, "gemma2": 4.0}
"""Standard deviation of the head's outputs, where not 3.3."""


def tokens_of(name: str) -> list[int]:
    """The sequence whose logits are stored for a checkpoint."""
    return [int(token) for token in np.random.default_rng(len(name)).integers(3, VOCAB_SIZE, NUM_TOKENS)]


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write `config.json` and `model.safetensors` into a new folder; returns the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    weights = {key: encode(value, "F32") for key, value in weights_of(name).items()}
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def write_mxfp4_checkpoint(name: str, folder: Path) -> Path:
    """The same for experts as GPT-OSS ships them: two numbers to a byte, and scales beside them."""
    folder.mkdir(parents=True)
    config = {**CONFIGS[name], "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for key, numbers in weights_of(name).items():
        if numbers.ndim < 3:
            tensors[key] = encode(numbers, "F32")
            continue
        rows = numbers.transpose(0, 2, 1)  # [experts, rows, cols]
        codes, exponents = mxfp4_codes(rows.reshape(-1, 32))
        shape = *rows.shape[:2], rows.shape[2] // 32
        tensors[key + "_blocks"] = "U8", (*shape, 16), (codes[:, 0::2] | codes[:, 1::2] << 4).tobytes()
        tensors[key + "_scales"] = "U8", shape, exponents.tobytes()
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def expected(name: str) -> NDArray[np.float32]:
    """What transformers computes at `POSITIONS`, `[positions, vocab]`."""
    with np.load(FIXTURES) as stored:
        logits: NDArray[np.float32] = stored[name]
    return logits


# ---------------------------------------------------------------- weights


def usual(config: dict[str, Any]) -> dict[str, Any]:
    """A config with the names that most families use."""
    named = {_GPT2_NAMES.get(key, key): value for key, value in config.items()}
    if "n_embd" in config:
        named["intermediate_size"] = 4 * config["n_embd"]
    if config["model_type"] in LIKE_GPT2:
        named["num_key_value_heads"] = 1 if config.get("multi_query") else named["num_attention_heads"]
    return named


MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "gpt_oss", "olmoe")
LIKE_GPT2 = ("gpt2", "gpt_bigcode", "gpt_neo")
OFFSET_NORMS = ("gemma", "gemma2", "gemma3_text", "nemotron")
"""Whose weights of norms are less one."""
LAYER_NORMS = ("stablelm", "nemotron", "starcoder2", *LIKE_GPT2)


def head_size(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def weights_of(name: str) -> dict[str, NDArray[np.float32]]:
    """Random weights by their Hugging Face names.

    Scaled so that attention scores have a standard deviation near 2 and logits one above 3: differences in who attends
    to whom then show in the logits, and rounding is not blown up.
    """
    config = usual(CONFIGS[name])
    rng = np.random.default_rng(_SEEDS[name] if name in _SEEDS else sorted(set(CONFIGS) - set(_SEEDS)).index(name))
    offset = 1.0 if config["model_type"] in OFFSET_NORMS else 0.0
    weights: dict[str, NDArray[np.float32]] = {}
    for key, shape, scale in _shapes(config, LOGIT_SCALES.get(name, 3.3)):
        if key.endswith(("_bias", ".bias")):
            values = 0.3 * rng.standard_normal(shape)
        elif key == "model.norm.weight" and name == "gemma":
            # Embeddings are scaled, and the head is the same matrix: norms of one sign would only repeat a token.
            values = rng.standard_normal(shape) - offset
        elif len(shape) == 1:
            values = scale * (1 + 0.2 * rng.standard_normal(shape)) - offset
        else:
            values = rng.standard_normal(shape) * scale / np.sqrt(shape[1])
        is_transposed = config["model_type"] == "gpt2" and len(shape) == 2 and key.startswith("transformer.h.")
        weights[key] = np.ascontiguousarray(values.T if is_transposed else values).astype(np.float32)
        if len(shape) == 3:  # experts as MXFP4 holds them, whose rows are columns here
            weights[key] = as_mxfp4(weights[key].transpose(0, 2, 1)).transpose(0, 2, 1).copy()
    return weights


def _shapes(config: dict[str, Any], logit_scale: float) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and scale of every weight: a matrix's outputs per input of mean square 1, a norm's mean."""
    hidden = config["hidden_size"]
    if config["model_type"] in LIKE_GPT2:
        yield from _gpt2_shapes(config, logit_scale)
        return
    yield "model.embed_tokens.weight", (VOCAB_SIZE, hidden), logit_scale if config["tie_word_embeddings"] else 5.0
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB_SIZE, hidden), logit_scale
    yield from _norm("model.norm", hidden, config)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in _layer_norms(config):
            yield from _norm(prefix + norm, hidden, config)
        for name, shape, scale in (*_attention(config), *_mlp(config, layer)):
            yield prefix + name, shape, scale


def _gpt2_shapes(config: dict[str, Any], logit_scale: float) -> Iterator[tuple[str, tuple[int, ...], float]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    attention = [("attn.c_attn", hidden + 2 * config["num_key_value_heads"] * head_size(config), hidden, 1.3)]
    output = "attn.c_proj"
    if config["model_type"] == "gpt_neo":  # its scores are not scaled
        attention = [(f"attn.attention.{name}_proj", hidden, hidden, 1.0 if name == "v" else 0.6) for name in "qkv"]
        output = "attn.attention.out_proj"
    yield "transformer.wte.weight", (VOCAB_SIZE, hidden), logit_scale
    yield "transformer.wpe.weight", (config["max_position_embeddings"], hidden), logit_scale
    yield from _norm("transformer.ln_f", hidden, config)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield from _norm(prefix + norm, hidden, config)
        for name, rows, cols, scale in (
            *attention,
            (output, hidden, hidden, 1.0),
            ("mlp.c_fc", inner, hidden, 1.0),
            ("mlp.c_proj", hidden, inner, 1.0),
        ):
            yield f"{prefix}{name}.weight", (rows, cols), scale
            if not name.endswith(("q_proj", "k_proj", "v_proj")):
                yield f"{prefix}{name}.bias", (rows,), 0.0


def _norm(name: str, size: int, config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    # Gemma's embeddings are large: what layers add must be so too.
    is_large = config["model_type"] in _GEMMAS and name.endswith(
        ("post_attention_layernorm", "post_feedforward_layernorm")
    )
    yield name + ".weight", (size,), 6.0 if is_large else 1.0
    if config["model_type"] in LAYER_NORMS:
        yield name + ".bias", (size,), 0.0


def _layer_norms(config: dict[str, Any]) -> list[str]:
    match config["model_type"]:
        case "gemma2" | "gemma3_text":
            pre_and_post = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
            return [f"{name}_layernorm" for name in pre_and_post]
        case "olmo2" | "olmo3" | "exaone4":
            return ["post_attention_layernorm", "post_feedforward_layernorm"]
        case "stablelm" if config["use_parallel_residual"]:
            return ["input_layernorm"]
        case _:
            return ["input_layernorm", "post_attention_layernorm"]


def as_mxfp4(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to what MXFP4 can say: 32 numbers along the last axis share a power of two."""
    return decode_mxfp4(*mxfp4_codes(numbers.reshape(-1, 32))).reshape(numbers.shape)


def _attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    hidden, size, kind = config["hidden_size"], head_size(config), config["model_type"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_size, kv_size = num_heads * size, num_kv_heads * size
    if kind == "phi3":
        yield "self_attn.qkv_proj.weight", (q_size + 2 * kv_size, hidden), 1.3
    else:
        says_so = (config.get(key, False) for key in ("attention_bias", "use_qkv_bias", "use_bias"))
        has_bias = kind in ("qwen2", "qwen2_moe") or any(says_so)
        sharpness = 1.1 if kind == "smollm3" else 1.4  # its four layers add up
        for name, rows, scale in (("q", q_size, sharpness), ("k", kv_size, sharpness), ("v", kv_size, 1.0)):
            yield f"self_attn.{name}_proj.weight", (rows, hidden), scale
            if has_bias:
                yield f"self_attn.{name}_proj.bias", (rows,), 0.0
    yield "self_attn.o_proj.weight", (hidden, q_size), 1.0
    if config.get("attention_out_bias", config.get("attention_bias", False)) or config.get("use_bias", False):
        yield "self_attn.o_proj.bias", (hidden,), 0.0
    if kind == "gpt_oss":
        yield "self_attn.sinks", (num_heads,), 3.0
    if kind in ("qwen3", "qwen3_moe", "gemma3_text", "exaone4"):
        yield from ((f"self_attn.{name}_norm.weight", (size,), 1.4) for name in "qk")
    elif kind in ("olmo2", "olmo3", "olmoe"):
        yield from ((f"self_attn.{name}_norm.weight", (n,), 1.2) for name, n in (("q", q_size), ("k", kv_size)))
    elif config.get("qk_layernorm", False):
        for name, count in (("q", num_heads), ("k", num_kv_heads)):
            for head in range(count):
                yield f"self_attn.{name}_layernorm.norms.{head}.weight", (size,), 1.4


def _mlp(config: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...], float]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    has_experts = config["model_type"] in MIXTURES and layer not in config.get("mlp_only_layers", ())
    if config["model_type"] == "gpt_oss":
        yield from _clamped_experts(config)
    elif has_experts:
        yield from _experts(config)
    elif config["model_type"] == "phi3":
        yield "mlp.gate_up_proj.weight", (2 * inner, hidden), 1.0
    elif config["model_type"] == "starcoder2":
        for name, rows, cols in (("c_fc", inner, hidden), ("c_proj", hidden, inner)):
            yield f"mlp.{name}.weight", (rows, cols), 1.0
            yield f"mlp.{name}.bias", (rows,), 0.0
        return
    elif config["model_type"] in ("arcee", "nemotron"):
        yield "mlp.up_proj.weight", (inner, hidden), 1.0
    else:
        yield from ((f"mlp.{name}_proj.weight", (inner, hidden), 1.0) for name in ("gate", "up"))
    if not has_experts:
        yield "mlp.down_proj.weight", (hidden, inner), 1.0


def _experts(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """The scores of a router are far apart: where rounding chooses another expert, it is one of little weight."""
    hidden = config["hidden_size"]
    if config["model_type"] == "mixtral":
        block, names, inner, count = "block_sparse_moe", ("w1", "w3", "w2"), config["intermediate_size"], 4
    else:
        block, names, inner, count = "mlp", ("gate_proj", "up_proj", "down_proj"), config["intermediate_size"], 8
        inner = config.get("moe_intermediate_size", inner)
    yield f"{block}.gate.weight", (count, hidden), 4.0
    for expert in range(count):
        for name, shape in zip(names, ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True):
            yield f"{block}.experts.{expert}.{name}.weight", shape, 1.0 if shape[0] == inner else 0.5
    if config["model_type"] == "qwen2_moe":
        shared = config["shared_expert_intermediate_size"]
        for name, shape in zip(names, ((shared, hidden), (shared, hidden), (hidden, shared)), strict=True):
            yield f"mlp.shared_expert.{name}.weight", shape, 1.0 if shape[0] == shared else 0.5
        yield "mlp.shared_expert_gate.weight", (1, hidden), 1.0


def _clamped_experts(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """So large before they are cut that some are."""
    hidden, inner, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield "mlp.router.weight", (count, hidden), 6.0
    yield "mlp.router.bias", (count,), 0.0
    yield "mlp.experts.gate_up_proj", (count, hidden, 2 * inner), 4.0
    yield "mlp.experts.gate_up_proj_bias", (count, 2 * inner), 0.0
    yield "mlp.experts.down_proj", (count, inner, hidden), 0.03
    yield "mlp.experts.down_proj_bias", (count, hidden), 0.0
