"""How far a model is loaded, told to who wants to show it."""

from __future__ import annotations

import threading
from collections.abc import Callable

Report = Callable[[int, int], None]
"""`report(done_bytes, total_bytes)`, of the weights as they lie in the file; called by one thread at a time, and with
equal numbers once, at the end."""


class LoadedBytes:
    """Adds up what several threads have packed."""

    def __init__(self, total_bytes: int, report: Report | None) -> None:
        self._total_bytes = total_bytes
        self._report = report
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            if self._report is not None:
                self._report(self._done_bytes, self._total_bytes)
