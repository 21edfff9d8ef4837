#!/usr/bin/env python3
"""What a step costs besides the device: schedule, inputs, sampling of greedy rows, commit, frame, sending.

    .venv/bin/python benchmarks/worker_overhead.py --rows 64 256 1024

Everything is real but the device: the scheduler, the engine, the loop, the OpenVINO executor's rows and inputs, the
sampler on logits of the given vocabulary, and an outbox on a socket that another process reads. Prints one JSON line
for each number of rows: microseconds per row and step on the loop's thread (its CPU time, so that neighbours on the
machine do not count), while all rows decode; `parts` says what takes them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepPlan, StepResult
from chairlift.executors.openvino.inputs import Rows, num_outputs
from chairlift.sampling import Sampler
from chairlift.wire import Add, FromWorker
from chairlift.worker.loop import EngineLoop
from chairlift.worker.outbox import Outbox

PROMPT_TOKENS = 40
BLOCK_SIZE = 32

DRAIN = "import os, sys\nwhile os.read(int(sys.argv[1]), 1 << 20): pass"


@dataclass(slots=True)
class InstantPending:
    executor: InstantExecutor
    plan: StepPlan

    def result(self) -> StepResult:
        return self.executor.compute(self.plan)


class InstantExecutor:
    """Takes no time for the model; samples from the same random logits in each step."""

    def __init__(self, num_slots: int, vocab_size: int, cache: CacheShape) -> None:
        self.rows = Rows(num_slots, cache.num_blocks // num_slots, cache.block_size)
        self.sampler = Sampler(num_slots, vocab_size)
        self.logits = np.random.default_rng(1).standard_normal((num_slots, vocab_size), np.float32)
        self.inputs_s = 0.0
        self.sampling_s = 0.0

    def submit(self, plan: StepPlan) -> InstantPending:
        start = time.thread_time()
        self.rows.apply(plan)
        self.rows.assemble(plan, plan.num_tokens, num_outputs(plan, self.rows))
        self.inputs_s += time.thread_time() - start
        for slot in plan.leaves:
            self.sampler.leave(slot)
        for join in plan.joins:
            self.sampler.join(join.slot, join.request, join.choice, join.tokens)
        return InstantPending(self, plan)

    def compute(self, plan: StepPlan) -> StepResult:
        start = time.thread_time()
        slots = np.array([*plan.decodes, *(chunk.slot for chunk in plan.chunks if chunk.samples)], np.int64)
        sampled = self.sampler.sample(slots, self.logits[: len(slots)], None)
        self.sampling_s += time.thread_time() - start
        start = time.thread_time()
        self.rows.advance(plan, slots, sampled.tokens)
        self.inputs_s += time.thread_time() - start
        return StepResult(sampled.tokens, sampled.logprobs, errors=sampled.errors)


def measure(rows: int, vocab_size: int, num_steps: int) -> dict[str, object]:
    """Microseconds per row and step, in the middle of a run where all rows decode."""
    length = PROMPT_TOKENS + num_steps
    cache = CacheShape(rows * (length // BLOCK_SIZE + 2), BLOCK_SIZE)
    limits = Limits(rows, max(2048, rows), length + 1)
    executor = InstantExecutor(rows, vocab_size, cache)
    engine = Engine(Scheduler(limits, cache, vocab_size=vocab_size), executor)
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    reader = subprocess.Popen([sys.executable, "-c", DRAIN, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    theirs.close()
    outbox = Outbox(ours)
    threading.Thread(target=outbox.run, daemon=True).start()

    stamps: list[tuple[float, ...]] = []
    frame_s = 0.0

    def emit(message: FromWorker) -> None:
        nonlocal frame_s
        start = time.thread_time()
        outbox.put(message)
        now = time.thread_time()
        frame_s += now - start
        stamps.append((now, frame_s, executor.inputs_s, executor.sampling_s))

    loop = EngineLoop(engine, time.monotonic, emit)
    params = SamplingParams(max_tokens=num_steps, temperature=0.0, ignore_eos=True)
    for i in range(rows):
        loop.submit(Add(Request(i, [(i * 31 + j) % vocab_size for j in range(PROMPT_TOKENS)], params)))
    stop_when(loop, lambda: len(stamps) >= num_steps + PROMPT_TOKENS * rows // limits.max_num_batched_tokens)
    loop.run()
    ours.close()
    reader.wait()

    first, last = len(stamps) // 4, len(stamps) * 3 // 4
    total, frame, inputs, sampling = (
        (b - a) * 1e6 / rows / (last - first) for a, b in zip(stamps[first], stamps[last], strict=True)
    )
    named = {"inputs": inputs, "sampling": sampling, "frame": frame, "rest": total - inputs - sampling - frame}
    parts = {name: round(value, 2) for name, value in named.items()}
    return {"rows": rows, "vocab_size": vocab_size, "us_per_row": round(total, 2), "parts": parts}


def stop_when(loop: EngineLoop, done: Callable[[], bool]) -> None:
    """Stop the loop from a thread once everything has been emitted."""

    def watch() -> None:
        while not done():
            time.sleep(0.05)
        loop.stop()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--vocab-size", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    for rows in arguments.rows:
        print(json.dumps(measure(rows, arguments.vocab_size, arguments.steps)), flush=True)


if __name__ == "__main__":
    main()
