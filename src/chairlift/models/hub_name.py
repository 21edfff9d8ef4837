"""Names of models on a hub: `org/name`, `org/name@revision`, `org/name:Q4_K_M`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

DEFAULT_REVISION = "main"

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
_PATTERN = re.compile(r"[\w*?\[\]][\w.*?\[\]+-]*(?:/[\w*?\[\]][\w.*?\[\]+-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_PART_LEN = 200


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, a branch, tag or commit of it, and which of its GGUF files, if it is one of those."""

    repo: str
    revision: str = DEFAULT_REVISION
    pattern: str | None = None

    @property
    def model_name(self) -> str:
        """What clients call it: a kind of file is a part of the name, a single file and the revision are not."""
        is_file = self.pattern is None or self.pattern.lower().endswith(".gguf")
        return self.repo if is_file else f"{self.repo}:{self.pattern}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return is_commit(self.revision)

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{revision}{'' if self.pattern is None else ':' + self.pattern}"


def is_commit(revision: str) -> bool:
    """Whether this is the whole hash of a commit."""
    return _COMMIT.fullmatch(revision) is not None


def parse_hub_name(text: str) -> HubName | None:
    """`org/name[@revision][:pattern]`; None for anything else, among it everything that would lead out of a folder."""
    rest, colon, pattern = text.partition(":")
    repo, at, revision = rest.partition("@")
    if (colon and not _is(_PATTERN, pattern)) or (at and not _is(_REVISION, revision)):
        return None
    # Repositories are folders of the cache by name, where `--` stands for the slash.
    if not _is(_REPO, repo) or "--" in repo or repo.endswith((".git", "-", ".")) or repo.lower().endswith(".gguf"):
        return None
    return HubName(repo, revision if at else DEFAULT_REVISION, pattern if colon else None)


def _is(form: re.Pattern[str], part: str) -> bool:
    return len(part) <= MAX_PART_LEN and ".." not in part and form.fullmatch(part) is not None


def with_revision(name: HubName, revision: str) -> HubName | None:
    """The same at another revision; None if that is none."""
    return replace(name, revision=revision) if _is(_REVISION, revision) else None
