"""Whose request is next: a bound on what batches keep in an engine, and turns among those who have some."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable

import msgspec


class Turns:
    """Turns at one engine; `num_slots` says how many answers it works at.

    What is in flight may be a little more than that, so that a slot that comes free is taken at once. Whoever waits is
    served in the order of asking, and asks for one request at a time.
    """

    def __init__(self, num_slots: Callable[[], int]) -> None:
        self._num_slots = num_slots
        self._num_in_flight = 0
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()

    @property
    def num_in_flight(self) -> int:
        """Answers that have their turn."""
        return self._num_in_flight

    @property
    def _most(self) -> int:
        num_slots = self._num_slots()
        return num_slots + max(1, num_slots // 4)

    async def take(self, num_answers: int, *, alone: bool = False) -> int:
        """Wait for the turn of a request with so many answers; gives what is to be given back.

        One with more answers than there may be in flight has its turn when nothing else has, and so has one that is to
        be `alone`.
        """
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._most if alone else num_answers, taken))
        self._look()
        try:
            return await taken
        except asyncio.CancelledError:
            if taken.done() and not taken.cancelled():
                self.give(taken.result())
            raise

    def give(self, num_answers: int) -> None:
        """A turn is over."""
        self._num_in_flight -= num_answers
        self._look()

    def _look(self) -> None:
        while self._waiting:
            num_answers, taken = self._waiting[0]
            if taken.cancelled():
                self._waiting.popleft()
                continue
            num_answers = min(num_answers, self._most)
            if self._num_in_flight + num_answers > self._most:
                return
            self._waiting.popleft()
            self._num_in_flight += num_answers
            taken.set_result(num_answers)


class _Sizes(msgspec.Struct):
    n: int | None = None
    best_of: int | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")


_sizes = msgspec.json.Decoder(_Sizes)


def num_answers(body: bytes) -> int:
    """How many answers, or vectors, a body asks for; 1 for one that makes no sense, which is refused soon enough."""
    try:
        sizes = _sizes.decode(body)
        prompts = max(_num_prompts(bytes(sizes.prompt)), _num_prompts(bytes(sizes.input)))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 1
    return max(1, sizes.n or 1, sizes.best_of or 1) * prompts


def _num_prompts(text: bytes) -> int:
    """A text or a list of tokens is one; a list of those is as many as it has."""
    if not text.startswith(b"["):
        return 1
    content = json.loads(text)
    return 1 if not content or isinstance(content[0], int) else len(content)
