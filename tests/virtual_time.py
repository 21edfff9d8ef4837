"""An event loop whose clock jumps to the next timer instead of waiting for it: time is exact, and free."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Never waits: what it was asked to wait for has passed when it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer will bring")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time, in seconds."""
    return asyncio.get_running_loop().time()
