"""The Responses API: what goes in as items, what comes out as items, whole and as typed events."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pydantic
import pytest

from chairlift.server.errors import ApiError
from chairlift.server.ports import ChatManners
from chairlift.server.protocol import Message
from chairlift.server.responses.body import ResponsesBody
from chairlift.server.responses.conversation import chat_messages
from server.fake_text import FakeText
from server.fake_worker import DIE, FAIL, REFUSE, FakeOptions, spelled
from server.response_events import parsed, response_of, without_ids
from server.running import RunningServer, running_server, until
from server.test_app import INSIDE
from server.test_malformed import ALLOWED, VALUES, broken_bytes
from server.test_tools import ANSWERS, BERN, Opened, Thinking, says
from server.test_tools import TOOLS as CHAT_TOOLS

PATH = "/v1/responses"
FUNCTIONS: list[Any] = [tool["function"] for tool in CHAT_TOOLS]
TOOLS: list[dict[str, Any]] = [{"type": "function", **function} for function in FUNCTIONS]
LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(text=Thinking(), log_requests=False) as running:
        running.worker.says = says
        yield running
        running.wait_idle()


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body(key: str, **fields: Any) -> dict[str, Any]:
    return {"input": f"ask:{key}", "tools": TOOLS} | fields


def ask(server: RunningServer, key: str, **fields: Any) -> dict[str, Any]:
    status, answer = server.json("POST", PATH, body(key, **fields))
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def stream(server: RunningServer, key: str, **fields: Any) -> list[dict[str, Any]]:
    status, headers, content = server.request("POST", PATH, body(key, **fields) | {"stream": True})
    assert status == 200, content
    assert headers["content-type"].startswith("text/event-stream")
    return parsed(content)


def prompt_of(server: RunningServer) -> str:
    return spelled(server.worker.adds[-1])


# ---------------------------------------------------------------- what comes out


def thought(text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {
        "type": "reasoning",
        "summary": [],
        "status": "completed",
        "content": [part],
        "encrypted_content": None,
    }


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def called(name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    return {"type": "function_call", "status": status, "arguments": arguments, "name": name}


EXPECTED: dict[str, list[dict[str, Any]]] = {
    "one": [thought("I look it up."), said("One moment."), called("get_weather", BERN)],
    "two": [called("get_weather", BERN), called("get_time", "{}")],
    "none": [thought("Hm. é"), said("It is 5 < 6, 日本.")],
    "malformed": [said(ANSWERS["malformed"])],
    "broken": [called("get_weather", '{"city": ', "incomplete"), said("x}}</tool_call>")],
    "unknown": [said(ANSWERS["unknown"])],
    "thought": [thought("nothing but that")],
    "empty": [said("")],
}


@pytest.mark.parametrize("key", EXPECTED)
def test_an_answer_is_items(server: RunningServer, key: str) -> None:
    response = ask(server, key)
    assert without_ids(response)["output"] == EXPECTED[key]
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    ids = [item["id"] for item in response["output"]] + [item.get("call_id", item) for item in response["output"]]
    assert len({str(one) for one in ids}) == len(ids)


FEATURES: list[dict[str, Any]] = [
    {},
    LOGPROBS,
    {"top_logprobs": 3, "include_reasoning": False},
    {"include_reasoning": False},
    {"parallel_tool_calls": False},
    {"tool_choice": "none"},
    {"max_output_tokens": 70},
    {"max_output_tokens": 40, **LOGPROBS},
    {"max_output_tokens": 1},
    {"stop": ["moment", "日"], **LOGPROBS},
    {"stop_token_ids": [ord("m")], **LOGPROBS},
    {"stop_token_ids": [ord("m")], "include_stop_str_in_output": True, **LOGPROBS},
    {"service_tier": "flex", "metadata": {"a": "b"}, "explain": True},
]


@pytest.mark.parametrize("fields", FEATURES, ids=str)
@pytest.mark.parametrize("key", ["one", "two", "none", "broken", "thought", "empty"])
def test_a_stream_says_what_the_whole_response_says(server: RunningServer, key: str, fields: dict[str, Any]) -> None:
    whole, streamed = without_ids(ask(server, key, **fields)), without_ids(response_of(stream(server, key, **fields)))
    for response in (whole, streamed):
        if "explanation" in response:
            assert [one["index"] for one in response.pop("explanation")] == [0]
    assert streamed == whole


@pytest.mark.parametrize("key", ["one", "none", "thought"])
def test_every_way_to_cut_an_answer_says_so(server: RunningServer, key: str) -> None:
    for num_tokens in range(1, len(ANSWERS[key].encode()) + 1, 2):
        response = ask(server, key, max_output_tokens=num_tokens)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == num_tokens
        statuses = [item["status"] for item in response["output"]]
        last = response["output"][-1]
        is_whole_call = last["type"] == "function_call" and last["arguments"] == BERN
        assert statuses == ["completed"] * (len(statuses) - 1) + ["completed" if is_whole_call else "incomplete"]
        assert response["max_output_tokens"] == num_tokens


def test_scores_are_those_of_the_text(server: RunningServer) -> None:
    for key in EXPECTED:
        for item in ask(server, key, **LOGPROBS)["output"]:
            if item["type"] == "message":
                (part,) = item["content"]
                spelt = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
                assert spelt.endswith(part["text"].encode())
                assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    with running_server() as plain:
        (item,) = plain.json("POST", PATH, {"input": "x", **LOGPROBS})[1]["output"]
        (part,) = item["content"]
        spelt = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        assert spelt.decode("utf-8", "replace") == part["text"]


def test_usage(server: RunningServer) -> None:
    usage = ask(server, "one")["usage"]
    chat = server.chat(messages=[{"role": "user", "content": "ask:one"}], tools=CHAT_TOOLS)["usage"]
    assert usage == {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": chat["completion_tokens_details"],
        "total_tokens": chat["total_tokens"],
    }
    assert usage["output_tokens_details"]["reasoning_tokens"] > 10


def test_a_response_tells_what_is_in_force(server: RunningServer) -> None:
    response = ask(
        server,
        "two",
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=300,
        metadata={"a": "b"},
        user="u",
        service_tier="priority",
        store=True,
        tool_choice={"type": "function", "name": "get_time"},
        parallel_tool_calls=False,
        truncation="disabled",
        request_id="mine",
        background=False,
        previous_response_id=None,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": None, "summary": "auto"},
        prompt_cache_key="x",
    )
    expected: dict[str, Any] = {
        "id": "resp_mine",
        "object": "response",
        "model": "fake",
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 300,
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "default",
        "store": False,
        "background": False,
        "previous_response_id": None,
        "tool_choice": {"type": "function", "name": "get_time"},
        "parallel_tool_calls": False,
        "truncation": "disabled",
        "reasoning": {"effort": None, "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }
    assert {name: response[name] for name in expected} == expected
    assert response["tools"][0]["parameters"] == TOOLS[0]["parameters"]
    assert server.json("GET", PATH + "/resp_mine")[0] == 404


def test_extensions_reach_the_engine(server: RunningServer) -> None:
    ask(server, "empty", top_k=7, min_p=0.1, seed=3, priority=2, stop=["x"], min_tokens=0, user="me", cache_salt="s")
    request = server.worker.adds[-1]
    assert (request.params.top_k, request.params.min_p, request.params.seed, request.priority) == (7, 0.1, 3, 2)
    assert (request.params.stop, request.tenant) == (("x",), "me")


def test_without_manners_everything_is_text() -> None:
    with running_server(FakeOptions(max_model_len=256)) as server:
        server.worker.says = lambda request, choice: ANSWERS["one"]
        (item,) = server.json("POST", PATH, {"input": "x"})[1]["output"]
        assert item["content"][0]["text"] == ANSWERS["one"]
        status, error = server.refused(PATH, {"input": "x", "tools": TOOLS})
        assert (status, error["param"], error["code"]) == (400, "tools", "unsupported_parameter")


def test_a_prompt_that_opens_the_thought() -> None:
    with running_server(text=Opened()) as server:
        server.worker.says = lambda request, choice: "I see.</think>Yes."
        assert without_ids(ask(server, "x"))["output"] == [thought("I see."), said("Yes.")]


def test_a_response_that_repeats_itself_is_no_reason_to_cut_a_client_off() -> None:
    """Its last events are many times what may wait for a client that does not read."""
    with running_server(FakeOptions(step_s=0.001)) as server:
        fields = {"input": "x", "max_output_tokens": 900, "ignore_eos": True, "stream": True, "top_logprobs": 4}
        status, _, content = server.request("POST", PATH, fields)
        assert status == 200
        last = response_of(parsed(content))
        assert last["usage"]["output_tokens"] == 900
        assert len(json.dumps(last)) > server.options.max_pending_bytes


def test_a_request_that_is_told_back_is_no_reason_either() -> None:
    tool = {"type": "function", "name": "f", "description": "x" * 500_000}
    with running_server(text=Thinking(), max_pending_bytes=20_000) as server:
        fields = {"input": "x", "tools": [tool], "tool_choice": "none", "max_output_tokens": 9, "stream": True}
        status, _, content = server.request("POST", PATH, fields)
        assert status == 200
        assert response_of(parsed(content))["tools"][0]["description"] == tool["description"]


# ---------------------------------------------------------------- what goes in


def converted(items: Any, **fields: Any) -> list[dict[str, Any]]:
    """The messages of a chat, without what they do not say."""
    messages = chat_messages(msgspec.convert({"input": items} | fields, ResponsesBody))
    return [{name: value for name, value in _told(message).items() if value is not None} for message in messages]


def _told(message: Message) -> dict[str, Any]:
    calls = [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls or ()]
    told = {name: getattr(message, name) for name in ("role", "content", "reasoning", "tool_call_id")}
    return told | {"calls": calls or None}


USER = {"role": "user", "content": "hi"}
TEXT = {"type": "input_text", "text": "h"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
GAVE = {"type": "function_call_output", "call_id": "c1", "output": "noon"}


def assistant(content: str = "", reasoning: str | None = None, calls: list[list[str]] | None = None) -> dict[str, Any]:
    told = {"role": "assistant", "content": content, "reasoning": reasoning, "calls": calls}
    return {name: value for name, value in told.items() if value is not None}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hi", [USER]),
        ("", [{"role": "user", "content": ""}]),
        ([USER], [USER]),
        ([USER | {"type": "message", "content": [TEXT, TEXT]}], [USER | {"content": "h\nh"}]),
        ([{"role": "developer", "content": []}, USER], [{"role": "developer", "content": ""}, USER]),
        (
            [USER, thought("hm") | {"id": "rs_1"}, said("a"), CALL, CALL | {"call_id": "c2"}, GAVE, USER],
            [
                USER,
                assistant("a", "hm", [["c1", "f", "{}"], ["c2", "f", "{}"]]),
                {"role": "tool", "tool_call_id": "c1", "content": "noon"},
                USER,
            ],
        ),
        (
            [USER, CALL, GAVE, CALL | {"call_id": "c2"}, GAVE | {"call_id": "c2", "output": [TEXT]}],
            [
                USER,
                assistant(calls=[["c1", "f", "{}"]]),
                {"role": "tool", "tool_call_id": "c1", "content": "noon"},
                assistant(calls=[["c2", "f", "{}"]]),
                {"role": "tool", "tool_call_id": "c2", "content": "h"},
            ],
        ),
        ([thought("hm"), USER], [assistant(reasoning="hm"), USER]),
        ([said("a"), thought("hm"), said("b")], [assistant("a"), assistant("b", "hm")]),
        ([CALL, said("a"), said("b")], [assistant(calls=[["c1", "f", "{}"]]), assistant("a"), assistant("b")]),
        ([thought("a"), thought("b")], [assistant(reasoning="a"), assistant(reasoning="b")]),
        ([thought(""), said("a")], [assistant("a")]),
        ([thought("") | {"summary": [{"type": "summary_text", "text": "s"}]}, said("a")], [assistant("a", "s")]),
        ([{"type": "reasoning", "encrypted_content": None}, CALL], [assistant(calls=[["c1", "f", "{}"]])]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [assistant("No.")]),
        ([GAVE | {"call_id": "c1"}], None),
        ([GAVE, CALL], None),
        ([CALL | {"call_id": ""}], None),
        ([CALL | {"name": None}], None),
        ([CALL, GAVE | {"output": None}], None),
        ([], None),
        (None, None),
        ([{}], None),
        ([{"id": "msg_1"}], None),
        ([{"type": "item_reference", "id": "msg_1"}], None),
        ([{"role": "user"}], None),
        ([{"role": "tool", "content": "x"}], None),
        ([{"type": "message", "content": "x"}], None),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}], None),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], None),
        ([{"role": "user", "content": [{"type": "input_text"}]}], None),
        ([CALL, GAVE | {"output": [{"type": "input_file", "file_id": "x"}]}], None),
    ],
    ids=str,
)  # fmt: skip
def test_items_become_messages(items: Any, expected: list[dict[str, Any]] | None) -> None:
    if expected is not None:
        assert converted(items) == expected
        system = {"role": "system", "content": "Be brief."}
        assert converted(items, instructions="Be brief.") == [system, *expected]
        return
    with pytest.raises(ApiError) as caught:
        converted(items)
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_a_conversation_goes_on_as_the_chat_does(server: RunningServer) -> None:
    """What came out goes in again, as it is, and is the same prompt as that of the same chat."""
    for key in EXPECTED:
        output = ask(server, key)["output"]
        gave = [GAVE | {"call_id": item["call_id"]} for item in output if item["type"] == "function_call"]
        ask(server, key, input=[USER, *output, *gave, {"role": "user", "content": "ask:none"}], instructions="s")
        prompt = prompt_of(server)
        assert prompt.count("tool:noon") == len(gave)
        assert prompt.startswith("tools:")
    status, answer = server.json("POST", PATH, {"input": [USER, CALL, GAVE], "instructions": "Be brief."})
    assert (status, answer["status"]) == (200, "completed")
    through_responses = list(server.worker.adds[-1].prompt)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    server.chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        ]
    )
    assert list(server.worker.adds[-1].prompt) == through_responses


def test_tools_are_told_and_forced_as_in_chats(server: RunningServer) -> None:
    named = {"type": "function", "name": "get_weather"}
    choices: list[tuple[Any, Any]] = [
        ("required", "required"),
        (named, {"type": "function", "function": {"name": "get_weather"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [named]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHAT_TOOLS[0]]}},
        ),
    ]
    for choice, in_chats in choices:
        ask(server, "two", tool_choice=choice)
        request = server.worker.adds[-1]
        messages = [{"role": "user", "content": "ask:two"}]
        server.chat(messages=messages, tools=CHAT_TOOLS, tool_choice=in_chats)
        assert server.worker.adds[-1].params == request.params
        assert server.worker.adds[-1].prompt == request.prompt
        assert request.params.structured_outputs is not None
    ask(server, "empty", tool_choice="none")
    assert "tools:" not in prompt_of(server)


def test_forms(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = ask(server, "empty", tools=[], text={"format": form})
    assert response["text"]["format"] == form | {"description": None}
    sent = server.worker.adds[-1].params.structured_outputs
    in_chats = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    server.chat(messages=[{"role": "user", "content": "ask:empty"}], response_format=in_chats)
    assert sent == server.worker.adds[-1].params.structured_outputs
    assert sent is not None
    ask(server, "empty", tools=[], text={"format": {"type": "json_object"}})
    sent = server.worker.adds[-1].params.structured_outputs
    assert sent is not None
    assert sent.json_object
    ask(server, "empty", tools=[], structured_outputs={"regex": "a+"}, text={"format": {"type": "text"}})
    sent = server.worker.adds[-1].params.structured_outputs
    assert sent is not None
    assert sent.regex == "a+"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"messages": [USER]}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"input": [{"type": "web_search_call", "id": "x", "action": {"query": 1}}]}, "input"),
    ({"input": [{"type": "computer_call_output", "call_id": "x", "output": {"type": "computer_screenshot"}}]}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input"),
    ({"input": [{"role": 5, "content": "x"}]}, "input"),
    ({"instructions": [USER]}, "instructions"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"include": "x"}, "include"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "input"),
    ({"temperature": -1}, "temperature"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format"),
    ({"text": "x"}, "text"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"effort": "x"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:1"}]}, "tools"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools"),
    ({"tools": CHAT_TOOLS}, "tools"),
    ({"tools": TOOLS + TOOLS}, "tools"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tool_choice": {"type": ["function"]}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [5]}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [TOOLS[0]]}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream_options": {}}, "stream_options"),
    ({"metadata": {"x" * 65: "y"}}, "metadata"),
    ({"metadata": {"x": "y" * 513}}, "metadata"),
    ({"metadata": {"x": 1}}, "metadata"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
    ({"input": "x" * 10_000}, "input"),
    ({"input": REFUSE}, "input"),
    ({"stream": True, "input": REFUSE}, "input"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_by_name(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    status, error = server.refused(PATH, body("one") | fields)
    assert (status, error["param"]) == (400, param)
    assert not {"messages", "response_format", "max_tokens"} & set(error["message"].split()) - {param}


def test_scores_are_counted_that_are_kept_until_an_answer_is_repeated() -> None:
    with running_server(FakeOptions(max_model_len=30_000)) as server:
        most = {"input": "x", "top_logprobs": 19, "max_output_tokens": 8000}
        for stream in (False, True):
            status, error = server.refused(PATH, most | {"max_output_tokens": 14_000, "stream": stream})
            assert (status, error["code"]) == (400, "too_many_logprobs")
        assert server.json("POST", PATH, most | {"stop": ["e"]})[0] == 200


# ---------------------------------------------------------------- what goes wrong


def test_an_answer_that_fails_is_never_completed(server: RunningServer, client: openai.OpenAI) -> None:
    status, error = server.refused(PATH, {"input": FAIL})
    assert (status, error["code"]) == (500, "internal_error")
    status, _, content = server.request("POST", PATH, {"input": FAIL, "stream": True})
    events = parsed(content)
    assert status == 200
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = response_of(events[:-1]) if events[-2]["type"] != "response.failed" else events[-2]["response"]
    assert (response["status"], response["error"]["code"], response["usage"]) == ("failed", "server_error", None)
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert events[-1]["type"] == "error"
    assert (events[-1]["code"], events[-1]["error"]["code"]) == ("internal_error", "internal_error")
    assert b"response.completed" not in content
    assert not INSIDE.search(content)
    kinds = []
    with pytest.raises(openai.APIError) as raised:
        for event in client.responses.create(model="fake", input=FAIL, stream=True):
            kinds.append(event.type)
    assert kinds[-1] == "response.failed"
    assert raised.value.code == "internal_error"


def test_an_engine_that_dies_ends_every_stream_with_a_failure() -> None:
    with running_server(FakeOptions(step_s=0.002)) as server:
        status, _, content = server.request("POST", PATH, {"input": DIE, "stream": True})
        assert status == 200
        events = parsed(content)
        assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
        assert events[-1]["code"] == "engine_dead"
        assert server.refused(PATH, {"input": "x"})[0] == 503


def test_a_stream_that_was_kept_alive_before_its_first_token_fails_as_a_whole() -> None:
    options = FakeOptions(prefill_steps=10**9, step_s=0.002)
    with running_server(options, sse_keep_alive_interval_s=0.01) as server:
        fields = {"input": "x", "stream": True, "e2e_deadline_ms": 100}
        status, _, content = server.request("POST", PATH, fields)
        assert status == 200
        comment, events = content.split(b"event: ", 1)
        assert comment.startswith(b": ")
        told = parsed(b"event: " + events)
        assert [event["type"] for event in told] == [
            "response.created",
            "response.in_progress",
            "response.failed",
            "error",
        ]
        assert [event["sequence_number"] for event in told] == [0, 1, 2, 3]
        assert told[-1]["code"] == "e2e_deadline_exceeded"


def test_clients_that_leave_cost_nothing_more() -> None:
    options = FakeOptions(max_model_len=200_000, step_s=0.001)
    with running_server(options) as server:
        for is_streamed in (True, False):
            text = json.dumps({"input": "x", "ignore_eos": True, "stream": is_streamed})
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(
                    f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
                )
                until(lambda: bool(server.worker.running))
                if is_streamed:
                    assert sock.recv(100)
            server.wait_idle()
        assert len(server.worker.aborts) == 2


def broken_fields(generator: random.Random, seed: dict[str, Any]) -> bytes:
    body = dict(seed)
    for _ in range(generator.randint(1, 3)):
        body[generator.choice([*ResponsesBody.__struct_fields__, *body])] = generator.choice(VALUES)
    if isinstance(body["input"], list) and body["input"] and generator.random() < 0.6:
        item: dict[str, Any] = dict(USER)
        item[generator.choice(["type", "role", "content", "output", "call_id", "summary"])] = generator.choice(VALUES)
        body["input"] = [*body["input"], item]
    return json.dumps(body).encode()


def test_broken_bodies_are_refused_and_nothing_else_happens() -> None:
    generator = random.Random(5)
    seeds: list[dict[str, Any]] = [
        {"input": "seed", "max_output_tokens": 2},
        {"input": [USER, CALL, GAVE], "max_output_tokens": 2, "stream": True, **LOGPROBS},
        {"input": [thought("x"), said("y"), USER], "tools": TOOLS, "max_output_tokens": 3, "tool_choice": "auto"},
    ]
    statuses: dict[int, int] = {}
    with running_server(FakeOptions(max_model_len=900), text=Thinking(), log_requests=False) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for number in range(1500):
            sent = (broken_bytes if number % 2 else broken_fields)(generator, generator.choice(seeds))
            connection.request("POST", PATH, sent)
            response = connection.getresponse()
            content = response.read()
            assert response.status in ALLOWED, (response.status, sent, content)
            assert not INSIDE.search(content), (sent, content)
            statuses[response.status] = statuses.get(response.status, 0) + 1
        connection.close()
        server.wait_idle()
    assert statuses[400] > 500
    assert statuses[200] > 40


# ---------------------------------------------------------------- the official client


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


def test_the_client_reads_whole_and_streamed_responses(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = body("one", model="fake", instructions="Be brief.")
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    created = list(client.responses.create(**fields, stream=True))
    assert [event.type for event in events] == [event.type for event in created]
    for event in created:
        type(event).model_validate(event.model_dump(by_alias=True), strict=False)
    for response in (whole, final):
        assert (response.status, response.output_text) == ("completed", "One moment.")
        items: list[Any] = list(response.output)
        thinking, message, call = items
        assert thinking.type == "reasoning"
        assert thinking.content[0].text == "I look it up."
        assert message.type == "message"
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("get_weather", json.loads(BERN))
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens > 0
    texts = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert texts[-1] == "One moment."


def test_the_client_goes_on_with_what_it_got(server: RunningServer, client: openai.OpenAI) -> None:
    first = client.responses.create(**body("one", model="fake"))
    (call,) = [item for item in first.output if item.type == "function_call"]
    items: list[Any] = [{"role": "user", "content": "ask:none"}, *first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}]
    second = client.responses.create(model="fake", input=items, store=False)
    assert second.output_text == "It is 5 < 6, 日本."
    assert "7 degrees" in prompt_of(server)


def test_the_client_parses_answers_of_a_form(server: RunningServer, client: openai.OpenAI) -> None:
    before, server.worker.says = server.worker.says, lambda request, choice: '{"city": "Bern", "degrees": 7}'
    try:
        parsed_response = client.responses.parse(model="fake", input="x", text_format=Weather)
        assert parsed_response.output_parsed == Weather(city="Bern", degrees=7)
        with client.responses.stream(model="fake", input="x", text_format=Weather) as stream:
            assert stream.get_final_response().output_parsed == Weather(city="Bern", degrees=7)
        form = server.worker.adds[-1].params.structured_outputs
        assert form is not None
        assert form.json is not None
    finally:
        server.worker.says = before


def test_every_error_has_its_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="fake", input="x", previous_response_id="resp_1")
    assert (bad.value.param, bad.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-4", input="x")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_plain_text_models_have_nothing_to_read() -> None:
    class Plain(FakeText):
        manners = ChatManners()

    with running_server(text=Plain()) as server:
        server.worker.says = lambda request, choice: "Hello. 日本"
        assert without_ids(ask(server, "x", tools=[]))["output"] == [said("Hello. 日本")]
        streamed = response_of(stream(server, "x", tools=[]))
        assert without_ids(streamed)["output"] == [said("Hello. 日本")]
