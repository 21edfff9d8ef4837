"""Errors as HTTP knows them: a status, and a body in the shape of the OpenAI API.

Text in a body is written for the client: never a path, an address or a traceback.
"""

from __future__ import annotations

import msgspec

from chairlift.core.errors import InvalidRequest, NeverFits

MAX_MESSAGE_CHARS = 1024

RETRY_AFTER_S = 1
"""What a client that was refused for now is told to wait, in seconds."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """A response that is an error; also the last event of a stream that could not be finished."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The JSON body."""
        error = {
            "message": self.message[:MAX_MESSAGE_CHARS],
            "type": _TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The body as an event of a stream that already began."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is wrong in itself."""
    return ApiError(400, message, param=param, code=code)


def from_invalid(error: InvalidRequest) -> ApiError:
    """The core's refusal as a response."""
    code = "request_too_large" if isinstance(error, NeverFits) else None
    return bad_request(str(error), error.param, code)


def unavailable(message: str, code: str) -> ApiError:
    """Refused for now, or lost: the same request may succeed elsewhere or later."""
    return ApiError(503, message, code=code, headers=((b"retry-after", str(RETRY_AFTER_S).encode()),))


def internal() -> ApiError:
    """Something broke here; the log says what, the client gets no details."""
    return ApiError(500, "The server failed to process the request.", code="internal_error")
