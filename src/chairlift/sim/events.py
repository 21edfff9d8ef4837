"""What happens next, and when: one heap for everything that is simulated."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


class Rank:
    """Which of several events at one time is heard first: a number."""

    ARRIVAL = 0
    FOLLOW_UP = 1
    """An arrival that another request's end brought about."""
    STEP_END = 2
    WAKE = 3


class Events(Generic[Subject]):
    """Events in the order of (time, rank, as they were announced). Time is in seconds and never goes back."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Subject]] = []
        self._serial = 0
        self.now = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        """When the next event is; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def push(self, time: float, rank: int, subject: Subject) -> None:
        """Announce an event; one for a time that has passed happens now."""
        self._serial += 1
        heappush(self._heap, (time if time > self.now else self.now, rank, self._serial, subject))

    def pop(self) -> tuple[int, Subject]:
        """Move the clock to the next event, and take it: its rank, and whom it concerns."""
        self.now, rank, _, subject = heappop(self._heap)
        return rank, subject
