"""What the collector remembers of requests and of those who sit in slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from chairlift.core.types import Finish, FinishReason, Request


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a request before it is served."""

    id: int
    n: int
    arrival: float
    num_prompt_tokens: int
    priority: int
    principal: str
    tenant: str

    @property
    def owner(self) -> str:
        """Who asked, in one name; empty if nobody is named."""
        return "/".join(part for part in (self.principal, self.tenant) if part)


def about(request: Request) -> About:
    """What a request says of itself."""
    return About(
        id=request.id,
        n=request.n,
        arrival=request.arrival,
        num_prompt_tokens=len(request.prompt),
        priority=request.priority,
        principal=request.principal,
        tenant=request.tenant,
    )


class Left(StrEnum):
    """Why a sequence gave up its slot."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    ABORTED = "aborted"
    DEADLINE = "deadline"
    ERROR = "error"
    STILL_THERE = "still there"
    """When the record ended."""


LEFT = {
    FinishReason.STOP: Left.FINISHED,
    FinishReason.LENGTH: Left.FINISHED,
    FinishReason.ABORT: Left.ABORTED,
    FinishReason.DEADLINE: Left.DEADLINE,
    FinishReason.ERROR: Left.ERROR,
}


@dataclass(slots=True, eq=False)
class Answer:
    """One choice of a request, and how it ended if it has."""

    about: About
    choice: int
    finish: Finish | None = None


@dataclass(slots=True, eq=False)
class Stay:
    """A sequence in a slot, from joining to leaving; times in seconds.

    joined           decodes_from                  left           held_until
      |--- prefill chunks ---|------ decodes ---------|--- filler ----|
    """

    slot: int
    answer: Answer
    joined: float
    again: bool
    """Whether it was preempted before, and computes again what it had."""
    decodes_from: float | None = None
    left: float | None = None
    why: Left = Left.STILL_THERE
    held_until: float | None = None
    """As a filler of a held batch; None if it was none."""
    chunks: list[tuple[float, float, int, int]] = field(default_factory=list)
    """(begin, end, first position, tokens) of the pieces of its tokens computed at once."""


@dataclass(slots=True, eq=False)
class Row:
    """A sequence that has joined and is not over."""

    answer: Answer
    owner: int
    """Index of who asked."""
    slot: int | None = None
    """None while it is preempted."""
    stay: Stay | None = None
    """Its latest; None if that is not kept."""
    first: tuple[float, Stay | None] | None = None
    """When it first joined, and that stay; None if that was before the record."""
    rides: bool = False
    """Whether every step that decodes gives it a token."""
    rides_from: int = 0
    """Steps that decoded before it did."""
    last: float | None = None
    """When its newest token came that did not come by riding; None if that was before the record."""
    was_preempted: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.answer.about.id, self.answer.choice
