"""The models on this machine that have names: installed packages, and what was got from a hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.errors import InvalidModel
from chairlift.models.hub_cache import CachedModel, begun_models, cached_models, list_files, model_path, repo_folder
from chairlift.models.hub_files import gguf_models, has_safetensors
from chairlift.models.hub_name import HubName
from chairlift.models.resolve import PACKAGES, ModelFiles, installed_paths
from chairlift.models.summary import ModelSummary, summarize


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by the name under which it is served; `summary` is None where it is not whole yet, as `note` says."""

    name: str
    source: str
    path: Path
    file_bytes: int
    summary: ModelSummary | None = None
    note: str | None = None


def inventory(cache: Path) -> Iterator[Entry]:
    """Packages, then the models in a hub's cache, by name, then those that are still coming."""
    for package in PACKAGES:
        paths = installed_paths(package)
        if len(paths) == 1:
            files = ModelFiles(package.name, paths[0], "folder" if paths[0].is_dir() else "gguf")
            yield _entry(package.name, "package", files)
        elif paths:
            size = sum(path.stat().st_size for path in paths)
            yield Entry(package.name, "package", paths[0], size, None, "in pieces until it is first used")
    for cached in cached_models(cache):
        yield from _of_repository(cached)
    for repo, num_bytes in begun_models(cache):
        yield Entry(repo, "hub", repo_folder(cache, repo), num_bytes, None, f"begun: chairlift pull {repo} goes on")


def _of_repository(cached: CachedModel) -> Iterator[Entry]:
    """A folder, or each of its GGUF files; nothing for repositories of which there is neither."""
    files = list_files(cached.snapshot)
    name = HubName(cached.repo)
    if has_safetensors(files):
        try:
            path = model_path(cached.snapshot, name)
        except InvalidModel as error:
            note = f"{str(error).removeprefix(f'{name}: ')}: chairlift pull {cached.name}"
            yield Entry(cached.name, "hub", cached.snapshot, 0, None, note)
        else:
            yield _entry(cached.name, "hub", ModelFiles(cached.repo, path, "folder"))
    models = gguf_models(files)
    for model, parts in models.items():
        shown = f"{cached.name}:{model}" if len(models) > 1 or has_safetensors(files) else cached.name
        yield _entry(shown, "hub", ModelFiles(cached.repo, cached.snapshot / parts[0], "gguf"))


def _entry(name: str, source: str, files: ModelFiles) -> Entry:
    summary = summarize(files)
    return Entry(name, source, files.path, summary.file_bytes, summary, summary.problem)
