"""What an answer is made of once its text is read: what it says, what it thinks, and the functions that it calls."""

from __future__ import annotations

from dataclasses import dataclass


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
