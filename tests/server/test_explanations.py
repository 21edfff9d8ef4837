"""What is remembered of requests, and how little of it grows."""

from __future__ import annotations

import pytest

from chairlift.core.types import Decisions, Finish, FinishReason, PreemptReason, Request, SamplingParams
from chairlift.server.explanations import Explanations


def request(request_id: int, n: int = 1) -> Request:
    return Request(request_id, [1, 2], SamplingParams(), n=n)


def finish(request_id: int, choice: int = 0, decisions: Decisions | None = None) -> Finish:
    return Finish(
        request_id, choice, FinishReason.LENGTH, None, None, 2, 1, 0, 0, 0.0, 0.5, 1.0, 2.0, decisions or Decisions()
    )


def ended_ids(explanations: Explanations, limit: int = 100) -> list[str]:
    return [told.id for told in explanations.ended(limit)]


def test_a_request_goes_from_waiting_to_ended() -> None:
    explanations = Explanations(10)
    explanations.expect("cmpl-a", 7, [request(1), request(2, n=2)])
    (told,) = explanations.live(10)
    assert told.state == "waiting"
    explanations.on_step([2], [])
    assert told.state == "running"
    explanations.on_step([], [finish(2, 1), finish(1)])
    assert told.state == "running"
    assert [one["index"] for one in told.as_json(explanations.name)["choices"]] == [0, 2]
    explanations.on_step([], [finish(2, 0)])
    assert explanations.live(10) == []
    assert explanations.ended(10) == [told]
    given = told.as_json(explanations.name)
    assert (given["id"], given["created"], given["state"]) == ("cmpl-a", 7, "ended")
    assert [one["index"] for one in given["choices"]] == [0, 1, 2]


def test_the_newest_ended_and_the_oldest_live_come_first() -> None:
    explanations = Explanations(10)
    for number in range(6):
        explanations.expect(f"cmpl-{number}", 0, [request(number)])
    explanations.on_step([], [finish(2), finish(0), finish(4)])
    assert ended_ids(explanations) == ["cmpl-4", "cmpl-0", "cmpl-2"]
    assert ended_ids(explanations, 2) == ["cmpl-4", "cmpl-0"]
    assert [told.id for told in explanations.live(2)] == ["cmpl-1", "cmpl-3"]


@pytest.mark.parametrize("n", [1, 3, 128])
@pytest.mark.parametrize("keep", [0, 1, 5])
def test_what_is_kept_is_bounded_in_choices(keep: int, n: int) -> None:
    """The newest request is kept whole, however many choices it has."""
    explanations = Explanations(keep)
    for number in range(50):
        explanations.expect(f"cmpl-{number}", 0, [request(number, n)])
        explanations.on_step([number], [finish(number, choice) for choice in range(n)])
        assert len(explanations._by_engine_id) == len(explanations.ended(1000))
    newest = [f"cmpl-{number}" for number in range(49, 49 - max(keep // n, min(keep, 1)), -1)]
    assert ended_ids(explanations) == newest


def test_what_the_engine_refused_leaves_nothing() -> None:
    explanations = Explanations(10)
    explanations.expect("cmpl-refused", 0, [request(1, n=4)])
    explanations.on_refused(1)
    explanations.expect("cmpl-half", 0, [request(2, n=2), request(3), request(4)])
    explanations.on_refused(2)
    explanations.on_step([], [finish(3)])
    explanations.on_refused(2 + 2)
    assert explanations.live(10) == []
    assert ended_ids(explanations) == ["cmpl-half"]
    assert [one["index"] for one in explanations.ended(1)[0].as_json(explanations.name)["choices"]] == [2]
    assert explanations.name(1) is None


def test_a_dead_engine_s_requests_are_forgotten() -> None:
    explanations = Explanations(10)
    explanations.expect("cmpl-a", 0, [request(1)])
    explanations.expect("cmpl-b", 0, [request(2)])
    explanations.on_step([], [finish(1)])
    explanations.on_engine_dead()
    assert explanations.live(10) == []
    assert ended_ids(explanations) == ["cmpl-a"]
    assert (explanations.name(1), explanations.name(2)) == ("cmpl-a", None)


def test_strangers_are_ignored() -> None:
    explanations = Explanations(10)
    explanations.on_step([9], [finish(9)])
    explanations.on_refused(9)
    assert explanations.ended(10) == explanations.live(10) == []


def test_preempting_requests_are_named_as_long_as_they_are_known() -> None:
    explanations = Explanations(2)
    explanations.expect("chatcmpl-urgent", 0, [request(1)])
    explanations.expect("cmpl-victim", 0, [request(2)])
    victim = finish(2, 0, Decisions(preemptions=((1, PreemptReason.PRIORITY),)))
    explanations.on_step([], [finish(1), victim])

    def sentence() -> str:
        return str(explanations.ended(1)[0].as_json(explanations.name)["choices"][0]["sentence"])

    assert "preempted once by chatcmpl-urgent (priority)" in sentence()
    explanations.expect("cmpl-later", 0, [request(3)])
    explanations.on_step([], [finish(3)])
    assert ended_ids(explanations) == ["cmpl-later", "cmpl-victim"]
    assert "preempted once by another request (priority)" in str(
        explanations.find("cmpl-victim")[0].as_json(explanations.name)
    )


def test_all_requests_of_an_id_are_found() -> None:
    """Clients choose ids: one must not hide another's request behind its own."""
    explanations = Explanations(10)
    for number in range(4):
        explanations.expect("cmpl-same" if number % 2 else f"cmpl-{number}", number, [request(number)])
    explanations.on_step([], [finish(1)])
    assert [told.created for told in explanations.find("cmpl-same")] == [3, 1]
    assert explanations.find("cmpl-none") == []
