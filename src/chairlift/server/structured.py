"""What a body asks of the form of its answer, in the ways that clients know: one `StructuredOutputs`, or a 400.

`response_format` is the OpenAI API's, `structured_outputs` is vLLM's, and the `guided_*` fields are vLLM's older ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs, structured_outputs
from chairlift.server.common_fields import CommonFields
from chairlift.server.errors import ApiError, bad_request, from_invalid, unsupported

MAX_NAME_CHARS = 64

OFF: tuple[Any, ...] = (None, False, "", [], {})
"""What a field may say to ask for nothing."""


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`response_format.json_schema`."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format` of the OpenAI API."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredFields(CommonFields, kw_only=True):
    """Besides what all APIs share, the fields that say what form the answer has to have."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None


def asked_form(body: StructuredFields) -> StructuredOutputs | None:
    """The form that a body asks for; None if it leaves that open.

    Raises:
        ApiError: 400, naming the field.
    """
    forms = {
        "response_format": _response_format(body.response_format),
        "structured_outputs": _structured_outputs(body.structured_outputs),
        "guided_json": _guided(body),
    }
    given = {name: form for name, form in forms.items() if form is not None}
    if len(given) > 1:
        raise bad_request(f"{' and '.join(given)} exclude each other", next(iter(given)))
    return next(iter(given.values()), None)


def _response_format(asked: ResponseFormat | None) -> StructuredOutputs | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return StructuredOutputs(json_object=True)
    if asked.type != "json_schema":
        raise _unsupported("response_format", f"type {asked.type[:MAX_NAME_CHARS]!r}")
    content = asked.json_schema
    if content is None or content.schema is None:
        raise bad_request("response_format: json_schema needs a schema", "response_format")
    return _form({"json": content.schema, "lenient": content.strict is False}, "response_format")


_FORMS = ("json", "regex", "choice", "grammar", "json_object")


def _structured_outputs(asked: dict[str, Any] | None) -> StructuredOutputs | None:
    """vLLM's, with what it has beyond ours: the fields that choose an implementation say nothing about the answer."""
    if not asked:
        return None
    fields = {name: value for name, value in asked.items() if value is not None and not name.startswith("_backend")}
    whitespace = fields.pop("disable_any_whitespace", False)
    for name in ("disable_fallback", "disable_additional_properties"):
        if fields.pop(name, False) not in OFF:
            raise _unsupported("structured_outputs", name)
    if whitespace is True:
        fields.setdefault("whitespace_pattern", "")
    if fields.get("json_object") is False:
        del fields["json_object"]
    if not any(name in fields for name in _FORMS) and not fields.keys() - {"whitespace_pattern", "lenient"}:
        return None
    return _form(fields, "structured_outputs")


def _guided(body: StructuredFields) -> StructuredOutputs | None:
    fields = {name: getattr(body, f"guided_{name}") for name in (*_FORMS, "whitespace_pattern")}
    fields = {name: value for name, value in fields.items() if value not in OFF}
    given = [name for name in fields if name != "whitespace_pattern"]
    return _form(fields, f"guided_{given[0]}") if given else None


def _form(fields: Mapping[str, Any], param: str) -> StructuredOutputs:
    try:
        form = structured_outputs(fields)
    except InvalidRequest as error:
        message = str(error).removeprefix("structured_outputs: ")
        raise from_invalid(InvalidRequest(f"{param}: {message}", param)) from None
    if form is None:
        raise bad_request(f"{param} must be an object", param)
    return form


def _unsupported(param: str, what: str) -> ApiError:
    return unsupported(f"{param}: {what} is not supported by this server", param)
