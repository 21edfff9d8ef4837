"""The numbers of a model from GGUF metadata: what all families write alike."""

from __future__ import annotations

import math

from chairlift.models.config import ModelConfig, all_but_every, tokens_within
from chairlift.models.fields import MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_SIZE
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.rope import Rope, yarn_amplitude
from chairlift.models.tensor import Encoding


class Metadata:
    """Bounded reading of the keys of a GGUF file's architecture."""

    def __init__(self, gguf: GGUF) -> None:
        self.gguf = gguf
        self.prefix = gguf.text("general.architecture")

    def has(self, key: str) -> bool:
        return self.gguf.has(f"{self.prefix}.{key}")

    def size(self, key: str, high: int, default: int | None = None, low: int = 1) -> int:
        name = f"{self.prefix}.{key}"
        is_array = self.gguf.has(name) and self.gguf.is_array(name)
        value = self._of_every_layer(name) if is_array else self.gguf.integer(name, default)
        if not low <= value <= high:
            raise self.gguf.error(f"{self.prefix}.{key} must be between {low} and {high}, not {value}")
        return value

    def _of_every_layer(self, name: str) -> int:
        """What an array has for each layer, which must be the same.

        Raises:
            InvalidModel: it is not, or there is nothing in it.
        """
        values = self.gguf.numbers(name)
        first = values[0] if len(values) else None
        if not isinstance(first, int) or any(value != first for value in values[: MAX_LAYERS + 1]):
            raise self.gguf.error(f"{name} must be an integer, the same for all layers")
        return int(first)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.gguf.number(f"{self.prefix}.{key}", default)
        if not low <= value <= high:
            raise self.gguf.error(f"{self.prefix}.{key} must be between {low:g} and {high:g}")
        return float(value)


