"""Which files of a repository a model is made of. Everything else there, code and pickles above all, is left alone."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown
from chairlift.models.gguf import PART_NAME

PREFERRED_GGUF = "Q4_K_M"
"""What is taken of several GGUF files where nothing is said: half a byte a number, hardly worse than eight bits."""
SINGLE_WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"

_TEXT_FILES = {
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
}
_DEEPER = re.compile(r"\d_[A-Za-z]+/config\.json|additional_chat_templates/[\w-]+\.jinja", re.ASCII)
"""How an encoder pools, and chat templates for particular uses."""
_SAFE = re.compile(r"[\w+][\w.+ -]*(?:/[\w+][\w.+ -]*)*", re.ASCII)
_NOT_TEXT_GGUF = re.compile(r"(?:^|[/._-])(?:mmproj|imatrix)", re.IGNORECASE)
"""What lies beside models for texts and pictures, and what quantisers measured."""
_MAX_LISTED = 12


def is_safe(file: str) -> bool:
    """Whether a name that a server sends may become a path below a folder."""
    return len(file) <= 200 and ".." not in file and _SAFE.fullmatch(file) is not None


def small_files(files: Iterable[str]) -> list[str]:
    """Config, tokenizer and chat template of a repository with safetensors, in order."""
    return sorted(file for file in files if is_safe(file) and _is_small(file))


def _is_small(file: str) -> bool:
    if "/" in file:
        return _DEEPER.fullmatch(file) is not None
    if file.endswith(".index.json"):
        return file == WEIGHTS_INDEX
    return file.endswith(".json") or file in _TEXT_FILES


def has_safetensors(files: Collection[str]) -> bool:
    return SINGLE_WEIGHTS in files or WEIGHTS_INDEX in files


def gguf_parts(files: Iterable[str], pattern: str | None, repo: str) -> list[str]:
    """The GGUF file that is meant, or all parts of one that is split, in order.

    `pattern` is a file, a pattern for one, or a part of its name between dots and hyphens, such as Q4_K_M.

    Raises:
        InvalidModel: none is meant, or several are.
    """
    models = gguf_models(files)
    if not models:
        raise InvalidModel(f"{repo} has no GGUF files")
    found = [model for model in models if pattern is None or _matches(models[model], model, pattern)]
    if pattern is None and len(found) > 1:
        found = [model for model in found if _matches(models[model], model, PREFERRED_GGUF)] or found
    if len(found) == 1:
        parts = models[found[0]]
        split = PART_NAME.fullmatch(parts[0])
        if split is not None and len(parts) != int(split[3]):
            raise InvalidModel(f"{repo}: {shown(found[0])} has {len(parts)} of {int(split[3])} parts")
        return parts
    listed = ", ".join(shown(model) for model in (found or list(models))[:_MAX_LISTED])
    more = len(found or models) - _MAX_LISTED
    listed += f" and {more} more" if more > 0 else ""
    if found:
        raise InvalidModel(f"{repo} has several GGUF files; name one, as in {repo}:{PREFERRED_GGUF}: {listed}")
    raise InvalidModel(f"{repo} has no GGUF file {shown(pattern)}, but {listed}")


def gguf_models(files: Iterable[str]) -> dict[str, list[str]]:
    """The files or parts of each model in GGUF files, in order, by a name without the number of a part."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and is_safe(file) and not _NOT_TEXT_GGUF.search(file):
            models.setdefault(_whole(file), []).append(file)
    return models


def _whole(file: str) -> str:
    """The name that all parts of a split file share; any other file's own."""
    part = PART_NAME.fullmatch(file)
    return file if part is None else f"{part[1]}.gguf"


def _matches(parts: list[str], model: str, pattern: str) -> bool:
    wanted, name = pattern.lower(), model.lower()
    if wanted in (name, *(part.lower() for part in parts)):
        return True
    if any(sign in wanted for sign in "*?["):
        return fnmatch.fnmatchcase(name, wanted) or fnmatch.fnmatchcase(name.rpartition("/")[2], wanted)
    ends = r"[/.-]"  # not the underscore: Q4_K is none of Q4_K_M
    return re.search(rf"(?:^|{ends}){re.escape(wanted)}(?:{ends}|$)", name) is not None
