"""Puts a load on a server: open loop by arrival times, closed loop by a limit on concurrency, or both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from chairlift.bench.datasets import Sample
from chairlift.bench.exchange import Exchange

Ask = Callable[[Sample], Awaitable[Exchange]]


@dataclass(slots=True)
class Load:
    """A run in progress and, in the end, what came of it. Exchanges are in the order of the samples."""

    num_requests: int
    begun: float
    num_started: int = 0
    num_done: int = 0
    num_failed: int = 0
    duration_s: float = 0.0
    client_cpu_s: float = 0.0
    """Processor time of this process during the run, all threads: what the measuring itself cost."""
    exchanges: list[Exchange] = field(default_factory=list)


async def run_load(
    samples: Sequence[Sample],
    arrivals: Sequence[float],
    ask: Ask,
    *,
    max_concurrency: int | None,
    clock: Callable[[], float],
    on_start: Callable[[Load], None] = lambda load: None,
) -> Load:
    """Ask each sample at its arrival, in seconds from now, but never more than `max_concurrency` at a time.

    A request held back by the limit starts as soon as one ends, and its `queue_s` says how late it was.
    """
    load = Load(num_requests=len(samples), begun=clock())
    gate = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    exchanges: list[Exchange | None] = [None] * len(samples)

    async def one(i: int, due: float) -> None:
        exchange = await ask(samples[i])
        exchange.queue_s = max(0.0, exchange.start - due)
        exchanges[i] = exchange
        load.num_done += 1
        load.num_failed += exchange.error is not None
        if gate is not None:
            gate.release()

    cpu = time.process_time()
    on_start(load)
    async with asyncio.TaskGroup() as tasks:
        for i, arrival in enumerate(arrivals):
            due = load.begun + arrival
            while (wait := due - clock()) > 0.0:
                await asyncio.sleep(wait)
            if gate is not None:
                await gate.acquire()
            load.num_started += 1
            tasks.create_task(one(i, due))
    load.duration_s = clock() - load.begun
    load.client_cpu_s = time.process_time() - cpu
    load.exchanges = [exchange for exchange in exchanges if exchange is not None]
    return load
