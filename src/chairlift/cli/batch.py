"""A file of requests in the OpenAI batch format, and the file of their results.

One JSON object per line: `custom_id`, `method` POST, `url`, `body`; results carry the `custom_id`, since they are
written in the order in which they finish. A run that was cut off goes on where it stopped: what has a result is not
asked again.

Source: the OpenAI Batch API, "input file" and "output file".
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chairlift.core.errors import ChairliftError, EngineDead, InvalidOption

URLS = ("/v1/chat/completions", "/v1/completions")
MAX_LINE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]


Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Serves a body posted to a path: status and response body."""


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """The requests of a batch file, one at a time.

    Raises:
        InvalidOption: the file cannot be read, or a line is no batch request; says which and why.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), 1):
                if line.strip():
                    yield _request(line, f"{path}: line {number}")
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read: {error.strerror}") from error


def check_requests(path: Path) -> set[str]:
    """The ids of the requests in a batch file, after a look at each: what is wrong is said before anything runs.

    Raises:
        InvalidOption: as `read_requests`; also for a `custom_id` that comes twice.
    """
    seen: set[str] = set()
    for request in read_requests(path):
        if request.custom_id in seen:
            raise InvalidOption(f"{path}: the custom_id {request.custom_id!r} comes twice")
        seen.add(request.custom_id)
    return seen


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines of a file, the part of an overlong one that shows that it is."""
    while line := file.readline(MAX_LINE_BYTES + 2):
        yield line


def _request(line: bytes, place: str) -> BatchRequest:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidOption(f"{place}: longer than {MAX_LINE_BYTES} bytes")
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidOption(f"{place}: must be an object")
    custom_id, url, body = content.get("custom_id"), content.get("url"), content.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidOption(f"{place}: custom_id must be a text that is not empty")
    if content.get("method", "POST") != "POST":
        raise InvalidOption(f"{place}: method must be POST")
    if url not in URLS:
        raise InvalidOption(f"{place}: url must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        raise InvalidOption(f"{place}: body must be an object")
    return BatchRequest(custom_id, url, body)


def open_results(path: Path) -> IO[bytes]:
    """The file of results, to be appended to; made if there is none. Unbuffered: what is written is there.

    Raises:
        InvalidOption: it cannot be written.
    """
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be written: {error.strerror}") from error


def finished_ids(path: Path) -> set[str]:
    """The requests that have their result already. A last line that was cut off in writing is removed.

    Raises:
        InvalidOption: the file is not a file of results; nothing was changed.
    """
    if not path.exists():
        return set()
    if not path.is_file():
        raise InvalidOption(f"{path}: cannot be used: not a regular file")
    try:
        with path.open("rb+") as file:
            ids: set[str] = set()
            end = 0
            for number, line in enumerate(file, 1):
                custom_id = _result_id(line)
                if custom_id is None and line.endswith(b"\n"):
                    raise InvalidOption(f"{path}: line {number} is not a result of a batch; is it the right file?")
                if custom_id is None:
                    file.truncate(end)
                    break
                ids.add(custom_id)
                end += len(line)
                if not line.endswith(b"\n"):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
            return ids
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be used: {error.strerror}") from error


def _result_id(line: bytes) -> str | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or "response" not in content:  # requests have a custom_id too
        return None
    custom_id = content.get("custom_id")
    return custom_id if isinstance(custom_id, str) else None


@dataclass(slots=True)
class Progress:
    """Counts of one run."""

    num_answered: int = 0
    num_failed: int = 0
    num_output_tokens: int = 0


async def run_batch(
    requests: Iterator[BatchRequest],
    ask: Ask,
    output: IO[bytes],
    *,
    max_in_flight: int,
    on_result: Callable[[Progress], None],
) -> Progress:
    """Ask everything, at most `max_in_flight` at once, and write each result as soon as it is there.

    Raises:
        EngineDead: the engine is gone. What is not written can be asked again.
        InvalidOption: a result cannot be written.
    """
    progress = Progress()
    remaining = iter(requests)

    async def work() -> None:
        for request in remaining:
            status, response = await _ask_one(request, ask)
            if status == 503:
                raise EngineDead(_message(response))
            _append(output, _result(request, status, response))
            _count(progress, status, response)
            on_result(progress)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(max_in_flight):
                tasks.create_task(work())
    except ExceptionGroup as group:  # the first failure ended the others
        raise next((error for error in group.exceptions if isinstance(error, ChairliftError)), group) from None
    return progress


def _append(output: IO[bytes], line: bytes) -> None:
    """Write a whole line; an unbuffered file may take less than it is given."""
    try:
        while line:
            line = line[output.write(line) :]
    except OSError as error:
        raise InvalidOption(f"a result cannot be written: {error.strerror}") from error


async def _ask_one(request: BatchRequest, ask: Ask) -> tuple[int, dict[str, Any]]:
    if request.body.get("stream"):
        error = {"message": "stream is not possible in a batch", "type": "invalid_request_error", "param": "stream"}
        return 400, {"error": {**error, "code": None}}
    status, response = await ask(request.url, json.dumps(request.body).encode())
    content: dict[str, Any] = json.loads(response)
    return status, content


def _result(request: BatchRequest, status: int, response: dict[str, Any]) -> bytes:
    result = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": request.custom_id,
        "response": {"status_code": status, "request_id": str(response.get("id", "")), "body": response},
        "error": None,
    }
    return json.dumps(result, ensure_ascii=False).encode() + b"\n"


def _count(progress: Progress, status: int, response: dict[str, Any]) -> None:
    if status == 200:
        progress.num_answered += 1
        progress.num_output_tokens += response["usage"]["completion_tokens"]
    else:
        progress.num_failed += 1


def _message(response: dict[str, Any]) -> str:
    return str(response.get("error", {}).get("message", "the engine is gone"))
