"""From routes to an OpenAPI 3.1 document.

Schemas are made by msgspec from the types that bodies are read into, so that what is told is what is checked. Fields
that are known and not supported are told with the values that ask for nothing. Nothing here is done before somebody
asks for the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from chairlift.server.bounds import REQUIRED
from chairlift.server.route import JSON_MEDIA, Operation, Parameter, Route

Json = dict[str, Any]

EVENTS_MEDIA = "text/event-stream"
KEY, KEY_IN_HEADER, ADMIN_KEY, METRICS_KEY = "apiKey", "apiKeyHeader", "adminKey", "metricsKey"

_ABOUT = """A server for language models.

A field may be null, which is the same as leaving it out; one that would change the answer and is not known here is
refused. Errors of requests name the field in `param` where there is one. A method that is not told is a 405 with
`Allow`. A stream that cannot be finished ends with an event that holds an error, and without its last word."""
_SECURITY_SCHEMES: Json = {
    KEY: {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer KEY`."},
    KEY_IN_HEADER: {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
    ADMIN_KEY: {"type": "http", "scheme": "bearer", "description": "A key of `--admin-api-key`."},
    METRICS_KEY: {"type": "http", "scheme": "bearer", "description": "A key of `--metrics-api-key`."},
}
_REQUEST_ID: Json = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "Repeated in the response, and part of its id, if it has at most 128 letters, digits or `._:-`.",
    "schema": {"type": "string"},
}
_HEADERS: Json = {
    "RequestId": {"description": "The request's id.", "schema": {"type": "string"}},
    "RetryAfter": {"description": "Seconds after which to ask again.", "schema": {"type": "integer", "minimum": 0}},
    "Allow": {"description": "The methods of this path.", "schema": {"type": "string"}},
}
_MEANINGS = {
    400: "The request is wrong in itself; `param` names the field.",
    401: "A valid key is required.",
    403: "This key, or without keys this Host or Origin, is not for this path.",
    404: "There is no such model, or no such thing.",
    408: "The request did not arrive in time.",
    413: "The body is larger than the server takes.",
    415: "The body is encoded (Content-Encoding).",
    429: "There is no room for now, or a limit of this key is used up; `Retry-After` says when to ask again.",
    431: "The head of the request is too large.",
    500: "The server failed; its log says why.",
    503: "There is no engine for now: it is loading, restarting or shutting down; or there is no room.",
    504: "A deadline of the request has passed.",
}
_EVERYWHERE = (400, 408, 431, 500, 503)
_WITH_BODY = (413, 415)
_RETRIED = (429, 503)


@dataclass(frozen=True, slots=True)
class Keys:
    """Which keys a server asks for."""

    api: bool = True
    metrics: bool = False


@dataclass(slots=True)
class _Schemas:
    """Schemas of types, all made at once: only so are their names unique."""

    kinds: list[Any] = field(default_factory=list)
    made: list[Json] = field(default_factory=list)

    def components(self) -> Json:
        made, components = msgspec.json.schema_components(self.kinds, ref_template="#/components/schemas/{name}")
        self.made = list(made)
        return components

    def of(self, kind: Any) -> Json:
        return self.made[next(i for i, one in enumerate(self.kinds) if one is kind or one == kind)]


def document(routes: Iterable[Route], *, version: str, root_path: str = "", keys: Keys = Keys()) -> Json:
    """The document of a server that has these routes."""
    told = [route for route in routes if route.operations]
    schemas = _Schemas()
    for operation in {id(one): one for route in told for one in route.operations.values()}.values():
        kinds = (operation.body, operation.answer, operation.events, operation.error, *operation.failures.values())
        schemas.kinds += [kind for kind in (*kinds, *(one.kind for one in operation.parameters)) if kind is not None]
    components = schemas.components()
    for component in components.values():
        _tidy(component)
    for route in told:
        for operation in route.operations.values():
            _tell_unsupported(components, schemas, operation)
    tags = dict.fromkeys(one.tag for route in told for one in route.operations.values())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chairlift",
            "version": version,
            "description": _ABOUT,
        },
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": tag} for tag in tags],
        "paths": {route.name: _path(route, schemas, keys) for route in told},
        "components": {"schemas": components, "headers": _HEADERS, "securitySchemes": _SECURITY_SCHEMES},
    }


def _tidy(component: Json) -> None:
    """Say of a field as a whole what its type says of all but null, and of one that has to be given that it has to."""
    required = set(component.get("required", ()))
    for name, schema in component.get("properties", {}).items():
        kinds = schema.get("anyOf", ())
        if len(kinds) == 2 and kinds[1] == {"type": "null"}:
            if kinds[0].pop(REQUIRED, False):
                del schema["anyOf"], schema["default"]
                schema |= kinds[0]
                required.add(name)
            elif "description" in kinds[0]:
                schema["description"] = kinds[0].pop("description")
    component["required"] = sorted(required)


def _tell_unsupported(components: Json, schemas: _Schemas, operation: Operation) -> None:
    if operation.unsupported:
        properties = components[schemas.of(operation.body)["$ref"].rpartition("/")[2]]["properties"]
        for name, values in operation.unsupported.items():
            if name not in properties:
                about = "Not supported, unless it asks for nothing."
                properties[name] = {"description": about, "enum": _told_values(values)}


def _told_values(values: Iterable[Any]) -> list[Any]:
    """Values that are taken, each once: with false goes 0, and with true 1, as Python has it."""
    told = {msgspec.json.encode(one): one for value in values for one in _same(value)}
    return list(told.values())


def _same(value: Any) -> tuple[Any, ...]:
    return (value, int(value)) if isinstance(value, bool) else (value,)


def _path(route: Route, schemas: _Schemas, keys: Keys) -> Json:
    return {
        method.lower(): _operation(route, method, operation, schemas, keys)
        for method in route.methods
        if (operation := route.operations.get(method)) is not None
    }


def _operation(route: Route, method: str, operation: Operation, schemas: _Schemas, keys: Keys) -> Json:
    names = re.findall(r"{(\w+)}", route.name)
    told: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.name}").strip("_"),
        "summary": operation.about,
        "tags": [operation.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
            *(_parameter(one, schemas) for one in operation.parameters),
            _REQUEST_ID,
        ],
        "security": _security(route, keys),
    }
    if operation.body is not None:
        content = {operation.body_media: {"schema": schemas.of(operation.body)}}
        told["requestBody"] = {"required": True, "content": content}
    statuses = {*_EVERYWHERE, *operation.statuses}
    if operation.body is not None:
        statuses.update(_WITH_BODY)
    if names:
        statuses.add(404)
    if not route.is_open:
        statuses.update((401, 403))
    told["responses"] = {"200": _success(operation, schemas, has_content=method != "HEAD")} | {
        str(status): _failure(status, operation, schemas, has_content=method != "HEAD") for status in sorted(statuses)
    }
    return told


def _parameter(parameter: Parameter, schemas: _Schemas) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.about,
        "schema": schemas.of(parameter.kind),
    }


def _security(route: Route, keys: Keys) -> list[Mapping[str, list[str]]]:
    """One of these opens the route; none: it is open."""
    if route.is_admin:
        return [{ADMIN_KEY: []}]
    if route.is_metrics and keys.metrics:
        return [{METRICS_KEY: []}]
    if route.is_open or not keys.api:
        return []
    owner: list[Mapping[str, list[str]]] = [{ADMIN_KEY: []}] if route.is_watched else []
    return [{KEY: []}, {KEY_IN_HEADER: []}, *owner]


def _success(operation: Operation, schemas: _Schemas, *, has_content: bool) -> Json:
    told: Json = {"description": "The answer.", "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}}}
    if has_content:
        answer: Json = {} if operation.answer is None else {"schema": schemas.of(operation.answer)}
        told["content"] = {operation.answer_media: answer}
        if operation.events is not None:
            told["content"][EVENTS_MEDIA] = {"schema": _event(operation, schemas)}
    return told


def _event(operation: Operation, schemas: _Schemas) -> Json:
    """One event of a stream: before version 3.2 there is no other place for that than the schema of the whole."""
    content = {"anyOf": [schemas.of(operation.events), schemas.of(operation.error)]}
    data: Json = {"type": "string", "contentMediaType": JSON_MEDIA, "contentSchema": content}
    if operation.last_word is not None:
        data = {"anyOf": [{"const": operation.last_word}, data]}
    return {
        "type": "object",
        "description": "One server-sent event; a stream has many.",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["data"],
    }


def _failure(status: int, operation: Operation, schemas: _Schemas, *, has_content: bool) -> Json:
    headers: Json = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    if status in _RETRIED:
        headers["retry-after"] = {"$ref": "#/components/headers/RetryAfter"}
    told: Json = {"description": _MEANINGS.get(status) or HTTPStatus(status).phrase, "headers": headers}
    if has_content:
        told["content"] = {JSON_MEDIA: {"schema": schemas.of(operation.failures.get(status, operation.error))}}
    return told
