"""/v1/batches: a file of requests to be answered within a day, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from chairlift.server.batches.records import INPUT, BatchRecord, new_batch_id, new_file_id
from chairlift.server.batches.runner import Runner
from chairlift.server.batches.store import Store
from chairlift.server.bounds import Metadata, tells
from chairlift.server.errors import DO_NOT_RETRY, ApiError, bad_request
from chairlift.server.exchange import Exchange
from chairlift.server.fields import refuse_unsupported
from chairlift.server.identity import tenant_name
from chairlift.server.json_body import convert, read_object
from chairlift.server.query import Query
from chairlift.server.shapes import encode_json
from chairlift.server.validate import check_metadata

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
WINDOWS = {"24h": 24 * 3600}
MAX_BODY_BYTES = 64 << 10
MAX_LISTED = 100
DEFAULT_LISTED = 20

_PREFIX = len(b"/v1/batches/")
UNSUPPORTED = {"output_expires_after": (None,)}
"""Known fields that are not supported, with the values that ask for nothing."""


class BatchBody(msgspec.Struct, kw_only=True):
    """POST /v1/batches."""

    input_file_id: Annotated[str, tells("Of a file for batches.", required=True)] | None = None
    endpoint: Annotated[str, tells(required=True, enum=list(ENDPOINTS))] | None = None
    completion_window: Annotated[str, tells(required=True, enum=list(WINDOWS))] | None = None
    metadata: Annotated[Metadata, tells("Told again with the batch.")] | None = None


class Batches:
    """Serves the batches of a store, which a runner answers."""

    def __init__(self, store: Store, runner: Runner, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._runner = runner
        self._wall_clock = wall_clock

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/batches."""
        content = read_object(await exchange.body(MAX_BODY_BYTES))
        refuse_unsupported(content, UNSUPPORTED)
        body = convert(content, BatchBody)
        if body.endpoint not in ENDPOINTS:
            raise bad_request(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
        if body.completion_window not in WINDOWS:
            raise bad_request(f"completion_window must be {' or '.join(WINDOWS)}", "completion_window")
        check_metadata(body.metadata)
        if body.input_file_id is None:
            raise bad_request("input_file_id is missing", "input_file_id")
        principal = exchange.principal
        if not principal.may_use(body.endpoint):
            raise ApiError(403, "This API key is not for this path.", param="endpoint", code="route_not_allowed")
        tenant = tenant_name(exchange.headers, "")
        file = self._store.files.get(body.input_file_id)
        if file is None or file.owner != principal.name or file.purpose != INPUT:
            raise bad_request("There is no such file for batches.", "input_file_id", "file_not_found")
        now = int(self._wall_clock())
        batch = BatchRecord(
            id=new_batch_id(),
            owner=principal.name,
            tenant=tenant,
            input_file_id=file.id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            metadata=body.metadata,
            created_at=now,
            expires_at=now + WINDOWS[body.completion_window],
            serial=self._store.next_serial(),
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
        )
        await self._store.add_batch(batch)
        answer = encode_json(batch.as_json())
        self._runner.begin(batch)
        await exchange.respond(200, answer)

    async def list(self, exchange: Exchange) -> None:
        """GET /v1/batches."""
        own = [one for one in self._store.batches.values() if one.owner == exchange.principal.name]
        await exchange.respond(200, encode_json(Query(exchange.query).page(own, DEFAULT_LISTED, MAX_LISTED)))

    async def batch(self, exchange: Exchange) -> None:
        """GET /v1/batches/{id}."""
        await exchange.respond(200, encode_json(self._batch(exchange).as_json()))

    async def cancel(self, exchange: Exchange) -> None:
        """POST /v1/batches/{id}/cancel."""
        batch = self._batch(exchange)
        if batch.has_ended or batch.status == "finalizing":
            message = f"The batch is {batch.status}: there is nothing to cancel."
            raise ApiError(409, message, param="batch_id", code="batch_has_ended", headers=DO_NOT_RETRY)
        await self._runner.cancel(batch)
        await exchange.respond(200, encode_json(batch.as_json()))

    def _batch(self, exchange: Exchange) -> BatchRecord:
        batch_id = exchange.path[_PREFIX:].removesuffix(b"/cancel").decode("latin-1")
        return self._store.batch(exchange.principal.name, batch_id)
