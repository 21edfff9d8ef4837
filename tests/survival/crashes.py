"""Engines that are killed or hang while streams are in flight (S14)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.served import Served, is_running, served
from survival.client import Report, Stream, get

SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.02


@dataclass(frozen=True)
class Crashes:
    """So many kills and hangs, one after the other, of the engine of one server."""

    num_kills: int = 10
    num_hangs: int = 5
    num_streams: int = 16
    load_s: float = 0.5
    stall_timeout_s: float = 2.0


@dataclass
class Seen:
    """Seconds after one crash."""

    is_hang: bool
    health_s: float
    errors_s: float
    ready_s: float
    num_errors: int
    num_done: int
    orphan: bool


def crashes(size: Crashes) -> Report:
    """Health says so, streams get an error and never `[DONE]`, and another engine serves soon; nothing is left over."""
    worker = {"step_s": 0.02, "load_s": size.load_s, "heartbeat_s": 0.2, "max_num_seqs": 64, "num_blocks": 1 << 16}
    options: dict[str, Any] = {
        "stall_timeout_s": size.stall_timeout_s,
        "max_engine_restarts": 1000,
        "log_requests": False,
    }
    names = {*SHARED_MEMORY.iterdir()}
    with served(worker, **options) as server:
        told = [signal.SIGKILL] * size.num_kills + [signal.SIGSTOP] * size.num_hangs
        seen = [asyncio.run(_crash(server, number, size)) for number in told]
        last = server.worker_pids()
        server.tell(signal.SIGKILL)
        server.status()
        time.sleep(0.5)
        orphans = sum(is_running(pid) for pid in last) + sum(one.orphan for one in seen)
    kills, hangs = [one for one in seen if not one.is_hang], [one for one in seen if one.is_hang]
    stale = len({*SHARED_MEMORY.iterdir()} - names)
    num_streams = len(seen) * size.num_streams
    errors, done = sum(one.num_errors for one in seen), sum(one.num_done for one in seen)
    slowest = {name: round(max(getattr(one, name) for one in kills), 3) for name in ("health_s", "errors_s", "ready_s")}
    hung = {name: round(max((getattr(one, name) for one in hangs), default=0.0), 3) for name in slowest}
    return {
        "kills": len(kills),
        "hangs": len(hangs),
        "kill_slowest": slowest,
        "hang_slowest": hung,
        "streams_with_error_event": errors,
        "of": num_streams,
        "ended_in_done": done,
        "orphans": orphans,
        "stale_shm": stale,
        "met": errors == num_streams
        and not done
        and not orphans
        and not stale
        and max(slowest["health_s"], slowest["errors_s"]) <= 2
        and max(hung["health_s"], hung["errors_s"]) <= size.stall_timeout_s + 1
        and slowest["ready_s"] <= size.load_s + 3
        and hung["ready_s"] <= size.stall_timeout_s + 1 + size.load_s + 3,
    }


async def _crash(server: Served, number: signal.Signals, size: Crashes) -> Seen:
    streams = [Stream([one, 7], 4000) for one in range(size.num_streams)]
    reading = asyncio.gather(*(stream.read(server.port) for stream in streams))
    for stream in streams:
        await stream.began.wait()
    (worker,) = server.worker_pids()
    began = time.monotonic()
    os.kill(worker, number)
    while (await get(server.port, "/health"))[0] == 200:
        await asyncio.sleep(POLL_S)
    health_s = time.monotonic() - began
    await reading
    while (await get(server.port, "/ready"))[0] != 200:
        await asyncio.sleep(POLL_S)
    return Seen(
        is_hang=number is signal.SIGSTOP,
        health_s=health_s,
        errors_s=max(stream.ended for stream in streams) - began,
        ready_s=time.monotonic() - began,
        num_errors=sum(stream.error == "engine_dead" for stream in streams),
        num_done=sum(stream.is_done for stream in streams),
        orphan=is_running(worker),
    )
