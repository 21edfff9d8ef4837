"""What became of requests: when each token came, kept in a few numbers per answer instead of one per token.

A decoding row gets a token at the end of every step that decodes. So the times of its tokens are a stretch of the list
of those ends, and only tokens that come from chunks (the first, and the first after a preemption) need a note.

    ends of decode steps    e0  e1  e2  e3  e4  e5
    a row                  t        e2  e3  e4              a stretch: token at t by a chunk, then e[2:5]
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from chairlift.core.types import Finish, StepOutput, StepPlan
from chairlift.sim.workload import Asked


@dataclass(slots=True)
class Stretch:
    """Tokens of one answer without a pause: one at `first`, then one at each of the replica's decode ends
    `begin` .. `end` - 1."""

    first: float
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Served:
    """One request as it was served, or not: `error` says why it was refused."""

    id: int
    asked: Asked
    replica: int
    num_left: int
    error: str | None = None
    first_token: float | None = None
    finishes: list[Finish] = field(default_factory=list)
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """By choice."""

    @property
    def is_over(self) -> bool:
        return not self.num_left

    @property
    def finished(self) -> float | None:
        """When its last answer ended, in seconds."""
        return max(finish.finished for finish in self.finishes) if self.finishes and self.is_over else None

    @property
    def num_output_tokens(self) -> int:
        """Of the answers that ended."""
        return sum(finish.num_output_tokens for finish in self.finishes)


@dataclass(slots=True, eq=False)
class _Row:
    served: Served
    choice: int
    last: float = 0.0
    """Of its last token that did not come from riding along."""
    begin: int = 0
    rides: bool = False
    """Whether it gets a token from every step that decodes."""
    paused: bool = False
    """Whether it had tokens before, and was preempted since."""


class Ledger:
    """Keeps the book of one replica, step by step."""

    def __init__(self) -> None:
        self.decode_ends = array("d")
        """Ends of the steps that decode, in seconds."""
        self.gaps = array("d")
        self.gap_counts = array("q")
        """Inter-token latencies in seconds, each with how many answers had it."""
        self._rows: dict[tuple[int, int], _Row] = {}
        self._slots: dict[int, _Row] = {}
        self._fresh: list[_Row] = []
        """Rows that wait for the first token that they get by riding along."""

    def step(self, plan: StepPlan, output: StepOutput, served: dict[int, Served], now: float) -> None:
        """Note a step that ended now."""
        for slot in plan.leaves:
            row = self._slots.pop(slot, None)
            if row is not None and row.rides:
                self._pause(row)
        for join in plan.joins:
            key = join.request.id, join.choice
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _Row(served[join.request.id], join.choice)
            self._slots[join.slot] = row
        num_decodes = len(plan.decodes)
        if num_decodes:
            self.decodes(num_decodes, [now])
        if plan.chunks:
            for key in output.keys[num_decodes:]:
                self._start(self._rows[key], now)
        if output.finishes:
            self.endings(output)

    def decodes(self, num_rows: int, ends: list[float]) -> None:
        """Note steps that end at `ends` and give each of the same rows a token."""
        before = self.decode_ends[-1] if self.decode_ends else 0.0
        if self._fresh:
            num_fresh = 0
            for row in self._fresh:
                if row.rides:
                    self._gap(ends[0] - row.last, 1)
                    num_fresh += 1
            self._fresh.clear()
            if num_fresh < num_rows:
                self._gap(ends[0] - before, num_rows - num_fresh)
        else:
            self._gap(ends[0] - before, num_rows)
        if len(ends) > 1:
            self.gaps.extend([end - begin for begin, end in pairwise(ends)])
            self.gap_counts.extend([num_rows] * (len(ends) - 1))
        self.decode_ends.extend(ends)

    def endings(self, output: StepOutput) -> None:
        """Note the answers that are over."""
        for finish in output.finishes:
            row = self._rows.pop((finish.id, finish.choice), None)
            if row is not None and row.rides:
                self._close(row)

    def _gap(self, gap: float, count: int) -> None:
        self.gaps.append(gap)
        self.gap_counts.append(count)

    def _start(self, row: _Row, now: float) -> None:
        """A chunk sampled a token."""
        if row.paused:
            self._gap(now - row.last, 1)
            row.paused = False
        row.last, row.begin, row.rides = now, len(self.decode_ends), True
        self._fresh.append(row)
        if row.served.first_token is None:
            row.served.first_token = now

    def _close(self, row: _Row) -> None:
        stretch = Stretch(row.last, row.begin, len(self.decode_ends))
        row.served.stretches.setdefault(row.choice, []).append(stretch)
        row.rides = False

    def _pause(self, row: _Row) -> None:
        self._close(row)
        if len(self.decode_ends) > row.begin:
            row.last = self.decode_ends[-1]
        row.paused = True


def token_times(stretches: list[Stretch], decode_ends: array[float]) -> list[float]:
    """When the tokens of one answer came, ascending, in seconds."""
    times: list[float] = []
    for stretch in stretches:
        times.append(stretch.first)
        times.extend(decode_ends[stretch.begin : stretch.end])
    return times
