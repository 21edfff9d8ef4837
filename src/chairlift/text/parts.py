"""What an answer is made of once its text is read: what it says, what it thinks, and the functions that it calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A function is called; its arguments follow. `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments: all pieces of a call, joined, are the text of a JSON object."""

    index: int
    text: str


Part = Content | Reasoning | CallBegin | CallArguments


def joined(parts: list[Part]) -> list[Part]:
    """The same parts, neighbours of one kind made one. Called for every token: most say one thing or nothing."""
    if len(parts) < 2:
        return parts
    kept: list[Part] = []
    for _, run in groupby(parts, type):
        neighbours = list(run)
        texts = [part.text for part in neighbours if not isinstance(part, CallBegin)]
        first = neighbours[0]
        if isinstance(first, CallBegin) or len(texts) == 1:
            kept += neighbours
        else:
            kept.append(replace(first, text="".join(texts)))
    return kept
