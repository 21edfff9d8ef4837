"""Web pages of named origins may read answers; without names no page but one of this server's own may.

What a browser asks before a request (OPTIONS with `Access-Control-Request-Method`) carries no key by its nature: it is
answered for named origins and for no other, and tells nothing but what was named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from chairlift.server.exchange import Exchange
from chairlift.server.options import ANY_ORIGIN

MAX_AGE_S = 600
EXPOSED = b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry"
METHODS = b"GET, HEAD, POST, PATCH, DELETE"

Headers = tuple[tuple[bytes, bytes], ...]

_REQUESTED = re.compile(rb"[A-Za-z0-9, -]{1,1024}")


class Cors:
    """The rules for named origins, or for any."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def admit(self, exchange: Exchange) -> bool:
        """Whether a page of a named origin asks; then what is answered says so, and its origin is like our own."""
        origin = exchange.headers.get(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return False
        del exchange.headers[b"origin"]
        allowed = ANY_ORIGIN.encode() if self._any else origin
        exchange.common_headers = (
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"origin"),
        )
        return True

    def preflight(self, exchange: Exchange) -> Headers | None:
        """What to answer to a browser that asks whether it may ask; None if it asks for something else."""
        if exchange.method != "OPTIONS" or b"access-control-request-method" not in exchange.headers:
            return None
        requested = exchange.headers.get(b"access-control-request-headers", b"")
        headers = requested if _REQUESTED.fullmatch(requested) else b"authorization, content-type"
        return (
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", headers),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        )
