"""An open model: its numbers and its mapped weights, from either file format."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chairlift.models.config import ModelConfig
from chairlift.models.families import family_of_gguf, family_of_json
from chairlift.models.files import exists, read_config, shown
from chairlift.models.generation import generation_defaults
from chairlift.models.gguf import GGUF, open_gguf
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


def open_model(files: ModelFiles) -> Model:
    """Map a model's files and check them against each other; no weight is read yet.

    Raises:
        InvalidModel: the files are malformed, contradict each other, or hold a model that is not supported.
    """
    return _open_gguf_model(files) if files.kind == "gguf" else _open_folder(files)


def _open_gguf_model(files: ModelFiles) -> Model:
    gguf = open_gguf(files.path)
    family = family_of_gguf(gguf)
    config = replace(family.read_gguf(gguf), sampling_defaults=files.sampling_defaults)
    weights = weights_from_gguf(family, config, gguf.tensors, shown(files.path))
    return Model(files.name, config, weights, files, gguf)


def _open_folder(files: ModelFiles) -> Model:
    path = files.path / "config.json"
    values = read_config(path)
    family = family_of_json(values, shown(path))
    config = family.read_json(values, shown(path))
    generation_path = files.path / "generation_config.json"
    if exists(generation_path):
        generation = read_config(generation_path)
        eos_token_ids, sampling = generation_defaults(generation, shown(generation_path))
        config = replace(config, eos_token_ids=eos_token_ids or config.eos_token_ids, sampling_defaults=sampling)
    scheme = read_scheme(values, shown(path))
    stored = open_safetensors_folder(files.path)
    if scheme is not None:
        stored = with_scales(stored, scheme)
    weights = weights_from_hf(family, config, stored, shown(files.path))
    return Model(files.name, config, weights, files)
