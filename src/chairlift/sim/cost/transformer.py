"""The sizes of a model that decide what a step costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.models.fields import MAX_HEADS, MAX_LAYERS, MAX_SIZE, Fields
from chairlift.models.files import read_json, shown


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder with dense or grouped-query attention (`num_kv_heads` below `num_heads`)."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    num_mlp_matrices: int = 3
    """Three with a gate, two without."""
    tie_embeddings: bool = False

    @property
    def num_body_parameters(self) -> int:
        """Of all layers: what every token is multiplied by."""
        attention = self.hidden_size * self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = self.num_mlp_matrices * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp)

    @property
    def num_head_parameters(self) -> int:
        """What the rows that sample are multiplied by."""
        return self.hidden_size * self.vocab_size

    @property
    def num_parameters(self) -> int:
        """All that lies in memory."""
        return self.num_body_parameters + self.num_head_parameters * (1 if self.tie_embeddings else 2)

    @property
    def num_kv_numbers(self) -> int:
        """Numbers that the cache keeps for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size

    @property
    def num_pair_flops(self) -> int:
        """Operations for one (query, key) pair, in all layers."""
        return 4 * self.num_layers * self.num_heads * self.head_size


def _opt(name: str, num_layers: int, hidden_size: int, num_heads: int) -> Transformer:
    head_size = hidden_size // num_heads
    sizes = (num_layers, hidden_size, num_heads, num_heads, head_size, 4 * hidden_size, 50_272)
    return Transformer(name, *sizes, num_mlp_matrices=2, tie_embeddings=True)


_ALL = (
    Transformer("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128_256),
    Transformer("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128_256),
    Transformer("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128_256),
    Transformer("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128_256),
    Transformer("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128_256, tie_embeddings=True),
    Transformer("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128_256, tie_embeddings=True),
    Transformer("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32_000),
    Transformer("llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32_000),
    Transformer("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32_000),
    Transformer("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32_000),
    Transformer("yi-34b", 60, 7168, 56, 8, 128, 20480, 64_000),
    Transformer("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151_936),
    Transformer("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151_936),
    Transformer("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151_936),
    Transformer("falcon-180b", 80, 14848, 232, 8, 64, 59392, 65_024, num_mlp_matrices=2, tie_embeddings=True),
    _opt("opt-13b", 40, 5120, 40),
    _opt("opt-66b", 64, 9216, 72),
    _opt("opt-175b", 96, 12288, 96),
    Transformer("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, tie_embeddings=True),
)
MODELS: Mapping[str, Transformer] = MappingProxyType({model.name: model for model in _ALL})
"""By name."""


def transformer_named(name: str) -> Transformer:
    """A model of the table, whatever the case, or what the `config.json` at a path (or in a folder) says.

    Raises:
        InvalidOption: neither is there.
        InvalidModel: the file is not such a configuration.
    """
    model = MODELS.get(name.lower())
    if model is not None:
        return model
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise InvalidOption(f"no such model: {name!r}; give a config.json, or one of {', '.join(MODELS)}")
    return transformer_from_json(read_json(path), path.resolve().parent.name, shown(path))


def transformer_from_json(values: Mapping[str, Any], name: str, where: str) -> Transformer:
    """The sizes in a Hugging Face `config.json`, of any decoder that uses the usual names for them.

    Raises:
        InvalidModel: a size is missing or out of bounds, or the model is none that this can describe.
    """
    fields = Fields(values, where)
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank"):
        if fields.get(key):
            raise fields.error(f"{key}: only dense models with dense or grouped-query attention are described")
    hidden_size = fields.integer("hidden_size", 1, MAX_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    old = fields.get("ffn_dim") is not None  # OPT's names
    gated = fields.get("intermediate_size") is not None and fields.get("model_type") not in _UNGATED
    key = "ffn_dim" if old else "intermediate_size"
    num_kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise InvalidModel(f"{where}: {num_heads} heads cannot share {num_kv_heads} key/value heads evenly")
    return Transformer(
        name,
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=fields.integer("head_dim", 1, 4096, max(hidden_size // num_heads, 1)),
        intermediate_size=fields.integer(key, 1, MAX_SIZE, 4 * hidden_size),
        vocab_size=fields.integer("vocab_size", 1, MAX_SIZE),
        num_mlp_matrices=3 if gated else 2,
        tie_embeddings=fields.flag("tie_word_embeddings", old),
    )


_UNGATED = {"gpt_neox", "gpt_bigcode", "starcoder2", "phi", "falcon", "gptj", "bloom"}
"""Kinds of model whose MLP has two matrices although they name its size as those with a gate do."""
