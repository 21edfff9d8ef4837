"""When requests must have their first token, and when their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from chairlift.core.types import Request

TTFT = "ttft"
E2E = "e2e"


class Deadlines:
    """Points in time of live requests, the earliest first. Requests that ended are dropped when they come up."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Request]] = []
        self._serial = 0

    def add(self, request: Request) -> None:
        for when, kind in ((request.ttft_deadline, TTFT), (request.e2e_deadline, E2E)):
            if when is not None:
                self._serial += 1
                heappush(self._heap, (when, self._serial, kind, request))

    @property
    def next(self) -> float | None:
        """The earliest, be it of a request that is over."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[tuple[str, Request]]:
        """Take out those that have come, each with its kind."""
        while self._heap and self._heap[0][0] <= now:
            _, _, kind, request = heappop(self._heap)
            yield kind, request

    def prune(self, num_live: int, is_live: Callable[[Request], bool]) -> None:
        """Forget requests that are over, if they are most of what is kept."""
        if len(self._heap) > 64 and len(self._heap) > 4 * num_live:
            self._heap = [entry for entry in self._heap if is_live(entry[3])]
            heapify(self._heap)
