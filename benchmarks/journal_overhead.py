#!/usr/bin/env python3
"""What a journal costs the engine's thread, and the thread that writes it, per step.

    .venv/bin/python benchmarks/journal_overhead.py [--rows 64 1024] [--steps 400] [--step-ms 45]

A scheduler with that many sequences, one of which ends and one joins in every step, on a device that sleeps. Figures
per step, in microseconds of CPU time; the journal is in a temporary folder:

    engine      on the engine's thread: begin and finish with a journal, less the same without
    writer      on the writer's thread: encoding, hashing, writing; it holds the interpreter while it encodes
    percent     both together, as a share of a step of --step-ms
    enough_ms   length of a step of which both together are one percent
    delay       how much later the engine's thread gets through begin and finish by the wall clock: what contention adds
    snapshot    on the engine's thread, once a segment: taking the scheduler apart
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import capture
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepPlan, StepResult
from chairlift.journal.options import JournalOptions
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal

PROMPT_TOKENS = 200
BLOCK_SIZE = 32
VOCAB_SIZE = 50_000
SWITCH_INTERVAL_S = 5e-4
"""As in the worker."""


@dataclass(slots=True)
class SleepingDevice:
    """Samples something at once; its steps take as long as the caller sleeps."""

    step: int = 0

    def submit(self, plan: StepPlan) -> SleepingDevice:
        self.step += 1
        num_rows = len(plan.decodes) + sum(1 for chunk in plan.chunks if chunk.samples)
        self._result = StepResult([(self.step * 7919 + i * 31) % (VOCAB_SIZE - 1) + 1 for i in range(num_rows)])
        return self

    def result(self) -> StepResult:
        return self._result

    _result: StepResult = field(default_factory=lambda: StepResult([]))


@dataclass(slots=True)
class Bench:
    """An engine full of sequences, driven on the wall clock."""

    engine: Engine
    num_rows: int
    pause_s: float
    next_id: int = 0
    live: deque[int] = field(default_factory=deque)

    def add(self) -> None:
        number = self.next_id
        self.next_id += 1
        prompt = [(number * 31 + i * 7) % VOCAB_SIZE for i in range(PROMPT_TOKENS)]
        params = SamplingParams(max_tokens=1 << 20, ignore_eos=True)
        self.engine.add(Request(number, prompt, params, time.monotonic(), eos_token_ids=(0,)))
        self.live.append(number)

    def fill(self) -> None:
        while len(self.live) < self.num_rows:
            self.add()
        while self.engine.begin(time.monotonic()):
            num_rows = self.engine.num_step_rows
            self.engine.finish(time.monotonic())
            if num_rows == self.num_rows:
                return

    def run(self, num_steps: int) -> tuple[float, float, float]:
        """Microseconds per step: CPU of this thread, CPU of other threads, wall clock outside the device."""
        cpu_s, wall_s = 0.0, []
        process, thread = time.process_time(), time.thread_time()
        for _ in range(num_steps):
            began_cpu, began = time.thread_time(), time.perf_counter()
            self.engine.abort(self.live.popleft(), time.monotonic())
            self.add()
            self.engine.begin(time.monotonic())
            cpu_s += time.thread_time() - began_cpu
            spent = time.perf_counter() - began
            time.sleep(self.pause_s)
            began_cpu, began = time.thread_time(), time.perf_counter()
            self.engine.finish(time.monotonic())
            cpu_s += time.thread_time() - began_cpu
            wall_s.append(spent + time.perf_counter() - began)
        others = time.process_time() - process - (time.thread_time() - thread)
        return cpu_s / num_steps * 1e6, others / num_steps * 1e6, statistics.fmean(wall_s) * 1e6


def make(num_rows: int, num_steps: int, pause_s: float, journal: Journal | None) -> Bench:
    blocks_per_row = (PROMPT_TOKENS + 2 * num_steps) // BLOCK_SIZE + 4
    cache = CacheShape(num_rows * blocks_per_row, BLOCK_SIZE)
    limits = Limits(num_rows, num_rows + 4 * PROMPT_TOKENS, blocks_per_row * BLOCK_SIZE)
    scheduler = Scheduler(limits, cache, vocab_size=VOCAB_SIZE)
    bench = Bench(Engine(scheduler, SleepingDevice(), recorder=journal), num_rows, pause_s)
    if journal is not None:
        journal.start(scheduler)
    bench.fill()
    gc.collect()
    gc.freeze()  # as the worker does once it is loaded
    return bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=45.0, help="length of a step that shares refer to")
    parser.add_argument("--pause-ms", type=float, default=10.0, help="what the device really takes here")
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for num_rows in args.rows:
        plain_us, _, plain_wall_us = make(num_rows, args.steps, args.pause_ms / 1e3, None).run(args.steps)
        for digest in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                files = SegmentFiles(Path(folder) / "journal", 4)
                journal = Journal(JournalOptions(digest=digest), files)
                bench = make(num_rows, args.steps, args.pause_ms / 1e3, journal)
                time.sleep(1.0)  # what was recorded so far is written
                size = files.size
                engine_us, writer_us, wall_us = bench.run(args.steps)
                began = time.thread_time()
                capture(bench.engine.scheduler)
                snapshot_ms = (time.thread_time() - began) * 1e3
                journal.close()
                size = files.size - size
            added_us = engine_us - plain_us
            figures = {
                "rows": num_rows,
                "digest": digest,
                "engine_us": round(added_us, 1),
                "writer_us": round(writer_us, 1),
                "percent": round((added_us + writer_us) / args.step_ms / 10, 3),
                "enough_ms": round((added_us + writer_us) / 10, 1),
                "delay_us": round(wall_us - plain_wall_us, 1),
                "bytes_per_step": size // args.steps,
                "snapshot_ms": round(snapshot_ms, 2),
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
