"""In which order things happen."""

from __future__ import annotations

import math

from chairlift.sim.events import Events, Rank


def test_time_then_rank_then_as_announced() -> None:
    events: Events[str] = Events()
    for time, rank, name in (
        (2.0, Rank.ARRIVAL, "later"),
        (1.0, Rank.WAKE, "wake"),
        (1.0, Rank.STEP_END, "first end"),
        (1.0, Rank.STEP_END, "second end"),
        (1.0, Rank.FOLLOW_UP, "follow-up"),
        (1.0, Rank.ARRIVAL, "arrival"),
    ):
        events.push(time, rank, name)
    names = [events.pop()[1] for _ in range(len(events))]
    assert names == ["arrival", "follow-up", "first end", "second end", "wake", "later"]
    assert events.now == 2.0 and events.next_at == math.inf


def test_the_clock_never_goes_back() -> None:
    events: Events[str] = Events()
    events.push(5.0, Rank.STEP_END, "end")
    events.pop()
    events.push(3.0, Rank.FOLLOW_UP, "late")
    assert events.next_at == 5.0 and events.pop() == (Rank.FOLLOW_UP, "late")
