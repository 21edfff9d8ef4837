"""A journal and the engine that wrote it give the same picture."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from chairlift.core.scheduler import Scheduler
from chairlift.core.types import StepOutput, StepPlan
from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import replay
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal
from chairlift.report.build import make_run
from chairlift.report.data import Run
from chairlift.report.from_journal import journal_run
from chairlift.report.outcomes import Outcomes
from chairlift.report.page import to_html
from chairlift.report.timeline import Timeline
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from journal import recording
from sim.worlds import random_setup, random_workload

SEEDS = range(12)


def simulated(seed: int, path: Path, *, digest: bool) -> Run:
    """A simulation that writes a journal; its picture."""
    setup = random_setup(Random(f"setup {seed}"))
    scheduler = setup.scheduler()
    outcomes = Outcomes()
    timeline = Timeline("engine", scheduler, outcomes, origin=0.0)
    options = JournalOptions(digest=digest, max_bytes=1 << 30)
    with closing(Journal(options, SegmentFiles(path, 1))) as journal:
        journal.attach(scheduler)
        replica = setup.replica("engine", scheduler=scheduler, recorder=journal, on_step=timeline.on_step)
        # Deadlines aside, what never joined is heard of by no step; a workload without them tells everything in steps.
        asked = [replace(one, ttft_within_s=None, e2e_within_s=None, follow=None) for one in random_workload(seed)]
        simulate(asked, [replica], RoundRobin())
        journal.write()
    return make_run("run", "", [timeline], outcomes)


def plain(run: Run) -> dict[str, object]:
    """Without what may differ: where it came from, and in what order those who ask were first heard of."""
    data: dict[str, object] = msgspec.to_builtins(run)
    del data["source"]
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_pictures_what_its_engine_did(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run = simulated(seed, path, digest=False)
    with path.open("rb") as lines:
        again, replayed = journal_run("run", lines, origin=0.0)
    assert replayed.difference is None
    assert by_name(again) == by_name(run)


def by_name(run: Run) -> dict[str, object]:
    """With owners by name, in alphabetical order."""
    data = plain(run)
    engine = run.engines[0]
    names = [group.name for group in run.groups]
    data["groups"] = sorted((group.name, msgspec.to_builtins(group)) for group in run.groups)
    built = msgspec.to_builtins(engine)
    built["answers"]["owner"] = [names[owner] for owner in engine.answers.owner]
    built["curves"]["service"] = sorted(zip(names, engine.curves.service, strict=False))
    data["engines"] = [built]
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_a_digest_pictures_the_same_under_other_names(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run = simulated(seed, path, digest=True)
    with path.open("rb") as lines:
        again, _ = journal_run("run", lines, origin=0.0)
    for name in ("steps", "waiting", "stays", "chunks", "num_steps", "busy_s"):
        assert getattr(again.engines[0], name) == getattr(run.engines[0], name)
    assert again.latencies == run.latencies
    assert len(again.groups) == len(run.groups)
    assert not {group.name for group in again.groups if group.name} & {"a", "b"}


@pytest.mark.parametrize("seed", range(20))
def test_any_segment_of_a_troubled_engine_is_pictured(seed: int, tmp_path: Path) -> None:
    """Aborts, failed rows and steps, clocks that go back, several answers, and an engine that was at work already."""
    path = tmp_path / "journal"
    recording.record(seed, 200, path)
    for segment in recording.segments(path):
        with segment.open("rb") as lines:
            run, replayed = journal_run(segment.name, lines)
        assert replayed.difference is None
        engine = run.engines[0]
        assert engine.num_steps == replayed.num_steps == sum_steps(segment)
        assert run.unfinished == len({request.id for request, *_ in replayed.scheduler.in_flight()})
        assert all(0 <= slot < engine.num_slots for slot in engine.stays.slot)
        assert len(engine.stays.slot) == len(engine.stays.why) == len(engine.stays.joined)
        assert min(engine.waiting.value) >= 0
        assert to_html([run])


class _Counter:
    def __init__(self) -> None:
        self.num_steps = 0

    def on_start(self, scheduler: Scheduler) -> None:
        pass

    def on_add(self, request: object) -> None:
        pass

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        self.num_steps += 1


def sum_steps(segment: Path) -> int:
    counter = _Counter()
    with segment.open("rb") as lines:
        replay(lines, counter)
    return counter.num_steps
