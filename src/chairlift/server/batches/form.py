"""A form with a file in it (multipart/form-data), read piece by piece as it arrives: memory is bounded by the pieces.

Source: RFC 7578 and, for boundaries, RFC 2046 section 5.1.1.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from chairlift.server.errors import ApiError, bad_request

MAX_FIELDS = 16
MAX_FIELD_BYTES = 4096
"""Of a field that is not a file."""
MAX_HEADER_BYTES = 4096
"""Of all headers of a part."""
MAX_PREAMBLE_BYTES = 4096

_BOUNDARY = re.compile(rb'(?:^|[;\s])boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))[ \t]*(?:;|$)', re.IGNORECASE)
_DISPOSITION = re.compile(
    rb'^content-disposition[ \t]*:[ \t]*form-data((?:[ \t]*;[ \t]*[\w*-]+=(?:"(?:[^"\\\r\n]|\\.)*"|[^\s;"]*))*)[ \t]*$',
    re.IGNORECASE | re.MULTILINE,
)
_ATTRIBUTE = re.compile(rb';[ \t]*([\w*-]{1,64})=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s;"]*))')


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a field; `filename` is None unless it is a file."""

    name: str
    filename: str | None


def boundary_of(content_type: bytes) -> bytes:
    """What divides the parts.

    Raises:
        ApiError: 415, it is no such form; 400, nothing is said to divide them.
    """
    kind, _, parameters = content_type.partition(b";")
    if kind.strip().lower() != b"multipart/form-data":
        raise ApiError(415, "A form is wanted: Content-Type multipart/form-data.", code="unsupported_media_type")
    match = _BOUNDARY.search(parameters)
    if match is None:
        raise bad_request("The Content-Type names no boundary.")
    return match[1] or match[2]


class FormReader:
    """Takes the bytes of a form as they come, and gives its parts and their content in order."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # the first boundary need not have a line before it
        self._in_content = True
        self._is_preamble = True
        self._num_preamble = 0
        self._num_parts = 0
        self.ended = False
        """The last boundary was read; what follows is nothing."""

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """A `Part`, then the pieces of its content, then the next part.

        Raises:
            ApiError: 400, it is not a form.
        """
        if self.ended:
            return
        self._buffer += data
        while not self.ended:
            before = len(self._buffer), self._in_content
            yield from self._content() if self._in_content else self._headers()
            if (len(self._buffer), self._in_content) == before:
                return

    def _content(self) -> Iterator[bytes]:
        """Up to the next boundary, or up to what may be the beginning of one."""
        place = self._buffer.find(self._delimiter)
        if place < 0:
            place = max(0, len(self._buffer) - len(self._delimiter) + 1)
            content, self._buffer = self._buffer[:place], self._buffer[place:]
        else:
            end = place + len(self._delimiter)
            line_end = self._buffer.find(b"\r\n", end)
            if self._buffer[end : end + 2] == b"--":
                self.ended = True
            elif line_end < 0 or self._buffer[end:line_end].strip(b" \t"):
                # Not a whole line yet, or one that only begins like a boundary: that is content.
                if line_end < 0 and len(self._buffer) - end <= MAX_HEADER_BYTES and _may_be_blank(self._buffer[end:]):
                    content, self._buffer = self._buffer[:place], self._buffer[place:]
                    yield from self._shown(content)
                    return
                raise bad_request("The form has a line that begins like its boundary and goes on.")
            else:
                end = line_end
            content, self._buffer = self._buffer[:place], self._buffer[end:]
            yield from self._shown(content)
            self._in_content = self._is_preamble = False
            return
        yield from self._shown(content)

    def _shown(self, content: bytes) -> Iterator[bytes]:
        if self._is_preamble:
            self._num_preamble += len(content)
            if self._num_preamble > MAX_PREAMBLE_BYTES:
                raise bad_request("The body does not begin with the boundary of its form.")
        elif content:
            yield content

    def _headers(self) -> Iterator[Part]:
        """The headers of a part, once they are there as a whole."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_HEADER_BYTES:
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise bad_request("A part of the form has too many headers.")
            return
        head, self._buffer = self._buffer[2:end], self._buffer[end + 4 :]
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise bad_request(f"The form has more than {MAX_FIELDS} fields.")
        yield _part(head.replace(b"\r\n", b"\n"))
        self._in_content = True


def _may_be_blank(rest: bytes) -> bool:
    """Whether what follows a boundary may turn out to be the end of its line, or of the form."""
    return not rest.strip(b" \t") or rest in (b"\r", b"-") or (rest.endswith(b"\r") and not rest[:-1].strip(b" \t"))


def _part(head: bytes) -> Part:
    match = _DISPOSITION.search(head)
    if match is None:
        raise bad_request("A part of the form has no Content-Disposition: form-data.")
    values = {
        name.lower(): _unescaped(quoted) if quoted else plain for name, quoted, plain in _ATTRIBUTE.findall(match[1])
    }
    if b"name" not in values:
        raise bad_request("A part of the form has no name.")
    try:
        filename = values.get(b"filename")
        return Part(values[b"name"].decode(), None if filename is None else filename.decode())
    except UnicodeDecodeError:
        raise bad_request("A name in the form is not UTF-8.") from None


def _unescaped(text: bytes) -> bytes:
    return re.sub(rb"\\(.)", rb"\1", text)


async def read_form(pieces: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[Part | bytes]:
    """The parts of a form and the pieces of their content.

    Raises:
        ApiError: 400, it is not a form, or ends before its end.
    """
    reader = FormReader(boundary)
    async for piece in pieces:
        for one in reader.feed(piece):
            yield one
    if not reader.ended:
        raise bad_request("The form ends before its last boundary.")
