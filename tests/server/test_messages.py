"""Anthropic's API over HTTP, told by its own client and looked at byte by byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from chairlift.server.ports import ChatManners
from chairlift.text.reasoning import REASONING_FORMATS
from chairlift.text.tools import TOOL_FORMATS
from server.fake_text import TURN, FakeText
from server.fake_worker import DIE, FAIL, FakeOptions, spelled
from server.response_events import parsed
from server.running import RunningServer, running_server, until
from server.test_admission import caps, occupied, serving
from server.test_tools import ANSWERS, BERN, Thinking, says

KEY, OTHER = "sk-test-key", "sk-other-key"
PATH = "/v1/messages"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": {"type": "ephemeral"},
}
TIME: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, TIME]
EXTRAS = {"parsed_output", "citations"}
"""What the client puts beside what it got."""
THINK: dict[str, Any] = {"type": "enabled", "budget_tokens": 100}


class Switched(Thinking):
    """A model that can be kept from thinking, and puts into its prompt whether it was."""

    manners = ChatManners(
        tool_format=TOOL_FORMATS["hermes"],
        reasoning_format=REASONING_FORMATS["qwen3"],
        template_variables=frozenset({"tools", "enable_thinking"}),
    )

    def encode_chat(self, prompt: Any) -> list[int]:
        return [TURN, *f"switch:{prompt.template_kwargs}".encode(), *super().encode_chat(prompt)]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(text=Thinking(), api_keys=(OTHER, KEY), sse_keep_alive_interval_s=0.0) as running:
        running.worker.says = says
        yield running
        running.wait_idle()


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def body(key: str, **fields: Any) -> dict[str, Any]:
    said = {"role": "user", "content": f"ask:{key}"}
    return {"model": "fake", "max_tokens": 1000, "messages": [said], "tools": TOOLS} | fields


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    status, answer = server.json("POST", PATH, fields, HEADERS)
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def refused(server: RunningServer, path: str = PATH, headers: dict[str, str] = HEADERS, **fields: Any) -> Any:
    """Status, type and message of an error, in Anthropic's shape."""
    status, answered, content = server.request("POST", path, fields, headers)
    answer = json.loads(content)
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    assert set(answer["error"]) == {"type", "message"}
    assert answer["request_id"] == answered["request-id"] == answered["x-request-id"]
    return status, answer["error"]["type"], answer["error"]["message"]


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    status, headers, content = server.request("POST", PATH, fields | {"stream": True}, HEADERS)
    assert status == 200, content
    assert headers["content-type"].startswith("text/event-stream")
    return parsed(content)


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, with the checks that strict clients make."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == []
    opened = None
    texts: list[str] = []
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened, texts = event["content_block"], []
                assert event["index"] == len(message["content"])
            case "content_block_delta":
                assert opened is not None
                delta = event["delta"]
                kind, field = {
                    "text": ("text_delta", "text"),
                    "thinking": ("thinking_delta", "thinking"),
                    "tool_use": ("input_json_delta", "partial_json"),
                }[opened["type"]]
                assert delta["type"] == kind
                assert delta[field], "an event for nothing"
                texts.append(delta[field])
            case "content_block_stop":
                assert opened is not None
                field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[opened["type"]]
                opened[field] = "".join(texts)
                message["content"].append(opened)
                opened = None
            case other:
                raise AssertionError(other)
    assert opened is None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message |= events[-2]["delta"] | {"usage": events[-2]["usage"]}
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Ids are random; input that a stream gives as text is read."""
    content = []
    for block in message["content"]:
        block = {name: value for name, value in block.items() if name != "id"}
        if isinstance(block.get("input"), str):
            try:
                block["input"] = json.loads(block["input"])
            except ValueError:
                block["input"] = {}
        content.append(block)
    return {name: value for name, value in message.items() if name != "id"} | {"content": content}


# ---------------------------------------------------------------- the client of Anthropic


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="fake", max_tokens=1000, system="s", messages=[{"role": "user", "content": "ask:empty"}]
    )
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    assert (answer.content, answer.stop_reason, answer.stop_sequence) == ([], "end_turn", None)
    assert answer.id.startswith("msg_")
    assert answer._request_id
    assert answer.usage.cache_read_input_tokens == 4
    assert answer.usage.input_tokens + 4 == len(b"\0system:s\0\0user:ask:empty\0\0")
    assert answer.usage.output_tokens == 1


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "ask:none"}], "tools": TOOLS}
    counted = client.messages.count_tokens(**asked)
    used = client.messages.create(**asked, max_tokens=9).usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


@pytest.mark.parametrize("key", ANSWERS)
def test_a_stream_put_together_by_the_client_is_the_message(client: anthropic.Anthropic, key: str) -> None:
    asked = body(key, thinking=THINK)
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as streamed:
        told = streamed.get_final_message()
    both = [without_ids(one.to_dict(mode="json")) for one in (whole, told)]
    if key == "broken":  # the client reads what it can of a call that breaks off
        both = [one | {"content": [block | {"input": {}} for block in one["content"]]} for one in both]
    for one in both:
        one["content"] = [
            {k: v for k, v in block.items() if k not in ("parsed_output", "citations")} for block in one["content"]
        ]
        one.pop("stop_details", None)
    assert both[0] == both[1]


def test_what_is_thought_said_and_called(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**body("one", thinking=THINK))
    thought, text, call = answer.content
    assert thought.type == "thinking"
    assert (thought.thinking, thought.signature) == ("I look it up.", "")
    assert text.type == "text"
    assert text.text == "One moment."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", json.loads(BERN))
    assert re.fullmatch("toolu_[0-9a-f]{24}", call.id)
    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens_details is not None
    assert answer.usage.output_tokens_details.thinking_tokens > 0


def test_a_tool_is_called_and_gives_back(client: anthropic.Anthropic, server: RunningServer) -> None:
    """The whole round, as agents go it: what the client got goes back as it is."""
    asked = body("two")
    first = client.messages.create(**asked)
    ids = [block.id for block in first.content if block.type == "tool_use"]
    assert len(set(ids)) == 2
    results = [{"type": "tool_result", "tool_use_id": ids[0], "content": [{"type": "text", "text": "sunny"}]},
               {"type": "tool_result", "tool_use_id": ids[1], "content": "12:00", "is_error": True},
               {"type": "text", "text": "ask:none"}]  # fmt: skip
    turns = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    second = client.messages.create(**asked | {"messages": turns})
    assert [block.type for block in second.content] == ["text"]
    prompt = spelled(server.worker.adds[-1])
    assert "tool:sunny" in prompt
    assert "tool:12:00" in prompt
    assert prompt.index("user:look") < prompt.index(ids[0]) < prompt.index("tool:sunny") < prompt.index("user:ask:none")


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_names_of_events_and_text_of_the_client(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**body("none")) as streamed:
        assert "".join(streamed.text_stream) == "It is 5 < 6, 日本."
    with client.messages.stream(**body("two")) as streamed:
        inputs = [event.snapshot for event in streamed if event.type == "input_json"]
    assert inputs[-1] == {}
    assert json.loads(BERN) in inputs


def test_many_at_once_do_not_mix(server: RunningServer) -> None:
    async def all_of_them() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY, api_key=None, max_retries=0) as client:

            async def one(number: int) -> str:
                said: Any = [{"role": "user", "content": f"number {number}"}]
                async with client.messages.stream(model="fake", max_tokens=1000, messages=said) as streamed:
                    message = await streamed.get_final_message()
                return "".join(block.text for block in message.content if block.type == "text")

            return list(await asyncio.gather(*map(one, range(30))))

    texts = asyncio.run(all_of_them())
    for number, text in enumerate(texts):
        whole = ask(server, max_tokens=1000, messages=[{"role": "user", "content": f"number {number}"}])
        assert [block["text"] for block in whole["content"]] == [text]


def test_every_error_has_its_class(client: anthropic.Anthropic, server: RunningServer) -> None:
    asked: dict[str, Any] = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**asked, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError, match="model"):
        client.messages.create(**asked | {"model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        client.messages.create(**asked | {"messages": [{"role": "user", "content": "x" * 5000}]})
    with pytest.raises(anthropic.InternalServerError) as failed:
        client.messages.create(**asked | {"messages": [{"role": "user", "content": FAIL}]})
    assert "0x" not in str(failed.value)
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="API key"),
    ):
        stranger.messages.create(**asked)
    with (
        pytest.raises(anthropic.APIError) as broken,
        client.messages.stream(**asked | {"messages": [{"role": "user", "content": FAIL}]}) as streamed,
    ):
        streamed.get_final_message()
    assert "0x" not in str(broken.value)


# ---------------------------------------------------------------- byte by byte

FEATURES: list[dict[str, Any]] = [
    {},
    {"thinking": THINK},
    {"thinking": THINK | {"display": "omitted"}},
    {"thinking": {"type": "adaptive"}},
    {"max_tokens": 40},
    {"max_tokens": 1},
    {"stop_sequences": ["moment", "日"]},
    {"tool_choice": {"type": "none"}},
    {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"tools": []},
    {"service_tier": "standard_only"},
]


@pytest.mark.parametrize("fields", FEATURES, ids=str)
@pytest.mark.parametrize("key", ANSWERS)
def test_a_stream_says_what_the_whole_message_says(server: RunningServer, key: str, fields: dict[str, Any]) -> None:
    whole = ask(server, **body(key, **fields))
    streamed = put_together(stream(server, **body(key, **fields)))
    assert without_ids(streamed) == without_ids(whole)


@pytest.mark.parametrize(
    ("key", "fields", "reason", "sequence"),
    [
        ("none", {}, "end_turn", None),
        ("none", {"max_tokens": 3}, "max_tokens", None),
        ("one", {}, "tool_use", None),
        ("one", {"stop_sequences": ["x", "moment"]}, "stop_sequence", "moment"),
        ("one", {"stop_sequences": ["</tool_call>"]}, "stop_sequence", "</tool_call>"),
        ("one", {"tools": []}, "end_turn", None),
        ("one", {"max_tokens": 100}, "max_tokens", None),
        ("two", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_use", None),
    ],
)
def test_why_it_ended(
    server: RunningServer, key: str, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    answer = ask(server, **body(key, **fields))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    if sequence is not None:
        assert sequence not in json.dumps(answer["content"])
    if "tool_choice" in fields:
        assert sum(block["type"] == "tool_use" for block in answer["content"]) == 1


def test_usage_of_a_stream_is_put_right_at_its_end(server: RunningServer) -> None:
    events = stream(server, **body("none", thinking=THINK))
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert (begun["output_tokens"], begun["cache_read_input_tokens"]) == (0, 0)
    assert ended["cache_read_input_tokens"] == 4
    assert ended["input_tokens"] + 4 == begun["input_tokens"]
    assert ended["output_tokens"] == len(ANSWERS["none"].encode()) + 1
    assert events[0]["message"]["stop_reason"] is None


def test_arguments_come_in_pieces_and_as_they_were_written(server: RunningServer) -> None:
    events = stream(server, **body("one"))
    pieces = [event["delta"]["partial_json"] for event in events if "partial_json" in event.get("delta", {})]
    assert len(pieces) > 20
    assert "".join(pieces) == BERN
    _, _, content = server.request("POST", PATH, body("one"), HEADERS)
    assert f'"input":{BERN}'.encode() in content


def test_the_assistant_is_continued(server: RunningServer) -> None:
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]
    ask(server, max_tokens=1, messages=said)
    assert spelled(server.worker.adds[-1]).endswith("assistant:The answer is")


def test_what_a_request_hands_on(server: RunningServer) -> None:
    fields = {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "stop_sequences": ["a"], "priority": 3, "seed": 7}
    ask(server, max_tokens=1, messages=[{"role": "user", "content": "q"}], metadata={"user_id": "u"}, **fields)
    request = server.worker.adds[-1]
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.5, 0.5, 5)
    assert (request.params.stop, request.params.seed) == (("a",), 7)
    assert (request.priority, request.tenant) == (3, "u")


def test_names_of_users_that_are_long_stand_for_themselves(server: RunningServer) -> None:
    tenants = []
    for end in "aab":
        ask(server, max_tokens=1, messages=[{"role": "user", "content": "q"}], metadata={"user_id": "u" * 200 + end})
        tenants.append(server.worker.adds[-1].tenant)
    assert tenants[0] == tenants[1] != tenants[2]
    assert max(map(len, tenants)) <= 128


def test_a_form_is_asked_for(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "high"}
    ask(server, max_tokens=1, messages=[{"role": "user", "content": "q"}], output_config=form)
    assert server.worker.adds[-1].params.structured_outputs is not None


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                                                     "content": [{"type": "image"}]}]}]}, "content[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]}]}, "redacted"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "budget_tokens"),
        ({"thinking": {"type": "disabled"}}, "thinking"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"thinking": THINK | {"display": "x"}}, "thinking"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"metadata": {"user": "x"}}, "metadata"),
        ({"metadata": {"user_id": 5}}, "metadata"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"context_management": {"edits": [1]}}, "context_management"),
        ({"n": 2}, "n is"),
        ({"stop": ["a"]}, "stop is"),
        ({"logprobs": True}, "logprobs is"),
        ({"presence_penalty": 0.5}, "presence_penalty is"),
        ({"user": "x"}, "user is"),
        ({"explain": True}, "explain is"),
        ({"response_format": {"type": "json_object"}}, "response_format is"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 5000}, "maximum context length"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_name(server: RunningServer, fields: dict[str, Any], about: str) -> None:
    status, kind, message = refused(server, **body("none") | fields)
    assert (status, kind) == (400, "invalid_request_error")
    assert about in message
    if "max_tokens" not in fields and not {"stop_sequences", "metadata", "service_tier", "n", "top_p"} & fields.keys():
        counted = {name: value for name, value in (body("none") | fields).items() if name != "max_tokens"}
        if fields != {"thinking": {"type": "enabled", "budget_tokens": 1000}} and "stop" not in fields:
            status, kind, _ = refused(server, f"{PATH}/count_tokens", **counted)
            assert (status, kind) == (400, "invalid_request_error")


def test_what_asks_for_nothing_is_taken(server: RunningServer) -> None:
    harmless: dict[str, Any] = {
        "cache_control": {"type": "ephemeral"}, "metadata": {}, "container": None, "mcp_servers": [], "n": 1,
        "thinking": None, "tool_choice": {"type": "auto"}, "inference_geo": "eu", "stop_sequences": [],
        "speed": "standard", "service_tier": "auto", "output_config": {},
    }  # fmt: skip
    assert ask(server, **body("none") | harmless)["stop_reason"] == "end_turn"


# ---------------------------------------------------------------- thought


@pytest.mark.parametrize(
    ("fields", "switch", "shown"),
    [
        ({}, {"enable_thinking": False}, False),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, False),
        ({"thinking": THINK}, {"enable_thinking": True}, True),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}, True),
        ({"thinking": THINK | {"display": "omitted"}}, {"enable_thinking": True}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}, True),
    ],
)
def test_thought_is_turned_on_by_who_asks_for_it(
    switched: RunningServer, fields: dict[str, Any], switch: dict[str, bool], shown: bool
) -> None:
    answer = ask(switched, **body("none") | fields)
    assert f"switch:{switch}" in spelled(switched.worker.adds[-1])
    assert ("thinking" in [block["type"] for block in answer["content"]]) == shown


@pytest.fixture(scope="module")
def switched() -> Iterator[RunningServer]:
    with running_server(text=Switched()) as running:
        running.worker.says = says
        yield running
        running.wait_idle()


def test_a_model_that_does_not_think_says_so() -> None:
    with running_server() as server:
        asked: dict[str, Any] = {"max_tokens": 200, "messages": [{"role": "user", "content": "x"}]}
        assert refused(server, **asked, thinking=THINK)[:2] == (400, "invalid_request_error")
        for thinking in ({"type": "disabled"}, {"type": "adaptive"}):
            assert ask(server, **asked, thinking=thinking)["content"][0]["type"] == "text"
        assert refused(server, **asked, tools=TOOLS)[:2] == (400, "invalid_request_error")


@pytest.mark.parametrize("says", ["", "a", "It is 5 < 6, 日本 🙂.", " \n ", None])
@pytest.mark.parametrize(
    "fields", [{}, {"max_tokens": 1}, {"max_tokens": 9}, {"stop_sequences": ["5", "🙂"]}, {"stop_sequences": ["a"]}]
)
def test_a_model_that_only_talks_says_one_text(
    talking: RunningServer, says: str | None, fields: dict[str, Any]
) -> None:
    talking.worker.says = lambda request, choice: says
    asked: dict[str, Any] = {"max_tokens": 200, "messages": [{"role": "user", "content": "x"}]} | fields
    whole, streamed = ask(talking, **asked), put_together(stream(talking, **asked))
    assert without_ids(whole) == without_ids(streamed)
    assert [block["type"] for block in whole["content"]] == ["text"]
    if not fields and says is not None:
        assert whole["content"][0]["text"] == says


@pytest.fixture(scope="module")
def talking() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running
        running.wait_idle()


# ---------------------------------------------------------------- failures


def test_who_may_not_is_told_in_this_shape(tmp_path: Any) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": "a", "key": KEY, "routes": ["/v1/completions"]}]))
    keys.chmod(0o600)
    asked: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    with running_server(api_key_file=keys, max_body_bytes=10_000) as server:
        assert refused(server, headers={}, **asked)[:2] == (401, "authentication_error")
        assert refused(server, headers={"x-api-key": "x"}, **asked)[:2] == (401, "authentication_error")
        both = {"x-api-key": KEY, "authorization": f"Bearer {OTHER}"}
        status, kind, message = refused(server, headers=both, **asked)
        assert (status, kind) == (401, "authentication_error")
        assert "different keys" in message
        for path in (PATH, f"{PATH}/count_tokens"):
            assert refused(server, path, **asked)[:2] == (403, "permission_error")
        status, _, content = server.request("GET", PATH, headers=HEADERS)
        assert (status, json.loads(content)["type"]) == (403, "error")
        status, _, content = server.request("POST", PATH, b" " * 20_000, HEADERS)
        answer = json.loads(content)
        assert (status, answer["error"]["type"], answer["request_id"]) == (413, "request_too_large", None)
        status, _, content = server.request("POST", PATH, b"{}", HEADERS | {"x-long": "a" * 17_000})
        assert (status, json.loads(content)["error"]["type"]) == (431, "invalid_request_error")


def test_who_is_too_many_is_told_in_this_shape() -> None:
    asked: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    for status, kind in ((429, "rate_limit_error"), (503, "overloaded_error")):
        with serving(**caps(max_num_queued_reqs=0), overload_status=status) as server, occupied(server):
            for path in (PATH, f"{PATH}/count_tokens"):
                assert refused(server, path, **asked)[:2] == (status, kind)
            assert "retry-after" in server.request("POST", PATH, asked)[1]


def test_a_deadline_that_is_missed_is_told_in_this_shape(server: RunningServer) -> None:
    assert refused(server, **body("none", ttft_deadline_ms=1e-6))[:2] == (504, "timeout_error")


def test_src_ninfer_137_a_failure_in_a_stream_is_an_error_and_not_an_end(server: RunningServer) -> None:
    events = stream(server, max_tokens=100, messages=[{"role": "user", "content": FAIL}])
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert not {"message_stop", "message_delta", "content_block_stop"} & {event["type"] for event in events}


def test_a_stream_whose_engine_dies_ends_with_an_error() -> None:
    """Never as if it were whole."""
    with running_server() as server:
        events = stream(server, max_tokens=100, messages=[{"role": "user", "content": DIE}])
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        assert not {"message_stop", "message_delta"} & {event["type"] for event in events}
        status, kind, _ = refused(server, max_tokens=100, messages=[{"role": "user", "content": "x"}])
        assert (status, kind) == (503, "api_error")


def test_a_silent_stream_is_kept_alive_by_pings() -> None:
    options = FakeOptions(step_s=0.2)
    with running_server(options, sse_keep_alive_interval_s=0.02) as server:
        events = stream(server, max_tokens=3, messages=[{"role": "user", "content": "x"}])
        pings = [event for event in events if event["type"] == "ping"]
        assert pings
        assert all(event == {"type": "ping"} for event in pings)
        assert put_together([event for event in events if event["type"] != "ping"])["stop_reason"] == "max_tokens"


def test_a_client_that_leaves_is_noticed(server: RunningServer) -> None:
    before = len(server.worker.aborts)
    with (
        anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client,
        client.messages.stream(model="fake", max_tokens=4000, messages=[{"role": "user", "content": "x"}]) as streamed,
    ):
        next(iter(streamed))
    until(lambda: len(server.worker.aborts) == before + 1 or not server.worker.running)
    server.wait_idle()


class Plain(FakeText):
    """It knows tools, and no thought."""

    manners = ChatManners(tool_format=TOOL_FORMATS["hermes"], template_variables=frozenset({"tools"}))


def test_a_call_is_forced(server: RunningServer) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_time"}):
        ask(server, **body("two", tool_choice=choice, max_tokens=500))
        assert server.worker.adds[-1].params.structured_outputs is not None
