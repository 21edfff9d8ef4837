"""The paths of files and batches, and what the OpenAPI document tells of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chairlift.server.batches.batches import MAX_LISTED as MOST_BATCHES
from chairlift.server.batches.batches import UNSUPPORTED, BatchBody
from chairlift.server.batches.files import MAX_LISTED as MOST_FILES
from chairlift.server.batches.records import INPUT
from chairlift.server.batches.service import BatchService
from chairlift.server.batches.told import BatchList, BatchTold, DeletedFile, FileList, FileTold
from chairlift.server.bounds import tells
from chairlift.server.errors import ApiError
from chairlift.server.exchange import Exchange
from chairlift.server.route import Endpoint, Operation, Parameter, Route, at

FILES_PATH, BATCHES_PATH = "/v1/files", "/v1/batches"

_TAG = "Batches"
_PURPOSE = Parameter("purpose", str, "Only files for this.")

Serve = Callable[[BatchService, Exchange], Awaitable[None]]


def batch_routes(service: Callable[[], BatchService | None]) -> Iterator[Route]:
    """Of files and batches; `service` gives what keeps them, if the operator wants that."""

    def served(serve: Serve, operation: Operation) -> tuple[Endpoint, Operation]:
        return _endpoint(service, serve), operation

    yield at(
        FILES_PATH,
        POST=served(lambda s, e: s.files.upload(e), UPLOAD),
        GET=served(lambda s, e: s.files.list(e), LIST_FILES),
    )
    yield at(
        f"{FILES_PATH}/{{id}}",
        GET=served(lambda s, e: s.files.file(e), FILE),
        DELETE=served(lambda s, e: s.files.delete(e), DELETE),
    )
    yield at(f"{FILES_PATH}/{{id}}/content", GET=served(lambda s, e: s.files.content(e), CONTENT))
    yield at(
        BATCHES_PATH,
        POST=served(lambda s, e: s.batches.create(e), CREATE),
        GET=served(lambda s, e: s.batches.list(e), LIST_BATCHES),
    )
    yield at(f"{BATCHES_PATH}/{{id}}", GET=served(lambda s, e: s.batches.batch(e), BATCH))
    yield at(f"{BATCHES_PATH}/{{id}}/cancel", POST=served(lambda s, e: s.batches.cancel(e), CANCEL))


def _endpoint(service: Callable[[], BatchService | None], serve: Serve) -> Endpoint:
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
