"""One HTTP request and its response, over ASGI."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from chairlift.server.anthropic.errors import error_body, is_theirs
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.identity import ANYBODY, NOTHING, Principal, View
from chairlift.server.usage import Used

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ABORT_EXTENSION, ABORT = "chairlift.abort", "abort"
"""Where in `scope["extensions"]` a server offers a function that cuts the connection at once."""

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientGone(Exception):
    """The client left before its request had arrived; there is nobody to answer."""


class Exchange:
    """A request as it came in, and the way to answer it once."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name, value)
        self.principal: Principal = ANYBODY
        self.view: View = NOTHING
        """What it may see, of a request that watches."""
        self.status: int | None = None
        self.error_code: str | None = None
        """Of what it ended with, if that was an error: of its response, or within its stream."""
        self.note = ""
        """What the log says about it besides the status."""
        self.used: Used | None = None
        """What it used, of a request that uses the engine."""
        self.priority: int | None = None
        """Of a request that this process asks itself, instead of what its body says."""
        self.batch: str | None = None
        """The batch that it is a line of."""
        self.common_headers: tuple[tuple[bytes, bytes], ...] = ()
        """Of whatever is answered."""
        self.id = self._given_id() or secrets.token_hex(16)
        self._is_message = is_theirs(self.path)
        """It is of Anthropic's API, which has shapes and names of its own."""
        self._extensions: dict[str, Any] = scope.get("extensions") or {}
        self._receive = receive
        self._send = send

    async def body(self, max_bytes: int) -> bytes:
        """The whole request body.

        Raises:
            ApiError: 413 over `max_bytes`, 415 if it is encoded.
            ClientGone: the client left before the end.
        """
        return b"".join([piece async for piece in self.pieces(max_bytes)])

    async def pieces(self, max_bytes: int) -> AsyncIterator[bytes]:
        """The request body as it arrives.

        Raises:
            ApiError: as `body`.
            ClientGone: the client left before the end.
        """
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            raise ApiError(415, "Content-Encoding is not supported: send the body as it is.")
        length = self.headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18):
            raise bad_request("Content-Length is not a number.")
        if length is not None and int(length) > max_bytes:
            raise too_large(max_bytes)
        num_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise too_large(max_bytes)
            if piece:
                yield piece
            if not message.get("more_body", False):
                return

    async def left(self) -> None:
        """Until the client leaves. Call after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """A whole response."""
        await self._start(status, content_type, (*headers, (b"content-length", b"%d" % len(body))))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, error: ApiError, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """An error as a whole response, in the shape of the API that the path belongs to."""
        body = error_body(error, self.id) if self._is_message else error.body()
        await self.respond(error.status, body, headers=headers)

    async def open(self, status: int) -> None:
        """The beginning of a response in JSON that comes piece by piece, and whose length nobody knows."""
        await self._start(status, JSON, ())

    async def stream(self) -> None:
        """The beginning of a response whose body comes piece by piece."""
        await self._start(200, EVENTS, ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")))

    async def begin(
        self, status: int, content_type: bytes, num_bytes: int, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """The beginning of a response of so many bytes that comes piece by piece."""
        await self._start(status, content_type, (*headers, (b"content-length", b"%d" % num_bytes)))

    async def write(self, data: bytes, *, more: bool) -> None:
        """A piece of a streamed body; the last one with `more` false."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def abort(self) -> None:
        """Cut the connection without sending what is still buffered, where the server can."""
        offered = self._extensions.get(ABORT_EXTENSION)
        if offered is not None:
            offered[ABORT]()

    async def _start(self, status: int, content_type: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", content_type),
                    (b"x-request-id", self.id.encode()),
                    *(((b"request-id", self.id.encode()),) if self._is_message else ()),
                    *self.common_headers,
                    *headers,
                ],
            }
        )

    def _given_id(self) -> str | None:
        """The client's own id, if it can be repeated without harm in headers, logs and bodies."""
        return safe_id(self.headers.get(b"x-request-id", b"").decode("latin-1"))


def safe_id(text: str | None) -> str | None:
    """`text` if it may be echoed; it is a label for the client, never a key in here."""
    return text if text and _SAFE_ID.fullmatch(text) else None


def too_large(max_bytes: int) -> ApiError:
    """The body is larger than this server takes."""
    return ApiError(
        413,
        f"The body is larger than {max_bytes} bytes.",
        code="body_too_large",
        headers=((b"connection", b"close"),),
    )
