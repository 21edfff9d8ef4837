"""Getting a model from a hub: only the files it is made of, each checked against the hash that the hub names.

The hub is asked, and its cache kept, through huggingface_hub. Bytes are copied here, into the place that the cache has
for them: so a download that was cut off goes on where it stopped, also in another process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors as hub_errors
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown, shown_bytes
from chairlift.models.hub_cache import (
    PARTIAL,
    cache_folder,
    is_offline,
    model_path,
    repo_folder,
    snapshot_of,
    weight_files,
)
from chairlift.models.hub_files import SINGLE_WEIGHTS, WEIGHTS_INDEX, gguf_parts, has_safetensors, small_files
from chairlift.models.hub_name import HubName, is_commit

CHUNK_BYTES = 1 << 20
NUM_RETRIES = 5
"""Tries after which nothing came before it is given up; each that brings something starts the count anew."""
FIRST_WAIT_S = 1.0
"""Before the second try; twice that before the next, and so on."""
ANSWER_TIMEOUT_S = 20.0
"""How long the hub may take to say anything, or between two pieces of a file."""
MAX_COPIED_BYTES = 50 * 10**9
"""Larger files are left to huggingface_hub: the hub gives them out in pieces only."""
SPARE_BYTES = 64 << 20
"""Left free on the disk."""

_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "merges.txt"})
_ETAG = re.compile(r"[A-Za-z0-9][\w-]{7,127}", re.ASCII)
_PART = re.compile(r"bytes +(\d{1,15})-", re.ASCII)
_BUSY = (408, 429, 500, 502, 503, 504)

# Asking for a model tells nobody more than that; the library would first ask its makers whom to tell of.
huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True

# What its HTTP client raises: the client's package has changed its name between releases, this name has not.
_ClientError: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]


Progress = Callable[[int, int], None]
"""`progress(done_bytes, total_bytes)`; with equal numbers once, at the end."""


def pull(
    name: HubName,
    show: Callable[[str], Progress],
    sleep: Callable[[float], None] = time.sleep,
    *,
    text_only: bool = False,
) -> tuple[HubName, Path]:
    """Get what is not in the cache yet: the name of exactly this commit (and file), and its folder or GGUF file.

    Without a network, in offline mode, what the cache has of the model is taken. With `text_only` what turns text into
    tokens is enough: of a folder that has it no weights are got, and the cache does not remember it as the model.

    Raises:
        InvalidModel: there is no such model, it may not be had, or it could not be got; one line that says which.
    """
    cache = cache_folder()
    if is_offline():
        return _cached(cache, name)
    with _explained(name):
        hub = _Hub(name, cache, sleep)
        listing = hub.listing()
        pinned = replace(name, revision=listing.commit)
        if text_only and name.pattern is None and not _TOKENIZERS.isdisjoint(listing.files):
            hub.get(small_files(listing.files), listing, show(name.repo))
            return pinned, repo_folder(cache, name.repo) / "snapshots" / listing.commit
        if name.pattern is None and has_safetensors(listing.files):
            files = small_files(listing.files)
            if SINGLE_WEIGHTS in listing.files:
                files.append(SINGLE_WEIGHTS)
            else:
                hub.get([WEIGHTS_INDEX], listing, lambda *_: None)
                snapshot = repo_folder(cache, name.repo) / "snapshots" / listing.commit
                files += weight_files(snapshot / WEIGHTS_INDEX)
        else:
            files = gguf_parts(listing.files, name.pattern, name.repo)
            pinned = pinned if name.pattern is not None else replace(pinned, pattern=files[0])
        hub.get(files, listing, show(name.repo))
        hub.remember(listing.commit)
    found = snapshot_of(cache, pinned)
    if found is None:
        raise InvalidModel(f"{name}: its files are not where the cache should have them")
    return pinned, model_path(found, pinned)


def _cached(cache: Path, name: HubName) -> tuple[HubName, Path]:
    snapshot = snapshot_of(cache, name)
    if snapshot is None:
        raise InvalidModel(f"{name} is not in the cache ({shown(cache)}), and HF_HUB_OFFLINE forbids to get it")
    return replace(name, revision=snapshot.name), model_path(snapshot, name)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the hub. `etag` is the name of what it holds: SHA-256, or what git calls a small file."""

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository has at a commit."""

    commit: str
    files: dict[str, RemoteFile]


class _Hub:
    """One model of the hub that the environment names."""

    def __init__(self, name: HubName, cache: Path, sleep: Callable[[float], None]) -> None:
        self._name = name
        self._folder = repo_folder(cache, name.repo)
        self._cache = cache
        self._sleep = sleep

    def listing(self) -> Listing:
        info = huggingface_hub.HfApi().model_info(
            self._name.repo, revision=self._name.revision, files_metadata=True, timeout=ANSWER_TIMEOUT_S
        )
        if info.sha is None or not is_commit(info.sha) or info.siblings is None:
            raise InvalidModel(f"{_host()} does not say which files {self._name} has")
        files = {}
        for file in info.siblings:
            etag = file.blob_id if file.lfs is None else file.lfs.sha256
            files[file.rfilename] = RemoteFile(file.size or 0, str(etag))
        return Listing(info.sha, files)

    def get(self, files: list[str], listing: Listing, progress: Progress) -> None:
        """Bring files into the cache; those that it has are not asked for again.

        Raises:
            InvalidModel: one is not there, or did not come whole, or the disk has no room.
        """
        snapshot = self._folder / "snapshots" / listing.commit
        for file in files:
            if file not in listing.files:
                raise InvalidModel(f"{self._name}: {shown(file)} is not in the repository")
        lacking = [file for file in files if not (snapshot / file).is_file()]
        if not lacking:
            return
        copies = [_Copy(self._folder / "blobs", listing.files[file], self._url(file, listing)) for file in lacking]
        self._check_space(sum(copy.lacking_bytes for copy in copies))
        before, total_bytes = 0, max(sum(copy.file.size for copy in copies), 1)
        for file, copy in zip(lacking, copies, strict=True):
            if copy.is_possible:
                copy.run(_after(before, total_bytes, progress), self._sleep)
            # What was copied is only linked by this; what could not be is brought by it.
            huggingface_hub.hf_hub_download(self._name.repo, file, revision=listing.commit, cache_dir=self._cache)
            before += copy.file.size
        progress(total_bytes, total_bytes)

    def remember(self, commit: str) -> None:
        """That this is the commit of the revision, now that it is there as a whole."""
        if self._name.is_pinned:
            return
        ref = self._folder / "refs" / self._name.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f".{ref.name}.{os.getpid()}")
        fresh.write_text(commit)
        fresh.replace(ref)

    def _url(self, file: str, listing: Listing) -> str:
        return huggingface_hub.hf_hub_url(self._name.repo, file, revision=listing.commit)

    def _check_space(self, num_bytes: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if num_bytes + SPARE_BYTES > free:
            raise InvalidModel(
                f"{self._name}: {shown_bytes(num_bytes)} are to be got and {shown_bytes(SPARE_BYTES)} left, but "
                f"{shown(self._cache)} has {shown_bytes(free)} free (HF_HUB_CACHE names another place)"
            )


def _after(before: int, total_bytes: int, progress: Progress) -> Callable[[int], None]:
    """Tells the progress of one file as that of all, whose end is told when they are in their places."""
    return lambda done_bytes: progress(min(before + done_bytes, total_bytes - 1), total_bytes)


# ---------------------------------------------------------------- one file


class _Copy:
    """A file on its way into the cache. What came so far lies beside the others under a name of its own."""

    def __init__(self, blobs: Path, file: RemoteFile, url: str) -> None:
        self.file = file
        self._url = url
        self.is_possible = _ETAG.fullmatch(file.etag) is not None and file.size <= MAX_COPIED_BYTES
        self._blob = blobs / file.etag if self.is_possible else blobs
        self._partial = blobs / f"{file.etag}{PARTIAL}" if self.is_possible else blobs

    @property
    def lacking_bytes(self) -> int:
        """What is still to come."""
        if self.is_possible and self._blob.exists():
            return 0
        done = self._partial.stat().st_size if self.is_possible and self._partial.exists() else 0
        return max(self.file.size - done, 0)

    def run(self, progress: Callable[[int], None], sleep: Callable[[float], None]) -> None:
        """Bring it into its place, unless it is there. Whoever comes second waits for the first.

        Raises:
            InvalidModel: it came, but is another than it should be.
        """
        self._blob.parent.mkdir(parents=True, exist_ok=True)
        with self._partial.open("a+b") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            if self._blob.exists():
                self._partial.unlink(missing_ok=True)
                return
            self._fill(out, progress, sleep)
            out.flush()
            if not _is_whole(out, self.file):
                self._partial.unlink(missing_ok=True)
                raise InvalidModel(f"{shown(self._url)}: what came is not what the hub says it is: try again")
            self._partial.replace(self._blob)

    def _fill(self, out: BinaryIO, progress: Callable[[int], None], sleep: Callable[[float], None]) -> None:
        num_failed = 0
        begun = out.seek(0, os.SEEK_END)
        if begun > self.file.size:
            out.truncate(begun := 0)
        furthest = begun
        while begun != self.file.size:
            try:
                self._receive(out, begun, progress)
                begun = out.seek(0, os.SEEK_END)
                if begun < self.file.size:
                    raise ConnectionError("the answer ended early")
                return  # too much too, whose hash will not agree
            except (_ClientError, ConnectionError) as error:
                begun = out.seek(0, os.SEEK_END)
                num_failed = 1 if begun > furthest else num_failed + 1
                furthest = max(furthest, begun)
                if num_failed > NUM_RETRIES or not _is_passing(error):
                    raise
                sleep(FIRST_WAIT_S * 2 ** (num_failed - 1))

    def _receive(self, out: BinaryIO, begun: int, progress: Callable[[int], None]) -> None:
        """Append what the server has from byte `begun` on; all of it, if it does not know parts."""
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        # A redirect to another host is followed without the token, as the client does by itself.
        with huggingface_hub.get_session().stream(
            "GET", self._url, headers=headers, timeout=ANSWER_TIMEOUT_S
        ) as response:
            if response.status_code == 416:
                out.truncate(0)
                raise ConnectionError("the server has less than what is here already")
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            part = _PART.match(response.headers.get("content-range", ""))
            if response.status_code != 206:
                out.truncate(begun := 0)
            elif part is not None and int(part[1]) > begun:
                raise ConnectionError("the server sends another part than was asked for")
            elif part is not None:
                out.truncate(begun := int(part[1]))
            for piece in response.iter_bytes():  # as they come: of larger ones the last would be lost in a cut
                out.write(piece)
                begun += len(piece)
                if begun > self.file.size:
                    return
                progress(begun)


def _is_whole(file: BinaryIO, expected: RemoteFile) -> bool:
    """Whether a file has the bytes that its name on the hub stands for; a name of another kind says nothing."""
    if len(expected.etag) == 64:
        digest = hashlib.sha256()
    elif len(expected.etag) == 40:
        digest = hashlib.sha1(b"blob %d\0" % expected.size, usedforsecurity=False)
    else:
        return os.fstat(file.fileno()).st_size == expected.size
    file.seek(0)
    while piece := file.read(CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest() == expected.etag


# ---------------------------------------------------------------- what went wrong


def _is_passing(error: Exception) -> bool:
    """Whether it may be better in a second."""
    return not isinstance(error, hub_errors.HfHubHTTPError) or error.response.status_code in _BUSY


@contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """Errors of the hub and of the way to it as one line for who asked."""
    try:
        yield
    except InvalidModel:
        raise
    except hub_errors.GatedRepoError as error:
        raise InvalidModel(
            f"{name.repo} is gated: ask for access at {_endpoint()}/{name.repo}, and put a token that has it "
            "into HF_TOKEN"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        hint = "the token in use does not open it" if _has_token() else "it is private, and HF_TOKEN is not set"
        raise InvalidModel(f"no file or folder {name.repo} here, and no such model at {_host()}, or {hint}") from error
    except hub_errors.RevisionNotFoundError as error:
        raise InvalidModel(f"{name.repo} has no revision {shown(name.revision)}") from error
    except hub_errors.LocalEntryNotFoundError as error:
        raise InvalidModel(f"{name} could not be got: {_host()} does not answer any more") from error
    except hub_errors.EntryNotFoundError as error:
        raise InvalidModel(f"{name}: a file is missing: {_first_line(error)}") from error
    except hub_errors.HfHubHTTPError as error:
        raise InvalidModel(f"{name} could not be got: {_refusal(error.response.status_code)}") from error
    except (_ClientError, ConnectionError) as error:
        reason = "no answer in time" if "Timeout" in type(error).__name__ else _first_line(error)
        raise InvalidModel(f"{name} could not be got: {_host()} cannot be reached: {reason}") from error
    except OSError as error:
        where = f" ({shown(error.filename)})" if error.filename else ""
        raise InvalidModel(f"{name} could not be got: {_first_line(error.strerror or error)}{where}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModel(f"{name} could not be got: {_host()} does not answer as a hub does") from error


def _refusal(status: int) -> str:
    match status:
        case 401:
            return f"{_host()} does not know the token in use (HF_TOKEN)"
        case 403:
            return f"{_host()} forbids it to the token in use (HF_TOKEN)"
        case 429:
            return f"{_host()} has had too many requests: wait a while, or set HF_TOKEN"
        case _:
            return f"{_host()} answers with status {status}"


def _has_token() -> bool:
    return huggingface_hub.get_token() is not None


def _endpoint() -> str:
    return shown(huggingface_hub.constants.ENDPOINT)


def _host() -> str:
    return shown(urlsplit(huggingface_hub.constants.ENDPOINT).netloc)


def _first_line(error: object) -> str:
    return shown(next(iter(str(error).splitlines()), "") or type(error).__name__)
