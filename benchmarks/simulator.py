#!/usr/bin/env python3
"""How fast the simulator is, on one thread: the lesson, mixed load, pure decode.

    .venv/bin/python benchmarks/simulator.py

Times are of the processor, so that others on the machine count less. Wanted: 1,500 requests/s with answers of 250
tokens, 1,000,000 output tokens/s in pure decode.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from chairlift.sim.arrivals import Arrivals, steady
from chairlift.sim.cost import device_named, smooth_roofline, transformer_named
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.lengths import Fixed
from chairlift.sim.presets import Lesson
from chairlift.sim.result import figures
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traffic import Kind, open_loop
from chairlift.sim.workload import Contents

Done = TypeVar("Done")
SETUP = EngineSetup(
    cost=smooth_roofline(transformer_named("llama-3.1-8b"), device_named("h100")), max_num_batched_tokens=8192
)


def main() -> int:
    seconds, _ = timed(lambda: list(Lesson().rows()))
    print(f"lesson: {seconds:.2f} s")
    print("answers of 250 tokens after prompts of 256, prefix cache on:")
    for rate, max_num_seqs in ((20.0, 256), (40.0, 256), (60.0, 256), (1e9, 64), (1e9, 128)):
        load(rate, max_num_seqs, 3000, prompt=256, output=250)
    print("pure decode: answers of 4,000 tokens after prompts of 16, all at once:")
    load(1e9, 256, 512, prompt=16, output=4000)
    return 0


def load(rate: float, max_num_seqs: int, num_requests: int, *, prompt: int, output: int) -> None:
    kind = Kind(prompt=Fixed(prompt), output=Fixed(output))
    asked = open_loop(kind, Arrivals(steady(rate)), Contents(), 0, num_requests)
    fleet = make_fleet([replace(SETUP, max_num_seqs=max_num_seqs)])
    seconds, result = timed(lambda: simulate(asked, fleet, RoundRobin()))
    (engine,) = figures(result)["replicas"]
    print(
        f"  {rate:6g} requests/s into {max_num_seqs} slots, {engine['max_running']} at most running: "
        f"{num_requests / seconds:5.0f} requests/s, {num_requests * output / seconds / 1e6:.2f} million tokens/s"
    )


def timed(run: Callable[[], Done]) -> tuple[float, Done]:
    """Seconds of the processor, and what came of it."""
    begun = time.process_time()
    done = run()
    return time.process_time() - begun, done


if __name__ == "__main__":
    raise SystemExit(main())
