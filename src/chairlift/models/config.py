"""What a decoder-only model is made of, in numbers, read from a Hugging Face `config.json` or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.tensor import Encoding


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of `dim` numbers per head: angle of pair j at position p is `p * inv_freq()[j]`.

    `scaling` stretches the frequencies: `linear` divides all by `factor`; `llama3` divides the slow ones by `factor`,
    keeps the fast ones and blends between; `factors` divides pair j by `factors[j]` (what a GGUF file records
    for llama3).

    Source: Su et al. 2021, arXiv:2104.09864; linear, Chen et al. 2023, arXiv:2306.15595; llama3, the Llama 3.1 release.
    """

    dim: int
    theta: float
    scaling: Literal["none", "linear", "llama3", "factors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_model_len: int = 8192
    factors: tuple[float, ...] = ()

    def inv_freq(self) -> tuple[float, ...]:
        """Radians per position of each rotated pair, `[dim / 2]`, meant to be rounded to float32 once."""
        plain = [self.theta ** (-2 * j / self.dim) for j in range(self.dim // 2)]
        match self.scaling:
            case "none":
                return tuple(plain)
            case "linear":
                return tuple(freq / self.factor for freq in plain)
            case "factors":
                return tuple(freq / factor for freq, factor in zip(plain, self.factors, strict=True))
            case "llama3":
                return tuple(self._llama3(freq) for freq in plain)

    def _llama3(self, freq: float) -> float:
        """Pairs that turn often within the original context keep their frequency, slow ones are stretched."""
        turns = self.original_max_model_len * freq / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        return freq * keep + freq / self.factor * (1.0 - keep)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers that shape a model. `architecture` is the name of its family in `families.py`.

    `max_model_len` is the context it was made for, in tokens. `sliding_window` counts the current token.
    `sampling_defaults` are what its makers recommend, by the names of `SamplingParams`.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    rms_norm_eps: float
    rope: Rope
    tie_embeddings: bool = False
    sliding_window: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InvalidModel(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_size % 2:
            raise InvalidModel(f"head size {self.head_size} is odd: it cannot be rotated in pairs")
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None and not 0 <= token < self.vocab_size:
                raise InvalidModel(f"special token id {token} is outside the vocabulary of {self.vocab_size}")

    @property
    def q_size(self) -> int:
        """Numbers in the queries of one token, all heads."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Numbers in the keys (or the values) of one token, all heads."""
        return self.num_kv_heads * self.head_size


# ---------------------------------------------------------------- Hugging Face config.json


class Fields:
    """Typed, bounded reading of one JSON object; `where` begins every error line."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def error(self, message: str) -> InvalidModel:
        return InvalidModel(f"{self.where}: {message}")

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} must be an integer between {low} and {high}, not {shown(value)}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} must be a number between {low} and {high}, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def fields(self, key: str) -> Fields | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object")
        return Fields(value, f"{self.where}: {key}")

    def token_ids(self, key: str, max_count: int = 64) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; () if absent."""
        value = self._values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > max_count or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.error(f"{key} must be a token id or a list of at most {max_count}")
        return tuple(dict.fromkeys(ids))


MAX_SIZE = 1 << 24
"""Bound of hidden, intermediate and vocabulary sizes: anything above is a damaged file."""
MAX_LAYERS = 1 << 12
MAX_HEADS = 1 << 12
MAX_CONTEXT = 1 << 31


def config_from_json(values: Mapping[str, Any], architecture: str, where: str) -> ModelConfig:
    """A Llama-like model from its `config.json`; `architecture` is the family's name.

    Raises:
        InvalidModel: a field is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    fields = Fields(values, where)
    if fields.get("quantization_config") is not None:
        raise fields.error("checkpoints quantised for other engines (quantization_config) are not supported")
    activation = fields.get("hidden_act")
    if activation not in (None, "silu"):
        raise fields.error(f"hidden_act {shown(activation)} is not supported, only silu")
    if fields.flag("rope_interleaved", False):
        raise fields.error("rope_interleaved is not supported")
    hidden_size = fields.integer("hidden_size", 1, MAX_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    head_size = fields.integer("head_dim", 2, 4096, max(hidden_size // num_heads, 1))
    max_model_len = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, 2048)
    rope = _rope_from_json(fields, head_size, max_model_len)
    if rope.scaling == "linear":
        max_model_len = min(int(max_model_len * rope.factor), MAX_CONTEXT)
    window = None
    if fields.get("model_type") == "mistral" and values.get("sliding_window", 4096) is not None:
        window = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    bos = fields.token_ids("bos_token_id", 1)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_SIZE),
        vocab_size=fields.integer("vocab_size", 1, MAX_SIZE),
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        sliding_window=window,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _rope_from_json(fields: Fields, head_size: int, max_model_len: int) -> Rope:
    """The rotary embedding: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of older files."""
    scaling = fields.fields("rope_parameters") or fields.fields("rope_scaling") or Fields({}, fields.where)
    theta_source = scaling if scaling.get("rope_theta") is not None else fields
    theta = theta_source.number("rope_theta", 1.0, 1e12, 10000.0)
    for source in (fields, scaling):
        if source.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise fields.error("partial_rotary_factor is not supported")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(head_size, theta)
    if kind == "linear":
        return Rope(head_size, theta, "linear", scaling.number("factor", 1.0, 1e4))
    if kind == "llama3":
        low = scaling.number("low_freq_factor", 1e-3, 1e4)
        return Rope(
            head_size,
            theta,
            "llama3",
            scaling.number("factor", 1.0, 1e4),
            low,
            scaling.number("high_freq_factor", low * (1 + 1e-6), 1e6),
            scaling.integer("original_max_position_embeddings", 1, MAX_CONTEXT, max_model_len),
        )
    raise fields.error(f"rope type {shown(kind)} is not supported, only default, linear and llama3")


_SAMPLING_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")


def generation_defaults(values: Mapping[str, Any], where: str) -> tuple[tuple[int, ...], dict[str, float | int]]:
    """End-of-sequence ids and recommended sampling of a `generation_config.json`.

    Sampling is keyed by the names of `SamplingParams`; a checkpoint that says `do_sample: false` recommends
    nothing, since its other values are then unused.

    Raises:
        InvalidModel: a field of the wrong type or out of bounds.
    """
    fields = Fields(values, where)
    sampling: dict[str, float | int] = {}
    if fields.flag("do_sample", True):
        for key in _SAMPLING_NUMBERS:
            if fields.get(key) is not None:
                sampling[key] = fields.number(key, 0.0, 100.0)
        if fields.get("top_k") is not None:
            sampling["top_k"] = fields.integer("top_k", -1, MAX_SIZE)
    if fields.get("max_new_tokens") is not None:
        sampling["max_tokens"] = fields.integer("max_new_tokens", 1, MAX_CONTEXT)
    try:
        SamplingParams(**sampling)  # type: ignore[arg-type]
    except InvalidRequest as error:  # every request that says nothing itself would be refused
        raise fields.error(str(error)) from error
    return fields.token_ids("eos_token_id"), sampling


# ---------------------------------------------------------------- GGUF metadata


def config_from_gguf(gguf: GGUF, architecture: str) -> ModelConfig:
    """A Llama-like model from GGUF metadata; biases and a head of its own are seen from the tensors.

    Raises:
        InvalidModel: a key is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    prefix = gguf.text("general.architecture")

    def size(key: str, high: int, default: int | None = None) -> int:
        value = gguf.integer(f"{prefix}.{key}", default)
        if not 1 <= value <= high:
            raise gguf.error(f"{prefix}.{key} must be between 1 and {high}, not {value}")
        return value

    if gguf.integer(f"{prefix}.expert_count", 0):
        raise gguf.error("mixtures of experts are not supported")
    hidden_size = size("embedding_length", MAX_SIZE)
    num_heads = size("attention.head_count", MAX_HEADS)
    head_size = size("attention.key_length", 4096, max(hidden_size // num_heads, 1))
    if size("attention.value_length", 4096, head_size) != head_size:
        raise gguf.error("keys and values of different sizes are not supported")
    if size("rope.dimension_count", 4096, head_size) != head_size:
        raise gguf.error("rotating only a part of each head is not supported")
    embed = gguf.tensors.get("token_embd.weight")
    if embed is None:
        raise gguf.error("tensor token_embd.weight is missing")
    eps = gguf.number(f"{prefix}.attention.layer_norm_rms_epsilon")
    if not 0.0 <= eps <= 1.0:
        raise gguf.error(f"{prefix}.attention.layer_norm_rms_epsilon must be between 0 and 1")
    vocab_size = size("vocab_size", MAX_SIZE, embed.rows)
    for name in ("tokens", "token_type", "scores"):
        key = f"tokenizer.ggml.{name}"
        if gguf.has(key) and gguf.num_elements(key) != vocab_size:
            raise gguf.error(f"{key} has {gguf.num_elements(key)} entries for a vocabulary of {vocab_size}")
    window = f"{prefix}.attention.sliding_window"
    ends = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    bos = "tokenizer.ggml.bos_token_id"
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=size("block_count", MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=size("attention.head_count_kv", MAX_HEADS, num_heads),
        head_size=head_size,
        intermediate_size=size("feed_forward_length", MAX_SIZE),
        vocab_size=vocab_size,
        max_model_len=size("context_length", MAX_CONTEXT),
        rms_norm_eps=eps,
        rope=_rope_from_gguf(gguf, prefix, head_size),
        tie_embeddings="output.weight" not in gguf.tensors,
        sliding_window=(gguf.integer(window) or None) if gguf.has(window) else None,
        attention_bias="blk.0.attn_q.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_up.bias" in gguf.tensors,
        bos_token_id=gguf.integer(bos) if gguf.has(bos) else None,
        eos_token_ids=tuple(dict.fromkeys(gguf.integer(key) for key in ends if gguf.has(key))),
    )


def _rope_from_gguf(gguf: GGUF, prefix: str, head_size: int) -> Rope:
    theta = gguf.number(f"{prefix}.rope.freq_base", 10000.0)
    if not 1.0 <= theta <= 1e12:
        raise gguf.error(f"{prefix}.rope.freq_base must be between 1 and 1e12")
    kind = gguf.text(f"{prefix}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise gguf.error(f"rope scaling {shown(kind)} is not supported, only none and linear")
    factors = gguf.tensors.get("rope_freqs.weight")
    if factors is not None:
        if factors.encoding is not Encoding.F32 or factors.shape != (1, head_size // 2):
            raise gguf.error(f"rope_freqs.weight must hold {head_size // 2} numbers as F32")
        values = tuple(factors.raw.cast("f"))
        if not all(0.0 < value < math.inf for value in values):
            raise gguf.error("rope_freqs.weight must hold positive numbers")
        return Rope(head_size, theta, "factors", factors=values)
    old_factor = gguf.number(f"{prefix}.rope.scale_linear", 1.0)
    factor = gguf.number(f"{prefix}.rope.scaling.factor", old_factor) if kind == "linear" else old_factor
    if not 1.0 <= factor <= 1e4:
        raise gguf.error(f"rope scaling factor {factor} is not between 1 and 10000")
    return Rope(head_size, theta) if factor == 1.0 else Rope(head_size, theta, "linear", factor)
