"""Tools and thought over HTTP: what an answer's text becomes, whole and streamed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from chairlift.core.types import Request
from chairlift.server.message_parts import message as whole_message
from chairlift.server.ports import ChatManners
from chairlift.text.reasoning import REASONING_FORMATS
from chairlift.text.tools import TOOL_FORMATS
from server.chats import streamed_choice, without_ids
from server.fake_text import FakeText
from server.fake_worker import spelled
from server.running import RunningServer, running_server

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
BERN = '{"city": "Bern", "é": "日本 🙂"}'

ANSWERS: dict[str, str] = {
    "one": "<think>\nI look it up.\n</think>\n\nOne moment.\n"
    f'<tool_call>\n{{"name": "get_weather", "arguments": {BERN}}}\n</tool_call>',
    "two": f'<tool_call>{{"name": "get_weather", "arguments": {BERN}}}</tool_call>\n'
    '<tool_call>{"name": "get_time"}</tool_call>',
    "none": "<think>Hm. é</think>It is 5 < 6, 日本.",
    "malformed": '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
    "broken": '<tool_call>{"name": "get_weather", "arguments": {"city": x}}</tool_call>',
    "unknown": '<tool_call>{"name": "format_disk", "arguments": {}}</tool_call>',
    "thought": "<think>nothing but that",
    "empty": "",
}
KEY = re.compile(f"ask:({'|'.join(ANSWERS)})")


def says(request: Request, choice: int) -> str | None:
    match = KEY.search(spelled(request))
    return ANSWERS[match[1]] if match else None


class Thinking(FakeText):
    manners = ChatManners(
        tool_format=TOOL_FORMATS["hermes"],
        reasoning_format=REASONING_FORMATS["qwen3"],
        template_variables=frozenset({"tools"}),
    )


class Opened(Thinking):
    opening = b"<think>\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(text=Thinking()) as running:
        running.worker.says = says
        yield running
        running.wait_idle()


def body(key: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"ask:{key}"}], "tools": TOOLS} | fields


def ask(server: RunningServer, key: str, **fields: Any) -> dict[str, Any]:
    status, answer = server.json("POST", CHAT, body(key, **fields))
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def message(server: RunningServer, key: str, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = without_ids(ask(server, key, **fields)["choices"][0])["message"]
    return told


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def thought(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text}


EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "one": (
        "tool_calls",
        {"content": "One moment.", **thought("I look it up."), "tool_calls": [call("get_weather", BERN)]},
    ),
    "two": ("tool_calls", {"content": None, "tool_calls": [call("get_weather", BERN), call("get_time", "{}")]}),
    "none": ("stop", {"content": "It is 5 < 6, 日本.", **thought("Hm. é")}),
    "malformed": ("stop", {"content": ANSWERS["malformed"]}),
    "broken": ("tool_calls", {"content": "x}}</tool_call>", "tool_calls": [call("get_weather", '{"city": ')]}),
    "unknown": ("stop", {"content": ANSWERS["unknown"]}),
    "thought": ("stop", {"content": "", **thought("nothing but that")}),
    "empty": ("stop", {"content": ""}),
}


@pytest.mark.parametrize("key", EXPECTED)
def test_an_answer_is_what_it_says_thinks_and_calls(server: RunningServer, key: str) -> None:
    choice = without_ids(ask(server, key)["choices"][0])
    finish_reason, expected = EXPECTED[key]
    assert choice["message"] == {"role": "assistant", **expected}
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish_reason, None)


FEATURES: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"logprobs": True, "top_logprobs": 2},
    {"return_token_ids": True},
    {"stream_interval": 7},
    {"stream_interval": 7, "logprobs": True, "return_token_ids": True},
    {"include_reasoning": False},
    {"parallel_tool_calls": False},
    {"tool_choice": "none"},
    {"max_tokens": 40},
    {"max_tokens": 1},
    {"stop": ["moment", "日"]},
    {"stop_token_ids": [ord("m")]},
    {"service_tier": "flex"},
    {"tools": []},
    {"skip_special_tokens": False},
]


@pytest.mark.parametrize("usage", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
@pytest.mark.parametrize("fields", FEATURES, ids=str)
@pytest.mark.parametrize("key", EXPECTED)
def test_a_stream_says_what_the_whole_answer_says(
    server: RunningServer, key: str, fields: dict[str, Any], usage: dict[str, Any]
) -> None:
    whole = ask(server, key, **fields)
    events = server.events(CHAT, body(key, **fields) | {"stream_options": usage})
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["choices"] == []
    for choice in whole["choices"]:
        assert without_ids(streamed_choice(events, choice["index"])) == without_ids(choice)
    for event in events[:-1]:
        assert event.get("service_tier") == whole.get("service_tier")
    spent = [event["usage"] for event in events[:-1] if event["usage"] is not None]
    totals = [one["completion_tokens"] for one in spent[:-1]]
    if usage.get("continuous_usage_stats"):
        assert len(spent) >= len(events) - 3
        if fields.get("n") is None:
            assert totals == sorted(totals)
            assert totals[-1] == whole["usage"]["completion_tokens"]
            details = ("completion_tokens_details", "reasoning_tokens")
            assert spent[-2][details[0]] == whole["usage"][details[0]]
    else:
        assert len(spent) == 1


def test_usage_is_the_ids_that_were_counted(server: RunningServer) -> None:
    answer = ask(server, "one", return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == [*ANSWERS["one"].encode(), 256]
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    num_thought = len(ANSWERS["one"].partition("</think>")[0]) + len("</think>")
    counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert num_thought - len("<think>") <= counted <= num_thought
    assert ask(server, "two")["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_arguments_come_in_pieces(server: RunningServer) -> None:
    events = server.events(CHAT, body("one"))[:-1]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert pieces[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert re.fullmatch("call_[0-9a-f]{24}", pieces[0]["id"])
    assert len(pieces) > 20
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == json.loads(BERN)
    assert all(delta for delta in deltas[:-1])
    assert "<tool_call>" not in "".join(delta.get("content") or "" for delta in deltas)


def test_ids_are_never_the_same(server: RunningServer) -> None:
    ids = [call["id"] for _ in range(3) for call in ask(server, "two")["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 6


def test_the_model_is_told_of_tools_and_of_what_they_gave(server: RunningServer) -> None:
    ask(server, "one")
    prompt = spelled(server.worker.adds[-1])
    told = json.loads(prompt.partition("tools:")[2].partition("user:")[0])
    assert [tool["function"]["name"] for tool in told] == ["get_weather", "get_time"]
    assert "strict" not in told[0]["function"]
    ask(server, "one", tool_choice="none")
    assert "tools:" not in spelled(server.worker.adds[-1])
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **call("get_time", '{"a": 1}')}]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    ask(server, "one", messages=turns)
    prompt = spelled(server.worker.adds[-1])
    assert "get_time" in prompt
    assert "tool:noon" in prompt


def test_a_prompt_that_opens_the_thought() -> None:
    with running_server(text=Opened()) as server:
        server.worker.says = lambda request, choice: "I see.</think>Yes."
        assert message(server, "x") == {"role": "assistant", "content": "Yes.", **thought("I see.")}
        events = server.events(CHAT, body("x"))
        assert streamed_choice(events)["message"] == {"role": "assistant", "content": "Yes.", **thought("I see.")}
        continued = {
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well"}],
            "continue_final_message": True,
        }
        assert message(server, "x", **continued)["content"] == "I see.</think>Yes."
        continued["messages"] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>Well"}]
        assert message(server, "x", **continued) == {"role": "assistant", "content": "Yes.", **thought("I see.")}


def test_a_long_answer_is_read_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes token by token: thousands of them would keep everybody's stream waiting."""
    threads: list[str] = []

    def noted(*arguments: Any) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return whole_message(*arguments)

    monkeypatch.setattr("chairlift.server.choices.message", noted)
    with running_server(text=Thinking()) as server:
        server.worker.says = lambda request, choice: "x" * (1500 if "ask:long" in spelled(request) else 100)
        for key, length in (("short", 100), ("long", 1500)):
            assert message(server, key) == {"role": "assistant", "content": "x" * length}
    assert [name.startswith("ThreadPoolExecutor") for name in threads] == [False, True]


