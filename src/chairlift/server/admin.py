"""What only the server's owner may do: see why requests took as long as they did, and change limits while serving.

The routes exist only if there is an admin key, which opens nothing else; `app.py` checks it.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType

from chairlift.core.admission import AdmissionLimits
from chairlift.core.types import LimitChange
from chairlift.server.bounds import tells
from chairlift.server.client import EngineClient
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.exchange import Exchange
from chairlift.server.explanations import Explanations, Told
from chairlift.server.fields import MAX_INT
from chairlift.server.json_body import convert, read_object
from chairlift.server.shapes import encode_json

LIMITS_PATH = "/admin/limits"
REQUESTS_PATH = "/admin/requests"
REQUEST_PATH = "/admin/requests/"

MAX_BODY_BYTES = 16 << 10
MAX_OBJECTIVE_MS = 3_600_000.0
DEFAULT_NUM_TOLD = 50

Limits = dict[str, int | float | None]
"""By the names of `LimitsBody`; None is no limit."""

_CAPS = tuple(cap.name for cap in fields(AdmissionLimits))
_SEQS, _TOKENS = "max_num_seqs", "max_num_batched_tokens"
_THRESHOLD = "long_prefill_token_threshold"


UpToStart = Annotated[int, tells("At most what the server was started with.", minimum=1)]
Objective = Annotated[float, tells("0 is none.", minimum=0, maximum=MAX_OBJECTIVE_MS)]
Cap = Annotated[int, tells(minimum=0, maximum=MAX_INT)]


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """PATCH /admin/limits; what is left out stays as it is, and null lifts a cap."""

    max_num_seqs: UpToStart | UnsetType = UNSET
    max_num_batched_tokens: UpToStart | UnsetType = UNSET
    long_prefill_token_threshold: Cap | UnsetType = UNSET
    itl_objective_ms: Objective | UnsetType = UNSET
    ttft_objective_ms: Objective | UnsetType = UNSET
    max_num_queued_reqs: Cap | UnsetType | None = UNSET
    max_num_queued_tokens: Cap | UnsetType | None = UNSET
    max_num_queued_reqs_per_principal: Cap | UnsetType | None = UNSET
    max_num_queued_tokens_per_principal: Cap | UnsetType | None = UNSET
    max_num_reqs_per_principal: Annotated[int, tells(minimum=1, maximum=MAX_INT)] | UnsetType | None = UNSET


class Admin:
    """Endpoints for the owner of one engine behind one client. `caps` are those that admission began with."""

    def __init__(self, explanations: Explanations, caps: AdmissionLimits) -> None:
        self._explanations = explanations
        self._caps = caps
        self._changed: Limits = {}
        """What was set since the start."""

    # ------------------------------------------------------------ limits

    async def limits(self, exchange: Exchange, client: EngineClient) -> None:
        """GET: what was configured, what is set now, and what the last step was held to."""
        await exchange.respond(200, encode_json(self._told_limits(client)))

    async def change_limits(self, exchange: Exchange, client: EngineClient) -> None:
        """PATCH: the whole change or none of it, for the next step and the next request on."""
        content = read_object(await exchange.body(MAX_BODY_BYTES))
        change = self._checked(content, client)
        if not change.keys() <= set(_CAPS):
            client.set_limits(_for_engine(change))
        caps: Any = {name: value for name, value in change.items() if name in _CAPS}
        client.admission.set_limits(replace(client.admission.limits, **caps))
        self._changed |= change
        exchange.note = " ".join(f"{name}={value}" for name, value in change.items())
        await exchange.respond(200, encode_json(self._told_limits(client)))

    def _checked(self, content: dict[str, Any], client: EngineClient) -> Limits:
        """The changes that a body asks for, as the engine and admission will take them.

        Raises:
            ApiError: 400, naming the field.
        """
        configured = self._configured(client)
        change = _read(content, configured)
        after = configured | self._changed | change
        num_seqs, num_tokens = after[_SEQS] or 0, after[_TOKENS] or 0
        if num_tokens < num_seqs and not change.keys().isdisjoint((_SEQS, _TOKENS)):
            raise bad_request(
                f"{_TOKENS} ({num_tokens}) must be at least {_SEQS} ({num_seqs}): a step has a token for each",
                _TOKENS if _TOKENS in change else _SEQS,
            )
        if num_tokens != configured[_TOKENS] and not client.ready.result().enable_chunked_prefill:
            raise bad_request(f"{_TOKENS} cannot be lowered without chunked prefill: prompts must fit a step", _TOKENS)
        if change.get(_THRESHOLD) and not client.ready.result().enable_chunked_prefill:
            raise bad_request(f"{_THRESHOLD} does nothing without chunked prefill: no prompt is cut", _THRESHOLD)
        return change

    def _configured(self, client: EngineClient) -> Limits:
        """What engine and admission were started with."""
        ready = client.ready.result()
        return {
            _SEQS: ready.max_num_seqs,
            _TOKENS: ready.max_num_batched_tokens,
            _THRESHOLD: ready.long_prefill_token_threshold,
            "itl_objective_ms": ready.itl_objective_s * 1000,
            "ttft_objective_ms": ready.ttft_objective_s * 1000,
            **{name: getattr(self._caps, name) for name in _CAPS},
        }

    def _told_limits(self, client: EngineClient) -> dict[str, Limits]:
        """With nulls for what is in force until the engine has spoken."""
        configured = self._configured(client)
        stats = None if client.metrics is None or client.last_heard is None else client.metrics.stats
        in_force = {name: getattr(stats, name, None) for name in (_SEQS, _TOKENS, "max_prefill_tokens")}
        return {"configured": configured, "set": configured | self._changed, "in_force": in_force}

    # ------------------------------------------------------------ explanations

    async def requests(self, exchange: Exchange, client: EngineClient) -> None:
        """GET: the last requests that ended, the newest first, and those that are live, the oldest first."""
        limit = _limit(exchange.query)
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


def _read(content: dict[str, Any], configured: Limits) -> Limits:
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
    change: Limits = {name: getattr(body, name) for name in content}
    for name, value in change.items():
        low, high = _bounds(name, configured)
        if value is not None and not low <= value <= high:
            raise bad_request(f"{name} must be between {low} and {high:.15g}", name)
    return change


def _bounds(name: str, configured: Limits) -> tuple[int, float]:
    """Most is what the engine was started with, where that is what its executor prepared for."""
    if name in (_SEQS, _TOKENS):
        return 1, configured[name] or 1
    if name.endswith("_ms"):
        return 0, MAX_OBJECTIVE_MS
    return 1 if name == "max_num_reqs_per_principal" else 0, MAX_INT


def _for_engine(change: Limits) -> LimitChange:
    """What of it is the engine's, in its units."""
    own = {name: value for name, value in change.items() if name not in _CAPS}
    units: Any = {name: value for name, value in own.items() if not name.endswith("_ms")}
    units |= {f"{name[:-3]}_s": (value or 0) / 1000 for name, value in own.items() if name.endswith("_ms")}
    return LimitChange(**units)


def _limit(query: bytes) -> int:
    """How many requests a query asks for, as `limit=N`.

    Raises:
        ApiError: 400, for anything else in it.
    """
    if not query:
        return DEFAULT_NUM_TOLD
    name, _, value = query.decode("latin-1").partition("=")
    if name != "limit":
        raise bad_request("The query may only be limit=N.")
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise bad_request("limit must be a whole number of at least 1", "limit")
    return int(value)
