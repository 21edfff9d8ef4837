"""The way out to one client: bytes written by the frame loop, taken by the task that answers the client.

The frame loop must never wait and the client may be slow: what is written is kept, up to a bound in bytes. However
many pieces are written before the task runs again, it is woken once and takes them in one piece. What is `Written` is
not bytes yet: it counts for nothing until its turn comes, and is then taken in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from chairlift.server.errors import ApiError
from chairlift.server.written import Told, Written, gathered

MANY_PIECES = 64
"""So many that wait are put together: small ones take twice the memory that they count. What was put together stays as
it is, since ever larger pieces would leave holes between those of many clients."""


class Outlet:
    """Bytes on their way to one client; ended by `close`, or by `fail` with the reason."""

    __slots__ = (
        "_largest",
        "_later",
        "_max_pending_bytes",
        "_num_loose",
        "_num_pending_bytes",
        "_on_overrun",
        "_pending",
        "_waiter",
        "closed",
        "error",
        "is_quiet",
    )

    def __init__(self, max_pending_bytes: int, on_overrun: Callable[[], None]) -> None:
        self._pending: list[bytes] = []
        self._num_pending_bytes = 0
        self._num_loose = 0
        """Pieces at the end that were not put together."""
        self._largest = 0
        """Of the pieces that wait, in bytes."""
        self._later: list[tuple[Iterator[bytes], int]] = []
        """What is yet to be made, and how many of the pieces that wait come before it."""
        self._max_pending_bytes = max_pending_bytes
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self.error: ApiError | None = None
        self.is_quiet = True
        """Nothing was taken since somebody set this."""
        self._on_overrun = on_overrun

    @property
    def has_pending(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._pending or self._later)

    def write(self, data: Told) -> None:
        """Keep `data` for the client; if too much waits already, give the client up: nothing is kept, and `on_overrun`.

        The largest piece does not count: that an event repeats a whole request or answer is not the client's doing.
        """
        if self.closed:
            return
        if self._num_pending_bytes - self._largest > self._max_pending_bytes:
            self._pending.clear()
            self._later.clear()
            self.fail(ApiError(408, "The client does not read its answer.", code="slow_reader"))
            self._on_overrun()
            return
        if isinstance(data, Written):
            self._later.append((gathered(data), len(self._pending)))
            self._num_loose = 0
        else:
            num_bytes = len(data)
            self._num_pending_bytes += num_bytes
            if num_bytes > self._largest:
                self._largest = num_bytes
            self._pending.append(data)
            self._num_loose += 1
            if self._num_loose > MANY_PIECES:
                self._pending[-self._num_loose :] = [b"".join(self._pending[-self._num_loose :])]
                self._num_loose = 0
        if self._waiter is not None:
            self._wake()

    def close(self) -> None:
        """Nothing more will come. Closing again changes nothing."""
        self.closed = True
        if self._waiter is not None:
            self._wake()

    def fail(self, error: ApiError) -> None:
        """Nothing more will come, because of `error`; only the first end counts."""
        if not self.closed:
            self.error = error
            self.close()

    async def wait(self) -> None:
        """Until there is something to take, or the end. One task at a time may wait."""
        if self._pending or self._later or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """Everything written since the last time; of what is yet to be made a piece, while `has_pending` says so."""
        self.is_quiet = False
        if self._later:
            return self._make()
        data = b"".join(self._pending)
        self._pending.clear()
        self._num_pending_bytes = self._largest = self._num_loose = 0
        return data

    def _make(self) -> bytes:
        """What comes before the first that is yet to be made, or else a piece of that. Nothing, if it is over."""
        making, num_before = self._later[0]
        if not num_before:
            piece = next(making, b"")
            if not piece:
                del self._later[0]
            return piece
        data = b"".join(self._pending[:num_before])
        self._largest = max(map(len, self._pending[num_before:]), default=0)
        del self._pending[:num_before]
        self._later = [(making, num - num_before) for making, num in self._later]
        self._num_pending_bytes -= len(data)
        return data

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