def test_without_any_manners_tags_are_text_and_tools_refused() -> None:
    with running_server() as server:
        server.worker.says = lambda request, choice: ANSWERS["one"]
        assert message(server, "one", tools=[]) == {"role": "assistant", "content": ANSWERS["one"]}
        status, error = server.refused(CHAT, body("one"))
        assert (status, error["param"], error["code"]) == (400, "tools", "unsupported_parameter")


def test_mistral_ids_are_short() -> None:
    class Mistral(FakeText):
        manners = ChatManners(tool_format=TOOL_FORMATS["mistral"])

    with running_server(text=Mistral()) as server:
        server.worker.says = lambda request, choice: "[TOOL_CALLS]get_time[ARGS]{}"
        (called,) = ask(server, "x")["choices"][0]["message"]["tool_calls"]
        assert re.fullmatch("[0-9A-Za-z]{9}", called["id"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": 'x"}'}}]}, "tools"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tools": [5]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "response_format"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    status, error = server.refused(CHAT, body("one", **fields))
    assert (status, error["param"]) == (400, param)


def test_the_model_may_be_kept_from_deciding() -> None:
    class Told(FakeText):
        manners = ChatManners(tool_format=TOOL_FORMATS["hermes"], auto_tool_choice=False)

    with running_server(text=Told()) as server:
        assert server.refused(CHAT, body("x"))[1]["param"] == "tool_choice"
        assert ask(server, "x", tool_choice="none", max_tokens=1)["choices"]


# ---------------------------------------------------------------- the official client


def test_the_client_puts_the_stream_together(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = body("one", model="fake")
        whole = client.chat.completions.create(**fields)
        with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
    assert {
        "chunk",
        "content.delta",
        "tool_calls.function.arguments.delta",
        "tool_calls.function.arguments.done",
    } <= kinds
    for answer in (whole, final):
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "One moment."
        assert choice.message.model_extra is not None
        assert choice.message.model_extra["reasoning"] == "I look it up."
        assert choice.message.tool_calls is not None
        (called,) = choice.message.tool_calls
        assert called.type == "function"
        assert (called.function.name, json.loads(called.function.arguments)) == ("get_weather", json.loads(BERN))
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.reasoning_tokens


# ---------------------------------------------------------------- answers of a form


def test_calls_are_forced_after_the_thought(server: RunningServer) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = ask(server, "one", tool_choice=choice)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        form = server.worker.adds[-1].params.structured_outputs
        assert form is not None
        assert form.grammar is not None
        assert ("get_time" in form.grammar) == (choice == "required")
        assert form.after == ("<think>", "</think>")


def test_a_form_comes_after_the_thought(server: RunningServer) -> None:
    fields: dict[str, Any] = {"tools": [], "response_format": {"type": "json_object"}}
    ask(server, "none", **fields)
    form = server.worker.adds[-1].params.structured_outputs
    assert form is not None
    assert (form.json_object, form.after) == (True, ("<think>", "</think>"))


def test_an_answer_is_of_the_form_or_calls(server: RunningServer) -> None:
    ask(server, "one", response_format={"type": "json_object"})
    form = server.worker.adds[-1].params.structured_outputs
    assert form is not None
    assert (form.json_object, form.after) == (True, ("<think>", "</think>"))
    assert form.alternative is not None
    assert "get_weather" in form.alternative


@pytest.mark.parametrize(("opening", "after"), [(b"<think>\n", ("", "</think>")), (b"<think>\n\n</think>\n\n", None)])
def test_a_form_comes_after_what_the_prompt_opened(opening: bytes, after: tuple[str, str] | None) -> None:
    text = Thinking()
    text.opening = opening
    with running_server(text=text) as server:
        server.worker.says = lambda request, choice: "Hm.</think>{}"
        ask(server, "x", tools=[], response_format={"type": "json_object"})
        form = server.worker.adds[-1].params.structured_outputs
        assert form is not None
        assert form.after == after


def test_a_model_that_does_not_think_keeps_to_the_form_at_once() -> None:
    with running_server() as server:
        ask(server, "x", tools=[], response_format={"type": "json_object"}, max_tokens=1)
        form = server.worker.adds[-1].params.structured_outputs
        assert form is not None
        assert form.after is None


# ---------------------------------------------------------------- messages on channels


class OnChannels(FakeText):
    manners = ChatManners(
        tool_format=TOOL_FORMATS["openai"],
        reasoning_format=REASONING_FORMATS["openai_gptoss"],
        template_variables=frozenset({"tools"}),
    )


CHANNELS = (
    "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
    "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    f"{BERN}"
)


def test_messages_on_channels() -> None:
    """As GPT-OSS writes them: whole and streamed, with tools and without."""
    with running_server(text=OnChannels()) as server:
        server.worker.says = lambda *_: CHANNELS
        with_tools = {"content": "One moment.", **thought("I look it up."), "tool_calls": [call("get_weather", BERN)]}
        assert message(server, "one") == {"role": "assistant", **with_tools}
        assert ask(server, "one")["choices"][0]["finish_reason"] == "tool_calls"
        streamed = streamed_choice(server.events(CHAT, body("one")))
        assert without_ids(streamed)["message"] == {"role": "assistant", **with_tools}
        without = {"content": "One moment." + BERN, **thought("I look it up.")}
        assert message(server, "one", tools=None) == {"role": "assistant", **without}
        server.wait_idle()
