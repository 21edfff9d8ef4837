"""Errors in the shape of Anthropic's API, of which `type` and status are all that programs go by."""

from __future__ import annotations

from chairlift.server.errors import MAX_MESSAGE_CHARS, ApiError
from chairlift.server.shapes import encode_json

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_PATHS = (b"/v1/messages", b"/v1/messages/count_tokens")
_LOST = frozenset(("engine_dead", "engine_stalled", "aborted"))
"""Of a status that elsewhere says that there is too much to do."""


def is_theirs(path: bytes) -> bool:
    """Whether whoever asks for this path reads errors in this shape; a proxy's prefix may be before it."""
    return path.endswith(_PATHS)


def error_body(error: ApiError, request_id: str | None) -> bytes:
    """The JSON body; a field that is wrong stands in the message, which is the only place for it."""
    kind = "api_error" if error.code in _LOST else _TYPES.get(error.status, "invalid_request_error")
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    inside = {"type": kind, "message": message[:MAX_MESSAGE_CHARS]}
    return encode_json({"type": "error", "error": inside, "request_id": request_id})
