"""Measured steps out of a journal: plans, and when they were begun and finished."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from chairlift.core.errors import InvalidJournal
from chairlift.journal import records
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost.shape import StepShape

GROUP_STEPS = 16
"""Steps in a row that are kept together when some are held out: neighbours are nearly repeats."""


def steps_of_journal(lines: Iterable[bytes], first_group: int = 0) -> Iterator[Measured]:
    """The steps of one segment, given as its lines, that say how long a step takes.

    Left out are steps that failed, and steps that scored prompts: how many rows these give is not in a plan. The time
    to the next step counts only where that was begun at once.

    Raises:
        InvalidJournal: not a segment, with the number of the line that is wrong.
    """
    reading = _Reading()
    num_steps = 0
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # the process was killed while it wrote
        try:
            record = records.decode(line)
        except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
            raise InvalidJournal(f"line {number}: {error}") from error
        if number == 1 and not isinstance(record, records.Segment):
            raise InvalidJournal("not a journal: it does not start with a segment")
        if isinstance(record, records.Segment) and record.format != records.FORMAT:
            raise InvalidJournal(f"a journal of format {record.format}; this version reads format {records.FORMAT}")
        for step in reading.take(record):
            yield replace(step, group=first_group + num_steps // GROUP_STEPS)
            num_steps += 1
    for step in reading.rest():
        yield replace(step, group=first_group + num_steps // GROUP_STEPS)


class _Reading:
    """What is known of the step under way, and of the one before, whose gap ends where the next one begins."""

    def __init__(self) -> None:
        self._decodes: list[int] = []
        self._shape: StepShape | None = None
        self._begun = 0.0
        self._before: int | None = None
        self._num_tokens: int | None = None
        """Of the step before, and of the one under way."""
        self._done: Measured | None = None
        self._ended = 0.0
        """The last step that was finished, without its gap, and when it was."""

    def take(self, record: records.Record) -> Iterator[Measured]:
        match record:
            case records.Begin(now=now, plan=plan):
                yield from self._end(None if plan is None else now - self._ended)
                self._shape, self._begun = None, now
                if plan is not None:
                    self._shape = self._shape_of(plan)
                    self._before = self._num_tokens
                    self._num_tokens = len(self._decodes) + len(plan.fillers) + plan.chunk_tokens
            case records.Finish(now=now):
                if self._shape is not None and now > self._begun:
                    self._done = Measured(self._shape, now - self._begun, before=self._before)
                    self._ended = now
            case _:
                pass

    def rest(self) -> Iterator[Measured]:
        """The last step, if it was finished."""
        yield from self._end(None)

    def _end(self, gap_s: float | None) -> Iterator[Measured]:
        if self._done is not None:
            yield replace(self._done, gap_s=gap_s)
        self._done = None

    def _shape_of(self, plan: records.Plan) -> StepShape | None:
        """None for a plan whose cost is not in its sums."""
        if plan.decodes is not None:
            self._decodes = plan.decodes
        if any(scores for *_, scores in plan.chunks):
            return None
        chunks = tuple((start, count, samples) for _, start, count, samples, _ in plan.chunks)
        num_rows = len(self._decodes) + len(plan.fillers)
        return StepShape(num_rows, plan.context_tokens, chunks, plan.shared_context_tokens)
