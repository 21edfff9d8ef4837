"""One client connection: uvicorn's protocol with the limits that it lacks.

uvicorn's parser takes headers of any size and number and waits for ever for a request that is half sent. Here a head
over a limit, a body over a limit, a frame that is mostly framing, and a request that does not arrive in time are turned
away with an answer in the API's shape; a client that takes nothing of its answer is cut off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from chairlift.server.anthropic.errors import error_body, is_theirs
from chairlift.server.errors import ApiError
from chairlift.server.exchange import ABORT, ABORT_EXTENSION, too_large
from chairlift.server.paced import Paced

LINGER_S = 1.0
"""How long a client that was turned away may take to read why, before the connection is cut."""

DISCARD_BYTES = 64 << 10
"""What is still read from a client that was turned away, so that it gets to reading."""

BUFFER_BYTES = 16 << 10
"""What may wait to be sent before the app is told to wait. Written token by token, it takes five times the memory."""

TLS_BUFFER_BYTES = 8 << 10
"""What may wait to be encrypted, besides 64 KiB that were."""

MIN_UPLOAD_BYTES = 64 << 10
"""What of an upload must arrive in the time in which other requests must arrive as a whole."""

MAX_FRAMING = 8
"""Bytes on the wire per byte of a chunked body; one-byte chunks take six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may use."""

    max_header_bytes: int
    """Of request line and headers together."""
    max_num_headers: int
    max_body_bytes: int
    max_upload_bytes: int
    """Of a body that is posted to one of the `upload_paths`."""
    upload_paths: frozenset[bytes]
    receive_timeout_s: float
    write_timeout_s: float


class LimitedConnection(HttpToolsProtocol):
    """A connection that keeps its limits; made by uvicorn for each client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        paced: Paced,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.access_log = False  # the app writes one line for each request, when it is over
        self._limits = limits
        self._paced = paced
        """Where those that ran out of time wait for each other."""
        self._receiving = False
        self._in_head = False
        self._num_raw_bytes = 0
        """Bytes since the head or the body began."""
        self._num_header_bytes = 0
        self._num_headers = 0
        self._num_body_bytes = 0
        self._refusal: ApiError | None = None
        self._turned_away = False
        self._num_discarded = 0
        self._is_upload = False
        self._max_body_bytes = limits.max_body_bytes
        self._num_body_bytes_timed = 0
        """Of an upload, when it was last looked at."""
        self._receive_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=TLS_BUFFER_BYTES if self.scheme == "https" else BUFFER_BYTES)
        self._start_receive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receive_timer()
        self._stop_write_timer()
        self._unset_keepalive_if_required()  # uvicorn forgets that if the client reset the connection
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            self._num_discarded += len(data)
            if self._num_discarded > DISCARD_BYTES:
                self.flow.pause_reading()
            return
        self._num_raw_bytes += len(data)
        super().data_received(data)
        if self._turned_away or not self._receiving:
            return
        if self._in_head and self._num_raw_bytes > self._limits.max_header_bytes:
            self._turn_away(self._head_too_large())
        elif self._num_raw_bytes > MAX_FRAMING * self._num_body_bytes + DISCARD_BYTES:
            self._turn_away(ApiError(400, "The body is mostly framing."))
        elif self._receive_timer is None:
            self._start_receive_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._watch_writing()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    # ------------------------------------------------------------ what the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = self._in_head = True
        self._num_header_bytes = self._num_headers = self._num_body_bytes = 0
        self.scope["extensions"] = {ABORT_EXTENSION: {ABORT: self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._count_header(len(name) + len(value))
        if self._in_head:  # a trailer is counted and dropped: nothing may be added to a head that was acted upon
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._num_raw_bytes = 0
        limits = self._limits
        self._is_upload = self.parser.get_method() == b"POST" and self.url.partition(b"?")[0] in limits.upload_paths
        self._max_body_bytes = limits.max_upload_bytes if self._is_upload else limits.max_body_bytes
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._max_body_bytes:
                self._refuse(too_large(self._max_body_bytes))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        if self._num_body_bytes > self._max_body_bytes:
            self._refuse(too_large(self._max_body_bytes))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._num_raw_bytes = 0
        self._stop_receive_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser fails: on what a client sent, or on our refusal."""
        self._turn_away(self._refusal or ApiError(400, "The request is not valid HTTP."))

    # ------------------------------------------------------------ saying no

    def _count_header(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        limits = self._limits
        if self._num_header_bytes > limits.max_header_bytes or self._num_headers > limits.max_num_headers:
            self._refuse(self._head_too_large())

    def _head_too_large(self) -> ApiError:
        limits = self._limits
        return ApiError(
            431,
            f"At most {limits.max_num_headers} headers of {limits.max_header_bytes} bytes together are taken.",
            code="headers_too_large",
        )

    def _refuse(self, error: ApiError) -> None:
        """Stop the parser: it passes the exception on as an error of its own, which ends in `send_400_response`."""
        self._refusal = error
        raise ValueError(error.message)

    def _turn_away(self, error: ApiError) -> None:
        """Answer with `error` and close, leaving the client a moment to read it."""
        self._turned_away = True
        self._stop_receive_timer()
        self.pipeline.clear()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:  # half a response cannot be followed by another one
                self.transport.abort()
                return
        path = self.url.partition(b"?")[0]
        body = error_body(error, None) if is_theirs(path) else error.body()
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (error.status, len(body))
            + body
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self._paced.call, self.transport.abort)

    # ------------------------------------------------------------ deadlines

    def _start_receive_timer(self) -> None:
        self._receive_timer = self.loop.call_later(self._limits.receive_timeout_s, self._is_late)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _is_late(self) -> None:
        self._paced.call(partial(self._not_received, self._receive_timer))

    def _not_received(self, timer: asyncio.TimerHandle | None) -> None:
        if self._receive_timer is not timer:
            return  # it arrived while others had their turn
        self._receive_timer = None
        if self._is_upload and self._receiving and not self.cycle.response_started:
            # It may take as long as it takes, if it goes on; while it waits for our disk, it need not.
            num_new = self._num_body_bytes - self._num_body_bytes_timed
            self._num_body_bytes_timed = self._num_body_bytes
            if num_new >= MIN_UPLOAD_BYTES or self.flow.read_paused:
                self._start_receive_timer()
                return
        if self._receiving and (self.cycle is None or not self.cycle.response_started):
            self._turn_away(ApiError(408, "The request did not arrive in time.", code="request_timeout"))
        elif self._receiving or self.cycle is None:
            self.transport.close()

    def _watch_writing(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._not_written, unsent)

    def _not_written(self, unsent_before: int) -> None:
        """Cut off a client that took nothing; one that reads slowly may go on."""
        self._write_timer = None
        if self.transport.get_write_buffer_size() >= unsent_before:
            self.transport.abort()
        else:
            self._watch_writing()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
