"""The paths of files and batches, and what the OpenAPI document tells of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from chairlift.server.batches.batches import MAX_LISTED as MOST_BATCHES
from chairlift.server.batches.batches import UNSUPPORTED, BatchBody
from chairlift.server.batches.files import MAX_LISTED as MOST_FILES
from chairlift.server.batches.records import INPUT
from chairlift.server.batches.told import BatchList, BatchTold, DeletedFile, FileList, FileTold
from chairlift.server.bounds import tells
from chairlift.server.errors import ApiError
from chairlift.server.exchange import Exchange
from chairlift.server.route import Operation, Parameter, Route

if TYPE_CHECKING:
    from chairlift.server.batches.service import BatchService

FILES_PATH, BATCHES_PATH = "/v1/files", "/v1/batches"

_TAG = "Batches"
_GET = ("GET", "HEAD")
_PURPOSE = Parameter("purpose", str, "Only files for this.")

Serve = Callable[["BatchService", Exchange], Awaitable[None]]


def batch_routes(service: Callable[[], BatchService | None]) -> Iterator[tuple[bytes, bytes, Route]]:
    """Each route with how its paths begin, and how they end; without an end, it is the path of one that has no id."""

    def route(name: str, **served: tuple[Serve, Operation]) -> Route:
        methods: dict[str, Callable[[Exchange], Awaitable[None]]] = {}
        operations: dict[str, Operation] = {}
        for method, (serve, operation) in served.items():
            for each in _GET if method == "GET" else (method,):
                methods[each], operations[each] = _endpoint(service, serve), operation
        return Route(name, methods, operations=operations)

    yield (
        FILES_PATH.encode(),
        b"",
        route(
            FILES_PATH,
            POST=(lambda s, e: s.files.upload(e), UPLOAD),
            GET=(lambda s, e: s.files.list(e), LIST_FILES),
        ),
    )
    yield (
        BATCHES_PATH.encode(),
        b"",
        route(
            BATCHES_PATH,
            POST=(lambda s, e: s.batches.create(e), CREATE),
            GET=(lambda s, e: s.batches.list(e), LIST_BATCHES),
        ),
    )
    yield (
        f"{FILES_PATH}/".encode(),
        b"/content",
        route(f"{FILES_PATH}/{{id}}/content", GET=(lambda s, e: s.files.content(e), CONTENT)),
    )
    yield (
        f"{BATCHES_PATH}/".encode(),
        b"/cancel",
        route(f"{BATCHES_PATH}/{{id}}/cancel", POST=(lambda s, e: s.batches.cancel(e), CANCEL)),
    )
    yield (
        f"{FILES_PATH}/".encode(),
        b"",
        route(
            f"{FILES_PATH}/{{id}}",
            GET=(lambda s, e: s.files.file(e), FILE),
            DELETE=(lambda s, e: s.files.delete(e), DELETE),
        ),
    )
    yield (
        f"{BATCHES_PATH}/".encode(),
        b"",
        route(f"{BATCHES_PATH}/{{id}}", GET=(lambda s, e: s.batches.batch(e), BATCH)),
    )


def _endpoint(service: Callable[[], BatchService | None], serve: Serve) -> Callable[[Exchange], Awaitable[None]]:
    async def endpoint(exchange: Exchange) -> None:
        batches = service()
        if batches is None:
            message = "This server keeps no files and batches: it was started without --batch-dir."
            raise ApiError(404, message, code="batches_not_enabled")
        await serve(batches, exchange)

    return endpoint


def _pages(most: int) -> tuple[Parameter, ...]:
    return (
        Parameter("limit", Annotated[int, Meta(ge=1, le=most)], "How many are listed."),
        Parameter("after", str, "The id of the one after which the list goes on."),
        Parameter("order", Literal["desc", "asc"], "The newest first, or the oldest."),
    )


class UploadForm(msgspec.Struct):
    """POST /v1/files, as a form."""

    purpose: Annotated[str, tells(enum=[INPUT])]
    file: Annotated[str, tells("What it holds.", contentMediaType="application/octet-stream")]


UPLOAD = Operation(
    about="Send a file of requests, as a form with the fields purpose (batch) and file.",
    tag=_TAG,
    body=UploadForm,
    body_media="multipart/form-data",
    answer=FileTold,
    statuses=(404, 413, 415, 429, 507),
)
LIST_FILES = Operation(
    about="List files.", tag=_TAG, answer=FileList, parameters=(_PURPOSE, *_pages(MOST_FILES)), statuses=(404,)
)
FILE = Operation(about="What is known of a file.", tag=_TAG, answer=FileTold, statuses=(404,))
CONTENT = Operation(
    about="The content of a file.", tag=_TAG, answer_media="application/octet-stream", statuses=(404, 507)
)
DELETE = Operation(
    about="Delete a file that no unfinished batch reads.", tag=_TAG, answer=DeletedFile, statuses=(404, 409, 507)
)
CREATE = Operation(
    about="Have a file of requests answered when there is room, within a day.",
    tag=_TAG,
    body=BatchBody,
    unsupported=UNSUPPORTED,
    answer=BatchTold,
    statuses=(404, 429, 507),
)
LIST_BATCHES = Operation(
    about="List batches.", tag=_TAG, answer=BatchList, parameters=_pages(MOST_BATCHES), statuses=(404,)
)
BATCH = Operation(about="What has become of a batch.", tag=_TAG, answer=BatchTold, statuses=(404,))
CANCEL = Operation(
    about="Stop a batch and keep what it has answered.", tag=_TAG, answer=BatchTold, statuses=(404, 409, 507)
)
