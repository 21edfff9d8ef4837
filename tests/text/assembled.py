"""An answer put together from its parts, as a client does it, and checks that hold for every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import strategies as st

from chairlift.text.parts import CallArguments, CallBegin, Content, Part


class Reader(Protocol):
    def push(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


@dataclass
class Assembled:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments."""


def assembled(parts: Iterable[Part]) -> Assembled:
    answer = Assembled()
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(answer.calls)
            answer.calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            assert part.text
            assert part.index == len(answer.calls) - 1
            name, arguments = answer.calls[-1]
            answer.calls[-1] = name, arguments + part.text
        elif isinstance(part, Content):
            assert part.text
            answer.content += part.text
        else:
            assert part.text
            answer.reasoning += part.text
    return answer


def read(reader: Reader, pieces: Sequence[str]) -> Assembled:
    parts = [part for piece in pieces for part in reader.push(piece)]
    return assembled([*parts, *reader.finish()])


def cut(text: str, places: Iterable[int]) -> list[str]:
    """`text` cut at `places`."""
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


places = st.lists(st.integers(0, 1000), max_size=12)


def same_however_cut(make: Callable[[], Reader], text: str, cuts: Iterable[int]) -> Assembled:
    """The answer, which is the same in one piece, cut at places, and in single characters."""
    whole = read(make(), [text])
    assert read(make(), cut(text, cuts)) == whole
    assert read(make(), list(text)) == whole
    return whole
