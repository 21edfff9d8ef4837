"""Worlds like those of the swarm, recorded into small segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidOption, InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Finish, LimitChange, StepOutput, StepPlan, StepResult
from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import Replayed, replay
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal
from core import swarm
from fakes import VOCAB_SIZE, FakeExecutor, check

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


class World:
    """An engine configured, loaded and troubled as a world of the swarm, without the swarm's oracles: they ask the
    scheduler what it would not ask itself, and a replay does not."""

    def __init__(self, rng: random.Random, journal: Journal | None = None) -> None:
        self.scheduler = like(swarm.random_world(rng).scheduler)
        pool = self.scheduler.kv.pool
        self.faults = swarm.Faults()
        self.executor = FakeExecutor(
            CacheShape(pool.num_blocks, self.scheduler.kv.block_size),
            fail_submit=self.faults.submit,
            fail_step=self.faults.step,
            fail_row=self.faults.row,
        )
        faulty = swarm.FaultyExecutor(self.executor, self.faults)
        self.engine = Engine(self.scheduler, faulty, swarm.stop_matcher, recorder=journal)
        if journal is not None:
            journal.attach(self.scheduler)
        self.finishes: list[Finish] = []
        self._rng = rng
        self._stems = [[rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
        self._load, self._fault_rate = rng.choice([0.05, 0.2, 0.6]), rng.choice([0.0, 0.02, 0.1])
        self._num_requests = 0
        self._now = 0.0

    def live(self, num_steps: int) -> None:
        """So many steps under load, then everything drains."""
        for _ in range(num_steps):
            self._pass(0.0, 0.0, 0.01, 0.01, 0.03, 30.0 if self._happens(0.1) else 0.0)
            if self._happens(self._fault_rate / 10):
                self._pass(-1.0)
            self._meddle()
            self._trouble()
            self._step(meddle=True)
        self.engine.close()
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self._step(meddle=False)
            self._pass(0.01)
        check(not self.engine.has_work and not self.executor.violations, "the world went wrong")

    def _step(self, *, meddle: bool) -> None:
        if not self.engine.begin(self._now):
            self.finishes += self.engine.flush(self._now).finishes
            return
        if meddle:
            self._meddle()
        self._pass(0.0, 0.01, 0.02)
        self.finishes += self.engine.finish(self._now).finishes
        self.faults.clear()

    def _meddle(self) -> None:
        """Whatever callers do."""
        rng, engine, scheduler = self._rng, self.engine, self.scheduler
        if self._happens(self._load) and len(scheduler._live) < 25:
            number = self._num_requests
            self._num_requests += 1
            with suppress(InvalidRequest):
                engine.add(swarm.random_request(rng, number, self._now, scheduler.max_model_len, self._stems))
        if self._num_requests and self._happens(self._fault_rate):
            engine.abort(rng.randrange(self._num_requests), self._now)
        if self._happens(self._fault_rate / 4):
            most = scheduler.started_with
            max_num_seqs = rng.randint(1, most.max_num_seqs)
            change = LimitChange(
                max_num_seqs,
                long_prefill_token_threshold=rng.choice([None, 0, 2]),
                itl_objective_s=rng.choice([None, 0.0, 0.02]),
            )
            with suppress(InvalidOption):
                engine.set_limits(change)

    def _trouble(self) -> None:
        """Whatever devices do."""
        rng, faults = self._rng, self.faults
        if self.scheduler._live and self._happens(self._fault_rate / 2):
            faults.rows.add(rng.choice(sorted(self.scheduler._live)))
        if self._happens(self._fault_rate / 4):
            faults.phase = rng.choice(["submit", "step"])
        if self._happens(self._fault_rate / 4):
            faults.result = rng.choice(["short", "long", "range"])

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _pass(self, *seconds: float) -> None:
        self._now += self._rng.choice(seconds)


def like(other: Scheduler) -> Scheduler:
    """A scheduler made as another one was."""
    return Scheduler(
        other.started_with,
        CacheShape(other.kv.pool.num_blocks, other.kv.block_size),
        vocab_size=VOCAB_SIZE,
        enable_prefix_caching=other.kv._enable_prefix_caching,
        policy=other.policy,
    )


def run(seed: int, num_steps: int, journal: Journal | None = None) -> World:
    """One world to its end."""
    world = World(random.Random(seed), journal)
    world.live(num_steps)
    return world


def record(seed: int, num_steps: int, path: Path, *, digest: bool = False) -> World:
    """One world to its end, with its journal."""
    with closing(journal_at(path, digest=digest)) as journal:
        return run(seed, num_steps, journal)


def segments(path: Path) -> Sequence[Path]:
    """Files of a journal, oldest first."""
    older = sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda p: -int(p.suffix[1:]))
    return [*older, path]


def replay_file(path: Path) -> Replayed:
    with path.open("rb") as file:
        return replay(file)


def busy_scheduler(seed: int, num_steps: int = 40) -> Scheduler:
    """A scheduler in the middle of its work, between two steps."""
    world = World(random.Random(seed))
    world._load = 1.0
    for _ in range(num_steps):
        world._pass(0.01)
        world._meddle()
        world._step(meddle=False)
    return world.scheduler
