"""Connections that send slowly or not at all: closed in time, and nobody else waits for them (reliability S10, G3)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.raw_http import RawConnection, request
from server.served import served

CANARY = request("/v1/completions", b'{"prompt": "canary", "max_tokens": 5, "temperature": 0, "ignore_eos": true}')
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
HALVES = (
    b"",
    b"G",
    b"GET /health HTTP/1.1\r\nhost: local",
    HEAD + b"x: " + b"a" * 8000,
    HEAD + b"content-length: 50\r\n\r\n",
    HEAD + b"content-length: 100000\r\n\r\n" + b" " * 9000,
    HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab",
    HEAD + b"transfer-encoding: chunked\r\n\r\n",
)
GRACE_S = 3.0


@dataclass
class Seen:
    closed_s: list[float] = field(default_factory=list)
    canary_s: list[float] = field(default_factory=list)
    canary_statuses: set[int] = field(default_factory=set)


async def slow(port: int, number: int, seen: Seen) -> None:
    """Send half a request, then a byte now and then, until the server has had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(HALVES[number % len(HALVES)])
    over = asyncio.create_task(reader.read(-1))
    with contextlib.suppress(ConnectionError):
        while not over.done():
            await asyncio.wait({over}, timeout=0.5)
            if number % 2 and not over.done():
                writer.write(b" " if number % len(HALVES) > 3 else b"a")
        await over
    seen.closed_s.append(time.perf_counter() - began)
    writer.close()


async def canary(port: int, seen: Seen, duration_s: float) -> None:
    async with RawConnection(port) as connection:
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            began = time.perf_counter()
            answer = await connection.ask(CANARY)
            seen.canary_s.append(time.perf_counter() - began)
            seen.canary_statuses.add(answer.status)
            await asyncio.sleep(0.01)


async def run(port: int, count: int, timeout_s: float) -> tuple[Seen, Seen]:
    control, seen = Seen(), Seen()
    await canary(port, control, timeout_s)
    watching = asyncio.create_task(canary(port, seen, timeout_s))
    await asyncio.gather(*(slow(port, number, seen) for number in range(count)))
    await watching
    return control, seen


def check(count: int, timeout_s: float, max_ratio: float) -> None:
    with served({"step_s": 0.002}, script="serve_engine.py", receive_timeout_s=timeout_s, log_requests=False) as server:
        control, seen = asyncio.run(run(server.port, count, timeout_s))
        assert server.get("/health")[0] == 200

    def p99(values: list[float]) -> float:
        return statistics.quantiles(values, n=100)[98]

    figures: dict[str, Any] = {
        "connections": count,
        "closed_s": {"first": round(min(seen.closed_s), 2), "last": round(max(seen.closed_s), 2)},
        "canaries": len(seen.canary_s),
        "p50_ratio": round(statistics.median(seen.canary_s) / statistics.median(control.canary_s), 2),
        "p99_ratio": round(p99(seen.canary_s) / p99(control.canary_s), 2),
        "p99_ms": round(p99(seen.canary_s) * 1000, 1),
    }
    print(json.dumps(figures))
    assert len(seen.closed_s) == count
    assert max(seen.closed_s) <= timeout_s + GRACE_S
    assert seen.canary_statuses == {200}
    assert figures["p99_ratio"] <= max_ratio or p99(seen.canary_s) < 0.05


def test_s10_a_hundred_slow_connections() -> None:
    check(100, 1.0, 4.0)


@pytest.mark.long
@pytest.mark.parametrize("count", [500, 5000])
def test_s10_slow_connections_by_the_thousand(count: int) -> None:
    check(count, 10.0, 2.0)
