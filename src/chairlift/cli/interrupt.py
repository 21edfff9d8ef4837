"""Ctrl-C in a long computation: once to stop where its figures are whole, twice to leave at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130


class Interrupt:
    """While entered, notes the first Ctrl-C for whoever looks at `asked`; the next one is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._hears = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupt:
        if self._hears:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hears:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
