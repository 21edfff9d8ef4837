"""What a trace is made of: a request that is over, as this process saw it, and what the engine decided about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chairlift.server.usage import Used


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One request for answers; all times are on the clock of requests."""

    request_id: str
    principal: str
    method: str
    route: str
    status: int | None
    error_code: str | None
    arrival: float
    ended: float
    used: Used
    """With the ends of its choices, as the engine told them."""
    traceparent: str = ""
    """What the client said this is a part of, as it came."""
    tracestate: str = ""


class Traces(Protocol):
    """Where requests go that are over."""

    @property
    def num_lost(self) -> int:
        """Requests whose traces were not delivered and will not be."""
        ...

    def put(self, traced: Traced) -> None:
        """Take a request. Never waits."""
        ...

    def close(self, timeout_s: float) -> None:
        """Deliver what is there, for at most `timeout_s` seconds, and take nothing more."""
        ...
