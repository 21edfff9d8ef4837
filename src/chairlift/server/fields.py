"""Checks of single fields of a body, whatever the body asks for; each raises a 400 that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from chairlift.server.errors import bad_request, unsupported
from chairlift.server.identity import MAX_TENANT_CHARS

T = TypeVar("T")

MAX_INT = 2**31 - 1


def given(value: T | None, default: T) -> T:
    """What a field says, or `default` if it says nothing."""
    return default if value is None else value


def refuse_unsupported(content: dict[str, Any], harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises a 400 for a known field that would change the answer and is not supported: `harmless` says what asks for
    nothing."""
    for name, value in content.items():
        if name in harmless and value not in harmless[name]:
            raise unsupported(f"{name} is not supported by this server", name)


def model_name(content: dict[str, Any]) -> str | None:
    """The model that a body asks for; None if it leaves that to the server."""
    model = content.get("model")
    if model is not None and not isinstance(model, str):
        raise bad_request("model: Expected `str`", "model")
    return model or None


def check_range(name: str, value: int | None, low: int, high: int) -> None:
    """Raises a 400 that names the field."""
    if value is not None and not low <= value <= high:
        raise bad_request(f"{name} must be between {low} and {high}", name)


def check_priority_and_cut(priority: int | None, truncate_prompt_tokens: int | None) -> None:
    """Raises a 400 for what no request may have, whether it asks for text or for vectors."""
    check_range("priority", priority, -MAX_INT, MAX_INT)
    check_range("truncate_prompt_tokens", truncate_prompt_tokens, -1, MAX_INT)
    if truncate_prompt_tokens == 0:
        raise bad_request("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")


def user_name(body: object) -> str:
    """Whom the client asks for, by any of the fields for that; raises a 400 for a name that is too long."""
    for name in ("user", "safety_identifier"):
        value = getattr(body, name) or ""
        if len(value) > MAX_TENANT_CHARS:
            raise bad_request(f"{name} must have at most {MAX_TENANT_CHARS} characters", name)
        if value:
            return str(value)
    return ""


def deadline_s(name: str, value_ms: float | None) -> float | None:
    """Seconds after the arrival; raises a 400 for what is no time."""
    if value_ms is None:
        return None
    if not (value_ms > 0 and math.isfinite(value_ms)):
        raise bad_request(f"{name} must be a finite number above 0", name)
    return value_ms / 1000
