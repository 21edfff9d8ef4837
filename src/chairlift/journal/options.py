"""How a journal is written."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MAX_BYTES = 64 << 20
DEFAULT_MAX_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """`digest` puts hashes in the place of tokens and names; `max_bytes` bounds a segment, `max_segments` their number.

    A segment may become larger where its snapshot alone takes more than half of the bound: it then goes on to twice the
    size of its snapshot, since a journal of nothing but snapshots would record nothing.
    """

    digest: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    max_segments: int = DEFAULT_MAX_SEGMENTS
