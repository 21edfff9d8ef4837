"""Reading a request body: strict JSON into a typed struct, or a 400 that names the place.

Stricter than `json` alone: no NaN or infinity, no key twice in an object (two readers could take different ones), no
half of a surrogate pair (it could not be encoded again), bounded nesting.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

import msgspec

from chairlift.server.errors import bad_request

T = TypeVar("T")

MAX_STRUCTURE = 200_000
"""Most brackets, braces and colons in a body. Reading a few megabytes of `[],[],` or of `"a":1,` keeps the
interpreter's lock for a third of a second; a prompt with that many has more tokens than any context here."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` is.

    Raises:
        ApiError: 400.
    """
    if body.count(b"[") + body.count(b"{") + body.count(b":") > MAX_STRUCTURE:
        raise bad_request("The body has too many arrays, objects and keys.")
    try:
        text = body.decode("utf-8")
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("The body is not valid UTF-8.") from None
    except UnicodeEncodeError:
        raise bad_request("The body contains half of a surrogate pair.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None
    except ValueError as error:
        raise bad_request(f"The body is not valid JSON: {_reason(error)}") from None
    if not isinstance(content, dict):
        raise bad_request("The body must be a JSON object.")
    return content


def convert(content: dict[str, Any], kind: type[T]) -> T:
    """`content` as a `kind`; fields that `kind` does not have are ignored.

    Raises:
        ApiError: 400, with the offending field where one can be named.
    """
    try:
        return msgspec.convert(content, kind, strict=True)
    except msgspec.ValidationError as error:
        message, path = wrong_place(error)
        raise bad_request(f"{path}: {message}" if path else message, field_of(path) or None) from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None


def wrong_place(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, and the path of where; empty if it is the whole."""
    message, _, place = str(error).partition(" - at ")
    return message, place.strip("`").removeprefix("$.")


def field_of(path: str) -> str:
    """`messages[0].content` belongs to the field `messages`."""
    return path.partition(".")[0].partition("[")[0]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key appears twice in an object")
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (character {error.pos})"
    if "integer string conversion" in str(error):
        return "a number has too many digits"
    return str(error)
