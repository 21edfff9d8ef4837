"""Files of requests in the OpenAI batch format, and files of their results: what a line is.

One JSON object per line: `custom_id`, `method` POST, `url`, `body`; results carry the `custom_id`, since they are
written in the order in which they finish.

Source: the OpenAI Batch API, "input file" and "output file".
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from chairlift.server.json_body import field_of, wrong_place

MAX_LINE_BYTES = 8 << 20


class BadLine(Exception):
    """A line that is no request, or no result; `number` counts from 1."""

    def __init__(self, number: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.number = number
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of the input."""

    custom_id: str
    url: str
    body: bytes
    """A JSON object, as it stands there."""
    number: int = 0
    """Of its line, from 1 on."""


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


_line = msgspec.json.Decoder(_Line)


def scan_requests(
    file: IO[bytes], urls: Collection[str], max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[BatchRequest | BadLine]:
    """Each line of a file that is not empty: a request to one of these paths, or what is wrong with it.

    Raises:
        OSError: the file cannot be read.
    """
    number = 0
    while line := file.readline(max_line_bytes + 2):
        number += 1
        if len(line.rstrip(b"\r\n")) > max_line_bytes:
            yield BadLine(number, f"longer than {max_line_bytes} bytes")
            while line and not line.endswith(b"\n"):
                line = file.readline(max_line_bytes)
        elif line.strip():
            try:
                yield _request(line, number, urls)
            except BadLine as error:
                yield error


def read_requests(
    file: IO[bytes], urls: Collection[str], max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[BatchRequest]:
    """The requests of a file, one at a time.

    Raises:
        BadLine: a line is no request to one of these paths.
        OSError: the file cannot be read.
    """
    for one in scan_requests(file, urls, max_line_bytes):
        if isinstance(one, BadLine):
            raise one
        yield one


def _request(line: bytes, number: int, urls: Collection[str]) -> BatchRequest:
    try:
        content = _line.decode(line)
    except msgspec.ValidationError as error:
        message, path = wrong_place(error)
        param = field_of(path) or None
        if message.startswith("Expected `object`"):
            message = "must be an object"
        raise BadLine(number, f"{param}: {message}" if param else message, param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(number, f"not JSON: {error}") from None
    if not content.custom_id:
        raise BadLine(number, "custom_id must be a text that is not empty", "custom_id")
    if content.method != "POST":
        raise BadLine(number, "method must be POST", "method")
    if content.url not in urls:
        raise BadLine(number, f"url must be {' or '.join(urls)}", "url")
    body = bytes(content.body)
    if not body.startswith(b"{"):
        raise BadLine(number, "body must be an object", "body")
    return BatchRequest(content.custom_id, content.url, body, number)


class _Unanswerable(msgspec.Struct):
    stream: Any = None
    priority: Any = None
    ttft_deadline_ms: Any = None
    e2e_deadline_ms: Any = None


_unanswerable = msgspec.json.Decoder(_Unanswerable)
_NOTHING = (None, False)


def is_streamed(body: bytes) -> bool:
    """Whether a body asks for a stream, which no line of a file can be."""
    return _wishes(body).stream not in _NOTHING


def unmet_wish(body: bytes) -> str | None:
    """The field of a body by which it asks for what no request of a waiting batch can have: a stream, or its turn."""
    wishes = _wishes(body)
    return next((name for name in wishes.__struct_fields__ if getattr(wishes, name) not in _NOTHING), None)


def _wishes(body: bytes) -> _Unanswerable:
    try:
        return _unanswerable.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # whoever is to answer it says what is wrong
        return _Unanswerable()


class _Result(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw
    """Requests have a custom_id too."""


_results = msgspec.json.Decoder(_Result)


def finished_ids(path: Path) -> set[str]:
    """The requests that have their result in a file, if there is one. A last line that was cut off is removed.

    Raises:
        BadLine: the file is not a file of results; nothing was changed.
        OSError: it cannot be used.
    """
    ids: set[str] = set()
    if not path.exists():
        return ids
    with path.open("rb+") as file:
        end = 0
        for number, line in enumerate(file, 1):
            custom_id = _result_id(line)
            if custom_id is None and line.endswith(b"\n"):
                raise BadLine(number, "not a result of a batch; is it the right file?")
            if custom_id is None:
                file.truncate(end)
                break
            ids.add(custom_id)
            end += len(line)
            if not line.endswith(b"\n"):
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
    return ids


def _result_id(line: bytes) -> str | None:
    try:
        return _results.decode(line).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def result_line(custom_id: str, status: int, request_id: str, answer: bytes) -> bytes:
    """The result of a request that was answered with this body, with its newline."""
    head = json.dumps({"status_code": status, "request_id": request_id}).encode()
    response = head[:-1] + b', "body": ' + answer.replace(b"\n", b" ") + b"}"
    return _result(custom_id, response, b"null")


def unanswered_line(custom_id: str, code: str, message: str) -> bytes:
    """The result of a request that was never answered, with its newline."""
    return _result(custom_id, b"null", json.dumps({"code": code, "message": message}).encode())


def _result(custom_id: str, response: bytes, error: bytes) -> bytes:
    ids = json.dumps({"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id}, ensure_ascii=False).encode()
    return b'%b, "response": %b, "error": %b}\n' % (ids[:-1], response, error)
