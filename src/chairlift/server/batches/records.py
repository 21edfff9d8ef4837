"""What is known of a file and of a batch: as it is kept on disk, and as the API shows it."""

from __future__ import annotations

import re
import secrets
from typing import Any, Literal

import msgspec

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]  # fmt: skip
ENDED = frozenset(("failed", "completed", "expired", "cancelled"))

INPUT, OUTPUT = "batch", "batch_output"
"""What files are for."""

_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")


def new_file_id() -> str:
    """An id that nobody can guess; it is a file name as well."""
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    """An id that nobody can guess; it is a file name as well."""
    return f"batch_{secrets.token_hex(12)}"


def is_file_id(text: str) -> bool:
    """Whether it has the form of one of ours: nothing else is ever made a path of."""
    return _FILE_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether it has the form of one of ours."""
    return _BATCH_ID.fullmatch(text) is not None


class FileRecord(msgspec.Struct, kw_only=True):
    """A file that somebody sent, or that a batch left."""

    id: str
    owner: str
    """Name of the principal."""
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    serial: int
    """Later ones have larger ones, whatever the clock does."""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": None,
        }


class LineError(msgspec.Struct):
    """What is wrong with a batch as a whole, or with a line of its input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch. What it has answered is in the files of its results, and counted from them."""

    id: str
    owner: str
    tenant: str
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    serial: int
    output_file_id: str
    error_file_id: str
    status: Status = "validating"
    ends_as: Status = "completed"
    """What it becomes once it is finalised."""
    times: dict[str, int] = {}
    """When it took on each status, in seconds since 1970."""
    num_requests: int = 0
    num_completed: int = 0
    num_failed: int = 0
    has_output: bool = False
    has_errors: bool = False
    errors: list[LineError] = []
    losses: dict[str, int] = {}
    """How often the engine was lost while it had a request, by `custom_id`."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def result_ids(self) -> tuple[str, str]:
        """The files of its results: of answers, and of errors."""
        return self.output_file_id, self.error_file_id

    @property
    def num_unanswered(self) -> int:
        """Requests that have no result, of a batch that was validated."""
        return max(0, self.num_requests - self.num_completed - self.num_failed)

    def is_in(self, status: Status) -> bool:
        """Whether it has this status now."""
        return self.status == status

    def become(self, status: Status, now: int) -> None:
        """Take on a status."""
        self.status = status
        self.times[status] = now

    def as_json(self) -> dict[str, Any]:
        when = self.times.get
        errors = [
            {"code": one.code, "line": one.line, "message": one.message, "param": one.param} for one in self.errors
        ]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_output else None,
            "error_file_id": self.error_file_id if self.has_errors else None,
            "created_at": self.created_at,
            "in_progress_at": when("in_progress"),
            "expires_at": self.expires_at,
            "finalizing_at": when("finalizing"),
            "completed_at": when("completed"),
            "failed_at": when("failed"),
            "expired_at": when("expired"),
            "cancelling_at": when("cancelling"),
            "cancelled_at": when("cancelled"),
            "request_counts": {
                "total": self.num_requests,
                "completed": self.num_completed,
                "failed": self.num_failed,
            },
            "metadata": self.metadata,
        }
