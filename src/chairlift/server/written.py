"""JSON that is made while it is sent.

An answer with log-probabilities takes some sixty bytes for each of them as JSON, ten times that as objects, and twelve
where they are kept (`scores.py`). So they stay where they are, and become JSON piece by piece as the client takes it:
what an answer needs in memory is a small part of what it has on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

PIECE_BYTES = 32 << 10
"""What is made at once."""
NUM_AT_ONCE = 32
"""Members of a list that become JSON in one call."""


@dataclass(frozen=True, slots=True)
class Written:
    """JSON, or events that hold it: `pieces` makes them, whenever it is asked and as often. What it reads must stay."""

    pieces: Callable[[], Iterable[bytes]]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces())


Told = bytes | Written
"""What is said to a client: there already, or made while it is sent."""


def pieces_of(told: Told) -> Iterable[bytes]:
    """All of it, in order."""
    return (told,) if isinstance(told, bytes) else told


def strung(*parts: Told) -> Told:
    """The parts, one after another: bytes if all of them are."""
    if not any(isinstance(part, Written) for part in parts):
        return b"".join(parts)  # type: ignore[arg-type]  # bytes, as was just seen
    return Written(lambda: chain.from_iterable(map(pieces_of, parts)))


def list_pieces(members: Iterable[Any]) -> Iterator[bytes]:
    """A list as JSON; its members are plain data."""
    rest, before = iter(members), b"["
    while some := list(islice(rest, NUM_AT_ONCE)):
        yield before + _encode(some)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"


def object_pieces(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """An object as JSON; its values are plain data, or `Written`."""
    before = b"{"
    for name, value in fields.items():
        if isinstance(value, Written):
            yield before + _encode(name) + b":"
            yield from value
        else:
            yield before + _encode({name: value})[1:-1]
        before = b","
    yield b"{}" if before == b"{" else b"}"


def objects_pieces(objects: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A list of such objects as JSON."""
    before = b"["
    for fields in objects:
        yield before
        yield from object_pieces(fields)
        before = b","
    yield b"[]" if before == b"[" else b"]"


def gathered(pieces: Iterable[bytes], num_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces of at least so many, but for the last one."""
    some = bytearray()
    for piece in pieces:
        if not some and len(piece) >= num_bytes:
            yield piece
            continue
        some += piece
        if len(some) >= num_bytes:
            yield bytes(some)
            some.clear()
    if some:
        yield bytes(some)
