"""Fair order: whoever has had the least weighted service goes next.

Two levels, each a set of counters: principals, and the tenants inside each principal. A tenant's name costs nothing to
invent, so it competes only for its principal's share.

A counter grows by what its owner's sequences get: `input_token_weight` for each prompt token computed for the first
time (not those found in the cache, nor those computed again after a preemption), `output_token_weight` for each
generated token, divided by the owner's weight. Who comes back after a pause is lifted to the least counter among those active:
unused time is not saved up.

Source: Virtual Token Counter, Sheng et al. 2024, arXiv:2401.00588; the hierarchy is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace

from chairlift.core.ordering import Line, Sorted
from chairlift.core.sequence import Sequence

MAX_IDLE_COUNTERS = 4096
"""Counters kept of owners that have nothing in flight; beyond, those with the least to make up for are forgotten."""


class Counters:
    """Service by name, and who has something in flight."""

    __slots__ = ("_idle_floor", "_weights", "active", "service")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self.service: dict[str, float] = {}
        self.active: dict[str, int] = {}
        """Sequences in flight by name; names with some only."""
        self._idle_floor = 0.0
        """Service of the last who left: what a newcomer starts from when nobody else is there."""

    def enter(self, name: str) -> None:
        """One more sequence of `name`; a name that had none is lifted."""
        if name not in self.active:
            floor = min((self.service[one] for one in self.active), default=self._idle_floor)
            self.service[name] = max(self.service.get(name, 0.0), floor)
        self.active[name] = self.active.get(name, 0) + 1

    def leave(self, name: str) -> list[str]:
        """One sequence of `name` is over. Gives the names that were forgotten to keep their number bounded."""
        self.active[name] -= 1
        if self.active[name]:
            return []
        del self.active[name]
        if not self.active:
            self._idle_floor = max(self._idle_floor, self.service[name])
        return self._forget() if len(self.service) > len(self.active) + MAX_IDLE_COUNTERS else []

    def charge(self, name: str, amount: float) -> None:
        """`name` was served this much."""
        self.service[name] += amount / self._weights.get(name, 1.0)

    def _forget(self) -> list[str]:
        idle = sorted((name for name in self.service if name not in self.active), key=self.service.__getitem__)
        forgotten = idle[: len(idle) // 2]
        for name in forgotten:
            del self.service[name]
        return forgotten


class Service:
    """What everybody has been served: counters of principals, and of the tenants of each."""

    __slots__ = ("_input_weight", "_output_weight", "_tenant_weights", "principals", "tenants")

    def __init__(self, weights: Mapping[str, float], input_weight: float, output_weight: float) -> None:
        self.principals = Counters(weights)
        self.tenants: dict[str, Counters] = {}
        """By principal."""
        self._tenant_weights = weights
        self._input_weight = input_weight
        self._output_weight = output_weight

    def enter(self, sequence: Sequence) -> None:
        """A sequence was queued for the first time."""
        principal, tenant = sequence.owner
        self.principals.enter(principal)
        if principal not in self.tenants:
            self.tenants[principal] = Counters(self._tenant_weights)
        self.tenants[principal].enter(tenant)

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over."""
        principal, tenant = sequence.owner
        self.tenants[principal].leave(tenant)
        for forgotten in self.principals.leave(principal):
            del self.tenants[forgotten]

    def charge_input(self, sequence: Sequence, num_tokens: int) -> None:
        """So many prompt tokens are going to be computed for it, for the first time."""
        self._charge(sequence.owner, num_tokens * self._input_weight)

    def charge_outputs(self, num_rows: Iterable[tuple[tuple[str, str], int]]) -> None:
        """So many tokens were generated, by owner."""
        for owner, num_tokens in num_rows:
            self._charge(owner, num_tokens * self._output_weight)

    def _charge(self, owner: tuple[str, str], amount: float) -> None:
        self.principals.charge(owner[0], amount)
        self.tenants[owner[0]].charge(owner[1], amount)


class Fair:
    """A line in which the least served principal goes next, with its least served tenant's first sequence."""

    __slots__ = ("_shares",)

    def __init__(self, service: Service) -> None:
        self._shares = Shares(service.principals.service, service.tenants)

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._shares)

    def push(self, sequence: Sequence) -> None:
        self._shares.push(sequence)

    def peek(self) -> Sequence:
        return self._shares.peek()

    def remove(self, sequence: Sequence) -> None:
        self._shares.remove(sequence)


class Shares:
    """Lines by name, the one of the least service first; among equals who came first, so that no name is an advantage.

    With `tenants` (counters by principal) the names are principals, each with the lines of its tenants. Without, they
    are tenants, each with one sorted line.
    """

    __slots__ = ("_heap", "_lines", "_num_made", "_num_waiting", "_service", "_tenants")

    def __init__(self, service: Mapping[str, float], tenants: Mapping[str, Counters] | None = None) -> None:
        self._service = service
        self._tenants = tenants
        self._lines: dict[str, tuple[int, Line]] = {}
        """Names with somebody waiting; the number tells the heap's entry of this line from those of earlier ones."""
        self._heap: list[tuple[float, int, str]] = []
        """An entry for each name with the service it had when it was put there: service only grows meanwhile."""
        self._num_made = 0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for _, line in self._lines.values():
            yield from line

    def push(self, sequence: Sequence) -> None:
        name = self._name_of(sequence)
        if name not in self._lines:
            self._num_made += 1
            self._lines[name] = self._num_made, self._make_line(name)
            heappush(self._heap, (self._service[name], self._num_made, name))
        self._lines[name][1].push(sequence)
        self._num_waiting += 1

    def peek(self) -> Sequence:
        while True:
            seen, number, name = self._heap[0]
            current, line = self._lines.get(name, (0, None))
            if line is None or current != number:
                heappop(self._heap)
            elif self._service[name] != seen:
                heapreplace(self._heap, (self._service[name], number, name))
            else:
                return line.peek()

    def remove(self, sequence: Sequence) -> None:
        name = self._name_of(sequence)
        _, line = self._lines[name]
        line.remove(sequence)
        self._num_waiting -= 1
        if not line:
            del self._lines[name]
            if len(self._heap) > 64 and len(self._heap) > 2 * len(self._lines):
                self._heap = sorted(entry for entry in self._heap if self._lines.get(entry[2], (0,))[0] == entry[1])

    def _name_of(self, sequence: Sequence) -> str:
        return sequence.owner[1 if self._tenants is None else 0]

    def _make_line(self, name: str) -> Line:
        return Sorted() if self._tenants is None else Shares(self._tenants[name].service)
