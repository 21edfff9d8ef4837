"""The HTTP application without HTTP: the same checks and the same bodies, for requests that come from a file."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from chairlift.server.exchange import Exchange
from chairlift.server.identity import ANYBODY, Principal

_HOST = b"127.0.0.1"


class InnerExchange(Exchange):
    """A body posted to a path by the server itself for somebody, and the answer that it gets."""

    def __init__(self, path: str, body: bytes, principal: Principal = ANYBODY) -> None:
        scope: MutableMapping[str, Any] = {
            "method": "POST",
            "raw_path": path.encode(),
            "headers": [(b"host", _HOST), (b"content-type", b"application/json")],
        }
        super().__init__(scope, self._receive_body, self._take)
        self.principal = principal
        self.answer_headers: dict[bytes, bytes] = {}
        self._body: bytes | None = body
        self._pieces: list[bytes] = []

    @property
    def answer(self) -> bytes:
        """The body of the response."""
        return b"".join(self._pieces)

    @property
    def was_in_engine(self) -> bool:
        """Whether it got so far."""
        return self.used is not None and self.used.num_prompt_tokens > 0

    async def _receive_body(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # nobody leaves before the answer
        return {"type": "http.disconnect"}

    async def _take(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.answer_headers = dict(message["headers"])
        else:
            self._pieces.append(message.get("body", b""))
