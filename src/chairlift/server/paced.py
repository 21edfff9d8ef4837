"""A few at a time: what thousands of connections need at once is spread over rounds of the event loop.

An event loop does all that is ready before it looks at anything else. Thousands of connections that come, or run out of
time, in one moment would keep everybody else waiting for as long as that takes; a few in each round keep nobody.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 2
"""In one round: some two hundred microseconds each, until their first bytes are read."""
RETRY_S = 0.1
"""After this the system is asked again for a connection that it had no means for."""


class Paced:
    """Calls that can wait for their turn, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def call(self, callback: Callable[[], object]) -> None:
        """Soon. It must not raise."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        waiting = self._waiting
        for _ in range(min(AT_ONCE, len(waiting))):
            waiting[0]()
            waiting.popleft()  # only now: whoever calls meanwhile need not begin another round
        if waiting:
            asyncio.get_running_loop().call_soon(self._run)


class Acceptor:
    """Takes connections from a listening socket, which stays the caller's; `connect` makes something of each.

    What `connect` raises is a client that left, or one that cannot speak TLS: nobody else's business.
    """

    def __init__(self, sock: socket.socket, connect: Callable[[socket.socket], Coroutine[Any, Any, object]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._connect = connect
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listen()

    def close(self) -> None:
        """Take no more; those that were taken stay."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock.fileno())

    async def wait_closed(self) -> None:
        """As servers of `asyncio` have it."""

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors left, or no memory: it would be ready, and fail, in every round
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(RETRY_S, self._listen)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._take(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, connection: socket.socket) -> None:
        try:
            await self._connect(connection)
        except OSError:
            connection.close()
