"""LangChain's and LlamaIndex's OpenAI classes against the server; they are not among the test requirements.

Run with them: `pip install langchain-openai llama-index-llms-openai-like`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.fake_worker import answer_tokens, natural_length
from server.running import RunningServer, running_server
from server.test_openai_client import whole_text
from server.test_tools import ANSWERS, BERN, Thinking, says

KEY = "sk-test"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(text=Thinking(), api_keys=(KEY,)) as running:
        running.worker.says = says
        yield running
        running.wait_idle()


# ---------------------------------------------------------------- LangChain


@pytest.fixture
def langchain(server: RunningServer) -> Any:
    module = pytest.importorskip("langchain_openai")
    return module.ChatOpenAI(base_url=f"{server.url}/v1", api_key=KEY, model="fake", max_retries=0, stream_usage=True)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def test_langchain_chats(langchain: Any) -> None:
    answer = langchain.invoke([("system", "s"), ("human", "hello")])
    assert answer.usage_metadata["total_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    pieces = list(langchain.stream("hello"))
    assert "".join(piece.content for piece in pieces) == whole_text("hello")
    assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) == len(
        answer_tokens(*prompt("hello"), natural_length(*prompt("hello")))
    ) + 1  # fmt: skip


def prompt(content: str) -> tuple[list[int], int]:
    return [257, *f"user:{content}".encode(), 256, 257], 0


def test_langchain_speaks_of_responses(langchain: Any, server: RunningServer) -> None:
    """It keeps items as they came, and gives them back."""
    bound = langchain.model_copy(update={"use_responses_api": True}).bind_tools(TOOLS)
    answer = bound.invoke("ask:one")
    assert [part["type"] for part in answer.content] == ["reasoning", "text", "function_call"]
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", json.loads(BERN))
    total: Any = None
    for piece in bound.stream("ask:one"):
        total = piece if total is None else total + piece
    assert total.tool_calls[0]["args"] == call["args"]
    assert total.usage_metadata == answer.usage_metadata
    messages = pytest.importorskip("langchain_core.messages")
    for said, (made,) in ((answer, answer.tool_calls), (total, total.tool_calls)):
        turns = [("human", "ask:none"), said, messages.ToolMessage("5 degrees", tool_call_id=made["id"])]
        assert bound.invoke(turns).text == "It is 5 < 6, 日本."


def test_langchain_calls_tools(langchain: Any, server: RunningServer) -> None:
    bound = langchain.bind_tools(TOOLS)
    answer = bound.invoke("ask:one")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", json.loads(BERN))
    assert answer.content == "One moment."
    total: Any = None
    for piece in bound.stream("ask:one"):
        total = piece if total is None else total + piece
    (streamed,) = total.tool_calls
    assert (streamed["name"], streamed["args"]) == (call["name"], call["args"])
    messages = pytest.importorskip("langchain_core.messages")
    turns = [("human", "ask:none"), answer, messages.ToolMessage("5 degrees", tool_call_id=call["id"])]
    assert bound.invoke(turns).content == "It is 5 < 6, 日本."
    assert langchain.bind_tools(TOOLS, tool_choice="get_weather").invoke("ask:one").tool_calls
    assert server.worker.adds[-1].params.structured_outputs is not None


def test_langchain_asks_for_a_form(langchain: Any, server: RunningServer) -> None:
    schema = {"title": "Weather", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    server.worker.says = lambda request, choice: '<think>Hm.</think>{"city": "Bern"}'
    try:
        assert langchain.with_structured_output(schema, method="json_schema").invoke("x") == {"city": "Bern"}
        form = server.worker.adds[-1].params.structured_outputs
        assert form is not None
        assert form.json is not None
    finally:
        server.worker.says = says


# ---------------------------------------------------------------- LlamaIndex


@pytest.fixture
def llamaindex(server: RunningServer) -> Any:
    module = pytest.importorskip("llama_index.llms.openai_like")
    return module.OpenAILike(
        model="fake",
        api_base=f"{server.url}/v1",
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        context_window=4096,
    )


def test_llamaindex_chats_and_completes(llamaindex: Any) -> None:
    types = pytest.importorskip("llama_index.core.llms")
    turns = [types.ChatMessage(role="user", content="hello")]
    assert llamaindex.chat(turns).message.content == whole_text("hello")
    assert "".join(piece.delta or "" for piece in llamaindex.stream_chat(turns)) == whole_text("hello")
    assert llamaindex.complete("hello").text == whole_text("hello")


def test_llamaindex_calls_tools(llamaindex: Any) -> None:
    tools = pytest.importorskip("llama_index.core.tools")

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    tool = tools.FunctionTool.from_defaults(get_weather)
    answer = llamaindex.chat_with_tools([tool], user_msg="ask:one")
    (call,) = llamaindex.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", json.loads(BERN))
    last = list(llamaindex.stream_chat_with_tools([tool], user_msg="ask:one"))[-1]
    (streamed,) = llamaindex.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs
    assert "One moment." in (last.message.content or "")
    assert ANSWERS["one"].count("<tool_call>") == 1
