"""A small HTTP/1.1 client for load generation: keep-alive connections, responses handed on as they come.

Why our own: what a load generator spends per chunk it takes from the server beside it, and adds to every latency it
reports. Here a chunk costs one callback (socket, httptools' parser, the caller's function) and no task switch; the
clients usually used for this wake a task and pass several queues per chunk. Only what a benchmark needs is here: no
redirects, no proxies, no cookies, no compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from chairlift.core.errors import ChairliftError, InvalidOption

OnBody = Callable[[bytes, float], None]
"""Gets a piece of a successful response's body, and when it came."""

MAX_KEPT_BYTES = 64 << 20


class ConnectionLost(ChairliftError):
    """The server closed the connection, or never opened it."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose body went to nobody else."""

    status: int
    body: bytes


class HttpClient:
    """Connections to one server, opened as needed and kept for the next request.

    Raises:
        InvalidOption: a base URL that is not http(s)://host[:port][/path].
    """

    def __init__(self, base_url: str, *, clock: Callable[[], float], timeout_s: float) -> None:
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise InvalidOption(f"not a base URL: {base_url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption(f"not a base URL such as http://127.0.0.1:8000: {base_url!r}")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._clock = clock
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        on_body: OnBody | None = None,
    ) -> Response:
        """One exchange. With `on_body` the body of a 200 goes there, and the response has none.

        Raises:
            ConnectionLost: no connection, or it ended before the response did.
            TimeoutError: the response was not complete in time.
            Exception: whatever `on_body` raised; the connection is closed then.
        """
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._authority}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        message = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        async with asyncio.timeout(self._timeout_s):
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    try:
                        return await self._exchange(connection, message, on_body)
                    except _Stale:
                        pass  # closed by the server between two requests, as it may
            return await self._exchange(await self._connect(), message, on_body)

    async def close(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await asyncio.sleep(0)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._clock), self._host, self._port, ssl=self._ssl
            )
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {self._host}:{self._port}: {error}") from error
        return connection

    async def _exchange(self, connection: _Connection, message: bytes, on_body: OnBody | None) -> Response:
        try:
            response = await connection.exchange(message, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return response


class _Stale(ConnectionLost):
    """A connection that had served before ended without a byte of this response: worth another try."""


class _Connection(asyncio.Protocol):
    """One connection and the response that is coming in on it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._num_exchanges = 0
        self._done: asyncio.Future[Response] | None = None
        self._on_body: OnBody | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, on_body: OnBody | None) -> Response:
        if self._transport is None:
            raise ConnectionLost("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self._on_body = on_body
        self._kept: list[bytes] = []
        self._num_kept_bytes = 0
        self._until_close = True
        self._begun = self._headers_done = False
        self._now = 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        try:
            return await self._done
        finally:
            self._done = None
            self._num_exchanges += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.close()  # a server that speaks unasked is not to be used again
            return
        self._now = self._clock()
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(ConnectionLost(f"not an HTTP response: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is None or self._done.done():
            return
        if error is None and self._headers_done and self._until_close:
            self._complete()
        elif not self._begun and self._num_exchanges:
            self._fail(_Stale("the server closed an idle connection"))
        else:
            self._fail(ConnectionLost(f"the server closed the connection before its response was complete ({error})"))

    # ------------------------------------------------------------ from the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_headers_complete(self) -> None:
        self._headers_done = True
        if self._parser.get_status_code() != 200:
            self._on_body = None

    def on_body(self, body: bytes) -> None:
        if self._on_body is not None:
            self._on_body(body, self._now)
            return
        self._num_kept_bytes += len(body)
        if self._num_kept_bytes > MAX_KEPT_BYTES:
            raise ConnectionLost("the response is longer than 64 MiB")
        self._kept.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._complete()

    def _complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(Response(self._parser.get_status_code(), b"".join(self._kept)))

    def _fail(self, error: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()
