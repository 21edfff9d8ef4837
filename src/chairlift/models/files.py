"""Opening files that nobody vouches for: regular files only, bounded sizes, one clear line when something is wrong."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from chairlift.core.errors import InvalidModel
from chairlift.core.nesting import is_deeper

MAX_JSON_BYTES = 64 << 20
"""Largest JSON file read: a tokenizer.json of 262,144 tokens has 33 MB."""
MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 4 << 20
"""Most values, commas in strings counted too: 446,000 merges written as pairs make 1.5 million."""

_LFS_POINTER = b"version https://git-lfs"
"""How the few lines begin that Git puts in the place of a large file where LFS was not installed."""

MAX_CONFIG_BYTES = 1 << 20
"""The same of the files that say what a model is made of."""
MAX_CONFIG_VALUES = 1 << 16


def shown(text: object) -> str:
    """Text from a file or a path as it may stand in an error line: printable ASCII, at most 120 characters."""
    line = ascii(str(text))[1:-1]
    return line if len(line) <= 120 else line[:117] + "..."


def shown_bytes(num_bytes: float) -> str:
    """A size as people read it, decimal."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def exists(path: Path) -> bool:
    """Something lies at this path, and we may look at it."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file for reading: (descriptor, size in bytes). The caller closes it.

    Opened without blocking, so that a pipe cannot hold the process up before its type is seen.

    Raises:
        InvalidModel: it cannot be opened, or is a folder, a device, a pipe or a socket.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModel(f"{shown(path)}: cannot be opened: {shown(reason)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidModel(f"{shown(path)}: not a regular file")
    return descriptor, status.st_size


def map_file(path: Path) -> memoryview:
    """The whole file as read-only bytes, mapped and not read.

    Raises:
        InvalidModel: it cannot be opened, is not a regular file, is empty, or only stands for one in Git LFS.
    """
    descriptor, size = open_regular(path)
    try:
        if size == 0:
            raise InvalidModel(f"{shown(path)}: the file is empty")
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidModel(f"{shown(path)}: cannot be mapped: {shown(error)}") from error
    finally:
        os.close(descriptor)
    data = memoryview(mapped)
    _check_is_itself(data[: len(_LFS_POINTER)], path)
    return data


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file of at most `max_bytes`.

    Raises:
        InvalidModel: it cannot be opened, is not a regular file, is too large, or only stands for one in Git LFS.
    """
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > max_bytes:
            raise InvalidModel(f"{shown(path)}: {size} bytes; at most {max_bytes} are read")
        try:
            content = file.read(size)
        except OSError as error:
            raise InvalidModel(f"{shown(path)}: cannot be read: {shown(error.strerror)}") from error
    _check_is_itself(content[: len(_LFS_POINTER)], path)
    return content


def _check_is_itself(head: bytes | memoryview, path: Path) -> None:
    """Refuse what a clone without Git LFS leaves: read as a header, its text would be an absurd length."""
    if head == _LFS_POINTER:
        raise InvalidModel(f"{shown(path)}: a pointer of Git LFS and not the file itself: git lfs pull gets it")


def read_json(
    path: Path, max_bytes: int = MAX_JSON_BYTES, max_depth: int = MAX_JSON_DEPTH, max_values: int = MAX_JSON_VALUES
) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InvalidModel: not a readable regular file, too large, too deep, too many values, not JSON, or not an object.
    """
    value = parse_json(read_bytes(path, max_bytes), shown(path), max_depth, max_values)
    if not isinstance(value, dict):
        raise InvalidModel(f"{shown(path)}: must hold a JSON object")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a file that says what a model is made of; such files are small.

    Raises:
        InvalidModel: as `read_json`.
    """
    return read_json(path, MAX_CONFIG_BYTES, max_values=MAX_CONFIG_VALUES)


def parse_json(data: bytes, where: str, max_depth: int = MAX_JSON_DEPTH, max_values: int = MAX_JSON_VALUES) -> Any:
    """Decode JSON whose size in memory and depth are bounded; `where` begins the error line.

    A value costs up to 100 times its two characters in memory, so values are bounded before anything is built:
    each has a comma or an opening bracket before it.

    Raises:
        InvalidModel: not JSON in UTF-8, deeper than `max_depth`, or possibly more than `max_values` values.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") >= max_values:
        raise InvalidModel(f"{where}: more than {max_values} values")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidModel(f"{where}: not valid JSON: {shown(error)}") from error
    except RecursionError as error:
        raise InvalidModel(f"{where}: nested too deeply") from error
    if is_deeper(value, max_depth):
        raise InvalidModel(f"{where}: nested more than {max_depth} deep")
    return value
