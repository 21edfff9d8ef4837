"""Thousands of clients of which half leave (S7), and with every fault that a worker can have besides (S18)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from server.fake_worker import FAIL, REFUSE, REFUSE_LATE
from server.raw_http import CLOSE, drawn_request, leave
from server.served import Served, served
from survival.client import HOST, Report, get, metric, resident_kib

SETTLE_S = 30.0
RESTARTS = "chairlift:engine_restarts_total"
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
FAULTS = (FAIL, REFUSE, REFUSE_LATE)


@dataclass(frozen=True)
class Storm:
    """So many requests, at most so many at once; with faults, also so many engines killed on the way."""

    num_requests: int = 10_000
    concurrency: int = 64
    seed: int = 1
    fault_share: float = 0.0
    num_kills: int = 0
    marks: tuple[float, float] = (0.2, 1.0)
    """Where memory is compared, as shares of all requests."""
    max_growth_kib: int = 8 << 10


def storm(size: Storm) -> Report:
    """Everything is as it was before, and memory no longer grows."""
    worker = {"step_s": 0.001, "max_num_seqs": 32, "prefill_steps": 3, "heartbeat_s": 0.05, "load_s": 0.05}
    with served(worker, log_requests=False, max_engine_restarts=1000) as server:
        report = asyncio.run(_storm(server, size))
        server.tell(signal.SIGTERM)
        report["exit_status"] = server.status()
    before, after = report["before"], report["after"]
    level = all(abs(after[name] - before[name]) <= 2 for name in ("descriptors", "threads", "worker_descriptors"))
    idle = not any(after[gauge] for gauge in GAUGES)
    known = set(report["outcomes"]) <= {"served", "left"} | (
        {"refused", "failed", "lost"} if size.fault_share else set()
    )
    grown = report["growth_kib"] <= size.max_growth_kib
    report["met"] = level and idle and known and grown and report["exit_status"] == 0
    return report


async def _storm(server: Served, size: Storm) -> Report:
    warm = random.Random("warm")
    await asyncio.gather(*(_client(server.port, warm, size) for _ in range(size.concurrency)))
    before = await _counts(server)
    gate, outcomes, memory = asyncio.Semaphore(size.concurrency), Counter[str](), {}
    marks = {round(mark * size.num_requests): mark for mark in size.marks}
    kills = {round((k + 0.5) / size.num_kills * size.num_requests) for k in range(size.num_kills)}
    num_ended = 0
    is_up = asyncio.Event()
    is_up.set()

    async def one(index: int) -> None:
        nonlocal num_ended
        async with gate:
            await is_up.wait()
            outcomes[await _client(server.port, random.Random(f"{size.seed} {index}"), size)] += 1
        num_ended += 1
        if num_ended in marks:
            memory[marks[num_ended]] = resident_kib(server.process.pid)
        if num_ended in kills:
            is_up.clear()
            await _kill(server)
            is_up.set()

    began = time.monotonic()
    await asyncio.gather(*(one(index) for index in range(size.num_requests)))
    elapsed_s = time.monotonic() - began
    after = await _settled(server, before)
    first, last = size.marks
    return {
        "requests": size.num_requests,
        "elapsed_s": round(elapsed_s, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "engine_restarts": await metric(server.port, RESTARTS),
        "before": before,
        "after": after,
        "rss_kib": memory,
        "growth_kib": memory[last] - memory[first],
    }


async def _kill(server: Served) -> None:
    """Kill the engine and wait until another serves: who asks meanwhile is refused at once, which tries nothing."""
    num_restarts = await metric(server.port, RESTARTS)
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SETTLE_S
    while await metric(server.port, RESTARTS) == num_restarts or (await get(server.port, "/ready"))[0] != 200:
        if time.monotonic() > deadline:
            raise TimeoutError("no other engine came")
        await asyncio.sleep(0.05)


async def _settled(server: Served, before: dict[str, float]) -> dict[str, float]:
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = await _counts(server)
        if (found == before and not any(found[gauge] for gauge in GAUGES)) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)


async def _counts(server: Served) -> dict[str, float]:
    found = {gauge: await metric(server.port, gauge) for gauge in GAUGES}
    await asyncio.sleep(0.05)  # the connection of the last look is closed by then
    pid, workers = server.process.pid, server.worker_pids()
    found["descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    found["threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
    found["worker_descriptors"] = sum(len(list(Path(f"/proc/{worker}/fd").iterdir())) for worker in workers)
    found["workers"] = len(workers)
    return found


async def _client(port: int, generator: random.Random, size: Storm) -> str:
    """One client; what became of it."""
    leaves = generator.random() < 0.5
    data = _request(generator, size.fault_share)
    if leaves:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await leave(port, data, generator)
        return "left"
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    try:
        writer.write(data)
        return _outcome(await reader.read())
    except ConnectionError:
        return "broken"
    finally:
        writer.close()


def _outcome(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    if status == 200 and b"text/event-stream" not in head:
        return "served"
    if status == 200:
        if b'"error"' not in body:
            return "served" if b"data: [DONE]" in body else "cut"
        return "broken" if b"[DONE]" in body else "lost" if b"engine_dead" in body else "failed"
    return {400: "refused", 500: "failed", 503: "lost"}.get(status, f"status {status}")


def _request(generator: random.Random, fault_share: float) -> bytes:
    prompt = f"client {generator.random()}"
    if generator.random() < fault_share:
        prompt += generator.choice(FAULTS)
    return drawn_request(generator, prompt, CLOSE)
