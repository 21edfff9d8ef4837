"""How long a request took, told in its response where the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from chairlift.core.types import Finish, FinishReason
from chairlift.server.timings import Timings
from server.running import RunningServer, running_server

NAMES = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}
FINISH = Finish(
    id=1, choice=0, reason=FinishReason.STOP, stop_reason=None, error=None, num_prompt_tokens=4, num_output_tokens=5,
    num_cached_tokens=0, num_preemptions=0, arrival=10.0, first_scheduled=10.5, first_token=11.0, finished=13.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(enable_per_request_metrics=True) as running:
        yield running
        running.wait_idle()


def test_times_of_all_choices() -> None:
    timings = Timings()
    assert timings.as_json() == {}
    timings.add(FINISH)
    timings.add(replace(FINISH, choice=1, first_scheduled=12.0, first_token=13.0, finished=14.0, num_output_tokens=3))
    assert timings.as_json() == {
        "time_to_first_token_ms": 1000.0,
        "generation_time_ms": 3000.0,
        "queue_time_ms": 500.0,
        "mean_itl_ms": 500.0,
        "tokens_per_second": round(8 / 3, 3),
    }


def test_a_single_token_has_no_gaps() -> None:
    timings = Timings()
    timings.add(replace(FINISH, num_output_tokens=1, finished=11.0))
    assert (timings.as_json()["mean_itl_ms"], timings.as_json()["tokens_per_second"]) == (None, None)


def test_responses_tell_it_once(server: RunningServer) -> None:
    assert set(server.complete(max_tokens=5)["metrics"]) == NAMES
    assert set(server.chat(max_tokens=5, n=2)["metrics"]) == NAMES
    events = server.events("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}})
    assert ["metrics" in event for event in events[:-1]] == [False] * (len(events) - 2) + [True]
    assert set(events[-2]["metrics"]) == NAMES
    events = server.events("/v1/completions", {"prompt": "x"})
    assert all(event["choices"] for event in events[:-1])


def test_nothing_is_told_unless_the_operator_wants_it() -> None:
    with running_server() as server:
        assert "metrics" not in server.complete(max_tokens=1)
