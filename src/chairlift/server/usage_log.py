"""A line of JSON for each request, in a file: who used how much, and nothing of what was said.

Serving never waits for the file: records go through a bounded queue to a thread, and those that find it full, or that
a full disk does not take, are lost and counted. A file that was moved away is begun anew, so that logs can be rotated.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from typing import Any

import msgspec

from chairlift.core.errors import InvalidOption

_log = logging.getLogger("chairlift.server")

MAX_QUEUED = 16_384
MAX_BATCH = 1024
"""Records written at once."""

COMPLAIN_EVERY_S = 60.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
"""Non-blocking for pipes: one that nobody reads is like a full disk."""
_ONLY_THE_OWNER = 0o600

_encode = msgspec.json.Encoder().encode


class UsageLog:
    """Appends records to the file at `path` on a thread of its own.

    Raises:
        InvalidOption: the file cannot be opened.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._path = path
        self._clock = clock
        self._wall_clock = wall_clock
        self._queue: Queue[dict[str, Any] | None] = Queue(max_queued)
        self._file: int | None = None
        self._is_torn = False
        self._complained: float | None = None
        self._num_refused = 0
        """By a full queue; written by those who put."""
        self._num_unwritten = 0
        """Written by the thread."""
        self._closed = threading.Event()
        try:
            self._file = os.open(path, _FLAGS, _ONLY_THE_OWNER)
        except OSError as error:
            raise InvalidOption(f"{path}: the usage log cannot be written: {error.strerror}") from None
        threading.Thread(target=self._run, name="usage-log", daemon=True).start()

    @property
    def num_lost(self) -> int:
        """Records that are not in the file and will not be."""
        return self._num_refused + self._num_unwritten

    def put(self, record: dict[str, Any]) -> None:
        """Write a record soon, with the time now. Never waits."""
        try:
            self._queue.put_nowait({"time": self._wall_clock()} | record)
        except Full:
            self._num_refused += 1

    def close(self, timeout_s: float) -> None:
        """Write what is there and accept nothing more; gives up after `timeout_s` seconds."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except Full:
            return
        self._closed.wait(timeout_s)

    def _run(self) -> None:
        ended = False
        while not ended:
            records = [self._queue.get()]
            try:
                while len(records) < MAX_BATCH:
                    records.append(self._queue.get_nowait())
            except Empty:
                pass
            ended = None in records
            lines = [_line(record) for record in records if record is not None]
            try:
                self._write(lines)
            except OSError as error:
                self._complain(error)
        if self._file is not None:
            os.close(self._file)
        self._closed.set()

    def _write(self, lines: list[bytes]) -> None:
        """Raises an OSError if not all of it could be written; what was not is counted."""
        num_left = len(lines)
        try:
            file = self._opened()
            ends_torn = self._is_torn
            data = memoryview(b"".join([b"\n" if ends_torn else b"", *lines]))
            while data:
                written = os.write(file, data)
                num_left -= bytes(data[:written]).count(b"\n") - (ends_torn and written > 0)
                ends_torn = ends_torn and not written
                self._is_torn = data[written - 1] != ord("\n")
                data = data[written:]
        finally:
            self._num_unwritten += num_left

    def _opened(self) -> int:
        """The file at the path, which may be another one than before."""
        if self._file is not None:
            ours = os.fstat(self._file)
            try:
                there = os.stat(self._path)  # noqa: PTH116  # twice as fast as by way of a Path
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return self._file
            os.close(self._file)
            self._file = None
        self._is_torn = False
        self._file = os.open(self._path, _FLAGS, _ONLY_THE_OWNER)
        return self._file

    def _complain(self, error: OSError) -> None:
        now = self._clock()
        if self._complained is None or now - self._complained >= COMPLAIN_EVERY_S:
            self._complained = now
            _log.error("the usage log cannot be written: %s (%d records lost)", error.strerror, self.num_lost)


def _line(record: dict[str, Any]) -> bytes:
    time = datetime.fromtimestamp(record["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _encode(record | {"time": time}) + b"\n"
