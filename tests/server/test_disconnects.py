"""Thousands of clients of which half leave: nothing stays behind (reliability S7)."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.server.connection import LimitedConnection
from server.fake_worker import FakeOptions
from server.raw_http import drawn_request, leave
from server.running import RunningServer, running_server, until

CONCURRENCY = 64


@pytest.fixture
def server() -> Iterator[RunningServer]:
    options = FakeOptions(step_s=0.001, max_num_seqs=32, prefill_steps=3, heartbeat_s=0.05)
    with running_server(options, log_requests=False) as running:
        yield running


def num_connection_objects() -> int:
    """A timer that was forgotten keeps the connection it was for."""
    return sum(isinstance(thing, LimitedConnection) for thing in gc.get_objects())


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def client(port: int, generator: random.Random) -> str:
    """One client; what became of it."""
    data = drawn_request(generator, f"client {generator.random()}")
    if generator.random() < 0.5:
        return await leave(port, data, generator)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"text/event-stream" in head:
            await reader.readuntil(b"data: [DONE]\n\n")
        else:
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
        assert b" 200 " in head
        return "served"
    finally:
        writer.close()


async def storm(port: int, count: int, seed: int) -> dict[str, int]:
    generator = random.Random(seed)
    outcomes: dict[str, int] = {}
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one() -> None:
        async with gate:
            outcome = await client(port, generator)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    await asyncio.gather(*(one() for _ in range(count)))
    return outcomes


def check(server: RunningServer, count: int, seed: int) -> None:
    server.complete(max_tokens=1)
    until(lambda: server.num_connections() == 0)
    descriptors = num_descriptors()
    outcomes = asyncio.run(storm(server.port, count, seed))
    assert outcomes["served"] > count * 0.4
    assert outcomes["left"] > count * 0.3
    server.wait_idle()
    until(lambda: server.num_connections() == 0)
    until(lambda: num_descriptors() <= descriptors)
    until(lambda: gc.collect() >= 0 and num_connection_objects() == 0)
    metrics = server.client.metrics
    assert metrics is not None
    until(lambda: metrics.stats.num_running == metrics.stats.num_waiting == metrics.stats.num_used_blocks == 0)
    assert server.app.num_generating == 0
    assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3


def test_src_imp_1115_two_thousand_clients_of_which_half_leave(server: RunningServer) -> None:
    check(server, 2000, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_forty_thousand_clients_of_which_half_leave(server: RunningServer, seed: int) -> None:
    check(server, 10_000, seed)
