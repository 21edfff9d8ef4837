"""What reading an answer for calls gives, character by character, and what a reader may do with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from chairlift.text.parts import CallArguments, CallBegin, Content, Part

T = TypeVar("T")

END = ""
"""Stands for the character after the last one."""

Reading = Generator[None, str, T]
"""Takes an answer's characters one at a time, from `END` on none. Reads the same however the text came in pieces."""


class Malformed(Exception):
    """This is no call. `character` is the one that did not fit; it is not read yet."""

    def __init__(self, character: str) -> None:
        super().__init__("not a call")
        self.character = character


class Found:
    """Calls and content, in order, and the text that is not decided to be either.

    The undecided text ends with the character being read. Calls past `max_calls` are read and left out.
    """

    def __init__(self, names: Iterable[str], max_calls: int | None = None) -> None:
        self.names = frozenset(names)
        """Functions that may be called; a call of any other is text."""
        self.num_calls = 0
        self.has_begun = False
        """Part of the undecided text is a call that was announced: it cannot be taken back."""
        self._max_calls = max_calls
        self._is_left_out = False
        self._undecided: list[str] = []
        self._parts: list[Part] = []
        self._texts: list[str] = []
        """Of the part that is being put together: content, or arguments of the call announced last."""
        self._in_arguments = False

    def see(self, character: str) -> None:
        """The next character comes."""
        self._undecided.append(character)

    def say(self) -> None:
        """All that is undecided is content."""
        self._content(self._undecided)
        self._undecided = []

    def say_before(self) -> None:
        """All that is undecided is content, except the character being read."""
        character = self._undecided.pop()
        self._content(self._undecided)
        self._undecided = [character]

    def drop_before(self) -> None:
        """All that is undecided has been read, except the character being read."""
        self._undecided = self._undecided[-1:]
        self.has_begun = False

    def begin(self, name: str) -> None:
        """A call is certain enough to be announced."""
        self.has_begun = True
        self._is_left_out = self._max_calls is not None and self.num_calls >= self._max_calls
        if not self._is_left_out:
            self._close()
            self._parts.append(CallBegin(self.num_calls, name))
            self._in_arguments = True
            self.num_calls += 1

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the call that was announced."""
        if not self._is_left_out:
            self._texts.append(text)

    def take(self) -> list[Part]:
        """What was found since the last time."""
        in_arguments = self._in_arguments
        self._close()
        self._in_arguments = in_arguments
        parts, self._parts = self._parts, []
        return parts

    def _content(self, texts: list[str]) -> None:
        self.has_begun = False
        if self._in_arguments:
            self._close()
        self._texts += texts

    def _close(self) -> None:
        text = "".join(self._texts)
        self._texts = []
        if text:
            self._parts.append(CallArguments(self.num_calls - 1, text) if self._in_arguments else Content(text))
        self._in_arguments = False


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """How a call is to be written where one is forced: `before`, an object of name and `arguments`, `after`."""

    before: str = ""
    arguments: str = "arguments"
    after: str = ""
    between: str = ", "
    opens_list: str = ""
    closes_list: str = ""

    @property
    def is_bare(self) -> bool:
        """Nothing but what stands in it tells a call from other JSON objects."""
        return not (self.before or self.opens_list)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How models of one kind write calls.

    `special_texts` are special tokens that are part of it: they must be in the text that is read. Without a `spelling`
    calls cannot be forced in this format.
    """

    name: str
    read: Callable[[Found], Reading[None]]
    special_texts: tuple[str, ...] = ()
    spelling: CallSpelling | None = None
    short_ids: bool = False
    """Its chat templates take ids of calls of nine letters and digits only."""


class ToolReader:
    """Reads one answer for calls, as its text comes. What is malformed is content; nothing raises."""

    def __init__(self, form: ToolFormat, names: Iterable[str], max_calls: int | None = None) -> None:
        self._found = Found(names, max_calls)
        self._reading = form.read(self._found)
        next(self._reading)

    @property
    def num_calls(self) -> int:
        """Calls announced so far."""
        return self._found.num_calls

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with `text`."""
        see, send = self._found.see, self._reading.send
        for character in text:
            see(character)
            send(character)
        return self._found.take()

    def finish(self) -> list[Part]:
        """What was held back, now that no text follows."""
        self._found.see(END)
        try:
            self._reading.send(END)
        except StopIteration:
            self._found.say()
            return self._found.take()
        raise AssertionError("a reading went on past the end")
