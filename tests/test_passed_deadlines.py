"""A deadline that has passed on the way to admission."""

from __future__ import annotations

import pytest

from chairlift.core.admission import Admission
from chairlift.core.errors import Overloaded
from chairlift.core.types import EngineStats, WaitReason


def stats(running: int, waiting: int) -> EngineStats:
    return EngineStats(
        num_running=running,
        num_waiting=waiting,
        num_used_blocks=0,
        num_cached_blocks=0,
        num_preemptions=0,
        prefix_queries=0,
        prefix_hits=0,
        waiting_by_reason={WaitReason.SLOTS: waiting} if waiting else {},
        max_num_seqs=2,
    )


def test_who_need_not_wait_is_not_told_to_come_back() -> None:
    """It was refused for an estimated wait of nothing, as something to try again, while every slot was free."""
    admission = Admission(max_num_seqs=2)
    admission.observe(stats(0, 0), 10.0)
    (ticket,) = admission.admit("", [3], 10.0, ttft_deadline=9.999)
    admission.ended(ticket, 10.0)
    for now in (10.0, 12.0):  # how long an answer takes, and that there are no slots
        (ticket,) = admission.admit("", [3], now)
        admission.started(ticket, now)
        admission.ended(ticket, now + 2.0)
    admission.observe(stats(2, 1), 14.0)
    with pytest.raises(Overloaded, match="deadline"):
        admission.admit("", [3], 14.0, ttft_deadline=13.999)
