"""What responses to the owner hold, as types for the OpenAPI document."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from chairlift.server.openapi.answers import Created, Explained, Id


class LimitsTold(TypedDict):
    """What the server was started with, what is set now, and what the last step was held to; null is no limit."""

    configured: dict[str, int | float | None]
    set: dict[str, int | float | None]
    in_force: dict[str, int | float | None]


class RequestTold(TypedDict):
    """A request, with what was decided about each of its answers that ended."""

    id: Id
    created: Created
    principal: str
    tenant: str
    priority: int
    state: Literal["waiting", "running", "ended"]
    choices: list[Explained]


class RequestList(TypedDict):
    """Those that ended, the newest first, and those that are live, the oldest first."""

    object: Literal["list"]
    data: list[RequestTold]
    live: NotRequired[list[RequestTold]]
