"""Comments in a stream that is silent: what stands between may cut a connection on which nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.server.outlet import Outlet

COMMENT = b": keep-alive\n\n"


@contextmanager
def kept_alive(outlet: Outlet, interval_s: float, sign: bytes = COMMENT) -> Iterator[None]:
    """While this lasts, an outlet from which nothing was taken for `interval_s` seconds gets a sign; 0: never."""
    if not interval_s:
        yield
        return
    loop = asyncio.get_running_loop()
    timer = loop.call_later(interval_s, lambda: check())

    def check() -> None:
        nonlocal timer
        if outlet.closed:
            return
        if outlet.is_quiet:
            outlet.write(sign)
        outlet.is_quiet = True
        timer = loop.call_later(interval_s, check)

    outlet.is_quiet = True
    try:
        yield
    finally:
        timer.cancel()
