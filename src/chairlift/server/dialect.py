"""What the making of answers does not know of an API: how it is asked, and in which words it tells the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from chairlift.server.asked import Asked
from chairlift.server.choices import CollectedChoice, OnEnd
from chairlift.server.errors import ApiError
from chairlift.server.keep_alive import COMMENT
from chairlift.server.listener import Choice
from chairlift.server.outlet import Outlet
from chairlift.server.ports import ServedText, TokenText
from chairlift.server.shapes import Usage
from chairlift.server.validate import Validated
from chairlift.server.written import Told
from chairlift.text.answers import AnswerReader


@dataclass(frozen=True, slots=True)
class Heading:
    """What a response says about itself, whatever its API calls that."""

    label: str
    """Its id, without what an API puts before."""
    created: int
    model: str


class Dialect(Protocol):
    """The words in which the answers to one request are told."""

    @property
    def id(self) -> str:
        """Of the response, as the client sees it."""
        ...

    @property
    def created(self) -> int: ...

    def streamed(
        self, asked: Asked, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd, reader: AnswerReader | None
    ) -> Choice:
        """A choice that writes its own events, up to its end."""
        ...

    def ending(self, usage: Usage, more: Mapping[str, Any]) -> Told:
        """The events after the end of the last choice; `more` is told beside the usage."""
        ...

    def failure(self, error: ApiError) -> Told:
        """The last events of a stream that cannot be finished."""
        ...

    def body(
        self, choices: Sequence[CollectedChoice], usage: Callable[[], Usage], more: Mapping[str, Any]
    ) -> Iterable[bytes]:
        """All of it, where nothing was streamed; `usage` is known once the choices have been read. What is large in it
        is made as it is taken."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """What a body asks for, and what the answers will be told in."""

    asked: Validated
    dialect: Callable[[Heading], Dialect]
    names: Mapping[str, str] = field(default_factory=dict)
    """What this API calls fields of which others speak."""
    sign_of_life: bytes = COMMENT
    """What a stream says while there is nothing to say, if connections are to be kept alive."""

    def in_its_words(self, error: ApiError) -> ApiError:
        """An error of what comes after the reading, in the names of this API."""
        return _renamed(error, self.names) if self.names else error


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """What is found wrong meanwhile is told with fields called by other names."""
    try:
        yield
    except ApiError as error:
        raise _renamed(error, names) from None


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    words = re.compile(rf"\b({'|'.join(names)})\b")
    error.message = words.sub(lambda found: names[found[1]], error.message)
    error.param = names.get(error.param or "", error.param)
    return error


Read = Callable[[dict[str, Any], ServedText], Question]
"""Reads a body; on any thread. Raises an ApiError for one that is wrong in itself."""
