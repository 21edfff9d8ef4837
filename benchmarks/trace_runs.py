#!/usr/bin/env python3
"""Recorded traffic to its end: how much of its prompts a prefix cache finds, beside what an endless one would.

    .venv/bin/python benchmarks/trace_runs.py [--traces DIR] [--part SHARE] [mooncake] [sessions]

Thirty minutes of Mooncake's conversations (prompts as ids of their blocks), and sessions of coding agents (each request
waits for the answer before it, and for its time to think). Llama-3.1-8B by the data sheets of devices: what is measured
here is the cache, and how long it takes to simulate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.sim.cost import device_named, num_kv_tokens, smooth_roofline, transformer_named
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.result import figures
from chairlift.sim.reuse import EndlessCache, everything
from chairlift.sim.router import make_router
from chairlift.sim.run import simulate
from chairlift.sim.traces.agentic import agent_sessions
from chairlift.sim.traces.mooncake import mooncake
from chairlift.sim.workload import Asked
from measured_runs import shared_traces

NUM_REQUESTS, NUM_SESSIONS = 5719, 355
BETWEEN_SESSIONS_S = 20.0
MAX_THINK_S = 600.0
ENDLESS_TOKENS = 96_000_000
"""More than any of the traces writes."""

Open = Callable[[], Iterator[Asked]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="of mooncake, sessions (default: both)")
    parser.add_argument("--traces", type=Path, default=shared_traces(), help="folder with mooncake and agentic in it")
    parser.add_argument("--part", type=float, default=1.0, metavar="SHARE", help="of the trace, from its beginning")
    arguments = parser.parse_args()
    if arguments.traces is None:
        print("../shared/traces is not there", file=sys.stderr)
        return 0
    kinds, part = arguments.kinds or ("mooncake", "sessions"), arguments.part
    if "mooncake" in kinds:
        path = arguments.traces / "mooncake" / "conversation_first_30min.jsonl.gz"
        number = round(NUM_REQUESTS * part)
        show("Mooncake, conversations", lambda: islice(mooncake(path), number), 512, 8)
    if "sessions" in kinds:
        path = arguments.traces / "agentic" / "sessions_1-355.jsonl.gz"
        starts = [BETWEEN_SESSIONS_S * i for i in range(round(NUM_SESSIONS * part))]
        show(
            "Agent sessions",
            lambda: agent_sessions(path, starts, num_sessions=len(starts), max_think_s=MAX_THINK_S),
            64,
            4,
        )
    return 0


def show(name: str, workload: Open, block_size: int, num_engines: int) -> None:
    begun = time.perf_counter()
    endless = EndlessCache(block_size)
    for asked in everything(workload()):
        endless.ask(asked.prompt)
    print(f"\n{name}: an endless cache finds {endless.hit_rate:.1%} of {endless.queried_tokens} prompt tokens")
    print(f"(counted in {time.perf_counter() - begun:.1f} s, in blocks of {block_size})")
    print(
        f"{'engines':<34}{'requests':>9}{'simulated s':>12}{'found':>8}{'preempted':>10}"
        f"{'TTFT p50':>9}{'p99 s':>8}{'wall s':>8}{'CPU s':>8}{'requests/CPU s':>15}"
    )
    model, device = transformer_named("llama-3.1-8b"), device_named("b200")
    cost, num_tokens = smooth_roofline(model, device), num_kv_tokens(model, device)
    for label, number, tokens, router in (
        ("1 B200, all fits", 1, ENDLESS_TOKENS, "least-queued"),
        (f"1 B200, {num_tokens} tokens", 1, num_tokens, "least-queued"),
        (f"{num_engines} B200, session-sticky", num_engines, num_tokens, "session-sticky"),
        (f"{num_engines} B200, prefix-aware", num_engines, num_tokens, "prefix-aware"),
    ):
        setup = EngineSetup(
            cost=cost, max_num_batched_tokens=8192, num_blocks=tokens // block_size, block_size=block_size
        )
        begun, cpu = time.perf_counter(), time.process_time()
        result = simulate(workload(), make_fleet([setup] * number), make_router(router))
        wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        values = figures(result)
        if values["unfinished"]:
            print(f"{values['unfinished']} requests are not over", file=sys.stderr)
        print(
            f"{label:<34}{values['completed']:>9}{values['duration']:>12.0f}{values['prefix_hit_rate']:>8.1%}"
            f"{values['num_preemptions']:>10}{values['median_ttft_ms'] / 1e3:>9.2f}{values['p99_ttft_ms'] / 1e3:>8.2f}"
            f"{wall_s:>8.1f}{cpu_s:>8.1f}{len(result.served) / cpu_s:>15.0f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
