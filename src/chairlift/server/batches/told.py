"""What responses about files and batches hold, as types for the OpenAPI document; tests hold them to it."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from chairlift.server.batches.records import Status
from chairlift.server.openapi.answers import Created

Count = Annotated[int, Meta(ge=0)]


class FileTold(TypedDict):
    id: str
    object: Literal["file"]
    bytes: Count
    created_at: Created
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: None


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileTold]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchError(TypedDict):
    """What is wrong with a batch as a whole, or with a line of its input."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(TypedDict):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(TypedDict):
    total: Count
    completed: Count
    failed: Count


class BatchTold(TypedDict):
    """Times are in seconds since 1970; null is not yet, or never."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: Created
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[BatchTold]
    first_id: str | None
    last_id: str | None
    has_more: bool
