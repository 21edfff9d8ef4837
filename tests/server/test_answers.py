"""What comes back over HTTP, against what the fake worker is known to have generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from server.fake_text import END, TURN
from server.fake_worker import REFUSE, REFUSE_LATE, answer_tokens, natural_length
from server.running import RunningServer, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running
        running.wait_idle()


def prompt_ids(text: str) -> list[int]:
    return [TURN, *text.encode()]


def text_of(prompt: list[int], count: int, choice: int = 0) -> str:
    return bytes(answer_tokens(prompt, choice, count)).decode("utf-8", "replace")


def streamed(events: list[Any], index: int = 0) -> str:
    """The text of a choice, put together from its events."""
    text = ""
    for event in events:
        if event == "[DONE]":
            continue
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


def test_a_completion(server: RunningServer) -> None:
    answer = server.complete(prompt="hello", max_tokens=12)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": text_of(prompt_ids("hello"), 12),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 12,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_a_chat_ends_by_itself_and_without_its_last_token(server: RunningServer) -> None:
    prompt = [TURN, *b"user:hi", END, TURN]
    length = natural_length(prompt, 0)
    answer = server.chat()
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": text_of(prompt, length)}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert answer["usage"]["completion_tokens"] == length + 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 7}, {"stop": ["e", "o"]}, {"n": 3}, {"stop": "zzz"}])
def test_src_vllm_8625_a_stream_says_what_the_whole_answer_says(
    server: RunningServer, path: str, fields: dict[str, Any]
) -> None:
    body = fields | ({"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q"})
    status, whole = server.json("POST", path, body)
    assert status == 200
    events = server.events(path, body | {"stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == whole["usage"]
    assert {event["id"] for event in events[:-1]} == {events[0]["id"]}
    for choice in whole["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert streamed(events, choice["index"]) == text
        mine = [c for event in events[:-1] for c in event["choices"] if c["index"] == choice["index"]]
        ends = [c for c in mine if c["finish_reason"] is not None]
        assert len(ends) == 1
        assert mine[-1] is ends[0]
        assert (ends[0]["finish_reason"], ends[0]["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        if path == CHAT:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}


def test_no_event_without_text_and_no_usage_unless_asked(server: RunningServer) -> None:
    events = server.events(COMPLETIONS, {"prompt": "q", "max_tokens": 20})
    assert all("usage" not in event for event in events[:-1])
    assert all(choice["text"] for event in events[:-2] for choice in event["choices"])


def test_choices_differ_and_are_numbered_through_all_prompts(server: RunningServer) -> None:
    answer = server.complete(prompt=["one", "two"], n=2, max_tokens=9)
    texts = [text_of(prompt_ids(p), 9, choice) for p in ("one", "two") for choice in (0, 1)]
    assert [c["text"] for c in answer["choices"]] == texts
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 8
    assert answer["usage"]["completion_tokens"] == 36
    events = server.events(COMPLETIONS, {"prompt": ["one", "two"], "n": 2, "max_tokens": 9})
    assert [streamed(events, index) for index in range(4)] == texts


def test_token_prompts(server: RunningServer) -> None:
    assert server.complete(prompt=[5, 6])["choices"][0]["text"] == text_of([5, 6], 16)
    answer = server.complete(prompt=[[5, 6], [7]], return_token_ids=True)
    assert [c["prompt_token_ids"] for c in answer["choices"]] == [[5, 6], [7]]
    assert [c["token_ids"] for c in answer["choices"]] == [answer_tokens([5, 6], 0, 16), answer_tokens([7], 0, 16)]


def test_a_stop_string_is_cut_off_and_named(server: RunningServer) -> None:
    whole = text_of(prompt_ids("stop here"), 60)
    stop = whole[3:5]
    cut = whole[: whole.index(stop)]
    body = {"prompt": "stop here", "stop": [stop, "never"], "max_tokens": 60, "ignore_eos": True}
    choice = server.complete(**body)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (cut, "stop", stop)
    assert streamed(server.events(COMPLETIONS, body)) == cut
    kept = body | {"include_stop_str_in_output": True}
    assert server.complete(**kept)["choices"][0]["text"] == cut + stop
    assert streamed(server.events(COMPLETIONS, kept)) == cut + stop


@pytest.mark.parametrize("extra", [{}, {"logprobs": 0}])
def test_a_stop_token_has_no_place_in_the_text(server: RunningServer, extra: dict[str, Any]) -> None:
    tokens = answer_tokens(prompt_ids("token"), 0, 40)
    token = next(t for t in tokens if t < 128)
    at = tokens.index(token)
    body = {"prompt": "token", "stop_token_ids": [token], "max_tokens": 40, "ignore_eos": True} | extra
    text = bytes(tokens[:at]).decode("utf-8", "replace")
    answer = server.complete(**body)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", token)
    assert answer["usage"]["completion_tokens"] == at + 1
    assert streamed(server.events(COMPLETIONS, body)) == text
    kept = body | {"include_stop_str_in_output": True}
    assert server.complete(**kept)["choices"][0]["text"] == text + chr(token)
    assert streamed(server.events(COMPLETIONS, kept)) == text + chr(token)


def test_completion_logprobs_have_the_old_shape(server: RunningServer) -> None:
    body = {"prompt": "lp", "logprobs": 3, "max_tokens": 5}
    scores = server.complete(**body)["choices"][0]["logprobs"]
    tokens = answer_tokens(prompt_ids("lp"), 0, 5)
    names = [bytes((t,)).decode("utf-8", "replace") for t in tokens]
    assert scores["tokens"] == names
    assert scores["token_logprobs"] == [-0.5] * 5
    assert scores["text_offset"] == [0, 1, 2, 3, 4]
    assert scores["top_logprobs"][0] == {names[0]: -0.5, "A": -1.5, "B": -9999.0}
    merged: dict[str, list[Any]] = {name: [] for name in scores}
    for event in server.events(COMPLETIONS, body)[:-1]:
        for choice in event["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                merged[name] += values
    assert merged == scores


def test_chat_logprobs_have_the_new_shape(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "lp"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 4}
    content = server.chat(**body)["choices"][0]["logprobs"]["content"]
    tokens = answer_tokens([TURN, *b"user:lp", END, TURN], 0, 4)
    assert [entry["bytes"] for entry in content] == [[t] for t in tokens]
    assert all(entry["logprob"] == -0.5 and len(entry["top_logprobs"]) == 2 for entry in content)
    events = server.events(CHAT, body)[:-1]
    parts = [e for event in events for c in event["choices"] for e in (c["logprobs"] or {"content": []})["content"]]
    assert parts == content


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_echo_repeats_the_prompt_with_its_scores(server: RunningServer, max_tokens: int) -> None:
    """What evaluation harnesses ask for: the log-probabilities of a given text."""
    body = {"prompt": "abc", "echo": True, "max_tokens": max_tokens, "logprobs": 1}
    answer = server.complete(**body)
    choice = answer["choices"][0]
    ids = prompt_ids("abc")
    output = answer_tokens(ids, 0, 3)[:max_tokens]
    assert choice["text"] == "abc" + bytes(output).decode("utf-8", "replace")
    assert answer["usage"]["completion_tokens"] == max_tokens
    scores = choice["logprobs"]
    assert len(scores["tokens"]) == len(ids) + max_tokens
    assert scores["token_logprobs"] == [None] + [-0.5] * (len(ids) + max_tokens - 1)
    assert scores["top_logprobs"][0] is None
    assert "prompt_logprobs" not in choice
    del body["logprobs"]
    assert streamed(server.events(COMPLETIONS, body)) == choice["text"]


def test_prompt_logprobs_by_token_id(server: RunningServer) -> None:
    answer = server.complete(prompt="abc", prompt_logprobs=2, max_tokens=1)
    rows = answer["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    assert rows[1] == {
        "97": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        "65": {"logprob": -1.5, "rank": 2, "decoded_token": "A"},
    }
    chat = server.chat(prompt_logprobs=0, max_tokens=1)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_running_totals(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.events(COMPLETIONS, {"prompt": "q", "max_tokens": 4, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("word", "code"), [(REFUSE, None), (REFUSE_LATE, "request_too_large")])
def test_src_vllm_39734_what_the_engine_refuses_is_a_400_even_for_a_stream(
    server: RunningServer, path: str, stream: bool, word: str, code: str | None
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": word}], "prompt": ["fine", word], "stream": stream}
    status, error = server.refused(path, body)
    assert status == 400
    assert (error["message"], error["param"], error["code"]) == ("refused as told", "prompt", code)
    server.wait_idle()


def test_the_engine_hears_what_was_asked(server: RunningServer) -> None:
    server.complete(prompt="told", seed=5, temperature=0.3, priority=4, n=2, cache_salt="s")
    request = server.worker.adds[-1]
    assert list(request.prompt) == prompt_ids("told")
    assert (request.params.seed, request.params.temperature) == (5, 0.3)
    assert (request.n, request.priority, request.eos_token_ids) == (2, 4, (END,))
    assert len(request.salt) == 32
    server.complete(prompt="told", cache_salt="t")
    assert server.worker.adds[-1].salt not in (request.salt, b"")
    server.complete(prompt="told")
    assert server.worker.adds[-1].salt == b""


def test_src_vllm_10583_two_requests_with_one_client_id_are_both_right(server: RunningServer) -> None:
    headers = {"X-Request-Id": "same"}
    answers = [
        server.json("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 30, "ignore_eos": True}, headers)[1]
        for prompt in ("first", "second")
    ]
    assert [a["id"] for a in answers] == ["cmpl-same"] * 2
    assert [a["choices"][0]["text"] for a in answers] == [text_of(prompt_ids(p), 30) for p in ("first", "second")]


@pytest.mark.parametrize("given", ["ok-1.2:3_x", "x" * 128])
def test_a_harmless_id_is_repeated(server: RunningServer, given: str) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    _, headers, content = server.request("POST", COMPLETIONS, body, {"X-Request-Id": given})
    assert headers["x-request-id"] == given
    assert f'"cmpl-{given}"'.encode() in content


@pytest.mark.parametrize("given", ["x" * 129, "a b", "a\tb", 'a"b', "\xe9", ""])
def test_src_vllm_10968_any_other_id_is_replaced(server: RunningServer, given: str) -> None:
    body = {"prompt": "x", "max_tokens": 1, "request_id": given}
    _, headers, content = server.request("POST", COMPLETIONS, body, {"X-Request-Id": given})
    assert len(headers["x-request-id"]) == 32
    assert f'"cmpl-{headers["x-request-id"]}"'.encode() in content


def test_a_large_body_is_read_on_a_thread(server: RunningServer) -> None:
    text = "x" * 3000
    answer = server.complete(prompt=[text] * 20, max_tokens=1)
    assert len(answer["choices"]) == 20


def test_many_scores_are_written_on_a_thread(server: RunningServer) -> None:
    answer = server.complete(prompt=[[7] * 1000, [8] * 1000], echo=True, logprobs=1, n=2, max_tokens=1)
    assert [len(c["logprobs"]["tokens"]) for c in answer["choices"]] == [1001] * 4


def test_a_long_answer_is_put_together_on_a_thread(server: RunningServer) -> None:
    answer = server.complete(prompt=["a", "b", "c", "d"], max_tokens=3000, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 12_000
    assert answer["choices"][3]["text"] == text_of(prompt_ids("d"), 3000)


def test_the_likeliest_answers_are_kept() -> None:
    """Those of a prompt compete with each other only, by the mean over their tokens."""
    with running_server() as server:
        server.worker.likes = lambda choice: (-0.4, -0.2, -0.3, -0.1)[choice]
        every = server.complete(prompt=["one", "two"], n=4, max_tokens=50)
        best = server.complete(prompt=["one", "two"], n=2, best_of=4, max_tokens=50)
        texts = [choice["text"] for choice in every["choices"]]
        assert [choice["text"] for choice in best["choices"]] == [texts[3], texts[1], texts[7], texts[5]]
        assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
        assert [choice["logprobs"] for choice in best["choices"]] == [None] * 4
        assert best["usage"] == every["usage"]
        (scored,) = server.complete(prompt="one", best_of=2, logprobs=1, max_tokens=3)["choices"]
        assert scored["logprobs"]["token_logprobs"] == [-0.2] * 3


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("interval", [1, 2, 5, 1000])
def test_several_tokens_share_an_event_where_that_is_wanted(server: RunningServer, path: str, interval: int) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q"}
    body = asked | {"max_tokens": 40, "ignore_eos": True}
    every = server.events(path, body)
    fewer = server.events(path, body | {"stream_interval": interval})
    assert streamed(fewer) == streamed(every)
    if interval > 1:
        assert len(fewer) <= 4 + 39 // interval + 1
        assert fewer[1 if path == CHAT else 0]["choices"][0]["finish_reason"] is None
    scored = server.events(path, body | {"stream_interval": interval, "return_token_ids": True})
    ids = [token for event in scored[:-1] for choice in event["choices"] for token in choice.get("token_ids", ())]
    assert len(ids) == 40


def test_the_way_of_being_served_is_told_where_it_was_asked_for(server: RunningServer) -> None:
    assert "service_tier" not in server.complete(max_tokens=1)
    assert server.complete(max_tokens=1, service_tier="auto")["service_tier"] == "default"
    assert server.chat(max_tokens=1, service_tier="flex")["service_tier"] == "flex"
    assert server.worker.adds[-1].priority == 1
    events = server.events(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "service_tier": "priority"})
    assert {event["service_tier"] for event in events[:-1]} == {"default"}
