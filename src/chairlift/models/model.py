"""An open model: its numbers and its mapped weights, from either file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chairlift.models.config import ModelConfig, tokens_within
from chairlift.models.families import family_of_gguf, family_of_json
from chairlift.models.family import Family
from chairlift.models.files import exists, read_config, shown
from chairlift.models.generation import generation_defaults
from chairlift.models.gguf import GGUF, open_gguf
from chairlift.models.prepared import METADATA, Prepared, open_metadata, prepared_weights, read_prepared
from chairlift.models.prequantized import read_scheme, with_scales
from chairlift.models.resolve import ModelFiles
from chairlift.models.safetensors import open_safetensors_folder
from chairlift.models.weights import Weights, weights_from_gguf, weights_from_hf


@dataclass(frozen=True, slots=True)
class Model:
    """A model on disk, mapped and checked; `gguf` has the metadata of a GGUF file (its tokenizer among them)."""

    name: str
    config: ModelConfig
    weights: Weights
    files: ModelFiles
    gguf: GGUF | None = None
    prepared: Prepared | None = None
    """What its weights are in already, if `chairlift quantize` wrote them."""


def open_model(files: ModelFiles) -> Model:
    """Map a model's files and check them against each other; no weight is read yet.

    Raises:
        InvalidModel: the files are malformed, contradict each other, or hold a model that is not supported.
    """
    if files.kind == "gguf":
        return _open_gguf_model(files)
    prepared = read_prepared(files.path)
    return _open_folder(files) if prepared is None else _open_prepared(files, prepared)


def _open_gguf_model(files: ModelFiles) -> Model:
    gguf = open_gguf(files.path)
    family = family_of_gguf(gguf)
    config = replace(family.read_gguf(gguf), sampling_defaults=files.sampling_defaults)
    weights = weights_from_gguf(family, config, gguf.tensors, shown(files.path))
    return Model(files.name, config, weights, files, gguf)


def _open_prepared(files: ModelFiles, prepared: Prepared) -> Model:
    if exists(files.path / METADATA):
        gguf = open_metadata(files.path, prepared)
        family = family_of_gguf(gguf)
        config = replace(family.read_gguf(gguf), sampling_defaults=prepared.sampling_defaults)
    else:
        gguf = None
        family, config, _ = _read_folder_config(files.path)
    return Model(files.name, config, prepared_weights(files.path, family, config), files, gguf, prepared)


def _open_folder(files: ModelFiles) -> Model:
    family, config, values = _read_folder_config(files.path)
    scheme = read_scheme(values, shown(files.path / "config.json"))
    stored = open_safetensors_folder(files.path)
    if scheme is not None:
        stored = with_scales(stored, scheme)
    weights = weights_from_hf(family, config, stored, shown(files.path))
    return Model(files.name, config, weights, files)


def _read_folder_config(folder: Path) -> tuple[Family, ModelConfig, Mapping[str, Any]]:
    """The family and config of a folder, and its `config.json`."""
    path = folder / "config.json"
    values = read_config(path)
    family = family_of_json(values, shown(path))
    config = family.read_json(values, shown(path))
    generation_path = folder / "generation_config.json"
    if exists(generation_path):
        generation = read_config(generation_path)
        eos_token_ids, sampling = generation_defaults(generation, shown(generation_path))
        ends = tokens_within(config.vocab_size, eos_token_ids) or config.eos_token_ids
        config = replace(config, eos_token_ids=ends, sampling_defaults=sampling)
    return family, config, values
