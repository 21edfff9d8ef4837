"""What is asked of a simulated fleet: requests with a time, a length, and what their prompts have in common.

A workload is an iterable of `Asked` in the order of arrival. It may be endless and is read as the clock gets there.
What somebody asks after an answer (the next turn of a session, after a time to think) hangs at `Asked.follow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from chairlift.core.checks import ANY_TOKEN
from chairlift.core.errors import InvalidOption

VOCAB_SIZE = ANY_TOKEN
"""A token stands for content that is the same wherever it occurs, so that as many are needed as there are contents."""
ANSWER_TOKEN = 0
"""What every row of a simulated step samples. No prompt has it."""


class Prompt(Protocol):
    """The content of a prompt, made when it is needed: only prefixes that are equal have to be spelled equally."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def blocks(self) -> Blocks | None:
        """What it begins with, or all of it, as contents; None if it is no contents."""
        ...

    def tokens(self, start: int = 0) -> list[int]:
        """From the one at `start` on."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Contents `first` .. `last`, each of `width` tokens: a range of the blocks of a trace."""

    first: int
    last: int
    width: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """A prompt of contents with numbers from 1: two prompts share as many tokens as their parts spell equally.

        parts    [7 .. 9] of 64, [30 .. 30] of 20        tokens    7 * 64, 8 * 64, 9 * 64, 30 * 20

    `num_tokens` cuts the last content where a prompt ends within it. A content has the same width wherever it occurs.
    """

    parts: tuple[Part, ...]
    num_tokens: int

    @property
    def blocks(self) -> Blocks:
        return self

    def tokens(self, start: int = 0) -> list[int]:
        if len(self.parts) == 1 and self.parts[0].first == self.parts[0].last:
            return [self.parts[0].first] * max(0, self.num_tokens - start)
        tokens: list[int] = []
        skipped = 0
        for part in self.parts:
            # Contents that end before the start are not spelled.
            num_before = 0 if tokens else min(part.last - part.first + 1, max(0, start - skipped) // part.width)
            skipped += num_before * part.width
            for content in range(part.first + num_before, part.last + 1):
                tokens += [content] * part.width
        return tokens[start - skipped : self.num_tokens - skipped]


@dataclass(frozen=True, slots=True)
class Literal:
    """A prompt given token by token."""

    content: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.content)

    @property
    def blocks(self) -> None:
        return None

    def tokens(self, start: int = 0) -> list[int]:
        return list(self.content[start:])


def blocks(*parts: Part) -> Blocks:
    """A prompt of whole contents."""
    return Blocks(parts, sum((part.last - part.first + 1) * part.width for part in parts))


class Contents:
    """Gives out numbers of contents that nothing else has, from `first` on."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def take(self, count: int = 1) -> int:
        """The first of `count` numbers in a row.

        Raises:
            InvalidOption: there are no more tokens to tell contents apart.
        """
        first = self._next
        self._next += count
        if self._next > VOCAB_SIZE:
            raise InvalidOption(f"a workload of more than {VOCAB_SIZE} contents")
        return first


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request, which nobody changes: it comes at `arrival`, in seconds, and its answer has `num_output` tokens.

    Deadlines are seconds after arrival. `follow` tells what is asked because this one ended, given when that was.
    """

    arrival: float
    prompt: Prompt
    num_output: int
    n: int = 1
    priority: int = 0
    principal: str = ""
    tenant: str = ""
    session: str | None = None
    ttft_within_s: float | None = None
    e2e_within_s: float | None = None
    label: str = ""
    """What the source calls it."""
    follow: Callable[[float], Iterable[Asked]] | None = None


Workload = Iterable[Asked]
