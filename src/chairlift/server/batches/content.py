"""What is done with the files of a batch, each in one piece and on a thread: reading its input, writing its results."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chairlift.server.batches.disk import append_lines, open_file, open_to_read
from chairlift.server.batches.lines import (
    BadLine,
    BatchRequest,
    finished_ids,
    read_requests,
    scan_requests,
    unanswered_line,
    unmet_wish,
)
from chairlift.server.batches.records import LineError
from chairlift.server.batches.store import BatchLimits
from chairlift.server.batches.turns import num_answers

MAX_ERRORS = 100
"""Of a file that cannot be used, so many are told."""
MAX_ID_CHARS = 512
READ_AHEAD_BYTES = 1 << 20
"""Lines that are read at a time, and at least one."""
WRITE_LINES = 1000
"""Lines that are written at a time for requests that were never answered."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """A request of the input, and what was found out about it where it was read."""

    request: BatchRequest
    num_answers: int
    wish: str | None
    """The field by which it asks for what it cannot have."""


def check_input(path: Path, endpoint: str, limits: BatchLimits) -> tuple[int, list[LineError]]:
    """How many requests there are in a file, and what is wrong with it."""
    seen: set[str] = set()
    errors: list[LineError] = []
    with open_to_read(path) as file:
        for number, one in enumerate(scan_requests(file, (endpoint,), limits.max_line_bytes), 1):
            if number > limits.max_lines:
                errors.append(LineError("too_many_requests", f"A batch has at most {limits.max_lines} requests."))
            elif isinstance(one, BadLine):
                code = "invalid_json_line" if one.param is None else f"invalid_{one.param}"
                errors.append(LineError(code, one.message, one.number, one.param))
            elif len(one.custom_id) > MAX_ID_CHARS:
                message = f"a custom_id has at most {MAX_ID_CHARS} characters"
                errors.append(LineError("invalid_custom_id", message, one.number, "custom_id"))
            elif one.custom_id in seen:
                errors.append(LineError("duplicate_custom_id", "the custom_id came before", one.number, "custom_id"))
            else:
                seen.add(one.custom_id)
            if len(errors) >= MAX_ERRORS or number > limits.max_lines:
                break
    if not seen and not errors:
        errors.append(LineError("empty_file", "There is no request in the file."))
    return len(seen), errors


def read_input(path: Path, offset: int, endpoint: str, limits: BatchLimits) -> tuple[list[InputLine], int, bool]:
    """The next lines of an input that was checked, where to read on, and whether that was all."""
    found: list[InputLine] = []
    with open_to_read(path) as file:
        file.seek(offset)
        for request in read_requests(file, (endpoint,), limits.max_line_bytes):
            found.append(InputLine(request, num_answers(request.body), unmet_wish(request.body)))
            if file.tell() - offset >= READ_AHEAD_BYTES:
                return found, file.tell(), False
        return found, file.tell(), True


def sizes(paths: Iterable[Path]) -> list[int]:
    """Bytes of each file; 0 where there is none."""
    return [path.stat().st_size if path.is_file() and not path.is_symlink() else 0 for path in paths]


def results_in(path: Path) -> set[str]:
    """The requests that have their result in a file, if there is one. A last line that was cut off is removed.

    Raises:
        BadLine: the file is not a file of results; nothing was changed.
        OSError: it cannot be used.
    """
    if path.is_symlink() or path.exists():
        os.close(open_file(path, os.O_RDWR))
    return finished_ids(path)


def append_results(output: Path, errors: Path, results: list[tuple[bool, bytes]]) -> None:
    """Results for good, in one file or the other."""
    for path, kind in ((output, True), (errors, False)):
        lines = [line for is_answer, line in results if is_answer is kind]
        if lines:
            append_lines(path, lines)


def append_unanswered(source: Path, output: Path, errors: Path, endpoint: str, limits: BatchLimits) -> int:
    """A result for every request that has none, since its time is over; gives their number."""
    done = results_in(output) | results_in(errors)
    message = "This request could not be executed before the completion window expired."
    num_requests, lines = 0, []
    with open_to_read(source) as file:
        for request in read_requests(file, (endpoint,), limits.max_line_bytes):
            if request.custom_id not in done:
                lines.append(unanswered_line(request.custom_id, "batch_expired", message))
                num_requests += 1
            if len(lines) >= WRITE_LINES:
                append_lines(errors, lines)
                lines = []
    if lines:
        append_lines(errors, lines)
    return num_requests
