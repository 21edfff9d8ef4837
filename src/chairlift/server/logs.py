"""How this process writes its log: as text, or as one JSON object for each line; and what must never be in it.

Nothing that a client chose can begin a line of its own: control characters are escaped, wherever they come from. What
an exception says may quote what was asked, so of one that a request caused only its kind and place are told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ABOUT = "request_id"
"""The name in `extra` under which a line says which request it is about: the id of its response's header."""

MAX_QUEUED = 16_384
"""Lines that wait to be written."""
MAX_BATCH = 256
FLUSH_TIMEOUT_S = 1.0
GATHER_S = 0.02
"""How long lines wait for others: to wake a thread for each costs more than to write it."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Characters that end lines, steer terminals or turn the direction of text, and halves of characters."""

_OF_OTHERS = ("uvicorn", "asyncio", "opentelemetry", "urllib3")
"""Loggers of libraries. What they tell of clients that break off is no news unless somebody looks for it."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


@runtime_checkable
class Told(Protocol):
    """A message that is a line of text, and the same as data."""

    def __str__(self) -> str: ...

    def fields(self) -> dict[str, Any]: ...


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """Write everything of this level and above to standard error, unless somebody has seen to the log already."""
    tells_all = level == "debug"
    if not logging.getLogger().handlers:
        log = WrittenBehind(partial(_write, sys.stderr.fileno()))
        log.setFormatter(JsonLines(tells_all) if form == "json" else TextLines(tells_all))
        logging.basicConfig(level=level.upper(), handlers=[log])
    if not tells_all:
        for name in _OF_OTHERS:
            logging.getLogger(name).setLevel(logging.ERROR if name == "asyncio" else logging.CRITICAL)


def flush_logs() -> None:
    """Until what was logged is written, or cannot be."""
    for log in logging.getLogger().handlers:
        log.flush()


class WrittenBehind(logging.Handler):
    """Writes on a thread: a pipe that nobody reads, or a disk that is slow, makes nobody wait who logs.

    Lines that find the queue full are lost; as soon as something can be written again, a line says how many.
    """

    def __init__(self, write: Callable[[bytes], None], *, max_queued: int = MAX_QUEUED) -> None:
        super().__init__()
        self._write = write
        self._queue: Queue[str | threading.Event] = Queue(max_queued)
        self._num_lost = 0
        """Written by those who log."""
        self._num_told = 0
        """Of those that were lost; written by the thread."""
        self._is_awaited = threading.Event()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        try:
            self._queue.put_nowait(line)
        except Full:
            self._num_lost += 1

    def flush(self) -> None:
        """Until what was logged is written, for at most `FLUSH_TIMEOUT_S`."""
        written = threading.Event()
        self._is_awaited.set()
        with contextlib.suppress(Full):
            self._queue.put(written, timeout=FLUSH_TIMEOUT_S)
            written.wait(FLUSH_TIMEOUT_S)
        self._is_awaited.clear()

    def _run(self) -> None:
        while True:
            taken = [self._queue.get()]
            self._is_awaited.wait(GATHER_S)
            with contextlib.suppress(Empty):
                while len(taken) < MAX_BATCH:
                    taken.append(self._queue.get_nowait())
            lines = [f"{line}\n" for line in taken if isinstance(line, str)]
            lost = self._num_lost - self._num_told
            self._num_told += lost
            if lost:
                about = "%d lines of the log were lost: nobody took them"
                record = logging.LogRecord("chairlift.server", logging.WARNING, __file__, 0, about, (lost,), None)
                lines.append(f"{self.format(record)}\n")
            with contextlib.suppress(OSError):  # a full disk, or a pipe whose reader is gone
                self._write("".join(lines).encode("utf-8", "backslashreplace"))
            for one in taken:
                if isinstance(one, threading.Event):
                    one.set()


def _write(descriptor: int, data: bytes) -> None:
    """All of it. Past Python's own buffers: who waits here when the process ends would hold their lock."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class JsonLines(logging.Formatter):
    """One object for each line, in ASCII. With `tells_all` also what exceptions say that requests caused."""

    def __init__(self, tells_all: bool = False) -> None:
        super().__init__()
        self._tells_all = tells_all

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, ABOUT, None)
        if request_id is not None:
            line[ABOUT] = request_id
        if isinstance(record.msg, Told):
            line |= record.msg.fields() | {"message": "request"}
        if record.exc_info:
            line["exception"] = "".join(_exception(record.exc_info, self._tells_all or request_id is None))
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Time, level, logger and message; a traceback comes below, indented, so that no line of it begins like these."""

    def __init__(self, tells_all: bool = False) -> None:
        super().__init__()
        self._tells_all = tells_all

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        message = record.getMessage()
        request_id = getattr(record, ABOUT, None)
        about = "" if request_id is None else f" id={request_id}"
        lines = [printable(f"{_time(record)} {record.levelname} {record.name} {message}{about}")]
        if record.exc_info:
            told = "".join(_exception(record.exc_info, self._tells_all or request_id is None))
            lines += [f"    {printable(line)}" for line in told.rstrip().split("\n")]
        return "\n".join(lines)


def printable(text: str) -> str:
    """`text` with every character escaped that would not be seen as itself."""
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _exception(info: ExcInfo, tells_all: bool) -> Iterator[str]:
    """A traceback, with what the exceptions say or without."""
    error = info[1]
    if error is None:
        return
    if tells_all:
        yield from traceback.format_exception(error)
        return
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__qualname__} (what it says is told at --log-level debug)\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
