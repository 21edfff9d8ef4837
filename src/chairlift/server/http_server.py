"""The listening socket and uvicorn behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn

from chairlift.core.errors import InvalidOption
from chairlift.server.app import App
from chairlift.server.connection import ConnectionLimits, LimitedConnection
from chairlift.server.options import ServerOptions

_BACKLOG = 2048
_CLOSE_TIMEOUT_S = 2
_POLL_S = 0.002


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket: whoever connects waits until the server takes it.

    Raises:
        InvalidOption: the address is taken, unknown, or not ours.
    """
    try:
        info = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = info[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidOption(f"cannot listen on {options.host}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, not later: two that may bind to one address cannot both listen
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InvalidOption(f"cannot listen on {options.host} port {options.port}: {error.strerror or error}") from None
    return sock


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone: draining is more than closing."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves an app on a bound socket, which it takes over."""

    def __init__(self, app: App, sock: socket.socket, options: ServerOptions) -> None:
        limits = ConnectionLimits(
            max_header_bytes=options.max_header_bytes,
            max_num_headers=options.max_num_headers,
            max_body_bytes=options.max_body_bytes,
            receive_timeout_s=options.receive_timeout_s,
            write_timeout_s=options.write_timeout_s,
        )
        make_connection: Any = partial(LimitedConnection, limits=limits)
        config = uvicorn.Config(
            app,
            http=make_connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=options.keep_alive_timeout_s,
            timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
        )
        self._server = _Uvicorn(config)
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    @property
    def num_connections(self) -> int:
        """Connections of clients that are open."""
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """Listen; returns when connections are taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Close the socket and every connection; those still being answered get a moment."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
