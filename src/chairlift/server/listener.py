"""Who listens to what the worker says about a request, and what the client keeps of a request meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.core.admission import Admission
from chairlift.core.tickets import Ticket
from chairlift.core.types import Finish, Request, TokenLogprob
from chairlift.server.errors import ApiError


class Choice(Protocol):
    """One answer in the making."""

    heard: float | None
    """When its last token came, on the worker's clock; kept by the client."""
    push: Callable[[int], None]
    """Takes the next token. An attribute, so that a choice may change what it does with them."""

    def score(self, logprob: TokenLogprob) -> None:
        """Takes the score of a token that will be pushed."""
        ...

    def hold(self) -> None:
        """The tokens pushed from now on are its last, and the very last ended it by being what it is."""
        ...

    def finish(self, finish: Finish) -> None: ...


class Listener(Protocol):
    """Who asked for one request."""

    @property
    def choices(self) -> Sequence[Choice]: ...

    @property
    def request_id(self) -> str:
        """What the log calls its request."""
        ...

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None: ...

    def fail(self, error: ApiError) -> None:
        """Nothing more will come for this request."""
        ...


class InFlight:
    """A request in the worker's hands."""

    __slots__ = (
        "admission",
        "arrival",
        "choices",
        "listener",
        "max_output_tokens",
        "num_open",
        "num_prompt_tokens",
        "on_vector",
        "prefilled",
        "ticket",
    )

    def __init__(
        self,
        request: Request,
        listener: Listener,
        ticket: Ticket | None,
        admission: Admission,
        on_vector: Callable[[bytes], None] | None,
    ) -> None:
        self.listener = listener
        self.admission = admission
        self.on_vector = on_vector
        self.choices = listener.choices
        self.num_open = request.n
        self.max_output_tokens = 0
        """Of those of its choices that ended."""
        self.arrival = request.arrival
        self.num_prompt_tokens = len(request.prompt)
        self.prefilled = False
        self.ticket = ticket
