"""In which order waiting sequences are served: the other of the scheduler's two axes. An ordering owns its queue."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from chairlift.core.sequence import Sequence


class Ordering(Protocol):
    def push(self, sequence: Sequence) -> None: ...

    def peek(self) -> Sequence | None:
        """The sequence to be served next; None if nobody waits."""
        ...

    def pop(self) -> Sequence:
        """Take out what `peek` gave."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence, wherever it stands; ignored if it is not there."""
        ...

    def __len__(self) -> int: ...


class Fcfs:
    """First come, first served, among equals in priority. A preempted sequence goes back to its own place."""

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Sequence]] = []
        self._waiting: set[tuple[int, int, int]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.order, sequence))
        self._waiting.add(sequence.order)

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][0] not in self._waiting:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        sequence = self.peek()
        if sequence is None:
            raise IndexError("nobody waits")
        heappop(self._heap)
        self._waiting.discard(sequence.order)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self._waiting.discard(sequence.order)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._waiting):
            self._heap = [entry for entry in self._heap if entry[0] in self._waiting]
            self._heap.sort()
