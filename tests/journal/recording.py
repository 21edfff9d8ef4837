"""Worlds of the swarm, recorded into small segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import MagicMock, patch

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, StepOutput, StepPlan, StepResult
from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import Replayed, replay
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal
from core import swarm
from fakes import VOCAB_SIZE, FakeExecutor

NUM_SEGMENTS = 1000
MAX_BYTES = 3000
"""Of a segment. With its snapshot it may become larger, but the journal of a world has several."""


class WrittenAtOnce(Journal):
    """A journal without a thread, written after every step: where its segments end depends on nothing else."""

    def on_finish(
        self, plan: StepPlan, result: StepResult | None, failure: str | None, output: StepOutput, now: float
    ) -> None:
        super().on_finish(plan, result, failure, output, now)
        self.write()


def journal_at(path: Path, *, digest: bool = False, max_bytes: int = MAX_BYTES) -> WrittenAtOnce:
    options = JournalOptions(digest=digest, max_bytes=max_bytes)
    return WrittenAtOnce(options, SegmentFiles(path, NUM_SEGMENTS))


def record(seed: int, num_steps: int, path: Path, *, digest: bool = False) -> swarm.World:
    """A world of the swarm, with its journal."""
    with closing(journal_at(path, digest=digest)) as journal:
        return run(seed, num_steps, journal)


def run(seed: int, num_steps: int, journal: Journal | None = None) -> swarm.World:
    """A world of the swarm without its oracles, which ask the scheduler things that it would not ask itself."""
    make_world = swarm.random_world

    def recorded_world(rng: random.Random) -> swarm.World:
        world = make_world(rng)
        planner = world.scheduler._planner
        for name in [name for name in vars(planner) if hasattr(type(planner), name)]:
            delattr(planner, name)
        world.door = world.ledger = MagicMock()
        if journal is not None:
            journal.attach(world.scheduler)
            world.engine._recorder = journal
        return world

    with patch.object(swarm, "random_world", recorded_world):
        return swarm.run(seed, num_steps)


def segments(path: Path) -> Sequence[Path]:
    """Files of a journal, oldest first."""
    older = sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda p: -int(p.suffix[1:]))
    return [*older, path]


def replay_file(path: Path) -> Replayed:
    with path.open("rb") as file:
        return replay(file)


def busy_scheduler(seed: int, num_steps: int = 40) -> Scheduler:
    """A scheduler in the middle of its work, between two steps; configured as a world of the swarm."""
    rng = random.Random(seed)
    like = swarm.random_world(rng).scheduler
    shape = CacheShape(like.kv.pool.num_blocks, like.kv.block_size)
    scheduler = Scheduler(like.started_with, shape, vocab_size=VOCAB_SIZE, policy=like.policy)
    engine = Engine(scheduler, FakeExecutor(shape), swarm.stop_matcher)
    stems = [[rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    now = 0.0
    for number in range(num_steps):
        now += 0.01
        with suppress(InvalidRequest):
            engine.add(swarm.random_request(rng, number, now, scheduler.max_model_len, stems))
        if engine.begin(now):
            engine.finish(now)
    return scheduler
