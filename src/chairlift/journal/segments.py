"""The files of a journal: `path` is the newest segment, `path.1` the one before it, and so on.

A segment is written beside the others until its snapshot is complete, and only then takes its place: a full disk or a
killed process never costs the segments that are there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from chairlift.core.errors import InvalidOption

OPENING = b'{"type":"segment"'
"""How every segment starts."""


class File(Protocol):
    """Unbuffered."""

    def write(self, data: memoryview, /) -> int | None: ...

    def close(self) -> None: ...


def create(path: Path) -> File:
    """A new file that only its owner can read, whatever the umask; locked while this process has it open.

    Raises:
        OSError: it cannot be created, or another process writes one of this name.
    """
    refuse_if_written(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "wb", buffering=0)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def refuse_if_written(path: Path) -> None:
    """Raises OSError if there is such a file and somebody has it from `create`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # not there, or nothing that `create` made
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "it is being written by another process") from None
    finally:
        os.close(descriptor)


class SegmentFiles:
    """At most `max_segments` files, one of which is written at a time.

    Raises:
        InvalidOption: the path cannot be used.
    """

    def __init__(self, path: Path, max_segments: int, create: Callable[[Path], File] = create) -> None:
        self.size = 0
        """Bytes of the segment that is being written."""
        self.snapshot_size = 0
        """How many of them are its snapshot."""
        self._names = [path, *(path.with_name(f"{path.name}.{i}") for i in range(1, max_segments))]
        self._create = create
        self._file: File | None = None
        _check(self._names)

    def begin(self, lines: Iterable[bytes]) -> None:
        """Open the next segment with these lines; the oldest goes if there are too many.

        Raises:
            OSError: it cannot be written. The segments that are there stay; none is open.
        """
        self.close()
        path = self._names[0]
        new = path.with_name(f"{path.name}.new")
        self._file = self._create(new)
        self.size = 0
        try:
            for line in lines:
                self.write(line)
            refuse_if_written(path)  # one who started at the same moment found nobody either
            self._shift()
            new.replace(path)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self.snapshot_size = self.size

    def write(self, data: bytes) -> None:
        """Append to the segment; what was written survives the process.

        Raises:
            OSError: not all of it was written.
        """
        if self._file is None:
            raise OSError("no segment is open")
        rest = memoryview(data)
        while rest:
            num_written = self._file.write(rest) or 0
            self.size += num_written
            rest = rest[num_written:]

    def close(self) -> None:
        """Nothing more comes for this segment."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _shift(self) -> None:
        """Every segment gets the name of the one before it."""
        for name, older in reversed(list(zip(self._names, self._names[1:], strict=False))):
            with contextlib.suppress(FileNotFoundError):
                if name.stat().st_size:
                    name.replace(older)


def _check(names: list[Path]) -> None:
    """What is there already must be a journal that nobody writes, and a file can be made beside it."""
    try:
        for name in names:
            _check_name(name)
        path = names[0]
        probe = path.with_name(f"{path.name}.new")
        create(probe).close()
        probe.unlink()
    except OSError as error:
        raise InvalidOption(f"the journal {names[0]} cannot be written: {error.strerror or error}") from error


def _check_name(name: Path) -> None:
    if not name.exists() and not name.is_symlink():
        return
    if not stat.S_ISREG(name.lstat().st_mode):
        raise InvalidOption(f"the journal {name} cannot be written: it is not a regular file")
    with name.open("rb") as file:
        start = file.read(len(OPENING))
        if start and start != OPENING:
            raise InvalidOption(f"{name} exists and is not a journal; give another name")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidOption(f"the journal {name} is being written by another process") from None
