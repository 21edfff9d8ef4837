"""Places in the queue, and the counts of those who hold them."""

from __future__ import annotations

from enum import Enum, auto

from chairlift.core.types import BACKGROUND_PRIORITY

Key = tuple[int, float, int]
"""Priority, deadline, serial number: less is served earlier."""

Who = tuple[str, str]
"""Principal and tenant."""


class Place(Enum):
    """Where a request is."""

    QUEUED = auto()
    RUNNING = auto()
    GONE = auto()


class Ticket:
    """One request's place, from admission to its end; only `Admission` changes it."""

    __slots__ = (
        "is_background",
        "is_seated",
        "key",
        "num_seqs",
        "num_tokens",
        "place",
        "principal",
        "started",
        "tenant",
    )

    def __init__(self, principal: str, tenant: str, num_seqs: int, num_tokens: int, key: Key, is_seated: bool) -> None:
        self.principal = principal
        self.tenant = tenant
        self.num_seqs = num_seqs
        self.num_tokens = num_tokens
        """Of its prompt; an estimate until it is tokenised."""
        self.key = key
        self.is_seated = is_seated
        """A slot was free for it when it came."""
        self.is_background = key[0] >= BACKGROUND_PRIORITY
        self.place = Place.QUEUED
        self.started = 0.0


class Tally:
    """What one tenant, one principal, or everybody has in flight."""

    __slots__ = ("num_live", "num_queued", "num_queued_tokens", "num_seated", "num_seated_tokens", "num_tenants")

    def __init__(self) -> None:
        self.num_live = 0
        self.num_queued = 0
        self.num_queued_tokens = 0
        self.num_seated = 0
        """Of the queued, those for whom there was a free slot when they came."""
        self.num_seated_tokens = 0
        self.num_tenants = 0
        """Of a principal: those that have anything in flight."""

    def queue(self, ticket: Ticket, sign: int) -> None:
        """Count a ticket into the queue (1), or out of it (-1)."""
        num_seqs, num_tokens = sign * ticket.num_seqs, sign * ticket.num_tokens
        self.num_queued += num_seqs
        self.num_queued_tokens += num_tokens
        if ticket.is_seated:
            self.num_seated += num_seqs
            self.num_seated_tokens += num_tokens

    def waiting(self, num_free: int) -> tuple[int, int]:
        """Sequences and tokens that count as queued: where slots are free, those with a seat do not."""
        if num_free:
            return self.num_queued - self.num_seated, self.num_queued_tokens - self.num_seated_tokens
        return self.num_queued, self.num_queued_tokens
