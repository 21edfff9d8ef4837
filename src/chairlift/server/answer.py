"""All answers to one HTTP request: its prompts, their choices, and the end they reach together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from chairlift.core.explain import missed, unnamed
from chairlift.core.tickets import Ticket
from chairlift.core.types import Finish, FinishReason, Request, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.choices import CollectedChoice
from chairlift.server.client import EngineClient
from chairlift.server.dialect import Dialect
from chairlift.server.errors import ApiError, deadline_exceeded, internal, unavailable
from chairlift.server.explanations import explained
from chairlift.server.listener import Choice
from chairlift.server.logs import ABOUT
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.shapes import Usage
from chairlift.server.timings import Timings
from chairlift.server.usage import Used
from chairlift.server.validate import Presentation
from chairlift.text.answers import AnswerReader

HEAVY_WEIGHT = 8
"""Of a token with scores, and of one that is read for thought or calls: that goes token by token."""

_log = logging.getLogger("chairlift.server")


class _Part:
    """One prompt's choices: what the client talks to."""

    __slots__ = ("_answer", "_asked", "choices")

    def __init__(self, answer: Answer, asked: Asked, choices: Sequence[Choice]) -> None:
        self._answer = answer
        self._asked = asked
        self.choices = choices

    @property
    def request_id(self) -> str:
        return self._answer.used.request_id

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None:
        self._asked.prompt_scores.extend(logprobs)

    def fail(self, error: ApiError) -> None:
        self._answer.fail(error)


