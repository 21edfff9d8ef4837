"""The line that the log has for a request that is over: as text, and the same as data. Nothing of what was said."""

from __future__ import annotations

from typing import Any

from chairlift.server.exchange import Exchange


class RequestLine:
    """Made for every request, and put into words only if the log takes it."""

    __slots__ = ("_exchange", "_route", "_total_s")

    def __init__(self, exchange: Exchange, route: str, total_s: float) -> None:
        self._exchange = exchange
        self._route = route
        self._total_s = total_s

    def __str__(self) -> str:
        exchange = self._exchange
        status = exchange.status if exchange.status is not None else "-"
        note = exchange.note.strip()
        if exchange.error_code is not None and not note.endswith(f"code={exchange.error_code}"):
            note += f" code={exchange.error_code}"  # of what ended a stream, whose status was sent long before
        return f"id={exchange.id} route={self._route} status={status} {note}".rstrip()

    def fields(self) -> dict[str, Any]:
        """By the names of the usage log, as far as both have them; `status` is null if the client left before."""
        exchange = self._exchange
        told: dict[str, Any] = {
            "request_id": exchange.id,
            "principal": exchange.principal.name,
            "method": exchange.method,
            "route": self._route,
            "status": exchange.status,
            "code": exchange.error_code,
            "total_s": round(self._total_s, 6),
        }
        return told if exchange.used is None else told | exchange.used.record()
