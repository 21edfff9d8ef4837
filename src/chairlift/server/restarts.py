"""When an engine that was lost is started again, and when no longer."""

from __future__ import annotations

from collections import deque

WINDOW_S = 600.0
"""Losses further back do not count."""

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 2.0
"""The number of starts is what is bounded; who waits for the engine should not wait much longer than it loads."""


class Restarts:
    """At most so many restarts in any ten minutes: what fails again and again needs its owner, not another start."""

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._times: deque[float] = deque()

    def next(self, now: float) -> float | None:
        """Seconds to wait before the next start, from the loss at `now`; None if there is to be none."""
        while self._times and now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        if len(self._times) >= self._max_restarts:
            return None
        num_recent = len(self._times)
        self._times.append(now)
        return min(FIRST_DELAY_S * 2 ** (num_recent - 1), MAX_DELAY_S) if num_recent else 0.0
