#!/usr/bin/env python3
"""An inter-token objective on the real engine, under a load that doubles half-way.

    .venv/bin/python benchmarks/itl_objective.py [MODEL] --objectives-ms 25 50 100

First what the engine serves without an objective is measured, and what a step of one row takes; objectives not given
are 3, 6 and 12 times that. Then a Poisson load of 0.6 times what it serves, and of 1.2 times that, is served for
`--seconds` each, once without an objective and once under each. Prints a line for each run: the
50th, 90th and 99th percentile of inter-token latency in both phases in ms, output tokens per second, median TTFT.
Exits with 1 if a run's 90th percentile is above 1.25 times its objective in a phase.

The machine should be quiet: a neighbour's burst is a latency like any other.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from chairlift.bench.in_process import Listener, Loop, Recording, serve
from chairlift.cli.in_process import EngineThread
from chairlift.core.policy import Policy
from chairlift.core.types import Request, SamplingParams
from chairlift.metrics.latency import percentile
from chairlift.models import DEFAULT_MODEL
from chairlift.worker.build import LoadedModel, load
from chairlift.worker.options import EngineOptions

LOW, HIGH = 0.6, 1.2
"""Share of what can be served that is asked for in the first and in the second phase."""
FACTORS = (3.0, 6.0, 12.0)
"""Objectives unless told: so many steps of one row."""
TOLERANCE = 1.25
SETTLE_S = 2.0


def make_requests(count: int, num_prompt: int, median_output: float, vocab_size: int, seed: int) -> list[Request]:
    """Random prompts, half to twice as long as said; answers with log-normal lengths."""
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        length = round(num_prompt * 2.0 ** rng.uniform(-1.0, 1.0))
        max_tokens = min(max(round(median_output * rng.lognormvariate(0.0, 0.6)), 2), 400)
        prompt = [rng.randrange(vocab_size) for _ in range(length)]
        requests.append(Request(i, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)))
    return requests


def poisson(rates: Sequence[float], seconds: float, seed: int) -> list[float]:
    """Arrivals in seconds, each rate for so long."""
    rng = random.Random(seed)
    arrivals: list[float] = []
    for phase, rate in enumerate(rates):
        now = phase * seconds
        while (now := now + rng.expovariate(rate)) < (phase + 1) * seconds:
            arrivals.append(now)
    return arrivals


def run(loaded: LoadedModel, policy: Policy, requests: Sequence[Request], arrivals: Sequence[float]) -> Recording:
    def start(policy: Policy, listener: Listener) -> Loop:
        return EngineThread(loaded.engine(policy, listener), listener, time.monotonic)

    return serve(start, policy, requests, arrivals, clock=time.monotonic, sleep=time.sleep)


def latencies(recording: Recording, since: float, until: float) -> list[float]:
    """Gaps between tokens, ascending, by when the later one came, in seconds after the run began."""
    begun = recording.load.begun
    return sorted(
        later - earlier
        for exchange in recording.load.exchanges
        for earlier, later in zip(exchange.deliveries, exchange.deliveries[1:], strict=False)
        if since <= later - begun < until
    )


def report(recording: Recording, seconds: float, objective_ms: float) -> bool:
    """Print a run's line. False if it missed its objective."""
    line, kept, begun = f"{objective_ms:5.0f} ms:" if objective_ms else "    none:", True, recording.load.begun
    for phase in (0, 1):
        gaps = latencies(recording, phase * seconds + SETTLE_S, (phase + 1) * seconds)
        low, middle, high = (percentile(gaps, at) * 1e3 for at in (50.0, 90.0, 99.0))
        count = sum(
            phase * seconds + SETTLE_S <= when - begun < (phase + 1) * seconds
            for exchange in recording.load.exchanges
            for when in exchange.deliveries
        )
        ttfts = sorted(
            exchange.ttft_s
            for exchange in recording.load.exchanges
            if exchange.ttft_s is not None and phase * seconds <= exchange.start - begun < (phase + 1) * seconds
        )
        line += f"   {low:6.1f} {middle:6.1f} {high:6.1f}  {count / (seconds - SETTLE_S):6.0f} tok/s"
        line += f"  TTFT {percentile(ttfts, 50.0):6.2f} s"
        kept = kept and (not objective_ms or middle <= TOLERANCE * objective_ms)
    everything = latencies(recording, 0.0, 2 * seconds)
    line += f"   over all p90 {percentile(everything, 90.0) * 1e3:6.1f} p99 {percentile(everything, 99.0) * 1e3:6.1f}"
    print(line + ("" if kept else "   MISSED"), flush=True)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--objectives-ms", type=float, nargs="+")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-median", type=float, default=64.0)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    options = EngineOptions(
        model=arguments.model, max_num_seqs=arguments.max_num_seqs, num_threads=arguments.num_threads
    )
    loaded = load(options)
    policy = options.policy()
    sizes = (arguments.prompt_tokens, arguments.output_median, loaded.model.config.vocab_size)
    warm = make_requests(arguments.max_num_seqs, *sizes, seed=arguments.seed + 1)
    measured = run(loaded, policy, warm, [0.0] * len(warm))
    capacity = len(warm) / measured.load.duration_s
    alone = run(loaded, policy, make_requests(1, 32, 100.0, sizes[-1], seed=arguments.seed), [0.0])
    step_ms = percentile(latencies(alone, 0.0, math.inf), 50.0) * 1e3
    objectives_ms = arguments.objectives_ms or [factor * step_ms for factor in FACTORS]
    rate = measured.num_tokens / measured.load.duration_s
    print(
        f"{capacity:.2f} requests/s, {rate:.0f} tokens/s without an objective; {step_ms:.1f} ms a step of one row",
        flush=True,
    )
    arrivals = poisson([LOW * capacity, HIGH * capacity], arguments.seconds, arguments.seed)
    requests = make_requests(len(arrivals), *sizes, seed=arguments.seed)
    kept = True
    for objective_ms in (0.0, *objectives_ms):
        recording = run(loaded, replace(policy, itl_objective_s=objective_ms / 1e3), requests, arrivals)
        kept = report(recording, arguments.seconds, objective_ms) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
