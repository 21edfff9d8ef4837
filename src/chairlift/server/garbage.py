"""When the whole of what lives is searched for garbage: seldom, and never in the middle of a rush.

The interpreter looks through everything whenever what lives has grown by a quarter: while thousands connect, a tenth of
a second each time, again and again, in which nobody is served. Garbage that dies young is found as ever. The old is
looked for now and then if there may be any, or at once if there may be much.
"""

from __future__ import annotations

import asyncio
import gc
import time

LOOK_S = 1.0
RESTS = 50
"""A search is followed by so many times its own length without one, unless much has come together."""
SOME, MANY = 10, 200
"""Searches among the young since the last whole one. Each means that some seven thousand objects came."""
_NEVER, _USUAL = 1 << 30, 10
"""Searches among the young before the interpreter begins a whole one by itself."""


class Garbage:
    """Between `start` and `stop`, whole searches are begun here."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """From now on; on an event loop."""
        gc.set_threshold(*gc.get_threshold()[:2], _NEVER)
        self._wait()

    def stop(self) -> None:
        """As it was."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*gc.get_threshold()[:2], _USUAL)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        num_young, now = gc.get_count()[2], time.perf_counter()
        if num_young >= MANY or (num_young >= SOME and now >= self._due):
            gc.collect()
            then = time.perf_counter()
            self._due = then + RESTS * (then - now)
        self._wait()
