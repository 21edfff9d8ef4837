"""Errors as HTTP knows them: a status, and a body in the shape of the OpenAI API.

Text in a body is written for the client: never a path, an address or a traceback.
"""

from __future__ import annotations

import math
from typing import Any, NotRequired, TypedDict

import msgspec

from chairlift.core.admission import RATES
from chairlift.core.errors import InvalidRequest, NeverFits, Overloaded

MAX_MESSAGE_CHARS = 1024

RETRY_AFTER_S = 1
"""What a client that was refused for now is told to wait, in seconds, where nothing better is known."""

MAX_RETRY_AFTER_S = 120
"""Longer waits are ignored by the usual clients."""

FOR_NOW = (429, 503)
"""Statuses of what may be served when it is asked again."""

DO_NOT_RETRY = ((b"x-should-retry", b"false"),)
"""Tells the usual clients that asking again gives the same answer."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ErrorInside(TypedDict):
    """What is wrong, for programs (`type`, `code`, `param`) and for people (`message`)."""

    message: str
    type: str
    param: str | None
    code: str | None
    estimated_wait_ms: NotRequired[int | None]
    explanation: NotRequired[list[dict[str, Any]]]


class ErrorBody(TypedDict):
    """A response that is an error; in a stream, its last event."""

    error: ErrorInside


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
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers
        self.more = more or {}
        """Further fields of the error in the body."""

    def told(self) -> dict[str, Any]:
        """The error as clients read it."""
        return {
            "message": self.message[:MAX_MESSAGE_CHARS],
            "type": _TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
            **self.more,
        }

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode({"error": self.told()})

    def event(self) -> bytes:
        """The body as an event of a stream that already began."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is wrong in itself."""
    return ApiError(400, message, param=param, code=code)


def unsupported(message: str, param: str) -> ApiError:
    """The request asks for something that is known and not to be had here."""
    return bad_request(message, param, "unsupported_parameter")


def never_fits(message: str, param: str | None, code: str = "request_too_large") -> ApiError:
    """The request is larger than anything that can be served here."""
    return ApiError(400, message, param=param, code=code, headers=DO_NOT_RETRY)


def from_invalid(error: InvalidRequest) -> ApiError:
    """The core's refusal as a response."""
    make = never_fits if isinstance(error, NeverFits) else bad_request
    return make(str(error), error.param)


def overloaded(error: Overloaded, status: int) -> ApiError:
    """Refused for now by admission; `status` is 429 or 503, as the server's owner likes it.

    Who has used up their own allowance is told so (429) in any case: elsewhere they may be no better off.
    """
    wait_s = min(max(RETRY_AFTER_S if error.wait_s is None else error.wait_s, 0.001), MAX_RETRY_AFTER_S)
    wait_ms = math.ceil(wait_s * 1000)
    return ApiError(
        429 if error.reason in RATES else status,
        str(error),
        code=error.reason,
        headers=(
            (b"retry-after", b"%d" % math.ceil(wait_s)),
            (b"retry-after-ms", b"%d" % wait_ms),
            (b"x-should-retry", b"true"),
        ),
        more={"estimated_wait_ms": None if error.wait_s is None else round(error.wait_s * 1000)},
    )


def deadline_exceeded(kind: str, text: str | None) -> ApiError:
    """The first token (`kind` is "ttft") or the end ("e2e") did not come by when it was wanted."""
    return ApiError(504, text or f"{kind} deadline: missed", code=f"{kind}_deadline_exceeded", headers=DO_NOT_RETRY)


def unavailable(message: str, code: str, wait_s: float = RETRY_AFTER_S) -> ApiError:
    """Refused for now, or lost: the same request may succeed elsewhere, or after about `wait_s` seconds."""
    after_s = min(max(math.ceil(wait_s), RETRY_AFTER_S), MAX_RETRY_AFTER_S)
    return ApiError(503, message, code=code, headers=((b"retry-after", b"%d" % after_s),))


def internal() -> ApiError:
    """Something broke here; the log says what, the client gets no details."""
    return ApiError(500, "The server failed to process the request.", code="internal_error")
