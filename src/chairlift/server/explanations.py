"""What became of the last requests, for those who may ask: kept as it came, put into words when somebody asks.

A request here is an HTTP request and known by its public id, which its client may have chosen: two may have the same.
To the engine it is one request for each of its prompts, by numbers that never leave this process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from chairlift.core.explain import Name, facts, sentence
from chairlift.core.types import Finish, Request


def explained(index: int, finish: Finish, name: Name) -> dict[str, Any]:
    """One choice: its place among all of its request, what happened in words, and the same as data."""
    return {"index": index, "sentence": sentence(finish, name), "decisions": facts(finish, name)}


class Told:
    """One HTTP request: live as long as a choice of it is open."""

    __slots__ = ("created", "ended", "has_joined", "id", "num_open", "parts", "principal", "priority", "tenant")

    def __init__(self, public_id: str, created: int, requests: Sequence[Request]) -> None:
        self.id = public_id
        self.created = created
        """In seconds since 1970."""
        self.principal = requests[0].principal
        self.tenant = requests[0].tenant
        self.priority = requests[0].priority
        self.num_open = 0
        self.has_joined = False
        self.ended: list[Finish] = []
        self.parts: dict[int, tuple[int, int]] = {}
        """Index of the first choice, and how many, by the engine's id."""
        for request in requests:
            self.parts[request.id] = self.num_open, request.n
            self.num_open += request.n

    @property
    def state(self) -> str:
        if not self.num_open:
            return "ended"
        return "running" if self.has_joined else "waiting"

    def as_json(self, name: Name) -> dict[str, Any]:
        """With an explanation for each choice that ended."""
        by_index = {self.parts[finish.id][0] + finish.choice: finish for finish in self.ended}
        choices = [explained(index, by_index[index], name) for index in sorted(by_index)]
        return {
            "id": self.id,
            "created": self.created,
            "principal": self.principal,
            "tenant": self.tenant,
            "priority": self.priority,
            "state": self.state,
            "choices": choices,
        }


class Explanations:
    """The live requests, and of those that ended the last ones, with at most `keep` choices among them."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._live: dict[Told, None] = {}
        self._ended: deque[Told] = deque()
        self._num_kept = 0
        """Choices of those that ended."""
        self._by_engine_id: dict[int, Told] = {}

    # ------------------------------------------------------------ hearing

    def expect(self, public_id: str, created: int, requests: Sequence[Request]) -> None:
        """The engine was asked all of these for one HTTP request."""
        told = Told(public_id, created, requests)
        self._live[told] = None
        self._by_engine_id.update(dict.fromkeys(told.parts, told))

    def on_step(self, joined: Iterable[int], finishes: Iterable[Finish]) -> None:
        """Who was served for the first time in a step, and what ended with it, whoever still listens."""
        for engine_id in joined:
            if (told := self._by_engine_id.get(engine_id)) is not None:
                told.has_joined = True
        for finish in finishes:
            if (told := self._by_engine_id.get(finish.id)) is not None:
                told.ended.append(finish)
                self._close(told, 1)

    def on_refused(self, engine_id: int) -> None:
        """The engine did not take this part."""
        if (told := self._by_engine_id.get(engine_id)) is not None:
            self._close(told, told.parts[engine_id][1])

    def on_engine_dead(self) -> None:
        """What was live has no end that could be told."""
        for told in self._live:
            self._forget(told)
        self._live.clear()

    def _close(self, told: Told, num_choices: int) -> None:
        told.num_open -= num_choices
        if told.num_open:
            return
        del self._live[told]
        self._ended.append(told)
        self._num_kept += len(told.ended)
        if not told.ended:
            self._forget(self._ended.pop())
        while self._num_kept > self.keep and len(self._ended) > min(self.keep, 1):
            oldest = self._ended.popleft()
            self._num_kept -= len(oldest.ended)
            self._forget(oldest)

    def _forget(self, told: Told) -> None:
        for engine_id in told.parts:
            del self._by_engine_id[engine_id]

    # ------------------------------------------------------------ telling

    def ended(self, limit: int) -> list[Told]:
        """The newest first."""
        return list(islice(reversed(self._ended), limit))

    def live(self, limit: int) -> list[Told]:
        """The oldest first: those that take longest are asked about."""
        return list(islice(self._live, limit))

    def find(self, public_id: str) -> list[Told]:
        """All requests of this id: the live ones, then those that ended, the newest first."""
        every = [*self._live, *reversed(self._ended)]
        return [told for told in every if told.id == public_id]

    def told(self, engine_id: int) -> Told | None:
        """The request of which the engine's one is a part; None if it is forgotten."""
        return self._by_engine_id.get(engine_id)

    def name(self, engine_id: int) -> str | None:
        """The public id of a request; None if it is forgotten."""
        told = self._by_engine_id.get(engine_id)
        return None if told is None else told.id
