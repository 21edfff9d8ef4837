"""What is written so that a crash at any moment leaves the old or the new, and never half of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from chairlift.core.errors import InvalidOption

_ONLY_THE_OWNER = 0o600
PART = ".part"
"""Ends the names of files that are being written; what is left of them after a crash is nothing."""


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of the file, as a whole and for good.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    part = path.with_name(path.name + PART)
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _ONLY_THE_OWNER)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names in the folder, new and removed, are there for good."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however little a write takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def append_lines(path: Path, lines: Sequence[bytes]) -> int:
    """Append whole lines for good; gives their bytes.

    Raises:
        OSError: none of them is there.
    """
    data = b"".join(lines)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _ONLY_THE_OWNER)
    try:
        end = os.fstat(fd).st_size
        try:
            write_all(fd, data)
            os.fdatasync(fd)
        except OSError:
            os.ftruncate(fd, end)
            raise
    finally:
        os.close(fd)
    return len(data)


def lock_folder(folder: Path) -> int:
    """Make the folder and its parts, and keep other servers out while the descriptor is open.

    Raises:
        InvalidOption: it cannot be used, or another server does.
    """
    try:
        for part in (folder, folder / "files", folder / "batches"):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _ONLY_THE_OWNER)
    except OSError as error:
        raise InvalidOption(f"{folder}: batches cannot be kept there: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise InvalidOption(f"{folder}: another server keeps its batches there") from None
    return fd
