"""Where a text spells special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chairlift.core.errors import InvalidModel

MAX_SPELLING_CHARS = 256


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in a text before anything is split or merged.

    A special one marks structure (beginning, end, turns) and is hidden from readers; the others are ordinary text.
    `lstrip` and `rstrip`: it swallows the white space on that side. `single_word`: not within a word.
    """

    id: int
    text: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Span(NamedTuple):
    """A special token in a text: from character `start` up to `stop`."""

    start: int
    stop: int
    id: int


class SpecialScanner:
    """Finds special tokens in a text as the `tokenizers` library does: leftmost first, then longest.

    The pattern is a tree of common prefixes, so that a text is read once whatever the number of tokens.

    Raises:
        InvalidModel: a spelling is empty, too long, or given to two tokens.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens: dict[str, AddedToken] = {}
        for token in tokens:
            if not 0 < len(token.text) <= MAX_SPELLING_CHARS or self._tokens.setdefault(token.text, token) != token:
                raise InvalidModel(f"special token {token.id} has an empty, overlong or repeated spelling")
        self.spellings = tuple(self._tokens)
        try:
            tree = _tree(sorted(self.spellings)) if self.spellings else "(?!)"
            self._pattern = re.compile(tree)
            self._any_case = re.compile(tree, re.IGNORECASE)
        except (RecursionError, re.error, OverflowError) as error:
            raise InvalidModel("the spellings of the special tokens are nested too deeply") from error

    def find(self, text: str) -> list[Span]:
        """The special tokens of a text, in order, without overlaps."""
        spans: list[Span] = []
        free = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match.group()]
            start, stop = match.span()
            if start < free or (token.single_word and _within_word(text, start, stop)):
                continue
            while token.lstrip and start > free and _is_space(text[start - 1]):
                start -= 1
            while token.rstrip and stop < len(text) and _is_space(text[stop]):
                stop += 1
            free = stop
            spans.append(Span(start, stop, token.id))
        return spans

    def spellings_in(self, text: str) -> list[tuple[int, int]]:
        """Where a text spells special tokens in any case: from character, up to character."""
        return [match.span() for match in self._any_case.finditer(text)]


def _is_space(character: str) -> bool:
    """White space as Unicode has it; Python also counts the four information separators."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def _within_word(text: str, start: int, stop: int) -> bool:
    def is_word(character: str) -> bool:
        return character.isalnum() or character == "_"

    return (start > 0 and is_word(text[start - 1])) or (stop < len(text) and is_word(text[stop]))


def _tree(spellings: list[str]) -> str:
    """A pattern for any of the spellings (sorted, distinct), the longest that fits, without trying each in turn."""
    groups: dict[str, list[str]] = {}
    for spelling in spellings:
        groups.setdefault(spelling[:1], []).append(spelling)
    ends = "" in groups
    branches = []
    for first, members in groups.items():
        if first:
            low, high = members[0], members[-1]  # sorted: what these two share, all share
            differing = (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
            stem = low[: next(differing, min(len(low), len(high)))]
            rest = [member[len(stem) :] for member in members]
            branches.append(re.escape(stem) + ("" if rest == [""] else _tree(rest)))
    body = "(?:" + "|".join(branches) + ")"
    return body + "?" if ends else body
