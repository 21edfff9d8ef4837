"""What an answer is made of once its text is read: what it says, what it thinks, and the functions that it calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same parts, neighbours of one kind made one."""
    kept: list[Part] = []
    texts: list[str] = []
    """Of the last of `kept`."""
    for part in parts:
        last = kept[-1] if kept else None
        if not isinstance(part, CallBegin) and type(part) is type(last):
            texts.append(part.text)
            continue
        if len(texts) > 1 and last is not None and not isinstance(last, CallBegin):
            kept[-1] = replace(last, text="".join(texts))
        kept.append(part)
        texts = [] if isinstance(part, CallBegin) else [part.text]
    if len(texts) > 1 and not isinstance(kept[-1], CallBegin):
        kept[-1] = replace(kept[-1], text="".join(texts))
    return kept
