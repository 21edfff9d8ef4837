"""A line of a terminal that is written over and over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO


class StatusLine:
    """Rewritten every `interval_s` at most; says nothing where there is no terminal."""

    def __init__(self, terminal: TextIO | None, clock: Callable[[], float], interval_s: float) -> None:
        self._terminal = terminal
        self._clock = clock
        self._interval_s = interval_s
        self._before = clock()

    def due(self) -> float | None:
        """Seconds since it was due last, if it is due again; the caller then says what to `show`."""
        now = self._clock()
        passed_s = now - self._before
        if self._terminal is None or passed_s < self._interval_s:
            return None
        self._before = now
        return passed_s

    def show(self, text: str) -> None:
        """Write this over what was there; nothing takes the line away."""
        if self._terminal is not None:
            self._terminal.write(f"\r\x1b[K{text}")
            self._terminal.flush()
