"""Answers that must be calls: the grammar lets through what is asked for, and what it lets through is read as that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.server import validate
from chairlift.server.errors import ApiError
from chairlift.server.ports import ChatManners
from chairlift.server.tools import ToolUse
from chairlift.server.validate import Validated
from chairlift.text.grammars import grammar_text
from chairlift.text.tools import TOOL_FORMATS
from text.assembled import read

TOKENIZER = LLTokenizer("byte")
WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/name"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"name": {"type": "string", "format": "city-name"}},
    },
}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, {"name": "get_time"})]


def asked(form: str, choice: Any = "required", **fields: Any) -> tuple[ToolUse, StructuredOutputs]:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice} | fields
    request: Validated = validate.chat(body, {}, ChatManners(tool_format=TOOL_FORMATS[form]))
    assert request.tools is not None
    assert request.params.structured_outputs is not None
    return request.tools, request.params.structured_outputs


def accepts(form: StructuredOutputs, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar_text(form), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


CALL, TIME = ("get_weather", '{"city": "Bern"}'), ("get_time", "{}")
WRITTEN = {
    "hermes": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>',
        '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
    ),
    "llama3_json": (
        '{"name": "get_weather", "parameters": {"city": "Bern"}}',
        '; {"name": "get_time", "parameters": {}}',
    ),
    "json": ('{"name": "get_weather", "arguments": {"city": "Bern"}}', ', {"name": "get_time", "arguments": {}}'),
    "mistral": ('{"name": "get_weather", "arguments": {"city": "Bern"}}', ', {"name": "get_time", "arguments": {}}'),
}


def written(form: str, one: str, two: str = "", *, single: bool = False) -> str:
    return one + two if form in ("hermes", "llama3_json") or single else f"[{one}{two}]"


@pytest.mark.parametrize("form", WRITTEN)
def test_required_is_one_call_or_several(form: str) -> None:
    tools, grammar = asked(form)
    one, two = WRITTEN[form]
    assert accepts(grammar, written(form, one))
    assert accepts(grammar, written(form, one, two))
    assert read(tools.reader(), [written(form, one, two)]).calls == [CALL, TIME]
    for text in ("", "Hello.", one.replace('"Bern"', "5"), one.replace("get_weather", "format_disk"), one[:-1]):
        assert not accepts(grammar, written(form, text))


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("fields", [{"parallel_tool_calls": False}, {"choice": "named"}])
def test_at_most_one(form: str, fields: dict[str, Any]) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    fields = {name: named if value == "named" else value for name, value in fields.items()}
    tools, grammar = asked(form, **fields)
    one, two = WRITTEN[form]
    assert accepts(grammar, written(form, one, single=True))
    assert not accepts(grammar, written(form, one, two))
    assert accepts(grammar, one.replace("get_weather", "get_time").replace('{"city": "Bern"}', "{}")) == (
        not fields.get("choice")
    )
    assert read(tools.reader(), [written(form, one, single=True)]).calls == [CALL]


def test_some_of_the_tools() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    tools, grammar = asked("hermes", {"type": "allowed_tools", "allowed_tools": allowed})
    assert len(tools.told) == 2
    one, two = WRITTEN["hermes"]
    assert accepts(grammar, one)
    assert not accepts(grammar, one + two)


def test_a_keyword_that_cannot_be_enforced_is_refused_only_if_the_schema_is_strict() -> None:
    strict = [{"type": "function", "function": WEATHER | {"strict": True}}]
    grammar = grammar_text(asked("hermes", tools=strict)[1])
    assert LLMatcher(TOKENIZER, grammar, log_level=0).is_error()
    grammar = grammar_text(asked("hermes")[1])
    assert not LLMatcher(TOKENIZER, grammar, log_level=0).is_error()


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        {"json_object": True},
        {"regex": r'\{"a": [0-9]\}'},
        {"choice": ['{"a": 5}', "no"]},
        {"grammar": 'start: "{\\"a\\": 5}"'},
    ],
    ids=str,
)
def test_a_model_may_think_before_it_keeps_to_a_form(form: dict[str, Any]) -> None:
    text = '{"a": 5}'
    opened = StructuredOutputs(**form, after=("", "</think>"))
    assert accepts(opened, f"Hm. {{<b>\n</think>\n\n{text}")
    assert accepts(opened, f"</think>{text}")
    assert not accepts(opened, text)
    assert not accepts(opened, "Hm.</think>Well.")
    free = StructuredOutputs(**form, after=("<think>", "</think>"))
    assert accepts(free, f"<think>Hm.</think>{text}")
    assert accepts(free, text)
    assert not accepts(free, f"Hm.</think>{text}")


@pytest.mark.parametrize("form", ["hermes", "json"])
def test_an_answer_of_a_form_may_be_calls_instead(form: str) -> None:
    fields = {"response_format": {"type": "json_object"}}
    _, grammar = asked(form, "auto", **fields)
    one, two = WRITTEN[form]
    for text in ('{"a": 5}', written(form, one), written(form, one, two)):
        assert accepts(grammar, text)
        assert accepts(replace(grammar, after=("", "</think>")), f"Hm.</think>{text}")
    assert not accepts(grammar, "Hello.")
    for other in ("mistral", "llama3_json"):
        with pytest.raises(ApiError, match="not supported with this model"):
            asked(other, "auto", **fields)


@pytest.mark.parametrize("after", ["ab", ("a",), ("a", ""), ("", "x" * 65), (1, 2), ("\ud800", "x"), ("", "\ud800")])
def test_tags_are_two_texts(after: Any) -> None:
    with pytest.raises(InvalidRequest, match="structured_outputs"):
        StructuredOutputs(json_object=True, after=after)


def test_schemas_have_a_limit() -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}}
    with pytest.raises(Exception, match="at most 131072 characters") as caught:
        asked("hermes", tools=[{"type": "function", "function": {"name": "f", "parameters": large}}])
    assert getattr(caught.value, "param", None) == "tools"
    assert json.dumps(large)
