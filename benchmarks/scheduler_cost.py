#!/usr/bin/env python3
"""What the scheduler costs: `schedule` + `commit`, with the prefix cache on, on one thread, without any device.

    .venv/bin/python benchmarks/scheduler_cost.py [--rows 16 64 256 1024 4096] [--order fcfs] [--steps 400]

Three figures for each number of running sequences, in microseconds of CPU time per step and per sequence:

    decode   every sequence decodes
    churn    besides, one ends and one joins in every step
    cold     as decode, after sweeping the processor's caches before every step

Steps are spread over all phases of a block, so that taking and publishing blocks is in the mean as often as it is in
truth. The last line fits cost = fixed + slope x rows through the decode figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import deque
from dataclasses import dataclass

from chairlift.core.policy import OrderName, Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepPlan, StepResult

PROMPT_TOKENS = 40
BLOCK_SIZE = 32
VOCAB_SIZE = 50_000
SWEEP_BYTES = 64 << 20
NUM_OWNERS = 8


@dataclass(slots=True)
class Bench:
    """A scheduler filled with sequences, and the clock of what it takes."""

    scheduler: Scheduler
    next_id: int = 0
    now: float = 0.0
    spent_s: float = 0.0

    def add(self) -> None:
        number = self.next_id
        self.next_id += 1
        prompt = [(number * 31 + i * 7) % VOCAB_SIZE for i in range(PROMPT_TOKENS)]
        params = SamplingParams(max_tokens=1 << 20, ignore_eos=True)
        principal = f"p{number % NUM_OWNERS}"
        self.scheduler.add(Request(number, prompt, params, self.now, eos_token_ids=(0,), principal=principal))

    def step(self) -> StepPlan | None:
        """One step; only the scheduler's own calls count."""
        self.now += 0.03
        began = time.thread_time()
        plan = self.scheduler.schedule(self.now)
        self.spent_s += time.thread_time() - began
        if plan is None:
            return None
        num_rows = len(plan.decodes) + sum(1 for chunk in plan.chunks if chunk.samples)
        result = StepResult([(self.next_id + i) % (VOCAB_SIZE - 1) + 1 for i in range(num_rows)])
        began = time.thread_time()
        output = self.scheduler.commit(result, self.now)
        self.spent_s += time.thread_time() - began
        del output
        return plan


def fill(num_rows: int, order: OrderName, num_steps: int) -> Bench:
    """All decode, and their blocks fill up at different steps."""
    blocks_per_row = (PROMPT_TOKENS + 2 * BLOCK_SIZE + num_steps * 3) // BLOCK_SIZE + 4
    cache = CacheShape(num_rows * blocks_per_row, BLOCK_SIZE)
    limits = Limits(num_rows, max(num_rows + 256, 512), blocks_per_row * BLOCK_SIZE)
    bench = Bench(Scheduler(limits, cache, vocab_size=VOCAB_SIZE, policy=Policy(scheduling_policy=order)))
    per_step = max(1, num_rows // BLOCK_SIZE)
    while bench.next_id < num_rows:
        for _ in range(min(per_step, num_rows - bench.next_id)):
            bench.add()
        bench.step()
    while (plan := bench.step()) is not None and len(plan.decodes) < num_rows:
        pass
    return bench


def decode(bench: Bench, num_steps: int, *, sweep: bytearray | None = None) -> list[float]:
    """Seconds of each step."""
    costs = []
    for _ in range(num_steps):
        if sweep is not None:
            sweep[::64] = bytes(len(sweep) // 64)
        bench.spent_s = 0.0
        bench.step()
        costs.append(bench.spent_s)
    return costs


def churn(bench: Bench, num_steps: int) -> list[float]:
    """Seconds of each step in which the oldest leaves and one more joins; its adding and aborting count."""
    costs = []
    live = deque(sorted(bench.scheduler._live))
    for _ in range(num_steps):
        bench.spent_s = 0.0
        began = time.thread_time()
        bench.scheduler.abort(live.popleft(), bench.now)
        live.append(bench.next_id)
        bench.add()
        bench.spent_s += time.thread_time() - began
        bench.step()
        costs.append(bench.spent_s)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--order", choices=("fcfs", "priority", "fair", "deadline"), default="fcfs")
    parser.add_argument("--steps", type=int, default=4 * BLOCK_SIZE)
    args = parser.parse_args()
    sweep = bytearray(SWEEP_BYTES)
    points = []
    for num_rows in args.rows:
        bench = fill(num_rows, args.order, args.steps)
        gc.collect()
        gc.freeze()  # as the worker does once it is loaded
        warm = statistics.fmean(decode(bench, args.steps))
        cold = statistics.fmean(decode(bench, args.steps, sweep=sweep))
        mixed = statistics.fmean(churn(bench, args.steps))
        points.append((num_rows, warm * 1e6))
        figures = {"rows": num_rows}
        for name, cost_s in (("decode", warm), ("churn", mixed), ("cold", cold)):
            figures |= {f"{name}_us": round(cost_s * 1e6, 1), f"{name}_us_per_row": round(cost_s * 1e6 / num_rows, 3)}
        print(json.dumps(figures), flush=True)
    if len(points) > 1:
        slope, fixed = statistics.linear_regression([r for r, _ in points], [us for _, us in points])
        print(json.dumps({"us_per_row": round(slope, 3), "fixed_us": round(fixed, 1)}))


if __name__ == "__main__":
    main()
