"""Many quiet steps at once leave behind exactly what one after the other does."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate, repeat
from typing import get_args

import pytest

from chairlift.core.policy import OrderName, Policy
from chairlift.core.quiet import advance, next_decision_at, quiet_steps
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import capture
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepOutput, StepResult

TOKEN = 7
STEP_S = 0.03


def random_scheduler(rng: random.Random) -> Scheduler:
    held = rng.random() < 0.3
    policy = Policy(
        batching=rng.choice(("static", "dynamic")) if held else "continuous",
        max_batch_wait_s=0.05 if held else None,
        kv_reservation=rng.choice(("max", "on-demand")),
        prefill_first=not held and rng.random() < 0.2,
        scheduling_policy=rng.choice(get_args(OrderName)),
        priority_ageing_s=rng.choice([0.0, 1.0, 60.0]),
        max_bypass=rng.choice([0, 4]),
    )
    max_num_seqs = rng.choice([1, 3, 8])
    return Scheduler(
        Limits(max_num_seqs, max_num_seqs + rng.choice([0, 5, 100]), 200),
        CacheShape(rng.choice([20, 60, 300]), rng.choice([1, 4, 16])),
        vocab_size=100,
        enable_prefix_caching=rng.random() < 0.7,
        policy=policy,
    )


def random_requests(rng: random.Random, scheduler: Scheduler) -> list[Request]:
    longest = min(scheduler.max_model_len - 2, 60)
    requests = []
    for number in range(rng.randint(1, 30)):
        arrival = rng.choice([0.0, rng.uniform(0.0, 4.0)])
        requests.append(
            Request(
                number,
                [rng.choice([1, 2])] * rng.randint(1, longest),
                SamplingParams(max_tokens=rng.randint(1, 100), ignore_eos=True),
                arrival,
                priority=rng.choice([0, 0, 1]),
                principal=rng.choice(["a", "b"]),
                e2e_deadline=arrival + 1.0 if rng.random() < 0.1 else None,
            )
        )
    return sorted(requests, key=lambda request: request.arrival)


class Run:
    """Drives a scheduler in equal steps, through as many quiet ones at once as may be."""

    def __init__(self, scheduler: Scheduler, requests: list[Request], most: int) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.num_quiet = 0
        self.num_steps = 0
        self.log: list[object] = []
        self._queue = requests[::-1]
        self._most = most

    def run(self) -> None:
        while self._queue or self.scheduler.has_work:
            while self._queue and self._queue[-1].arrival <= self.now:
                self.scheduler.add(self._queue.pop())
            if not self._queue:
                self.scheduler.close()
            self._skip()
            self._step()
            if self.num_steps % 8 == 0:  # a capture takes as long as many steps
                self.log.append((self.now, capture(self.scheduler)))

    def _skip(self) -> None:
        bounds = [when for when in (next_decision_at(self.scheduler),) if when is not None]
        bounds += [self._queue[-1].arrival] if self._queue else []
        limit = min(self._most, quiet_steps(self.scheduler, TOKEN))
        if bounds:
            limit = min(limit, int((min(bounds) - self.now) / STEP_S) - 1)
        if limit > 0:
            *begins, self.now = accumulate(repeat(STEP_S, limit), initial=self.now)
            advance(self.scheduler, TOKEN, begins)
            self.num_quiet += limit
            self.num_steps += limit

    def _step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        self.now += STEP_S
        self.num_steps += 1
        if plan is None:
            output = self.scheduler.take_ended()
        else:
            num_rows = len(plan.decodes) + sum(1 for chunk in plan.chunks if chunk.samples)
            output = self.scheduler.commit(StepResult([TOKEN] * num_rows), self.now)
        self._note(output)

    def _note(self, output: StepOutput) -> None:
        self.log += [replace(finish) for finish in output.finishes]


@pytest.mark.parametrize("tenth", range(10))
def test_quiet_steps_are_bit_identical_to_stepping(tenth: int) -> None:
    num_quiet = 0
    for seed in range(tenth, 100, 10):
        runs = []
        for most in (0, 1_000_000):
            rng = random.Random(seed)
            scheduler = random_scheduler(rng)
            runs.append(Run(scheduler, random_requests(rng, scheduler), most))
            runs[-1].run()
        stepped, skipped = runs
        num_quiet += skipped.num_quiet
        assert stepped.now == skipped.now
        states: dict[float, object] = dict(entry for entry in stepped.log if isinstance(entry, tuple))
        for entry in skipped.log:
            if isinstance(entry, tuple):
                assert states[entry[0]] == entry[1], f"seed {seed}, at {entry[0]}"
        ends = [[e for e in run.log if not isinstance(e, tuple)] for run in runs]
        assert ends[0] == ends[1]
    assert num_quiet > 100


def test_more_than_is_quiet_is_refused() -> None:
    scheduler = Scheduler(Limits(2, 10, 100), CacheShape(20, 4), vocab_size=100)
    with pytest.raises(ValueError, match="not quiet"):
        advance(scheduler, TOKEN, [0.0])
