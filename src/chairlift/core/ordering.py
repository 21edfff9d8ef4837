"""In which order waiting sequences are served: the other of the scheduler's two axes.

    level -2   |  line: who is served first among equals in priority          lower levels first, always
    level  0   |  line
    level  5   |  line        ageing: who has waited long moves up to the next line that is not empty

A line is sorted (by arrival or by deadline), or fair (`core/fairness.py`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Protocol

from chairlift.core.sequence import Sequence
from chairlift.core.types import BACKGROUND_PRIORITY


class Line(Protocol):
    """Waiting sequences of one level."""

    def push(self, sequence: Sequence) -> None: ...

    def peek(self) -> Sequence:
        """Who is served next. The line is not empty."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is there, wherever it stands."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in no particular order."""
        ...


class Sorted:
    """A line in the order of `Sequence.order`. A preempted sequence goes back to its own place."""

    __slots__ = ("_heap", "_num_pushed", "_places")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int, int], int, Sequence]] = []
        self._places: dict[Sequence, int] = {}
        """By sequence: which of its entries counts. Others are left from when it was taken out."""
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def push(self, sequence: Sequence) -> None:
        self._num_pushed += 1
        self._places[sequence] = self._num_pushed
        heappush(self._heap, (sequence.order, self._num_pushed, sequence))

    def peek(self) -> Sequence:
        while self._places.get(self._heap[0][2]) != self._heap[0][1]:
            heappop(self._heap)
        return self._heap[0][2]

    def remove(self, sequence: Sequence) -> None:
        del self._places[sequence]
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._places):
            self._heap = [entry for entry in self._heap if self._places.get(entry[2]) == entry[1]]
            self._heap.sort()


class Waiting:
    """The queue: a line for each level of priority, and ageing between them.

    A sequence that has waited `ageing_s` at its level moves up to the next better level that somebody waits at; above
    the best of them it never rises, so that ageing bounds the wait of the last and changes nothing among equals. The
    background does not age.
    """

    __slots__ = ("_ageing_s", "_dues", "_levels", "_lines", "_make_line", "_num_pushed", "_num_waiting", "num_seqs")

    def __init__(self, make_line: Callable[[], Line], ageing_s: float) -> None:
        self._make_line = make_line
        self._ageing_s = ageing_s
        self._lines: dict[int, Line] = {}
        self._levels: list[int] = []
        """Levels with somebody waiting, sorted."""
        self._dues: list[tuple[float, int, Sequence]] = []
        """When a sequence moves up; those that left meanwhile have another `ages_at`."""
        self._num_pushed = 0
        self._num_waiting = 0
        self.num_seqs = 0
        """Those who wait, with the choices that will take their slots together with them."""

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """All who wait, level by level."""
        for level in self._levels:
            yield from self._lines[level]

    @property
    def next_due(self) -> float | None:
        """When somebody may age next; it may be one who left meanwhile."""
        return self._dues[0][0] if self._dues else None

    @property
    def best_level(self) -> int:
        """The best level of those who wait. Somebody waits."""
        return self._levels[0]

    @property
    def has_background(self) -> bool:
        """Whether any wait that give way to everybody else."""
        return bool(self._levels) and self._levels[-1] >= BACKGROUND_PRIORITY

    @property
    def num_background(self) -> int:
        """Those who wait, with their choices, that give way to everybody else."""
        levels = [level for level in self._levels if level >= BACKGROUND_PRIORITY]
        return sum(1 + len(s.siblings) for level in levels for s in self._lines[level])

    def push(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence at its level."""
        self._insert(sequence)
        sequence.waits_since = now
        self._set_due(sequence, now)

    def push_back(self, sequence: Sequence) -> None:
        """Put back what was popped in the same step: it was only set aside."""
        self._insert(sequence)

    def peek(self, now: float) -> Sequence | None:
        """Who is to be served next; None if nobody waits."""
        while self._dues and self._dues[0][0] <= now:
            self._age(*heappop(self._dues), now)
        return self._lines[self._levels[0]].peek() if self._levels else None

    def pop(self, sequence: Sequence) -> None:
        """Take out what `peek` gave. It still counts as waiting until `left`, or goes back by `push_back`."""
        self._take_out(sequence)

    def left(self, sequence: Sequence) -> None:
        """A popped sequence joined: it waits no longer."""
        sequence.waits_since = None

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence, wherever it stands; ignored if it is not there."""
        if sequence.waits_since is not None:
            self._take_out(sequence)
            sequence.waits_since = None

    def _insert(self, sequence: Sequence) -> None:
        level = sequence.order[0]
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = self._make_line()
            insort(self._levels, level)
        line.push(sequence)
        self._num_waiting += 1
        self.num_seqs += 1 + len(sequence.siblings)

    def _take_out(self, sequence: Sequence) -> None:
        level = sequence.order[0]
        line = self._lines[level]
        line.remove(sequence)
        self._num_waiting -= 1
        self.num_seqs -= 1 + len(sequence.siblings)
        if not line:
            del self._lines[level]
            self._levels.remove(level)

    def _set_due(self, sequence: Sequence, now: float) -> None:
        if self._ageing_s > 0 and sequence.order[0] < BACKGROUND_PRIORITY:
            self._num_pushed += 1
            # Later than now, however short the period is beside the clock's last digit: or it would be due for ever.
            sequence.ages_at = max(now + self._ageing_s, nextafter(now, inf))
            heappush(self._dues, (sequence.ages_at, self._num_pushed, sequence))
            if len(self._dues) > 64 and len(self._dues) > 4 * len(self):
                self._dues = [due for due in self._dues if due[2].waits_since is not None and due[0] == due[2].ages_at]
                self._dues.sort()

    def _age(self, due: float, serial: int, sequence: Sequence, now: float) -> None:
        if sequence.waits_since is None or sequence.ages_at != due:
            return
        better = self._levels.index(sequence.order[0]) - 1
        if better >= 0:
            self._take_out(sequence)
            sequence.set_level(self._levels[better])
            self._insert(sequence)
        self._set_due(sequence, now)
