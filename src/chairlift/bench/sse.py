"""Server-sent events as they come off a socket: pieces of any size in, whole payloads out."""

from __future__ import annotations

from collections.abc import Iterator

from chairlift.core.errors import ChairliftError

MAX_LINE_BYTES = 16 << 20


class BadStream(ChairliftError):
    """A stream that is not one of server-sent events."""


class EventStream:
    """Splits a byte stream into the data of its events. Comments, names and ids of events are passed over.

    Source: the event stream format of the HTML standard, section 9.2; lone carriage returns are not line ends here.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The payloads that a piece completes.

        Raises:
            BadStream: a line without end.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise BadStream("a line of the event stream is longer than 16 MiB")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()
