"""Counting tokens without asking for an answer: the same tokens as prompts have, under the same limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from server.fake_text import TURN, VOCAB_SIZE
from server.fake_worker import FakeOptions
from server.running import RunningServer, running_server, until
from server.test_admission import caps, occupied, serving
from server.test_tools import TOOLS, Thinking

CONTEXT = 4096
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "hé"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(FakeOptions(max_model_len=CONTEXT), text=Thinking()) as running:
        yield running
        running.wait_idle()
        assert not any(request.params.max_tokens != 1 for request in running.worker.adds), "nothing else was generated"


def tokens(server: RunningServer, **fields: Any) -> Any:
    status, answer = server.json("POST", "/tokenize", fields)
    assert status == 200, answer
    return answer


def prompt_of(server: RunningServer, path: str, **fields: Any) -> list[int]:
    """What the engine gets for a prompt."""
    status, answer = server.json("POST", path, {"max_tokens": 1} | fields)
    assert status == 200, answer
    return list(server.worker.adds[-1].prompt)


def test_a_text(server: RunningServer) -> None:
    assert tokens(server, model="fake", prompt="hé") == {
        "count": 4,
        "max_model_len": CONTEXT,
        "tokens": [TURN, *"hé".encode()],
        "token_strs": None,
    }
    assert tokens(server, prompt="ab", add_special_tokens=False)["tokens"] == [97, 98]
    assert tokens(server, prompt="ab", return_token_strs=True)["token_strs"] == ["", "a", "b"]
    assert tokens(server, prompt="", add_special_tokens=False)["count"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"add_generation_prompt": False},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "we"}], "continue_final_message": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    ],
)
def test_a_chat_has_the_tokens_that_it_would_be_answered_with(server: RunningServer, fields: dict[str, Any]) -> None:
    body = {"messages": MESSAGES} | fields
    told = tokens(server, **body)
    assert told["tokens"] == prompt_of(server, "/v1/chat/completions", **body)
    assert told["count"] == len(told["tokens"])


def test_there_and_back(server: RunningServer) -> None:
    there = tokens(server, messages=MESSAGES)["tokens"]
    status, back = server.json("POST", "/detokenize", {"tokens": there})
    assert status == 200
    assert back == {"prompt": "<turn>system:s<end><turn>user:hé<end><turn>"}
    assert server.json("POST", "/detokenize", {"tokens": []}) == (200, {"prompt": ""})


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        ("/tokenize", {}, "prompt", None),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt", None),
        ("/tokenize", {"prompt": ["a"]}, "prompt", None),
        ("/tokenize", {"messages": []}, "messages", None),
        ("/tokenize", {"messages": [{"role": "assistant", "content": "a"}]}, "messages", None),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ("/tokenize", {"messages": MESSAGES, "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs",
         "unsupported_parameter"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs",
         "unsupported_parameter"),
        ("/tokenize", {"prompt": "x" * 2 * CONTEXT}, "prompt", "context_length_exceeded"),
        ("/tokenize", {"prompt": "x" * 200 * CONTEXT}, "prompt", "context_length_exceeded"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 2 * CONTEXT}]}, "messages",
         "context_length_exceeded"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, "model", "model_not_found"),
        ("/detokenize", {}, "tokens", None),
        ("/detokenize", {"tokens": "a"}, "tokens", None),
        ("/detokenize", {"tokens": [-1]}, "tokens", None),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens", None),
        ("/detokenize", {"tokens": [1.5]}, "tokens", None),
        ("/detokenize", {"tokens": [1] * (CONTEXT + 1)}, "tokens", "context_length_exceeded"),
        ("/detokenize", {"tokens": [1], "model": "gpt"}, "model", "model_not_found"),
    ],
)  # fmt: skip
def test_what_is_refused(
    server: RunningServer, path: str, fields: dict[str, Any], param: str, code: str | None
) -> None:
    status, error = server.refused(path, fields)
    assert (status, error["param"], error["code"]) == (404 if code == "model_not_found" else 400, param, code)


def test_what_does_not_fit_is_counted(server: RunningServer) -> None:
    """Who asks whether something fits wants to know by how much it does not."""
    assert tokens(server, prompt="x" * (CONTEXT + 100))["count"] == CONTEXT + 101


def test_long_texts_do_not_stall_the_others(server: RunningServer) -> None:
    """They go to threads: the loop answers while no thread is free."""
    long = {"prompt": "x" * 2000 + " " * 20_000}
    answers: list[int] = []
    with server.held_pool() as num_waiting:
        asking = threading.Thread(target=lambda: answers.append(server.request("POST", "/tokenize", long)[0]))
        asking.start()
        until(lambda: num_waiting() == 1)
        assert server.json("GET", "/health")[0] == 200
        assert tokens(server, prompt="short")["count"] == 6
        assert not answers
    asking.join()
    assert answers == [400]


def test_it_costs_requests_of_a_minute_but_no_tokens(tmp_path: Any) -> None:
    keys = tmp_path / "keys.json"
    limits = {"max_reqs_per_minute": 3, "max_tokens_per_minute": 100}
    keys.write_text(json.dumps([{"name": "a", "key": "key-of-user-a"} | limits]))
    keys.chmod(0o600)
    headers = {"x-api-key": "key-of-user-a"}
    with running_server(api_key_file=keys) as server:
        for _ in range(3):
            assert server.json("POST", "/tokenize", {"prompt": "x" * 300}, headers)[0] == 200
        status, answer = server.json("POST", "/tokenize", {"prompt": "x"}, headers)
        assert (status, answer["error"]["code"]) == (429, "max_reqs_per_minute")
        assert not server.worker.adds
        server.wait_idle()


def test_a_full_queue_takes_no_texts_either() -> None:
    with serving(**caps(max_num_queued_reqs=0)) as server, occupied(server):
        status, answer = server.json("POST", "/tokenize", {"prompt": "x"})
        assert (status, answer["error"]["code"]) == (429, "max_num_queued_reqs")