def config_from_gguf(gguf: GGUF, architecture: str) -> ModelConfig:
    """A Llama-like model from GGUF metadata; biases and a head of its own are seen from the tensors.

    Raises:
        InvalidModel: a key is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    keys = Metadata(gguf)
    hidden_size = keys.size("embedding_length", MAX_SIZE)
    num_heads = keys.size("attention.head_count", MAX_HEADS)
    head_size = keys.size("attention.key_length", 4096, max(hidden_size // num_heads, 1))
    if keys.size("attention.value_length", 4096, head_size) != head_size:
        raise gguf.error("keys and values of different sizes are not supported")
    embed = gguf.tensors.get("token_embd.weight")
    if embed is None:
        raise gguf.error("tensor token_embd.weight is missing")
    vocab_size = keys.size("vocab_size", MAX_SIZE, embed.rows)
    for name in ("tokens", "token_type", "scores"):
        key = f"tokenizer.ggml.{name}"
        if gguf.has(key) and gguf.num_elements(key) != vocab_size:
            raise gguf.error(f"{key} has {gguf.num_elements(key)} entries for a vocabulary of {vocab_size}")
    ends = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    bos, eos = (
        tokens_within(vocab_size, [gguf.integer(key) for key in named if gguf.has(key)])
        for named in (["tokenizer.ggml.bos_token_id"], ends)
    )
    layer_norm = keys.has("attention.layer_norm_epsilon")
    max_model_len = keys.size("context_length", MAX_CONTEXT)
    rope = rope_from_gguf(keys, head_size, max_model_len)
    num_experts = _num_experts(keys)
    expert_size = keys.size("expert_feed_forward_length", MAX_SIZE, 0, low=0)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=keys.size("block_count", MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=keys.size("attention.head_count_kv", MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=keys.size("feed_forward_length", MAX_SIZE, expert_size or None),
        vocab_size=vocab_size,
        max_model_len=_stretched(rope, max_model_len),
        norm_eps=keys.number(f"attention.layer_norm_{'' if layer_norm else 'rms_'}epsilon", 0.0, 1.0),
        rope=rope,
        tie_embeddings="output.weight" not in gguf.tensors,
        sliding_window=keys.size("attention.sliding_window", MAX_CONTEXT, 0, low=0) or None,
        attention_bias="blk.0.attn_q.bias" in gguf.tensors,
        output_bias="blk.0.attn_output.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_up.bias" in gguf.tensors,
        num_experts=num_experts,
        experts_per_token=keys.size("expert_used_count", MAX_EXPERTS, low=0) if num_experts else 0,
        expert_size=(expert_size or keys.size("feed_forward_length", MAX_SIZE)) if num_experts else 0,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
    )


def _num_experts(keys: Metadata) -> int:
    """Experts of each layer.

    Raises:
        InvalidModel: they are used in a way of their own.
    """
    count = keys.size("expert_count", MAX_EXPERTS, 0, low=0)
    if count:
        # Softmax of all scores, or (3) of those of the chosen, which is the former divided by its sum.
        known = {"expert_shared_count": (0,), "expert_gating_func": (0, 1, 3), "expert_weights_scale": (0, 1)}
        for key, values in known.items():
            if keys.number(key, -1e6, 1e6, 0) not in values:
                raise keys.gguf.error(f"{keys.prefix}.{key} is not supported")
    return count


def _stretched(rope: Rope, max_model_len: int) -> int:
    """The context that a model was made for: where yarn was added later, the file may still have the old one."""
    if rope.scaling != "yarn":
        return max_model_len
    return max(max_model_len, min(int(rope.original_max_model_len * rope.factor), MAX_CONTEXT))


def sliding_pattern(keys: Metadata, num_layers: int, default: int) -> tuple[bool, ...]:
    """Which layers have a window: a flag for each, or all but every n-th."""
    key = f"{keys.prefix}.attention.sliding_window_pattern"
    if keys.gguf.has(key) and keys.gguf.is_array(key):
        return tuple(bool(flag) for flag in keys.gguf.numbers(key)[:num_layers])
    period = keys.size("attention.sliding_window_pattern", MAX_LAYERS, default)
    return all_but_every(period, num_layers)


# ---------------------------------------------------------------- rotation


def rope_from_gguf(keys: Metadata, head_size: int, max_model_len: int) -> Rope:
    """The rotary embedding of all layers; divisors of its frequencies are tensors."""
    gguf = keys.gguf
    dim = keys.size("rope.dimension_count", head_size, head_size, low=2)
    if dim % 2:
        raise gguf.error(f"{keys.prefix}.rope.dimension_count {dim} is odd: numbers are rotated in pairs")
    theta = keys.number("rope.freq_base", 1.0, 1e12, 10000.0)
    kind = gguf.text(f"{keys.prefix}.rope.scaling.type", "none")
    original_len = keys.size("rope.scaling.original_context_length", MAX_CONTEXT, max(max_model_len, 2), low=2)
    amplitude = keys.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    if "rope_factors_long.weight" in gguf.tensors:
        return Rope(
            dim,
            theta,
            "longrope",
            max(max_model_len / original_len, 1.0),
            original_max_model_len=original_len,
            factors=_factors(gguf, "rope_factors_short.weight", dim),
            long_factors=_factors(gguf, "rope_factors_long.weight", dim),
            amplitude=amplitude,
        )
    if kind not in ("none", "linear", "yarn"):
        raise gguf.error(f"rope scaling {shown(kind)} is not supported, only none, linear and yarn")
    if "rope_freqs.weight" in gguf.tensors:
        return Rope(dim, theta, "factors", factors=_factors(gguf, "rope_freqs.weight", dim))
    if kind == "yarn":
        return _yarn(keys, dim, theta, original_len, amplitude)
    old_factor = keys.number("rope.scale_linear", 1.0, 1e4, 1.0)
    factor = keys.number("rope.scaling.factor", 1.0, 1e4, old_factor) if kind == "linear" else old_factor
    return Rope(dim, theta) if factor == 1.0 else Rope(dim, theta, "linear", factor)


def _factors(gguf: GGUF, name: str, dim: int) -> tuple[float, ...]:
    tensor = gguf.tensors.get(name)
    if tensor is None or tensor.encoding is not Encoding.F32 or tensor.shape != (1, dim // 2):
        raise gguf.error(f"{name} must hold {dim // 2} numbers as F32")
    values = tuple(tensor.raw.cast("f"))
    if not all(0.0 < value < math.inf for value in values):
        raise gguf.error(f"{name} must hold positive numbers")
    return values


def _yarn(keys: Metadata, dim: int, theta: float, original_len: int, amplitude: float) -> Rope:
    for key, usual in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if keys.number(f"rope.scaling.{key}", -1e6, 1e6, usual) not in (usual, -1.0):
            raise keys.gguf.error(f"{keys.prefix}.rope.scaling.{key} is not supported")
    factor = keys.number("rope.scaling.factor", 1.0, 1e4)
    fast = keys.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0)
    slow = keys.number("rope.scaling.yarn_beta_slow", 1e-3, fast, 1.0)
    if theta <= 1.0:
        raise keys.gguf.error(f"{keys.prefix}.rope.freq_base must be above 1 for yarn")
    own = keys.number("rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1.0)
    return Rope(
        dim,
        theta,
        "yarn",
        factor,
        original_max_model_len=original_len,
        beta_fast=fast,
        beta_slow=slow,
        amplitude=amplitude * own * yarn_amplitude(factor),
    )
