"""A route: what answers at a path, whom it is open to, and what it takes and gives.

What is declared here is all that the OpenAPI document is made of, so a route is described where it is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.server.errors import ErrorBody
from chairlift.server.exchange import Exchange

Endpoint = Callable[[Exchange], Awaitable[None]]

JSON_MEDIA = "application/json"

OF_ENGINE = (404, 429, 504)
"""Statuses of what an engine does: no such model, no room, too late."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query or in a header. `kind` is its type, as msgspec understands types."""

    name: str
    kind: Any
    about: str
    where: str = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one method takes and gives at a path, in types that msgspec can make JSON schemas of."""

    about: str
    """A sentence for who writes a client."""
    tag: str
    body: Any = None
    """What the body is read into, usually a Struct; None if there is none."""
    body_media: str = JSON_MEDIA
    unsupported: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields of the body that are known and not supported, with the values that ask for nothing."""
    answer: Any = None
    """What a successful response holds; None: JSON of no fixed form, or `answer_media`."""
    answer_media: str = JSON_MEDIA
    events: Any = None
    """What each event of a stream holds, if the answer may be streamed."""
    last_word: str | None = None
    """The data of a stream's last event, if that is no JSON."""
    error: Any = ErrorBody
    """What a response holds that is an error."""
    failures: Mapping[int, Any] = field(default_factory=dict)
    """By status, what those hold that are told in other words than errors are."""
    parameters: tuple[Parameter, ...] = ()
    statuses: tuple[int, ...] = ()
    """Statuses besides 200 and those that every route has which is reached, keyed and takes a body like this one."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers at a path. `name` is what logs and metrics call it: paths as typed are without number."""

    name: str
    methods: dict[str, Endpoint] = field(default_factory=dict)
    is_open: bool = False
    """Served without an API key."""
    is_logged: bool = True
    is_admin: bool = False
    """Served with an admin key only."""
    is_metrics: bool = False
    """Served with a metrics key, if there are such keys."""
    is_watched: bool = False
    """Served with an API key, which shows what is its own, and with an admin key, which shows everything."""
    operations: dict[str, Operation] = field(default_factory=dict)
    """What the OpenAPI document tells of each method; HEAD is told like GET."""


def at(
    name: str,
    *,
    is_open: bool = False,
    is_logged: bool = True,
    is_admin: bool = False,
    is_metrics: bool = False,
    is_watched: bool = False,
    **served: tuple[Endpoint, Operation],
) -> Route:
    """A route that serves these methods; what serves GET serves HEAD too."""
    methods: dict[str, tuple[Endpoint, Operation]] = {}
    for method, what in served.items():
        methods |= dict.fromkeys(("GET", "HEAD") if method == "GET" else (method,), what)
    return Route(
        name,
        {method: endpoint for method, (endpoint, _) in methods.items()},
        is_open=is_open,
        is_logged=is_logged,
        is_admin=is_admin,
        is_metrics=is_metrics,
        is_watched=is_watched,
        operations={method: operation for method, (_, operation) in methods.items()},
    )
