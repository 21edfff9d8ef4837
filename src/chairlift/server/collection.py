"""The items of one request while the engine reads them, each a request of its own there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from chairlift.core.explain import missed
from chairlift.core.tickets import Ticket
from chairlift.core.types import Finish, FinishReason, Request, TokenLogprob
from chairlift.server.client import EngineClient
from chairlift.server.errors import ApiError, deadline_exceeded, internal
from chairlift.server.logs import ABOUT
from chairlift.server.outcomes import Outcome
from chairlift.text.passages import Passage

_log = logging.getLogger("chairlift.server")


class Collection:
    """The items of one request while they are computed."""

    def __init__(self, client: EngineClient, fitted: Sequence[Passage | ApiError], request_id: str) -> None:
        self._client = client
        self._request_id = request_id
        self._in_flight: dict[int, int] = {}
        """Place in `outcomes` by request id."""
        self.outcomes: list[Outcome] = [one if isinstance(one, ApiError) else b"" for one in fitted]
        self._places = iter([i for i, one in enumerate(fitted) if isinstance(one, Passage)])
        self._num_open = sum(isinstance(one, Passage) for one in fitted)
        self.num_tokens = sum(len(one.tokens) for one in fitted if isinstance(one, Passage))
        self.finishes: list[Finish] = []
        self.client_left = False
        self.done = asyncio.Event()
        if not self._num_open:
            self.done.set()

    def add(self, request: Request, ticket: Ticket) -> None:
        """Hand the next item that can be read to the engine.

        Raises:
            ApiError: 503, the worker is not there.
        """
        place = next(self._places)
        item = _Item(partial(self._ended, request.id, place), self._request_id)
        self._client.submit(request, item, ticket, item.take)
        self._in_flight[request.id] = place

    def _ended(self, request_id: int, place: int, outcome: Outcome, finish: Finish | None) -> None:
        self._in_flight.pop(request_id, None)
        self.outcomes[place] = outcome
        if finish is not None:
            self.finishes.append(finish)
        self._num_open -= 1
        if self._num_open == 0:
            self.done.set()

    def fail(self, error: ApiError) -> None:
        """Nothing more is waited for."""
        for place in self._in_flight.values():
            self.outcomes[place] = error
        self.leave()
        self.done.set()

    def leave(self) -> None:
        """Whatever is still in the engine is wanted no longer."""
        for request_id in list(self._in_flight):
            self._client.abort(request_id)
        self._in_flight.clear()

    def summary(self) -> str:
        """For the log."""
        num_failed = sum(isinstance(outcome, ApiError) for outcome in self.outcomes)
        return f"texts={len(self.outcomes)} failed={num_failed} tokens={self.num_tokens}"


class _Item:
    """One item in the worker's hands: the client's listener, and its only choice."""

    __slots__ = ("_tell", "_vector", "heard", "push", "request_id")

    def __init__(self, tell: Callable[[Outcome, Finish | None], None], request_id: str) -> None:
        self._tell = tell
        self.request_id = request_id
        self._vector: bytes | None = None
        self.heard: float | None = None
        self.push: Callable[[int], None] = _ignored

    @property
    def choices(self) -> tuple[_Item]:
        return (self,)

    def take(self, vector: bytes) -> None:
        """What its text gave."""
        self._vector = vector

    def score(self, logprob: TokenLogprob) -> None:
        """Nothing is sampled."""

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None:
        """Nothing is scored."""

    def hold(self) -> None:
        """There is no text to hold back."""

    def finish(self, finish: Finish) -> None:
        """It is over."""
        if finish.reason is FinishReason.STOP and self._vector is not None:
            self._tell(self._vector, finish)
        elif finish.reason is FinishReason.DEADLINE:
            self._tell(deadline_exceeded(missed(finish), finish.error), finish)
        else:
            _log.error("the engine failed a text: %s", finish.error, extra={ABOUT: self.request_id})
            self._tell(internal(), finish)

    def fail(self, error: ApiError) -> None:
        """It is lost."""
        self._tell(error, None)


def _ignored(token: int) -> None:
    """No token comes."""
