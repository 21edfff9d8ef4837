"""Making happen what usually only pressure does."""

from __future__ import annotations

from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence
from chairlift.core.types import PreemptReason


def preempt(scheduler: Scheduler, sequence: Sequence, now: float = 0.0) -> None:
    """Preempt a running sequence, as if another needed its blocks. Between two steps only."""
    scheduler._planner._preempt(sequence, sequence, PreemptReason.BLOCKS, now)
