"""The paths of the owner, and what the OpenAPI document tells of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

from msgspec import Meta

from chairlift.server.admin import LIMITS_PATH, REQUEST_PATH, REQUESTS_PATH, Admin, LimitsBody
from chairlift.server.client import EngineClient
from chairlift.server.exchange import Exchange
from chairlift.server.openapi.admin_answers import LimitsTold, RequestList
from chairlift.server.route import Endpoint, Operation, Parameter, Route, at

_TAG = "Owner"

LIMITS = Operation(about="The limits: configured, set, and in force.", tag=_TAG, answer=LimitsTold)
CHANGE_LIMITS = Operation(
    about="Changes limits from the next step and request on.", tag=_TAG, body=LimitsBody, answer=LimitsTold
)
REQUESTS = Operation(
    about="The last requests that ended and those that are live, each with what was decided about it.",
    tag=_TAG,
    answer=RequestList,
    parameters=(Parameter("limit", Annotated[int, Meta(ge=1, le=999_999_999)], "At most so many of each."),),
)
REQUEST = Operation(about="Every request of an id that is live or remembered.", tag=_TAG, answer=RequestList)


def admin_routes(admin: Admin, client: Callable[[], EngineClient]) -> Iterator[Route]:
    """What only an admin key opens. `client` gives that of the engine, or raises an ApiError if there is none."""

    def served(endpoint: Callable[[Exchange, EngineClient], Awaitable[None]]) -> Endpoint:
        return lambda exchange: endpoint(exchange, client())

    yield at(
        LIMITS_PATH,
        is_admin=True,
        GET=(served(admin.limits), LIMITS),
        PATCH=(served(admin.change_limits), CHANGE_LIMITS),
    )
    yield at(REQUESTS_PATH, is_admin=True, GET=(served(admin.requests), REQUESTS))
    yield at(REQUEST_PATH + "{id}", is_admin=True, GET=(served(admin.request), REQUEST))
