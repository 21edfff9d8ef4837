"""What comes after the question mark of a URL, and lists that are asked for in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

from chairlift.server.errors import bad_request

MAX_QUERY_BYTES = 4096
MAX_FIELDS = 32
ORDERS = ("desc", "asc")


class Listed(Protocol):
    """Something that lists are made of."""

    id: str
    serial: int

    def as_json(self) -> dict[str, Any]: ...


class Query:
    """The fields of a query, each once.

    Raises:
        ApiError: 400, it cannot be read.
    """

    def __init__(self, query: bytes) -> None:
        if len(query) > MAX_QUERY_BYTES:
            raise bad_request("The query is too long.")
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
        except ValueError:
            raise bad_request("The query cannot be read.") from None
        self._fields = dict(pairs)
        if len(self._fields) != len(pairs):
            raise bad_request("A field of the query comes twice.")

    def text(self, name: str) -> str | None:
        """A field, if it is there."""
        return self._fields.get(name)

    def number(self, name: str, default: int, most: int) -> int:
        """A field that is a number from 1 on.

        Raises:
            ApiError: 400, it is none, or out of its range.
        """
        text = self._fields.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise bad_request(f"{name} must be between 1 and {most}", name)
        return int(text)

    def page(self, items: Sequence[Listed], default: int, most: int) -> dict[str, Any]:
        """Those of `items` that are asked for by `after`, `limit` and `order`, the newest first, as the API lists them.

        Raises:
            ApiError: 400, one of these fields makes no sense.
        """
        limit, after, order = self.number("limit", default, most), self.text("after"), self.text("order") or ORDERS[0]
        if order not in ORDERS:
            raise bad_request(f"order must be one of {', '.join(ORDERS)}", "order")
        ordered = sorted(items, key=lambda one: one.serial, reverse=order == ORDERS[0])
        start = 0
        if after is not None:
            places = [place for place, one in enumerate(ordered, 1) if one.id == after]
            if not places:
                raise bad_request("after must be the id of one of these", "after")
            start = places[0]
        shown = ordered[start : start + limit]
        return {
            "object": "list",
            "data": [one.as_json() for one in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": start + limit < len(ordered),
        }
