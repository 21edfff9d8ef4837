"""The lines of a journal: JSON objects, one for each input of the scheduler, told apart by `type`.

    segment     opens a file: what it was written by, and how many `object` lines follow
    object      a piece of the snapshot; see `core/snapshot.py`
    add, abort, limits, close                           what callers did
    begin, finish, fail                                 a step: when it was planned and what the plan was, what it gave
    broken                                              the scheduler raised: a defect, and the last line

Times are in seconds of the engine's clock, exactly as the scheduler got them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from chairlift.core.types import FinishReason, LimitChange, Request

FORMAT = 1
"""Of the lines. What is inside `object` lines goes with the version of the program."""


class Segment(msgspec.Struct, tag="segment", frozen=True):
    """First line of a file."""

    format: int
    version: str
    """Of Chairlift."""
    digest: bool
    """Whether prompts and outputs are pseudo-tokens; see `disguise.py`."""
    number: int
    """Segments before this one since the process started."""
    gap: bool
    """Whether something that happened just before is in no segment."""
    written: float
    """Seconds since 1970."""
    num_objects: int


class Object(msgspec.Struct, tag="object", frozen=True):
    """One object of the snapshot."""

    of: str
    fields: dict[str, Any]


class Add(msgspec.Struct, tag="add", frozen=True):
    """A request was accepted."""

    request: Request


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Nobody waits for a request any longer."""

    id: int
    now: float


class Limits(msgspec.Struct, tag="limits", frozen=True):
    """Limits were changed."""

    change: LimitChange


class Close(msgspec.Struct, tag="close", frozen=True):
    """No more requests will come."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step computes, as `StepPlan`; requests and tokens are known from elsewhere."""

    step: int
    joins: list[tuple[int, int, int, int]] = []
    """(slot, request, choice, known tokens)."""
    leaves: list[int] = []
    blocks: list[tuple[int, int]] = []
    """(slot, block)."""
    chunks: list[tuple[int, int, int, bool, bool]] = []
    """(slot, start, count, samples, scores)."""
    decodes: list[int] | None = []
    """Slots; null: those of the plan before."""
    fillers: list[int] = []
    chunk_tokens: int = 0
    chunk_pairs: int = 0
    context_tokens: int = 0
    shared_context_tokens: int = 0


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """A step was planned; null if there was nothing to compute."""

    now: float
    plan: Plan | None


class Finish(msgspec.Struct, tag="finish", frozen=True, omit_defaults=True):
    """The step begun last was computed."""

    now: float
    tokens: list[int]
    """Sampled, parallel to the plan's sampling rows."""
    errors: Mapping[int, str] = {}
    """By slot."""
    ends: list[tuple[int, int, FinishReason, bool]] = []
    """(request, choice, reason, whether a stop string was completed) of what was over since the last step."""


class Fail(msgspec.Struct, tag="fail", frozen=True, omit_defaults=True):
    """The step begun last failed as a whole."""

    now: float
    message: str
    ends: list[tuple[int, int, FinishReason, bool]] = []


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """The scheduler raised while it planned a step, or applied the one begun last."""

    now: float
    during: Literal["begin", "finish"]
    error: str
    tokens: list[int] | None = None
    """What the step gave, as in `Finish`; null if it failed as a whole, or while one was planned."""
    errors: Mapping[int, str] = {}


Input = Add | Abort | Limits | Close | Begin | Finish | Fail | Broken
Record = Segment | Object | Input

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """A whole line."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """Raises msgspec.MsgspecError on anything outside the schema."""
    return _decoder.decode(line)
