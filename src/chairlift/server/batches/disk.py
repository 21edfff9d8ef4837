"""What is written so that a crash at any moment leaves the old or the new, and never half of it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from chairlift.core.errors import InvalidOption

_ONLY_THE_OWNER = 0o600
PART = ".part"
"""Ends the names of files that are being written; what is left of them after a crash is nothing."""


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file that is in the folder under this very name.

    Whatever else has taken its place is not used: a link leads out of the folder, and a pipe holds up who opens it.

    Raises:
        OSError: it cannot be opened, or it is no file.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, _ONLY_THE_OWNER)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd


def open_to_read(path: Path) -> IO[bytes]:
    """The same, to be read."""
    return os.fdopen(open_file(path, os.O_RDONLY), "rb")


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of the file, as a whole and for good.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    part = path.with_name(path.name + PART)
    try:
        fd = open_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
    fd = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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
