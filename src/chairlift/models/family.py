"""What a model family is: how its files declare it, and how its configs are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.fields import Fields
from chairlift.models.gguf import GGUF
from chairlift.models.gguf_config import Metadata, config_from_gguf
from chairlift.models.hf_config import config_from_json
from chairlift.models.layout import Weight, decoder_weights

FromJson = Callable[[Fields, ModelConfig], ModelConfig]
FromGGUF = Callable[[Metadata, ModelConfig], ModelConfig]
Renamed = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _nothing_from_json(_: Fields, config: ModelConfig) -> ModelConfig:
    return config


def _nothing_from_gguf(_: Metadata, config: ModelConfig) -> ModelConfig:
    return config


def _as_it_is(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model: the names by which files declare it, what its config says beyond Llama's, and its weights.

    `defaults` are what its `config.json` means where it says nothing, by the names that it has there; `from_json` and
    `from_gguf` add what only this family has to a config read as a Llama's.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    weights: tuple[Weight, ...] = decoder_weights()
    hf_wrappers: tuple[str, ...] = ()
    """Models for texts and pictures whose text part is of this family; the rest of them is not opened."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_experts: bool = False
    """Whether its files may hold mixtures of experts."""
    partial_rotation: bool = False
    """Whether its `partial_rotary_factor` means anything: the original code of the others does not look at it."""
    renamed: Renamed = _as_it_is
    """Its `config.json` with the fields' usual names."""
    from_json: FromJson = _nothing_from_json
    from_gguf: FromGGUF = _nothing_from_gguf
    hf_prefix: str = ""
    """What its tensors' names begin with in some checkpoints and not in others."""
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
        values = self.renamed({**self.defaults, **values})
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
        if config.num_experts and not self.has_experts:
            raise gguf.error(f"mixtures of experts are not supported for {self.name}")
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
