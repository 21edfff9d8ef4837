"""The form of an answer as plain text: what is kept, what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import MAX_GRAMMAR_CHARS, MAX_JSON_DEPTH, StructuredOutputs
from chairlift.core.types import SamplingParams


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def test_a_schema_is_kept_as_one_text_however_it_was_given() -> None:
    schema = {"type": "object", "properties": {"b": {"const": "é"}, "a": {}}}
    text = '{"type": "object",\n "properties": {"b": {"const": "\\u00e9"}, "a": {}}}'
    given = [StructuredOutputs(json=one) for one in (schema, text)]  # type: ignore[arg-type]
    assert given[0] == given[1]
    assert hash(given[0]) == hash(given[1])
    assert StructuredOutputs(json=given[0].json) == given[0]


def test_it_travels_inside_the_parameters_of_a_request() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a", "b"]})  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputs(choice=("a", "b"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json_object": False},
        {"json": {}, "regex": "a"},
        {"json": "{"},
        {"json": "[]"},
        {"json": "NaN"},
        {"json": 3},
        {"json": {"a": {1}}},
        {"json": "[" * 100_000},
        {"json": nested(MAX_JSON_DEPTH + 1)},
        {"json": '"' + "a" * MAX_GRAMMAR_CHARS + '"'},
        {"regex": ""},
        {"regex": 1},
        {"regex": "\ud800"},
        {"regex": "a" * (MAX_GRAMMAR_CHARS + 1)},
        {"choice": []},
        {"choice": "ab"},
        {"choice": [""]},
        {"choice": [1]},
        {"choice": ["a"] * 5000},
        {"choice": ["a" * 1000] * 200},
        {"grammar": ""},
        {"grammar": ["start: "]},
        {"json_object": "yes"},
        {"json_object": True, "lenient": 1},
        {"regex": "a", "whitespace_pattern": " *"},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_no_form_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StructuredOutputs(**fields)
    assert caught.value.param == "structured_outputs"
    with pytest.raises(InvalidRequest):
        SamplingParams(structured_outputs=fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [{"xml": "x"}, "json", 3, ["json"]])
def test_what_is_not_even_fields_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        SamplingParams(structured_outputs=value)


def test_a_schema_may_be_as_deep_as_is_said() -> None:
    assert StructuredOutputs(json=nested(MAX_JSON_DEPTH))  # type: ignore[arg-type]
    assert StructuredOutputs(json=True).json == "true"  # type: ignore[arg-type]
