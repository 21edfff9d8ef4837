"""What one HTTP request used: tokens and times, counted also when its client has left before the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chairlift.core.types import Finish, SamplingParams


class Used:
    """Filled while a request is answered; settled when nothing more will be added."""

    __slots__ = (
        "_num_open",
        "_then",
        "client_left",
        "finishes",
        "model",
        "n",
        "num_cached_tokens",
        "num_output_tokens",
        "num_prompt_tokens",
        "params",
        "queue_s",
        "reasons",
        "request_id",
        "tenant",
        "ttft_s",
    )

    def __init__(self, request_id: str = "", *, is_traced: bool = False) -> None:
        self.request_id = request_id
        """What the log calls it: the id of its response's header."""
        self.tenant = ""
        self.model: str | None = None
        self.params: SamplingParams | None = None
        self.n = 1
        """Answers for each prompt."""
        self.finishes: list[Finish] | None = [] if is_traced else None
        """The ends of its choices, if a trace is to be made of them."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.reasons: set[str] = set()
        """Why its choices ended."""
        self.queue_s: float | None = None
        """From arrival to its first step."""
        self.ttft_s: float | None = None
        """From arrival to its first token."""
        self.client_left = False
        self._num_open = 0
        self._then: Callable[[], None] | None = None

    def add(self, finish: Finish) -> None:
        """A choice ended, whoever still waited for it."""
        if self.finishes is not None:
            self.finishes.append(finish)
        self.num_output_tokens += finish.num_output_tokens
        self.reasons.add(finish.reason.value)
        if finish.choice == 0:
            self.num_cached_tokens += finish.num_cached_tokens
        if finish.first_scheduled is not None:
            self.queue_s = _least(self.queue_s, finish.first_scheduled - finish.arrival)
        if finish.first_token is not None:
            self.ttft_s = _least(self.ttft_s, finish.first_token - finish.arrival)

    def add_late(self, finish: Finish | None) -> None:
        """A choice that nobody waits for ended; None if no end of any can come any more."""
        if finish is None:
            self._num_open = 0
        else:
            self.add(finish)
            self._num_open -= 1
        if self._num_open <= 0 and self._then is not None:
            then, self._then = self._then, None
            then()

    def expect(self, num_ends: int) -> None:
        """The request is over for its client, and so many of its choices have not ended yet."""
        self._num_open = num_ends

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call `then` once nothing more will be added: at once, or later."""
        if self._num_open > 0:
            self._then = then
        else:
            then()

    def record(self) -> dict[str, Any]:
        """As JSON has it. `finish` names every reason for which a choice ended."""
        return {
            "tenant": self.tenant,
            "model": self.model,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "completion_tokens": self.num_output_tokens,
            "finish": sorted(self.reasons),
            "client_left": self.client_left,
            "queue_s": _rounded(self.queue_s),
            "ttft_s": _rounded(self.ttft_s),
        }


def _least(known: float | None, value: float) -> float:
    return value if known is None else min(known, value)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
