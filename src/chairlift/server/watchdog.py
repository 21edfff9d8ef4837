"""Telling an engine that hangs from one that is busy.

An engine speaks after every step, and every second when idle. Silence is added up from what was watched, not taken as a
difference of two clocks: if this process was stopped, starved or suspended itself, nothing can be said about the
engine in that time, and an engine that is working must not be killed for it.
"""

from __future__ import annotations

MAX_GAP_S = 0.5
"""Most silence that one look counts: looks that lie further apart say more about who looks."""

PATIENCE = 10.0
"""How many times the longest step so far an engine may be silent, where steps are slow as a rule."""


class Watchdog:
    """Counts how long one engine has been silent, by the looks of those who want to know; any number may look."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_look: float | None = None
        self._heard: float | None = None
        self._silent_s = 0.0

    def look(self, now: float, heard: float | None, longest_step_s: float) -> bool:
        """Whether the engine hangs, seen at `now`; `heard` is when it spoke last, None before its first word.

        All in seconds. It may be silent for the limit, and for `PATIENCE` times the longest step that it took, of
        which no more than the limit counts.
        """
        gap_s = 0.0 if self._last_look is None else now - self._last_look
        self._last_look = now
        if heard != self._heard:
            self._heard = heard
            self._silent_s = 0.0
            return False
        if heard is None:
            return False
        self._silent_s += min(max(gap_s, 0.0), MAX_GAP_S)
        return self._silent_s > max(self._limit_s, PATIENCE * min(longest_step_s, self._limit_s))
