"""An open encoder: BERT and RoBERTa models that turn a text into a vector or into scores of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from chairlift.core.errors import InvalidModel
from chairlift.models.encoder_config import EncoderConfig, is_encoder, read_encoder_config
from chairlift.models.files import shown
from chairlift.models.resolve import ModelFiles
from chairlift.models.safetensors import open_safetensors_folder
from chairlift.models.tensor import Tensor
from chairlift.models.weights import Weights, bound, refuse_unexpected

Shape = tuple[int, int]

_UNUSED = (".position_ids", ".token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
"""Endings of tensor names that a checkpoint may carry and an embedding does not need. The first two are counters."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder on disk, mapped and checked."""

    name: str
    config: EncoderConfig
    weights: Weights
    files: ModelFiles


def holds_encoder(files: ModelFiles) -> bool:
    """Whether these are the files of an encoder, and not of a model that generates.

    Raises:
        InvalidModel: a `config.json` that cannot be read.
    """
    return files.kind == "folder" and is_encoder(files.path)


def open_encoder(files: ModelFiles) -> Encoder:
    """Map an encoder's files and check them against each other; no weight is read yet.

    Raises:
        InvalidModel: the files are malformed, contradict each other, or hold a model that is not supported.
    """
    if files.kind != "folder":
        raise InvalidModel(f"{shown(files.path)}: an encoder must be a folder with config.json and safetensors files")
    config = read_encoder_config(files.path)
    stored = open_safetensors_folder(files.path, _UNUSED[:2])
    if not any(name.startswith(config.prefix) for name in stored):
        config = replace(config, prefix="")  # saved without what the classifier would be on
    return Encoder(files.name, config, _bind(config, stored, shown(files.path)), files)


def _bind(config: EncoderConfig, stored: Mapping[str, Tensor], where: str) -> Weights:
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    for name, key, shape in weights_of(config):
        tensors[name] = bound(name, key, stored, shape, where)
        used.add(key)
    refuse_unexpected((key for key in stored if key not in used and not key.endswith(_UNUSED)), where)
    return Weights(tensors)


def weights_of(config: EncoderConfig) -> Iterator[tuple[str, str, Shape]]:
    """Every weight of an encoder: (canonical name, name in the file, (rows, cols))."""
    hidden, inner = config.hidden_size, config.intermediate_size
    embeddings = f"{config.prefix}embeddings."
    yield "embed", embeddings + "word_embeddings.weight", (config.vocab_size, hidden)
    yield "positions", embeddings + "position_embeddings.weight", (config.num_positions, hidden)
    yield "types", embeddings + "token_type_embeddings.weight", (config.num_types, hidden)
    yield from _norm("embed_norm", embeddings + "LayerNorm", hidden)
    for i in range(config.num_layers):
        name, layer = f"layers.{i}.", f"{config.prefix}encoder.layer.{i}."
        for part, key in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from _linear(name + part, f"{layer}attention.self.{key}", hidden, hidden)
        yield from _linear(name + "o", layer + "attention.output.dense", hidden, hidden)
        yield from _norm(name + "attn_norm", layer + "attention.output.LayerNorm", hidden)
        yield from _linear(name + "up", layer + "intermediate.dense", inner, hidden)
        yield from _linear(name + "down", layer + "output.dense", hidden, inner)
        yield from _norm(name + "mlp_norm", layer + "output.LayerNorm", hidden)
    if config.head == "bert":
        yield from _linear("pooler", config.prefix + "pooler.dense", hidden, hidden)
        yield from _linear("classifier", "classifier", config.num_outputs, hidden)
    elif config.head == "roberta":
        yield from _linear("pooler", "classifier.dense", hidden, hidden)
        yield from _linear("classifier", "classifier.out_proj", config.num_outputs, hidden)


def _linear(name: str, key: str, rows: int, cols: int) -> Iterator[tuple[str, str, Shape]]:
    """A matrix and its bias, one number for each row."""
    yield name, key + ".weight", (rows, cols)
    yield name + "_bias", key + ".bias", (1, rows)


def _norm(name: str, key: str, size: int) -> Iterator[tuple[str, str, Shape]]:
    """The scale and the shift of a normalisation, both of the same size."""
    yield name, key + ".weight", (1, size)
    yield name + "_bias", key + ".bias", (1, size)
