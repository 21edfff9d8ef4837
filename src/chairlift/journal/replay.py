"""A segment of a journal fed to a scheduler once more: every plan must be the one that was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import msgspec

from chairlift import __version__
from chairlift.core.errors import InvalidJournal, InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import StopMatcher
from chairlift.core.snapshot import Entry, restore
from chairlift.core.types import Request, StepOutput, StepPlan, StepResult
from chairlift.journal import records
from chairlift.journal.transcript import ended, joins_of, plan_record

MAX_LISTED = 20
"""Items of a list that are shown in words."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay first went another way."""

    line: int
    step: int
    """Of the plan that differs, or of the last one before."""
    what: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one segment, up to its end or the first difference."""

    segment: records.Segment
    num_inputs: int
    num_steps: int
    truncated: bool
    """Whether the last line is incomplete: the process was killed while it wrote it."""
    difference: Difference | None
    broken: str | None
    """How the scheduler broke at the end, then and now; None if it did not."""
    scheduler: Scheduler
    """As it was left, for whoever wants to look into it."""


class Listener(Protocol):
    """Hears of a replay what the owner of an engine would have heard."""

    def on_start(self, scheduler: Scheduler) -> None:
        """Before the first input: the scheduler as the segment found it."""
        ...

    def on_add(self, request: Request) -> None: ...

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        """As `core.engine.Observer`."""
        ...


def replay(lines: Iterable[bytes], listener: Listener | None = None) -> Replayed:
    """Replay one segment, given as its lines. Steps after a first difference are not told to the listener.

    Raises:
        InvalidJournal: not a segment, with the number of the line that is wrong.
    """
    reader = _Reader(lines)
    records_read = iter(reader)
    segment = next(records_read, None)
    if not isinstance(segment, records.Segment):
        raise InvalidJournal("not a journal: it does not start with a segment")
    if segment.format != records.FORMAT:
        raise InvalidJournal(f"a journal of format {segment.format}; this version reads format {records.FORMAT}")
    run = _Run(_restore(segment, records_read, reader), listener)
    if listener is not None:
        listener.on_start(run.scheduler)
    num_inputs, difference = 0, None
    for record in records_read:
        if isinstance(record, records.Segment | records.Object):
            raise InvalidJournal(f"line {reader.line}: a snapshot in the middle of a segment")
        num_inputs += 1
        differs = run.apply(record)
        if differs is not None:
            difference = Difference(reader.line, run.step, *differs)
            break
    return Replayed(segment, num_inputs, run.num_steps, reader.truncated, difference, run.broken, run.scheduler)


class _Reader:
    """Records of a file, and where it is."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.line = 0
        self.truncated = False

    def __iter__(self) -> Iterator[records.Record]:
        for line in self._lines:
            self.line += 1
            if not line.endswith(b"\n"):
                self.truncated = True
                return
            try:
                record = records.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError, InvalidRequest) as error:
                raise InvalidJournal(f"line {self.line}: {error}") from error
            yield record


def _restore(segment: records.Segment, lines: Iterator[records.Record], reader: _Reader) -> _State:
    entries: list[Entry] = []
    for _ in range(segment.num_objects):
        record = next(lines, None)
        if not isinstance(record, records.Object):
            raise InvalidJournal(f"line {reader.line}: the snapshot is incomplete")
        fields = record.fields
        try:
            if record.of == "Request":
                fields = {"request": msgspec.convert(fields["request"], Request)}
        except (msgspec.MsgspecError, KeyError, InvalidRequest) as error:
            raise InvalidJournal(f"line {reader.line}: {error}") from error
        entries.append(Entry(record.of, fields))
    stops = _Stops()
    try:
        scheduler = restore(entries, stops.matcher)
    except ValueError as error:
        other = "" if segment.version == __version__ else f" (written by version {segment.version})"
        raise InvalidJournal(f"the snapshot cannot be restored{other}: {error}") from error
    return _State(scheduler, stops)


class _Stops:
    """Stands for the stop strings: which sequences complete one in the step that is being applied."""

    def __init__(self) -> None:
        self.completed: set[tuple[int, int]] = set()

    def matcher(self, request: Request, choice: int) -> StopMatcher | None:
        return _Watch(self, (request.id, choice)) if request.params.stop else None


class _Watch:
    __slots__ = ("_key", "_stops")

    def __init__(self, stops: _Stops, key: tuple[int, int]) -> None:
        self._stops = stops
        self._key = key

    def push(self, token: int) -> str | None:
        return "stop" if self._key in self._stops.completed else None


@dataclass(frozen=True, slots=True)
class _State:
    scheduler: Scheduler
    stops: _Stops


