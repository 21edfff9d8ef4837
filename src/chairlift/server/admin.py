"""What only the server's owner may do: see why requests took as long as they did, and change limits while serving.

The routes exist only if there is an admin key, which opens nothing else; `app.py` checks it.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import msgspec

from chairlift.core.types import LimitChange
from chairlift.server.client import EngineClient
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.exchange import Exchange
from chairlift.server.explanations import Explanations, Told
from chairlift.server.json_body import convert, read_object
from chairlift.server.shapes import encode_json
from chairlift.server.validate import MAX_INT

LIMITS_PATH = "/admin/limits"
REQUESTS_PATH = "/admin/requests"
REQUEST_PATH = "/admin/requests/"

MAX_BODY_BYTES = 16 << 10
MAX_OBJECTIVE_MS = 3_600_000.0
DEFAULT_NUM_TOLD = 50


class LimitsBody(msgspec.Struct, omit_defaults=True):
    """PATCH /admin/limits; what is left out stays as it is."""

    max_num_seqs: int | msgspec.UnsetType = msgspec.UNSET
    max_num_batched_tokens: int | msgspec.UnsetType = msgspec.UNSET
    long_prefill_token_threshold: int | msgspec.UnsetType = msgspec.UNSET
    itl_objective_ms: float | msgspec.UnsetType = msgspec.UNSET
    ttft_objective_ms: float | msgspec.UnsetType = msgspec.UNSET


class Admin:
    """Endpoints for the owner of one engine behind one client."""

    def __init__(self, explanations: Explanations) -> None:
        self._explanations = explanations
        self._changed: dict[str, int | float] = {}
        """What was set since the start."""

    # ------------------------------------------------------------ limits

    async def limits(self, exchange: Exchange, client: EngineClient) -> None:
        """GET: what was configured, what is set now, and what the last step was held to."""
        await exchange.respond(200, encode_json(self._told_limits(client)))

    async def change_limits(self, exchange: Exchange, client: EngineClient) -> None:
        """PATCH: the whole change or none of it, from the next step on."""
        content = read_object(await exchange.body(MAX_BODY_BYTES))
        change = self._checked(content, client)
        client.set_limits(_for_engine(change))
        self._changed |= change
        exchange.note = " ".join(f"{name}={value:g}" for name, value in change.items())
        await exchange.respond(200, encode_json(self._told_limits(client)))

    def _checked(self, content: dict[str, Any], client: EngineClient) -> dict[str, int | float]:
        """The changes that a body asks for, as the engine will take them.

        Raises:
            ApiError: 400, naming the field.
        """
        configured = _configured(client)
        change = _read(content, configured)
        after = configured | self._changed | change
        tokens, seqs = "max_num_batched_tokens", "max_num_seqs"
        if after[tokens] < after[seqs] and not change.keys().isdisjoint((tokens, seqs)):
            raise bad_request(
                f"{tokens} ({after[tokens]}) must be at least {seqs} ({after[seqs]}): a step has a token for each",
                tokens if tokens in change else seqs,
            )
        if after[tokens] < configured[tokens] and not client.ready.result().enable_chunked_prefill:
            raise bad_request(f"{tokens} cannot be lowered without chunked prefill: prompts must fit a step", tokens)
        return change

    def _told_limits(self, client: EngineClient) -> dict[str, Any]:
        configured = _configured(client)
        stats = None if client.metrics is None else client.metrics.stats
        names = ("max_num_seqs", "max_num_batched_tokens", "max_prefill_tokens")
        in_force = {name: getattr(stats, name, None) for name in names}
        return {"configured": configured, "set": configured | self._changed, "in_force": in_force}

    # ------------------------------------------------------------ explanations

    async def requests(self, exchange: Exchange, client: EngineClient) -> None:
        """GET: the last requests that ended, the newest first, and those that are live, the oldest first."""
        limit = _limit(exchange.query, self._explanations.keep)
        ended, live = self._explanations.ended(limit), self._explanations.live(limit)
        await self._tell(exchange, {"data": ended, "live": live})

    async def request(self, exchange: Exchange, client: EngineClient) -> None:
        """GET: every request with the id in the path that is live or still known."""
        public_id = unquote(exchange.path[len(REQUEST_PATH) :].decode("latin-1"))
        found = self._explanations.find(public_id)
        if not found:
            raise ApiError(404, "No request of this id is live or remembered.", code="request_not_found")
        await self._tell(exchange, {"data": found})

    async def _tell(self, exchange: Exchange, lists: dict[str, list[Told]]) -> None:
        """Between any two requests the event loop has its turn: a thousand explanations take tens of milliseconds."""
        body = b'{"object":"list"'
        for name, several in lists.items():
            pieces = []
            for told in several:
                pieces.append(encode_json(told.as_json(self._explanations.name)))
                await asyncio.sleep(0)
            body += b',"%b":[%b]' % (name.encode(), b",".join(pieces))
        await exchange.respond(200, body + b"}")


def _configured(client: EngineClient) -> dict[str, int | float]:
    """What the engine was started with."""
    ready = client.ready.result()
    return {
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
        "long_prefill_token_threshold": ready.long_prefill_token_threshold,
        "itl_objective_ms": ready.itl_objective_s * 1000,
        "ttft_objective_ms": ready.ttft_objective_s * 1000,
    }


def _read(content: dict[str, Any], configured: dict[str, int | float]) -> dict[str, int | float]:
    """The changes that a body asks for, each within its bounds.

    Raises:
        ApiError: 400, naming the field.
    """
    names = LimitsBody.__struct_fields__
    for name in content:
        if name not in names:
            allowed = ", ".join(names)
            raise bad_request(f"{name[:64]} cannot be changed; these can: {allowed}", name[:64], "unknown_field")
    if not content:
        raise bad_request("The body names nothing to change.")
    body = convert(content, LimitsBody)
    change = {name: getattr(body, name) for name in content}
    for name, value in change.items():
        low, high = _bounds(name, configured)
        if not low <= value <= high:
            raise bad_request(f"{name} must be between {low} and {high:g}", name)
    return change


def _bounds(name: str, configured: dict[str, int | float]) -> tuple[int, float]:
    """Most is what the engine was started with, where that is what was prepared for."""
    if name in ("max_num_seqs", "max_num_batched_tokens"):
        return 1, configured[name]
    return 0, MAX_INT if name == "long_prefill_token_threshold" else MAX_OBJECTIVE_MS


def _for_engine(change: dict[str, int | float]) -> LimitChange:
    """In the engine's units: objectives in seconds."""
    fields: dict[str, Any] = {name: value for name, value in change.items() if not name.endswith("_ms")}
    fields |= {f"{name[:-3]}_s": value / 1000 for name, value in change.items() if name.endswith("_ms")}
    return LimitChange(**fields)


def _limit(query: bytes, most: int) -> int:
    """How many requests a query asks for, as `limit=N`.

    Raises:
        ApiError: 400, for anything else in it.
    """
    if not query:
        return min(DEFAULT_NUM_TOLD, most)
    name, _, value = query.decode("latin-1").partition("=")
    if name != "limit":
        raise bad_request("The query may only be limit=N.")
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise bad_request("limit must be a whole number of at least 1", "limit")
    return min(int(value), most)
