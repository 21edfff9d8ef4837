#!/usr/bin/env python3
"""The controller against every fixed setting, on a virtual clock, under a load that doubles half-way and halves again.

    .venv/bin/python benchmarks/controller.py

Two devices: one whose steps cost what their parts cost (a CPU), one that reads its weights while it computes (a GPU),
both with 5 % noise. For each objective one line: the 99th percentile of inter-token latency in each phase once settled
and over all, output tokens per second under overload, and the fastest of the swept fixed settings that holds the
objective in every phase. Then objectives for the time to first token alone, a device that becomes slower while it
serves, and what the controller itself costs per step.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.core.controller import Controller
from chairlift.core.policy import Policy
from chairlift.core.types import Limits, Request, StepPlan
from load_steps import (
    CPU_LOAD,
    GPU_LOAD,
    NOISE,
    Load,
    best_fixed,
    serve_steered,
    steered_driver,
    sweep_fixed,
)
from virtual_engine import CPU_LIKE, VirtualEngine, percentile_of, virtual_scheduler

FIXED = {
    "cpu": (CPU_LOAD, (4, 8, 16, 32, 48, 64, 96, 128, 256), (16, 32, 64, 128, 256, 512)),
    "gpu": (GPU_LOAD, (64, 128, 192, 256, 384, 512, 1024), (32, 64, 128, 256, 512, 1024, 2048)),
}
OBJECTIVES_S = {"cpu": (0.02, 0.03, 0.05, 0.1, 0.2), "gpu": (0.015, 0.02, 0.03, 0.05, 0.1)}


@dataclass(slots=True)
class SlowingCost:
    """A CPU that something else may slow down by a factor."""

    factor: float = 1.0

    def __call__(self, plan: StepPlan) -> float:
        return self.factor * CPU_LIKE(plan)


def compare_with_fixed(device: str, seeds: Sequence[int]) -> None:
    load, num_seqs, num_tokens = FIXED[device]
    print(f"\n{device}: p99 ITL in ms by phase, over all; tokens/s under overload; median TTFT in s there")
    for seed in seeds:
        requests = load.requests(seed)
        fixed = sweep_fixed(load, requests, itertools.product(num_seqs, num_tokens), seed)
        for objective_s in OBJECTIVES_S[device]:
            steered = serve_steered(load, requests, objective_s, seed)
            best = best_fixed(fixed, objective_s)
            phases = " ".join(f"{value * 1e3:6.1f}" for value in steered.p99_itl_s)
            line = f"seed {seed}  {objective_s * 1e3:4.0f} ms: {phases}  all {steered.p99_itl_overall_s * 1e3:6.1f}"
            line += f"  {steered.tokens_per_s:6.0f} tok/s  TTFT {steered.p50_ttft_s[1]:5.2f}"
            if best is not None:
                ratio = steered.tokens_per_s / best.tokens_per_s
                overall = steered.tokens_per_s_overall / best.tokens_per_s_overall
                line += (
                    f"  best fixed {best.tokens_per_s:6.0f} ({best.setting}): {ratio:.2f} of it, {overall:.2f} over all"
                )
            print(line, flush=True)


def spread_prompts(load: Load, requests: Sequence[Request], seed: int) -> None:
    print("\ncpu, objectives for the time to first token alone: p50 and p95 TTFT in s, p50 and p99 ITL in ms, by phase")
    for objective_s in (0.3, 1.0, 3.0):
        driver = steered_driver(load, Policy(ttft_objective_s=objective_s, max_step_s=0.25), seed)
        driver.run(requests, until=load.duration_s)
        line, begin = f"{objective_s:4.1f} s:", 0.0
        for seconds, _ in load.phases:
            span = (begin + load.settle_s, begin + seconds)
            ttfts, itls = driver.ttfts(*span), driver.inter_token_latencies(*span)
            line += f"   {percentile_of(ttfts, 50):5.2f} {percentile_of(ttfts, 95):5.2f}"
            line += f"  {percentile_of(itls, 50) * 1e3:5.1f} {percentile_of(itls, 99) * 1e3:5.1f}"
            begin += seconds
        print(line, flush=True)


def slow_down(load: Load, requests: Sequence[Request], seed: int) -> None:
    print("\ncpu, objective 50 ms, the device becomes slower at 60 s by a factor: p99 ITL in ms per 2 s from there")
    for factor in (1.5, 2.0, 4.0):
        cost = SlowingCost()
        scheduler = virtual_scheduler(
            load.max_num_seqs, load.max_num_batched_tokens, policy=Policy(itl_objective_s=0.05)
        )
        driver = VirtualEngine(scheduler, cost, noise=NOISE, seed=seed)
        driver.run([request for request in requests if request.arrival < 60.0], until=60.0)
        cost.factor = factor
        driver.run([request for request in requests if request.arrival >= 60.0], until=80.0)
        spans = [(at, at + 2.0) for at in range(60, 80, 2)]
        cells = [f"{percentile_of(driver.inter_token_latencies(*span), 99) * 1e3:6.0f}" for span in spans]
        print(f"{factor:4.1f}:", *cells, flush=True)


def measure_cost() -> None:
    controller = Controller(Limits(1024, 8192, 8192), itl_objective_s=0.05, ttft_objective_s=0.0, max_step_s=0.25)
    rng = random.Random(1)
    plans = [
        StepPlan(i, decodes=list(range(rows)), num_context_tokens=rows * 200, num_chunk_tokens=64, num_chunk_pairs=9000)
        for i, rows in enumerate(rng.randrange(1, 1000) for _ in range(5000))
    ]
    costs = {}
    for name in ("observe", "chunk_tokens", "max_num_seqs"):
        start = time.thread_time()
        for plan in plans:
            if name == "observe":
                controller.observe(plan, 0.02 + 10e-6 * len(plan.decodes))
            elif name == "chunk_tokens":
                controller.chunk_tokens(plan, len(plan.decodes), plan.num_context_tokens, 100, 500)
            else:
                controller.max_num_seqs(len(plan.decodes), 3, plan.num_context_tokens)
        costs[name] = (time.thread_time() - start) / len(plans) * 1e6
    print("\nmicroseconds a call:", ", ".join(f"{name} {value:.1f}" for name, value in costs.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", choices=sorted(FIXED), default=sorted(FIXED))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    measure_cost()
    requests = CPU_LOAD.requests(arguments.seeds[0])
    spread_prompts(CPU_LOAD, requests, arguments.seeds[0])
    slow_down(CPU_LOAD, requests, arguments.seeds[0])
    for device in arguments.devices:
        compare_with_fixed(device, arguments.seeds)


if __name__ == "__main__":
    main()