class _Run:
    """Applies inputs, one after the other."""

    def __init__(self, state: _State, listener: Listener | None) -> None:
        self.scheduler = state.scheduler
        self._listener = listener
        self._begun: tuple[StepPlan, float] | None = None
        """The step under way, and when it began."""
        self._stops = state.stops
        self._decodes: list[int] = []
        """Of the last recorded plan."""
        self.step = -1
        self.num_steps = 0
        self.broken: str | None = None

    def apply(self, record: records.Input) -> tuple[str, str, str] | None:
        """What differs, in words: what, as recorded, as replayed."""
        scheduler = self.scheduler
        try:
            match record:
                case records.Add():
                    choices = count()
                    scheduler.add(record.request, lambda request: self._stops.matcher(request, next(choices)))
                    if self._listener is not None:
                        self._listener.on_add(record.request)
                case records.Abort():
                    scheduler.abort(record.id, record.now)
                case records.Limits():
                    scheduler.set_limits(record.change)
                case records.Close():
                    scheduler.close()
                case records.Begin():
                    return self._begin(record)
                case records.Finish():
                    self._stops.completed = {
                        (i, choice) for i, choice, _, by_stop_string in record.ends if by_stop_string
                    }
                    result = StepResult(record.tokens, errors=dict(record.errors))
                    return self._over(record, scheduler.commit(result, record.now))
                case records.Broken():
                    return self._break(record)
                case records.Fail():
                    return self._over(record, scheduler.fail(record.message, record.now))
        except Exception as error:  # whatever the scheduler does now, it did not do it then
            return "the scheduler failed", "no failure", f"{type(error).__name__}: {error}"
        return None

    def _begin(self, record: records.Begin) -> tuple[str, str, str] | None:
        recorded = record.plan
        if recorded is not None:
            self.step = recorded.step
            if recorded.decodes is None:
                recorded = msgspec.structs.replace(recorded, decodes=self._decodes)
            self._decodes = recorded.decodes or []
        plan = self.scheduler.schedule(record.now)
        replayed = None if plan is None else plan_record(plan, joins_of(plan), None)
        self.num_steps += replayed is not None
        self._begun = None if plan is None else (plan, record.now)
        if replayed == recorded:
            return None
        return _what(recorded, replayed), describe(recorded), describe(replayed)

    def _break(self, record: records.Broken) -> tuple[str, str, str] | None:
        """It must raise again. Stop strings that the step may have completed are not known."""
        scheduler = self.scheduler
        try:
            if record.during == "begin":
                scheduler.schedule(record.now)
            elif record.tokens is None:
                scheduler.fail("", record.now)
            else:
                scheduler.commit(StepResult(record.tokens, errors=dict(record.errors)), record.now)
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"
            return None
        return "the scheduler failed", record.error, "no failure"

    def _over(self, record: records.Finish | records.Fail, output: StepOutput) -> tuple[str, str, str] | None:
        """A step was applied."""
        if self._listener is not None and self._begun is not None:
            plan, begun = self._begun
            self._listener.on_step(plan, output, begun, record.now)
        return self._compare_ends(record, output)

    def _compare_ends(self, record: records.Finish | records.Fail, output: StepOutput) -> tuple[str, str, str] | None:
        """What ended outside steps may have been given out before the step was over: it is not in the record then."""
        replayed = ended(output.finishes)
        if set(record.ends) <= set(replayed):
            return None
        return "which sequences are over", _listed(sorted(record.ends)), _listed(sorted(replayed))


def _what(recorded: records.Plan | None, replayed: records.Plan | None) -> str:
    """Which part of a plan differs."""
    if recorded is None or replayed is None:
        return "the plan"
    names = (name for name in recorded.__struct_fields__ if getattr(recorded, name) != getattr(replayed, name))
    return f"the plan ({', '.join(names)})"


def describe(plan: records.Plan | None) -> str:
    """A plan in words, on one line."""
    if plan is None:
        return "nothing to compute"
    parts = [f"step {plan.step}"]
    if plan.leaves:
        parts.append(f"slots left: {_listed(plan.leaves)}")
    if plan.joins:
        parts.append(f"joins (slot, request, choice, tokens): {_listed(plan.joins)}")
    if plan.blocks:
        parts.append(f"blocks (slot, block): {_listed(plan.blocks)}")
    if plan.chunks:
        parts.append(f"chunks (slot, start, count, samples, scores): {_listed(plan.chunks)}")
    if plan.decodes:
        parts.append(f"{len(plan.decodes)} decodes in slots {_listed(plan.decodes)}")
    if plan.fillers:
        parts.append(f"{len(plan.fillers)} fillers in slots {_listed(plan.fillers)}")
    parts.append(
        f"{plan.chunk_tokens} chunk tokens, {plan.chunk_pairs} pairs of them, {plan.context_tokens} context tokens, "
        f"{plan.shared_context_tokens} of them shared"
    )
    return "; ".join(parts)


def _listed(items: list[Any]) -> str:
    shown = " ".join(str(item) for item in items[:MAX_LISTED])
    return shown if len(items) <= MAX_LISTED else f"{shown} ... ({len(items)} in all)"
