"""Models that were got from a hub, in the cache that all programs share.

    models--org--name/refs/main                     the commit of a branch or tag
    models--org--name/snapshots/COMMIT/config.json  its files, which are links
    models--org--name/blobs/ETAG                    to what they hold

Source: huggingface_hub, "Understand caching".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub.constants

from chairlift.core.errors import InvalidModel
from chairlift.models.files import exists, read_bytes, read_json
from chairlift.models.hub_files import SINGLE_WEIGHTS, WEIGHTS_INDEX, gguf_models, gguf_parts, has_safetensors
from chairlift.models.hub_name import HubName, is_commit

PARTIAL = ".chairlift.incomplete"
"""How the name of a file ends of which only the beginning came."""
MAX_FILES = 10_000
"""Files of a snapshot that are looked at."""


def cache_folder() -> Path:
    """Where the cache lies, as the environment says."""
    return Path(huggingface_hub.constants.HF_HUB_CACHE)


def is_offline() -> bool:
    """Whether the environment forbids to ask the hub (HF_HUB_OFFLINE)."""
    return bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def repo_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def commit_of(cache: Path, name: HubName) -> str | None:
    """The commit that a revision was when it was last asked for; None if it never was."""
    if name.is_pinned:
        return name.revision
    path = repo_folder(cache, name.repo) / "refs" / name.revision
    if not exists(path):
        return None
    commit = read_bytes(path, 100).decode("ascii", "replace").strip()
    return commit if is_commit(commit) else None


def snapshot_of(cache: Path, name: HubName) -> Path | None:
    """The folder with the files of a model; None if nothing of it is there."""
    commit = commit_of(cache, name)
    if commit is None:
        return None
    folder = repo_folder(cache, name.repo) / "snapshots" / commit
    return folder if folder.is_dir() else None


def model_path(snapshot: Path, name: HubName) -> Path:
    """The folder or GGUF file to open.

    Raises:
        InvalidModel: not all of it is there, or it is not clear which file is meant.
    """
    files = list_files(snapshot)
    if name.pattern is None and has_safetensors(files):
        missing = missing_files(snapshot, set(files))
        if missing:
            raise InvalidModel(f"{name}: {missing[0]} is not in the cache")
        return snapshot
    if name.pattern is None and "config.json" in files and not gguf_models(files):
        raise InvalidModel(f"{name}: {SINGLE_WEIGHTS} is not in the cache")
    return snapshot / gguf_parts(files, name.pattern, name.repo)[0]


def missing_files(snapshot: Path, files: set[str]) -> list[str]:
    """What a folder with safetensors still lacks, of what its own files say it has."""
    wanted = ["config.json"]
    if SINGLE_WEIGHTS not in files:
        wanted += weight_files(snapshot / WEIGHTS_INDEX)
    return [file for file in wanted if file not in files]


def weight_files(index: Path) -> list[str]:
    """The safetensors files that an index lists, in order.

    Raises:
        InvalidModel: it lists none, or something that is no such file beside it.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidModel(f"{index.name}: weight_map must be an object of names")
    files = {str(file) for file in weight_map.values()}
    for file in files:
        if "/" in file or "\\" in file or not file.endswith(".safetensors"):
            raise InvalidModel(f"{index.name}: names a file that is not one of safetensors beside it")
    return sorted(files)


def list_files(snapshot: Path) -> list[str]:
    """Names of the files in a snapshot, with slashes, in order; links that lead nowhere are left out."""
    found = []
    for folder, _, names in os.walk(snapshot):
        found += [Path(folder, name) for name in names]
        if len(found) > MAX_FILES:
            break
    return sorted(path.relative_to(snapshot).as_posix() for path in found if path.is_file())


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A snapshot in the cache. `revisions` are the branches and tags that were asked for and are this commit."""

    repo: str
    commit: str
    revisions: tuple[str, ...]
    snapshot: Path

    @property
    def name(self) -> str:
        """How to name it: by what was asked for, or by the commit if that is another by now."""
        revision = "main" if "main" in self.revisions else next(iter(self.revisions), self.commit)
        return str(HubName(self.repo, revision))


def begun_models(cache: Path) -> Iterator[tuple[str, int]]:
    """Repositories of which a file came in part, by name, and how many bytes of such files are there."""
    for folder in sorted(cache.glob("models--*--*")):
        sizes = [path.stat().st_size for path in folder.glob(f"blobs/*{PARTIAL}")]
        if sizes:
            yield _repo_of(folder), sum(sizes)


def _repo_of(folder: Path) -> str:
    return folder.name.removeprefix("models--").replace("--", "/", 1)


def cached_models(cache: Path) -> Iterator[CachedModel]:
    """All snapshots of models in the cache, in the order of their names."""
    for folder in sorted(cache.glob("models--*--*")):
        repo = _repo_of(folder)
        refs: dict[str, list[str]] = {}
        for path in sorted((folder / "refs").rglob("*")):
            if path.is_file():
                revision = path.relative_to(folder / "refs").as_posix()
                refs.setdefault(commit_of(cache, HubName(repo, revision)) or "", []).append(revision)
        for snapshot in sorted((folder / "snapshots").glob("*")):
            if is_commit(snapshot.name) and snapshot.is_dir():
                yield CachedModel(repo, snapshot.name, tuple(refs.get(snapshot.name, ())), snapshot)
