"""/v1/files: what somebody sends to be read later, and what batches leave for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import IO

from chairlift.server.batches.disk import open_file, open_to_read, sync_folder, write_all
from chairlift.server.batches.form import MAX_FIELD_BYTES, Part, boundary_of, read_form
from chairlift.server.batches.records import INPUT, FileRecord, new_file_id
from chairlift.server.batches.store import Store
from chairlift.server.errors import ApiError, bad_request, unsupported
from chairlift.server.exchange import ClientGone, Exchange, too_large
from chairlift.server.query import Query
from chairlift.server.shapes import encode_json

MAX_UPLOADS = 4
"""Of one principal at a time."""
MAX_FILENAME_CHARS = 255
MAX_LISTED = 10_000
WRITE_BYTES = 1 << 20
"""What of an upload is in memory, besides what the connection holds."""
READ_BYTES = 256 << 10
FORM_BYTES = 64 << 10
"""Most bytes of a form besides its file."""

_PREFIX = len(b"/v1/files/")
_ATTACHED = ((b"content-disposition", b"attachment"), (b"x-content-type-options", b"nosniff"))
"""What users sent is no page of this server's."""


class Files:
    """Serves the files of a store."""

    def __init__(self, store: Store, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock

    async def upload(self, exchange: Exchange) -> None:
        """POST /v1/files."""
        owner = exchange.principal.name
        boundary = boundary_of(exchange.headers.get(b"content-type", b""))
        self._store.check_room(owner)
        if self._store.num_coming(owner) >= MAX_UPLOADS:
            raise ApiError(429, f"You are sending {MAX_UPLOADS} files already.", code="too_many_uploads")
        upload = _Upload(self._store, owner)
        try:
            file = await self._received(exchange, boundary, upload)
            await self._store.add_file(file)
        except BaseException:
            await upload.give_up()
            raise
        finally:
            upload.close()
        await exchange.respond(200, encode_json(file.as_json()))

    async def _received(self, exchange: Exchange, boundary: bytes, upload: _Upload) -> FileRecord:
        """The file in the form, whose content is on disk for good then.

        Raises:
            ApiError: there is none, or it cannot be taken.
            ClientGone: the client left before its end.
        """
        max_file_bytes = self._store.limits.max_file_bytes
        fields: dict[str, bytes] = {}
        filename: str | None = None
        name = ""
        async for one in read_form(exchange.pieces(max_file_bytes + FORM_BYTES), boundary):
            if isinstance(one, Part):
                name = one.name
                _check_field(name, one.filename, name == "file" and filename is not None, fields)
                if one.filename is not None:
                    filename = one.filename
                else:
                    fields[name] = b""
            elif name == "file":
                if upload.num_bytes + len(one) > max_file_bytes:
                    raise too_large(max_file_bytes)
                await upload.write(one)
            else:
                fields[name] += one
                if len(fields[name]) > MAX_FIELD_BYTES:
                    raise bad_request(f"{name} has more than {MAX_FIELD_BYTES} bytes", name)
        if "purpose" not in fields:
            raise bad_request("purpose is missing", "purpose")
        if fields["purpose"] != INPUT.encode():
            raise bad_request(f"purpose must be {INPUT}: files are for nothing else here", "purpose")
        if filename is None:
            raise bad_request("file is missing", "file")
        if not upload.num_bytes:
            raise bad_request("file is empty", "file")
        await upload.finish()
        return FileRecord(
            id=upload.id,
            owner=upload.owner,
            filename=_shown(filename),
            purpose=INPUT,
            num_bytes=upload.num_bytes,
            created_at=int(self._wall_clock()),
            serial=self._store.next_serial(),
        )

    async def list(self, exchange: Exchange) -> None:
        """GET /v1/files."""
        query = Query(exchange.query)
        owner, purpose = exchange.principal.name, query.text("purpose")
        files = [
            one
            for one in self._store.files.values()
            if one.owner == owner and (purpose is None or one.purpose == purpose)
        ]
        await exchange.respond(200, encode_json(query.page(files, MAX_LISTED, MAX_LISTED)))

    async def file(self, exchange: Exchange) -> None:
        """GET /v1/files/{id}."""
        await exchange.respond(200, encode_json(self._file(exchange).as_json()))

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /v1/files/{id}."""
        file = self._file(exchange)
        await self._store.delete_file(file)
        await exchange.respond(200, encode_json({"id": file.id, "object": "file", "deleted": True}))

    async def content(self, exchange: Exchange) -> None:
        """GET /v1/files/{id}/content."""
        file = self._file(exchange)
        path = self._store.content_path(file.id)
        await exchange.body(FORM_BYTES)
        content: IO[bytes] = await self._store.on_disk(partial(open_to_read, path))
        watcher = asyncio.create_task(exchange.left())
        try:
            num_left = file.num_bytes
            await exchange.begin(200, b"application/octet-stream", num_left, _ATTACHED)
            while num_left and exchange.method != "HEAD":
                data = await self._store.on_disk(partial(content.read, min(READ_BYTES, num_left)))
                if not data or watcher.done():
                    raise ClientGone
                num_left -= len(data)
                await exchange.write(data, more=num_left > 0)
            if exchange.method == "HEAD":
                await exchange.write(b"", more=False)
        finally:
            watcher.cancel()
            content.close()

    def _file(self, exchange: Exchange) -> FileRecord:
        file_id = exchange.path[_PREFIX:].removesuffix(b"/content").decode("latin-1")
        return self._store.file(exchange.principal.name, file_id)


class _Upload:
    """The content of a file while it arrives."""

    def __init__(self, store: Store, owner: str) -> None:
        self.id = new_file_id()
        self.owner = owner
        self.num_bytes = 0
        self._store = store
        self._path = store.content_path(self.id)
        self._fd: int | None = None
        self._job: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        store.begin_coming(owner)

    async def write(self, data: bytes) -> None:
        """Raises an ApiError if the disk does not take it, or the owner may not have so much."""
        self._store.check_bytes(self.owner, len(data))
        self._store.add_coming(self.owner, len(data))
        self.num_bytes += len(data)
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES:
            await self._flush(is_last=False)

    async def finish(self) -> None:
        """Everything is there: keep it for good."""
        await self._flush(is_last=True)

    async def _flush(self, *, is_last: bool) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        self._job = asyncio.ensure_future(self._store.on_disk(partial(self._write, data, is_last)))
        await asyncio.shield(self._job)

    def _write(self, data: bytes, is_last: bool) -> None:
        if self._fd is None:
            self._fd = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        write_all(self._fd, data)
        if is_last:
            os.fsync(self._fd)
            sync_folder(self._path.parent)

    async def give_up(self) -> None:
        """Nothing of it is kept."""
        if self._job is not None:  # a thread may be writing, whoever does not wait for it
            await asyncio.wait((self._job,))
        await self._store.discard(self.id)

    def close(self) -> None:
        """It is no longer coming: it is there, or it is not."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._store.end_coming(self.owner, self.num_bytes)


def _check_field(name: str, filename: str | None, is_second: bool, fields: dict[str, bytes]) -> None:
    """Raises a 400 for a field that this form does not have, or has already."""
    if name not in ("file", "purpose"):
        shown = name[:64] if name.isprintable() else "a field"
        raise unsupported(f"{shown} is not supported by this server", name[:64])
    if (name == "file") != (filename is not None):
        raise bad_request("file must be a file" if name == "file" else "purpose must not be a file", name)
    if is_second or name in fields:
        raise bad_request(f"{name} comes twice", name)


def _shown(filename: str) -> str:
    """A name to be shown, never to be opened."""
    return "".join(one for one in filename if one.isprintable())[:MAX_FILENAME_CHARS] or "file"
