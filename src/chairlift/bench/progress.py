"""One line on a terminal that says how a run is going."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TextIO

from chairlift.bench.load import Load
from chairlift.bench.status_line import StatusLine

INTERVAL_S = 0.5


class ProgressLine:
    """Rewrites its line every half second; says nothing where nobody watches."""

    def __init__(self, stream: TextIO, num_chunks: Callable[[], int], clock: Callable[[], float]) -> None:
        self._stream = stream
        self._status = StatusLine(stream, clock, INTERVAL_S)
        self._num_chunks = num_chunks
        self._clock = clock
        self.load: Load | None = None

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the line meanwhile."""
        if not self._stream.isatty():
            yield
            return
        task = asyncio.create_task(self._rewrite())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._status.show("")

    async def _rewrite(self) -> None:
        seen, before = 0, self._clock()
        while True:
            await asyncio.sleep(INTERVAL_S)
            chunks, now = self._num_chunks(), self._clock()
            if self.load is not None:
                self._status.show(line(self.load, now, (chunks - seen) / (now - before)))
            seen, before = chunks, now


def line(load: Load, now: float, chunks_per_s: float) -> str:
    """What the line says."""
    failed = f", {load.num_failed} failed" if load.num_failed else ""
    return (
        f"{load.num_done}/{load.num_requests} done{failed}, {load.num_started - load.num_done} in flight, "
        f"{chunks_per_s:.0f} chunks/s, {now - load.begun:.0f} s"
    )
