"""`explain`: what was decided about each answer, in the body, for its own client's eyes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.core.types import Decisions, PreemptReason, Request, WaitReason
from server.fake_worker import REFUSE, FakeOptions
from server.running import RunningServer, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "q"}], "max_tokens": 5},
    COMPLETIONS: {"prompt": "q", "max_tokens": 5},
}
PATHS = list(BODIES)


def decide(request: Request) -> Decisions:
    """Always preempted, by the request before it."""
    return Decisions(
        queued_behind=3,
        waited=((WaitReason.SLOTS, 1.5),),
        preemptions=((request.id - 1, PreemptReason.BLOCKS),),
        preempted_s=0.25,
        chunks=2,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        running.worker.decide = decide
        yield running
        running.wait_idle()


def check(explanation: dict[str, Any], index: int) -> None:
    assert set(explanation) == {"index", "sentence", "decisions"}
    assert explanation["index"] == index
    assert explanation["sentence"].startswith(
        "3 others waited when it came; waited 1.5 s for a slot; preempted once by another request (blocks), 0.25 s"
    )
    assert explanation["sentence"].endswith("; ended by its length.")
    decisions = explanation["decisions"]
    assert decisions["waited_s"] == {"slots": 1.5}
    assert decisions["preemptions"] == [{"by": "another request", "reason": "blocks", "count": 1}]
    assert (decisions["output_tokens"], decisions["cached_tokens"], decisions["chunks"]) == (5, 4, 2)
    assert 0 <= decisions["first_token_after_s"] <= decisions["ended_after_s"] < 10


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_is_explained_choice_by_choice(server: RunningServer, path: str) -> None:
    status, answer = server.json("POST", path, BODIES[path] | {"explain": True, "n": 3})
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(answer["explanation"]) == 3
    for index, explanation in enumerate(answer["explanation"]):
        check(explanation, index)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_is_explained_in_its_last_event(server: RunningServer, path: str) -> None:
    events = server.events(path, BODIES[path] | {"explain": True, "n": 2})
    *others, last, done = events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert "usage" not in last
    for index, explanation in enumerate(last["explanation"]):
        check(explanation, index)
    assert all("explanation" not in event and event["choices"] for event in others)


@pytest.mark.parametrize("path", PATHS)
def test_with_usage_it_is_the_same_event(server: RunningServer, path: str) -> None:
    events = server.events(path, BODIES[path] | {"explain": True, "stream_options": {"include_usage": True}})
    assert events[-2]["usage"]["completion_tokens"] == 5
    check(events[-2]["explanation"][0], 0)
    assert all(event["choices"] for event in events[:-2])


def test_choices_are_numbered_through_all_prompts(server: RunningServer) -> None:
    body = {"prompt": ["a", "bc"], "n": 2, "max_tokens": 5, "explain": True}
    for explanation in (server.complete(**body)["explanation"], server.events(COMPLETIONS, body)[-2]["explanation"]):
        assert [one["index"] for one in explanation] == [0, 1, 2, 3]
        assert [one["decisions"]["prompt_tokens"] for one in explanation] == [2, 2, 3, 3]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{}, {"explain": False}, {"explain": None}])
def test_nobody_is_told_unasked(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    status, answer = server.json("POST", path, BODIES[path] | fields)
    assert status == 200
    assert "explanation" not in answer
    events = server.events(path, BODIES[path] | fields)
    assert all("explanation" not in event for event in events[:-1])
    assert events[-2]["choices"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", ["true", 1, 0, [], {}, "", 1.0])
def test_it_is_a_switch_and_nothing_else(server: RunningServer, path: str, stream: bool, value: Any) -> None:
    status, error = server.refused(path, BODIES[path] | {"explain": value, "stream": stream})
    assert (status, error["param"]) == (400, "explain")


def test_an_error_is_an_error(server: RunningServer) -> None:
    for stream in (False, True):
        status, error = server.refused(COMPLETIONS, {"prompt": REFUSE, "explain": True, "stream": stream})
        assert (status, error["message"]) == (400, "refused as told")


@pytest.mark.parametrize("stream", [False, True])
def test_a_missed_deadline_is_explained_in_its_error(stream: bool) -> None:
    with running_server(FakeOptions(step_s=0.005, prefill_steps=1000)) as server:
        server.worker.decide = decide
        body = {"prompt": "x", "explain": True, "ttft_deadline_ms": 30, "stream": stream}
        status, answer = server.json("POST", COMPLETIONS, body)
        assert (status, answer["error"]["code"]) == (504, "ttft_deadline_exceeded")
        (explanation,) = answer["error"]["explanation"]
        assert explanation["sentence"].startswith(
            "3 others waited when it came; waited 1.5 s for a slot; preempted once by"
        )
        assert explanation["sentence"].endswith("its first token did not come in time.")
        assert explanation["decisions"]["ended_by"] == "deadline"
        status, answer = server.json("POST", COMPLETIONS, body | {"explain": False})
        assert status == 504
        assert "explanation" not in answer["error"]
        server.wait_idle()


def test_it_goes_with_everything_that_can_be_shown(server: RunningServer) -> None:
    answer = server.complete(
        prompt="abc", max_tokens=2, echo=True, logprobs=1, return_token_ids=True, prompt_logprobs=0, explain=True
    )
    assert answer["choices"][0]["text"].startswith("abc")
    assert answer["explanation"][0]["decisions"]["output_tokens"] == 2
    chat = server.chat(return_token_ids=True, prompt_logprobs=0, max_tokens=2, explain=True)
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"])
    assert chat["explanation"][0]["decisions"]["output_tokens"] == 2


def test_nobody_learns_who_else_is_served() -> None:
    """The request that took its place is another client's: neither its id nor its number appears."""
    with running_server(api_keys=("one", "two")) as server:
        server.worker.decide = decide
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"prompt": "x", "max_tokens": 5, "explain": True, "request_id": "private-name"}
        assert server.json("POST", COMPLETIONS, body, first)[0] == 200
        status, _, content = server.request("POST", COMPLETIONS, body | {"request_id": "mine"}, second)
        assert status == 200
        assert b"by another request (blocks)" in content
        assert b"private-name" not in content
        assert b"request 1" not in content
