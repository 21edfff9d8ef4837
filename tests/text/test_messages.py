from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.text.messages import MAX_CHARS, MAX_MESSAGES, conversation_of

USER = {"role": "user", "content": "hi"}


def call(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a": 1}', **changes}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        ([USER] * (MAX_MESSAGES + 1), "messages"),
        (["hi"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "endoftext", "content": "hi"}], "messages[0].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "system", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": "x" * (MAX_CHARS + 1)}], "messages[0].content"),
        ([{"role": "user", "content": "x" * (MAX_CHARS // 2 + 1)}] * 2, "messages[1].content"),
        ([{**USER, "name": 1}], "messages[0].name"),
        ([{**USER, "name": "\udfff"}], "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "content": "", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "", "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([call(name=1)], "messages[0].tool_calls[0]"),
        ([call(arguments="{")], "messages[0].tool_calls[0]"),
        ([call(arguments="[1]")], "messages[0].tool_calls[0]"),
        ([call(arguments="[" * 100_000)], "messages[0].tool_calls[0]"),
        ([call(arguments={"a": deep(40)})], "messages[0].tool_calls[0]"),
        ([call(arguments={1: 2})], "messages[0].tool_calls[0]"),
        ([call(arguments={"a": 1 << 65})], "messages[0].tool_calls[0]"),
        ([call(arguments={"a": b"x"})], "messages[0].tool_calls[0]"),
        ([call(arguments={"a": object()})], "messages[0].tool_calls[0]"),
    ],
)
def test_malformed_messages_are_refused_by_field(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        conversation_of(messages)
    assert caught.value.param == param
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


@pytest.mark.parametrize("tools", ["x", 1, [1], [{}], [{"function": {}}], [{"function": {"name": 1}}], {"a": 1}])
def test_malformed_tools(tools: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        conversation_of([USER], tools)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "kwargs",
    [
        [1],
        {"messages": []},
        {"tools": []},
        {"add_generation_prompt": False},
        {"tokenize": True},
        {"chat_template": "x"},
        {"bos_token": "x"},
        {"_x": 1},
        {"a b": 1},
        {1: 1},
        {"x" * 65: 1},
        {"the meter": 1},
        {f"n{i}": 1 for i in range(33)},
        {"x": object()},
        {"x": deep(40)},
        {"x": "y" * (MAX_CHARS + 1)},
        {"x": [0] * MAX_CHARS * 2},
    ],
)
def test_c2_malformed_template_arguments(kwargs: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        conversation_of([USER], None, kwargs)
    assert caught.value.param == "chat_template_kwargs"


def test_a_developer_is_the_system() -> None:
    told = conversation_of([{"role": "developer", "content": "x"}]).messages
    assert told == [{"role": "system", "content": "x"}]


def test_parts_are_joined() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert conversation_of([{"role": "user", "content": content}]).messages == [{"role": "user", "content": "a\nb"}]


def test_calls_get_their_arguments_as_objects() -> None:
    (message,) = conversation_of([call()]).messages
    function = {"name": "f", "arguments": {"a": 1}}
    assert message["content"] == ""
    assert message["tool_calls"] == [{"type": "function", "function": function, "id": "c"}]
    nothing: Any
    for nothing in ("", None, {}, "{}"):
        (message,) = conversation_of([call(arguments=nothing)]).messages
        assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_fields_that_no_template_knows_are_left_out() -> None:
    message: dict[str, Any] = {
        **USER,
        "name": "Ann",
        "refusal": None,
        "audio": None,
        "annotations": [],
        "function_call": None,
        "x": {},
    }
    assert conversation_of([message]).messages == [{**USER, "name": "Ann"}]
    kept = {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": []}
    thoughts = {"reasoning_content": "r", "thinking": "r"}
    assert conversation_of([kept]).messages == [{"role": "assistant", "content": "a", **thoughts}]


def test_a_thought_has_the_names_that_templates_call_it_by() -> None:
    (message,) = conversation_of([{**call(), "reasoning": "r"}]).messages
    assert (message["reasoning_content"], message["thinking"]) == ("r", "r")
    (message,) = conversation_of([{**call(), "content": "a", "reasoning_content": "r"}]).messages
    assert message["reasoning_content"] == "r"
    assert "thinking" not in message, "templates that read it refuse a call with both"
    (message,) = conversation_of([{**USER, "reasoning": "r"}]).messages
    assert "thinking" not in message


def test_what_is_rendered_is_a_copy() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": [1, 2.5, None, True]}}}}]
    conversation = conversation_of([USER], tools, {"thinking": False})
    assert conversation.tools == tools and conversation.tools is not tools
    assert conversation.tools is not None
    conversation.tools[0]["function"]["parameters"]["properties"]["a"].append(1)
    assert tools[0]["function"]["parameters"]["properties"]["a"] == [1, 2.5, None, True]  # type: ignore[index]
    assert conversation.kwargs == {"thinking": False}
    assert conversation_of([USER], []).tools is None
