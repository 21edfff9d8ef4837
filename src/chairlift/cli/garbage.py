"""Python's search for garbage in cycles, where there is little and much else to look through."""

from __future__ import annotations

import gc
from types import TracebackType

MANY_OBJECTS = 100_000
"""Made since the last search before the next one begins."""


class SeldomCollected:
    """While entered, what was made before is not looked through, and what is made seldom."""

    def __enter__(self) -> SeldomCollected:
        self._before = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(MANY_OBJECTS, *self._before[1:])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.set_threshold(*self._before)
        gc.unfreeze()
