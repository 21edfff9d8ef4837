"""The file of API keys: who has which, and what they may.

    - name: chat                       # in logs, and for weights and limits
      key: sk-...                      # one or a list; or sha256: the digest of a key, in hexadecimal
      weight: 3                        # of the principal's share, under the fair order
      max_num_reqs: 32                 # in flight, waiting and running
      max_num_queued_reqs: 16
      max_num_queued_tokens: 100000
      max_reqs_per_minute: 600
      max_tokens_per_minute: 200000    # of prompts and answers
      routes: [/v1/chat/completions]   # all if it is left out
    - sk-...                           # a key by itself

It is YAML, so JSON will do. A digest is enough to let its key in, and whoever reads it cannot get in with it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from chairlift.core.allowances import OwnLimits
from chairlift.core.errors import InvalidOption
from chairlift.server.identity import Principal, named_principal, unnamed_principal

MAX_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 8
MAX_KEY_CHARS = 512

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELD = re.compile(r"[a-z_]{1,24}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_LIMITS = tuple(OwnLimits.__slots__)


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One principal as the file has it."""

    name: str
    key: str | list[str] | None = None
    sha256: str | list[str] | None = None
    weight: float = 1.0
    max_num_reqs: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_reqs_per_minute: int | None = None
    max_tokens_per_minute: int | None = None
    routes: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """What a file says."""

    principals: Mapping[bytes, Principal]
    """By the SHA-256 digest of a key."""
    limits: Mapping[str, OwnLimits]
    """By the principal's name."""
    weights: Mapping[str, float]
    """By the principal's name, where it is not 1."""
    is_exposed: bool = False
    """There are keys in it, not only digests, and others than its owner can read it."""


NO_KEYS = ApiKeys({}, {}, {})


def key_digest(key: bytes) -> bytes:
    """What is kept of a key, and compared."""
    return hashlib.sha256(key).digest()


def read_api_keys(path: str, others: Iterable[str] = ()) -> ApiKeys:
    """The keys in a file. `others` are keys for other purposes, which must not be in it.

    Raises:
        InvalidOption: it cannot be read, others may write it, or it says something that makes no sense. No key is
            ever part of the message.
    """
    text, mode = _read(path)
    entries = list(_entries(path, text))
    principals: dict[bytes, Principal] = {}
    limits: dict[str, OwnLimits] = {}
    weights: dict[str, float] = {}
    for place, entry in entries:
        if isinstance(entry, str):
            digest = key_digest(_checked_key(place, entry))
            _add(place, principals, digest, unnamed_principal(digest))
            continue
        principal = _principal(place, entry)
        if any(principal.name == known.name for known in principals.values()):
            raise InvalidOption(f"{place}: a second principal named {entry.name}: give one of them several keys")
        for digest in _digests(place, entry):
            _add(place, principals, digest, principal)
        given = {name: value for name in _LIMITS if (value := getattr(entry, name)) is not None}
        try:
            if given:
                limits[entry.name] = OwnLimits(**given)
        except InvalidOption as error:
            raise InvalidOption(f"{place}: {error}") from None
        if entry.weight != 1.0:
            weights[entry.name] = entry.weight
    if not principals:
        raise InvalidOption(f"{path}: there is no key in it")
    for other in others:
        if any(hmac.compare_digest(key_digest(other.encode()), digest) for digest in principals):
            raise InvalidOption(f"{path}: a key in it is an admin or metrics key as well")
    is_exposed = bool(mode & (stat.S_IRGRP | stat.S_IROTH)) and any(_has_keys(entry) for _, entry in entries)
    return ApiKeys(principals, limits, weights, is_exposed)


def _read(path: str) -> tuple[str, int]:
    """Its text and its mode, both of one and the same file."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read: {error.strerror or error}") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidOption(f"{path}: others may write it, so anybody may have put a key there: chmod go-w")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidOption(f"{path}: more than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8"), mode
    except UnicodeDecodeError:
        raise InvalidOption(f"{path}: not UTF-8") from None


def _entries(path: str, text: str) -> Iterator[tuple[str, Entry | str]]:
    """Each entry with the place it stands at."""
    content: Any
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)  # the rest of what YAML says repeats what is in the file
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise InvalidOption(f"{path}: not YAML{where}") from None
    if not isinstance(content, list):
        raise InvalidOption(f"{path}: must be a list of keys, or of principals with their keys")
    for number, one in enumerate(content, 1):
        place = f"{path}: entry {number}"
        if isinstance(one, str):
            yield place, one
            continue
        if isinstance(one, dict):
            _check_fields(place, one)
        try:
            yield place, msgspec.convert(one, Entry, strict=True)
        except msgspec.ValidationError as error:
            raise InvalidOption(f"{place}: {error}") from None


def _check_fields(place: str, fields: Mapping[Any, Any]) -> None:
    """Says which field is wrong only if it looks like one: it may be a key that got there."""
    known = Entry.__struct_fields__
    for name in fields:
        if name not in known:
            what = name if isinstance(name, str) and _FIELD.fullmatch(name) else "a field in it"
            raise InvalidOption(f"{place}: {what} is not known; these are: {', '.join(known)}")


def _principal(place: str, entry: Entry) -> Principal:
    if not _NAME.fullmatch(entry.name):
        raise InvalidOption(f"{place}: a name has 1 to 64 letters, digits, dots, hyphens and underscores")
    if not (0 < entry.weight < math.inf):
        raise InvalidOption(f"{place}: weight must be a finite number above 0")
    if entry.routes is not None and (not entry.routes or not all(one.startswith("/") for one in entry.routes)):
        raise InvalidOption(f"{place}: routes are paths such as /v1/chat/completions")
    return named_principal(entry.name, None if entry.routes is None else frozenset(entry.routes))


def _digests(place: str, entry: Entry) -> list[bytes]:
    """Of its keys, by themselves or as digests.

    Raises:
        InvalidOption: there is none, or one that is no key.
    """
    digests = [key_digest(_checked_key(place, key)) for key in _several(entry.key)]
    for text in _several(entry.sha256):
        if not _DIGEST.fullmatch(text):
            raise InvalidOption(f"{place}: sha256 must have 64 hexadecimal digits")
        digests.append(bytes.fromhex(text))
    if not digests:
        raise InvalidOption(f"{place}: key or sha256 is missing")
    return digests


def _several(given: str | list[str] | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else given


def _has_keys(entry: Entry | str) -> bool:
    return isinstance(entry, str) or entry.key is not None


def _checked_key(place: str, key: str) -> bytes:
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidOption(
            f"{place}: a key has {MIN_KEY_CHARS} to {MAX_KEY_CHARS} printable ASCII characters and no spaces"
        )
    return key.encode()


def _add(place: str, principals: dict[bytes, Principal], digest: bytes, principal: Principal) -> None:
    if digest in principals:
        raise InvalidOption(f"{place}: the key is there already, for {principals[digest].name}")
    principals[digest] = principal


def plain_principals(keys: Iterable[str]) -> dict[bytes, Principal]:
    """Of keys that came by themselves, on a command line or from the environment."""
    return {digest: unnamed_principal(digest) for digest in (key_digest(key.encode()) for key in keys)}
