"""A file of requests in the OpenAI batch format, answered offline into a file of their results.

A run that was cut off goes on where it stopped: what has a result is not asked again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chairlift.core.errors import ChairliftError, EngineDead, InvalidOption
from chairlift.server.batches import lines
from chairlift.server.batches.lines import BadLine, BatchRequest, is_streamed, result_line
from chairlift.server.errors import bad_request

URLS = ("/v1/chat/completions", "/v1/completions")

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Serves a body posted to a path: status and response body."""


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """The requests of a batch file, one at a time.

    Raises:
        InvalidOption: the file cannot be read, or a line is no batch request; says which and why.
    """
    try:
        with path.open("rb") as file:
            yield from lines.read_requests(file, URLS)
    except BadLine as error:
        raise InvalidOption(f"{path}: line {error.number}: {error.message}") from None
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
    if path.exists() and not path.is_file():
        raise InvalidOption(f"{path}: cannot be used: not a regular file")
    try:
        return lines.finished_ids(path)
    except BadLine as error:
        raise InvalidOption(f"{path}: line {error.number} is {error.message}") from None
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be used: {error.strerror}") from error


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
            status, answer = await _ask_one(request, ask)
            response = json.loads(answer)
            if status == 503:
                raise EngineDead(_message(response))
            _append(output, result_line(request.custom_id, status, str(response.get("id", "")), answer))
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


async def _ask_one(request: BatchRequest, ask: Ask) -> tuple[int, bytes]:
    if is_streamed(request.body):
        return 400, bad_request("stream is not possible in a batch", "stream").body()
    return await ask(request.url, request.body)


def _count(progress: Progress, status: int, response: dict[str, Any]) -> None:
    if status == 200:
        progress.num_answered += 1
        progress.num_output_tokens += response["usage"]["completion_tokens"]
    else:
        progress.num_failed += 1


def _message(response: dict[str, Any]) -> str:
    return str(response.get("error", {}).get("message", "the engine is gone"))
