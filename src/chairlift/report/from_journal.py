"""The picture of what a live engine did, from its journal."""

from __future__ import annotations

from collections.abc import Iterable

from chairlift.core.scheduler import Scheduler
from chairlift.core.types import Request, StepOutput, StepPlan
from chairlift.journal.replay import Replayed, replay
from chairlift.report.build import make_run
from chairlift.report.data import Run
from chairlift.report.outcomes import Outcomes
from chairlift.report.timeline import Timeline, Window


class _Follower:
    """Makes the timeline when the scheduler is known."""

    def __init__(self, outcomes: Outcomes, window: Window | None, origin: float | None) -> None:
        self.timeline: Timeline | None = None
        self._outcomes = outcomes
        self._window = window
        self._origin = origin

    def on_start(self, scheduler: Scheduler) -> None:
        self.timeline = Timeline("engine", scheduler, self._outcomes, origin=self._origin, window=self._window)
        self.timeline.on_start(scheduler)

    def on_add(self, request: Request) -> None:
        if self.timeline is not None:
            self.timeline.on_add(request)

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        if self.timeline is not None:
            self.timeline.on_step(plan, output, begun, finished)


def journal_run(
    name: str, lines: Iterable[bytes], *, window: Window | None = None, origin: float | None = None
) -> tuple[Run, Replayed]:
    """Replay one segment of a journal and picture it; times count from `origin`, or from the first in it.

    Raises:
        InvalidJournal: not a segment.
    """
    outcomes = Outcomes()
    follower = _Follower(outcomes, window, origin)
    replayed = replay(lines, follower)
    timeline = follower.timeline
    timelines = [] if timeline is None else [timeline]
    if timeline is not None and replayed.difference is None and replayed.broken is None:
        for finish in replayed.scheduler.take_ended().finishes:
            timeline.end(finish)
    segment = replayed.segment
    notes = []
    if segment.number or segment.gap:
        notes.append("the record begins with a server at work: what was before is not in it")
    if replayed.difference is not None:
        notes.append(f"this version plans otherwise from step {replayed.difference.step} on: the picture ends there")
    if replayed.broken is not None:
        notes.append("the scheduler broke at the end, as it did then")
    kind = "journal, as digests" if segment.digest else "journal"
    return make_run(name, f"{kind}, version {segment.version}", timelines, outcomes, notes), replayed
