"""How this process writes its log: as text, or as one JSON object for each line; and what must never be in it.

Nothing that a client chose can begin a line of its own: control characters are escaped, wherever they come from. What
an exception says may quote what was asked, so of one that a request caused only its kind and place are told.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ABOUT = "request_id"
"""The name in `extra` under which a line says which request it is about: the id of its response's header."""

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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(tells_all) if form == "json" else TextLines(tells_all))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if not tells_all:
        for name in _OF_OTHERS:
            logging.getLogger(name).setLevel(logging.ERROR if name == "asyncio" else logging.CRITICAL)


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
