"""From what the engine's thread hands over to lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from chairlift import __version__
from chairlift.core.snapshot import Entry
from chairlift.core.types import Finish, FinishReason, Request, StepPlan, StepResult
from chairlift.journal import records
from chairlift.journal.disguise import Disguise


class Snapshot(msgspec.Struct, gc=False):
    """The state of the scheduler; what comes after it belongs to a new segment."""

    entries: list[Entry]
    gap: bool


class Begun(msgspec.Struct, gc=False):
    """A step was planned. The lists of a plan are never altered, except for the tokens of those who join."""

    now: float
    plan: StepPlan | None
    joins: Sequence[tuple[int, int, int, int]]


class Done(msgspec.Struct, gc=False):
    """A step was applied."""

    now: float
    plan: StepPlan
    result: StepResult | None
    failure: str | None
    finishes: list[Finish]


class Broke(msgspec.Struct, gc=False):
    """The scheduler raised."""

    now: float
    during: Literal["begin", "finish"]
    result: StepResult | None
    error: str


Item = Snapshot | Begun | Done | Broke | Request | records.Abort | records.Limits | records.Close
"""What the engine's thread hands over."""


def weight(item: Item) -> int:
    """What it costs to remember an item, roughly in tokens. Requests and plans are remembered elsewhere, too."""
    return 16 + len(item.result.tokens) if type(item) is Done and item.result is not None else 1


class Transcript:
    """Lines of one process's segments. With a disguise, none of them shows a prompt or an answer."""

    def __init__(self, disguise: Disguise | None = None) -> None:
        self._disguise = disguise
        self._number = 0
        self._plan_before: StepPlan | None = None
        """In this segment."""

    def open(self, snapshot: Snapshot, written: float) -> Iterator[bytes]:
        """The first lines of a segment."""
        entries = snapshot.entries if self._disguise is None else self._disguise.entries(snapshot.entries)
        yield records.encode(
            records.Segment(
                format=records.FORMAT,
                version=__version__,
                digest=self._disguise is not None,
                number=self._number,
                gap=snapshot.gap,
                written=written,
                num_objects=len(entries),
            )
        )
        self._number += 1
        self._plan_before = None
        for entry in entries:
            fields = entry.fields
            if entry.of == "Request":
                fields = {"request": encodable(fields["request"])}
            yield records.encode(records.Object(entry.of, fields))

    def line(self, item: Item) -> bytes:
        """One line."""
        match item:
            case Begun():
                return records.encode(records.Begin(item.now, self._plan(item)))
            case Done():
                return records.encode(self._done(item))
            case Broke():
                return records.encode(self._broken(item))
            case Request():
                request = item if self._disguise is None else self._disguise.request(item)
                return records.encode(records.Add(encodable(request)))
            case Snapshot():
                raise TypeError("a snapshot opens a segment")
        return records.encode(item)

    def _plan(self, begun: Begun) -> records.Plan | None:
        plan = begun.plan
        if plan is None:
            return None
        if self._disguise is not None:
            self._disguise.begin(plan.leaves, begun.joins)
        record = plan_record(plan, begun.joins, self._plan_before)
        self._plan_before = plan
        return record

    def _done(self, done: Done) -> records.Finish | records.Fail:
        disguise, result = self._disguise, done.result
        ends = ended(done.finishes)
        if result is None:
            record: records.Finish | records.Fail = records.Fail(done.now, done.failure or "", ends)
        elif disguise is None:
            record = records.Finish(done.now, result.tokens, result.errors, ends)
        else:
            tokens, errors = disguise.tokens(done.plan, result.tokens), disguise.errors(result.errors)
            record = records.Finish(done.now, tokens, errors, ends)
        if disguise is not None:
            disguise.finish(done.finishes)
        return record

    def _broken(self, broke: Broke) -> records.Broken:
        """A digest keeps no more of the message than its kind."""
        result, plan = broke.result, self._plan_before
        tokens = None if result is None else result.tokens
        errors: Mapping[int, str] = {} if result is None else result.errors
        error = broke.error
        if self._disguise is not None:
            error = error.partition(":")[0]
            errors = self._disguise.errors(errors)
            if tokens is not None and plan is not None:
                tokens = self._disguise.tokens(plan, tokens)
        return records.Broken(broke.now, broke.during, error, tokens, errors)


def encodable(request: Request) -> Request:
    """The prompt may be any kind of sequence."""
    return request if isinstance(request.prompt, list) else replace(request, prompt=list(request.prompt))


def joins_of(plan: StepPlan) -> Sequence[tuple[int, int, int, int]]:
    """Who joins, with how many known tokens at this moment."""
    return [(j.slot, j.request.id, j.choice, len(j.tokens)) for j in plan.joins] if plan.joins else ()


def plan_record(plan: StepPlan, joins: Iterable[tuple[int, int, int, int]], before: StepPlan | None) -> records.Plan:
    """A plan as data. Rows that decode are left out if they are those of the plan before."""
    same = before is not None and (plan.decodes is before.decodes or plan.decodes == before.decodes)
    return records.Plan(
        step=plan.step,
        joins=list(joins),
        leaves=plan.leaves,
        blocks=list(zip(plan.block_slots, plan.block_ids, strict=True)),
        chunks=[(c.slot, c.start, c.count, c.samples, c.scores) for c in plan.chunks],
        decodes=None if same else plan.decodes,
        fillers=plan.fillers,
        chunk_tokens=plan.num_chunk_tokens,
        chunk_pairs=plan.num_chunk_pairs,
        context_tokens=plan.num_context_tokens,
        shared_context_tokens=plan.num_shared_context_tokens,
    )


def ended(finishes: Iterable[Finish]) -> list[tuple[int, int, FinishReason, bool]]:
    """Which sequences are over and why; the last says whether they completed a stop string."""
    return [(f.id, f.choice, f.reason, isinstance(f.stop_reason, str)) for f in finishes]