class Answer:
    """Submits the requests of one HTTP request and gathers what comes back.

    One choice that fails ends them all: half of what was asked for is an error, not an answer.
    """

    def __init__(
        self,
        client: EngineClient,
        dialect: Dialect,
        show: Presentation,
        outlet: Outlet,
        timings: Timings | None = None,
    ) -> None:
        self.outlet = outlet
        self._timings = timings
        """Kept if the response is to tell them."""
        self.finished = False
        """Every choice came to a good end."""
        self.client_left = False
        self.used = Used()
        """Also by choices that nobody waits for any longer."""
        self._client = client
        self.dialect = dialect
        self._show = show
        self._ids: list[int] = []
        self._asked: Sequence[Asked] = ()
        self._collected: list[CollectedChoice] = []
        self._readers: list[AnswerReader] = []
        self._num_open = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._first_token: float | None = None
        self._first_indices: dict[int, int] = {}
        """Of the choices of each request, by its id."""
        self._finishes: list[Finish] = []
        """Kept if they are to be explained."""
        self._reasons: set[str] = set()
        self._left = False

    def submit(
        self,
        asked: Sequence[Asked],
        requests: Sequence[Request],
        tickets: Sequence[Ticket],
        open_text: Callable[[], TokenText],
    ) -> None:
        """Hand everything to the engine, each with its place; choice numbers run through all prompts.

        Raises:
            ApiError: 503, the engine is not there.
        """
        self._asked = asked
        parts = []
        for one, request in zip(asked, requests, strict=True):
            choices = [self._choice(one, self._num_open + choice, open_text()) for choice in range(request.n)]
            self._first_indices[request.id] = self._num_open
            self._num_open += request.n
            self._num_prompt_tokens += len(one.prompt)
            self.used.num_prompt_tokens += len(one.prompt)
            parts.append((request, _Part(self, one, choices)))
        for (request, part), ticket in zip(parts, tickets, strict=True):
            self._ids.append(request.id)
            self._client.submit(request, part, ticket)
        if self._client.explanations is not None:
            self._client.explanations.expect(self.dialect.id, self.dialect.created, requests)

    def usage(self) -> Usage:
        """Tokens of all choices that ended."""
        thought = sum(reader.num_reasoning_tokens for reader in self._readers) if self._readers else None
        return Usage(self._num_prompt_tokens, self._num_output_tokens, self._num_cached_tokens, thought)

    def weight(self) -> int:
        """What it takes to write `body`, in tokens of plain text, of which others cost a multiple."""
        num_tokens = self._num_output_tokens
        if any(one.shows_prompt for one in self._asked):
            num_tokens += self._num_prompt_tokens * len(self._collected) // len(self._asked)
        is_heavy = any(one.has_scores or one.open_reader is not None for one in self._asked)
        return num_tokens * (HEAVY_WEIGHT if is_heavy else 1)

    def body(self) -> Iterable[bytes]:
        """The response, once `finished`, if it is not streamed; made as it is taken."""
        return self.dialect.body(self._collected, self.usage, self._metrics() | self._explanation())

    def summary(self, arrival: float, now: float) -> str:
        """One line on what became of it, for the log."""
        usage = self.usage()
        ttft = "-" if self._first_token is None else f"{self._first_token - arrival:.3f}"
        return (
            f"prompt_tokens={usage.num_prompt_tokens} output_tokens={usage.num_output_tokens} "
            f"cached_tokens={usage.num_cached_tokens} finish={','.join(sorted(self._reasons)) or '-'} "
            f"ttft_s={ttft} total_s={now - arrival:.3f}{' client=gone' if self.client_left else ''}"
        )

    def fail(self, error: ApiError) -> None:
        """End everything with `error`."""
        self.outlet.fail(error)
        self.leave()

    def leave(self) -> None:
        """Nobody waits any longer. What is finished stays as it is; doing it again changes nothing."""
        if self._left:
            return
        self._left = True
        self.outlet.close()
        self.used.client_left = self.client_left
        self.used.expect(sum(self._client.abort(request_id, self.used.add_late) for request_id in self._ids))

    def forget(self) -> None:
        """Let go of what was collected: nothing will be read any more. Answers and their choices know each other, and
        what they keep would else stay until somebody looks for garbage."""
        self._collected.clear()
        self._readers.clear()
        self._asked = ()

    def _choice(self, asked: Asked, index: int, text: TokenText) -> Choice:
        reader = None if asked.open_reader is None else asked.open_reader()
        if reader is not None:
            self._readers.append(reader)
        if not self._show.stream:
            choice = CollectedChoice(asked, text, self._ended, reader)
            self._collected.append(choice)
            return choice
        return self.dialect.streamed(asked, index, text, self.outlet, self._ended, reader)

    def _ended(self, finish: Finish) -> None:
        self._reasons.add(finish.reason.value)
        self.used.add(finish)
        if self._show.explain:
            self._finishes.append(finish)
        if finish.reason is FinishReason.ERROR:
            _log.error("the engine failed a request: %s", finish.error, extra={ABOUT: self.used.request_id})
            self.fail(internal())
            return
        if finish.reason is FinishReason.ABORT:
            self.fail(unavailable("The engine ended the request before it was finished.", "aborted"))
            return
        if finish.reason is FinishReason.DEADLINE:
            error = deadline_exceeded(missed(finish), finish.error)
            error.more |= self._explanation()
            self.fail(error)
            return
        if not self._show.discard_output:
            self._num_output_tokens += finish.num_output_tokens
        if finish.choice == 0:
            self._num_cached_tokens += finish.num_cached_tokens
        if finish.first_token is not None and (self._first_token is None or finish.first_token < self._first_token):
            self._first_token = finish.first_token
        if self._timings is not None:
            self._timings.add(finish)
        self._num_open -= 1
        if self._num_open == 0:
            self._complete()

    def _complete(self) -> None:
        self.finished = True
        if self._show.stream:
            metrics = self._metrics() if self._show.include_usage else {}
            self.outlet.write(self.dialect.ending(self.usage(), metrics | self._explanation()))
        self.outlet.close()

    def _metrics(self) -> dict[str, Any]:
        return {} if self._timings is None else {"metrics": self._timings.as_json()}

    def _explanation(self) -> dict[str, Any]:
        """What was decided about each choice, if that is wanted. Who else is served is nobody's business here."""
        if not self._show.explain:
            return {}
        told = [(self._first_indices[finish.id] + finish.choice, finish) for finish in self._finishes]
        return {"explanation": [explained(index, finish, unnamed) for index, finish in sorted(told, key=itemgetter(0))]}
