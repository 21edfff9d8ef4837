"""The ways in which a body asks for the form of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.structured import StructuredOutputs
from chairlift.server import validate
from chairlift.server.errors import ApiError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def form(**fields: Any) -> StructuredOutputs | None:
    chat = validate.chat({"messages": [{"role": "user", "content": "hi"}]} | fields, {})
    assert (
        validate.completion({"prompt": "hi"} | fields, {}).params.structured_outputs == chat.params.structured_outputs
    )
    return chat.params.structured_outputs


def response_format(**content: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **content}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": None, "json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (response_format(schema=SCHEMA), {"json": SCHEMA}),
        (response_format(schema=SCHEMA, strict=True), {"json": SCHEMA}),
        (response_format(schema=SCHEMA, strict=False), {"json": SCHEMA, "lenient": True}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
         {"json_object": True, "whitespace_pattern": ""}),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, {"json": SCHEMA, "whitespace_pattern": " ?"}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_a_form_is_found_wherever_clients_put_it(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert form(**fields) == (None if expected is None else StructuredOutputs(**expected))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        (response_format(), "response_format"),
        (response_format(schema="{}"), "response_format"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"disable_additional_properties": True, "json": SCHEMA}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": ["json"]}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_form_that_is_none_is_refused_by_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        form(**fields)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert param in caught.value.message
