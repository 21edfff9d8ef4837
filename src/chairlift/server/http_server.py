"""The listening socket and uvicorn behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn

from chairlift.core.errors import InvalidOption
from chairlift.server.app import App
from chairlift.server.batches.files import FORM_BYTES
from chairlift.server.batches.routes import FILES_PATH
from chairlift.server.connection import ConnectionLimits, LimitedConnection
from chairlift.server.garbage import Garbage
from chairlift.server.options import ServerOptions
from chairlift.server.paced import Acceptor, Paced
from chairlift.server.unix_socket import bind_path

_BACKLOG = 2048
_UNSENT_BYTES = 16 << 10
"""What the system may keep for a client besides what is on its way to it."""
_CLOSE_TIMEOUT_S = 2
_POLL_S = 0.002


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket: whoever connects waits until the server takes it.

    Raises:
        InvalidOption: the address is taken, unknown, or not ours.
    """
    if options.uds is not None:
        return bind_path(options.uds, _BACKLOG)
    try:
        info = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = info[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidOption(f"cannot listen on {options.host}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # or the system keeps megabytes for a client that does not read
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, not later: two that may bind to one address cannot both listen
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InvalidOption(f"cannot listen on {options.host} port {options.port}: {error.strerror or error}") from None
    return sock


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone, since draining is more than closing, and gives handshakes no more time than requests."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext | None, receive_timeout_s: float) -> None:
        super().__init__(config)
        self._context = context
        self._receive_timeout_s = receive_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class
        factory = partial(make, config=self.config, server_state=self.server_state, app_state={})
        tls: dict[str, Any] = {"ssl": self._context}
        if self._context is not None:
            tls |= {"ssl_handshake_timeout": self._receive_timeout_s, "ssl_shutdown_timeout": _CLOSE_TIMEOUT_S}
        connect = partial(loop.connect_accepted_socket, factory, **tls)
        acceptors: list[Any] = [
            Acceptor(sock, connect) for sock in sockets or ()
        ]  # all that uvicorn does is close them
        self.servers = acceptors
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves an app on a bound socket, which it takes over."""

    def __init__(
        self, app: App, sock: socket.socket, options: ServerOptions, context: ssl.SSLContext | None = None
    ) -> None:
        upload_paths: frozenset[bytes] = frozenset()
        if options.batch_dir is not None:
            upload_paths = frozenset(prefix + FILES_PATH.encode() for prefix in (b"", options.root_path.encode()))
        limits = ConnectionLimits(
            max_header_bytes=options.max_header_bytes,
            max_num_headers=options.max_num_headers,
            max_body_bytes=options.max_body_bytes,
            max_upload_bytes=options.max_batch_file_bytes + FORM_BYTES,
            upload_paths=upload_paths,
            receive_timeout_s=options.receive_timeout_s,
            write_timeout_s=options.write_timeout_s,
        )
        make_connection: Any = partial(LimitedConnection, limits=limits, paced=Paced())
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
        self._server = _Uvicorn(config, context, options.receive_timeout_s)
        self._garbage = Garbage()
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    @property
    def num_connections(self) -> int:
        """Connections of clients that are open."""
        return len(self.connections)

    @property
    def connections(self) -> list[LimitedConnection]:
        """Those of clients that are open."""
        return [one for one in self._server.server_state.connections if isinstance(one, LimitedConnection)]

    async def start(self) -> None:
        """Listen; returns when connections are taken."""
        self._garbage.start()
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Close the socket and every connection; those still being answered get a moment."""
        self._garbage.stop()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
