"""Clients in processes of their own, so that nobody measures the load of the others.

    python slow_clients.py slow PORT COUNT          connections that send slowly or not at all, until they are closed
    python slow_clients.py canary PORT DURATION_S PID   a request after the other on one connection

Prints one JSON object when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from server.raw_http import RawConnection, request

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


async def slow(port: int, number: int) -> float:
    """Send half a request, then a byte now and then, until the server has had enough: after so many seconds."""
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
    writer.close()
    return time.perf_counter() - began


async def slow_ones(port: int, count: int) -> dict[str, Any]:
    closed_s = await asyncio.gather(*(slow(port, number) for number in range(count)))
    return {"closed": len(closed_s), "first_s": min(closed_s), "last_s": max(closed_s), "cpu_s": time.process_time()}


async def canary(port: int, duration_s: float, pid: int) -> dict[str, Any]:
    """How long each answer took, and how long the server's event loop ran meanwhile."""
    loop = Path(f"/proc/{pid}/task/{pid}/schedstat")
    taken_s, ran_s, statuses = [], [], set()
    async with RawConnection(port) as connection:
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            began, ran = time.perf_counter(), int(loop.read_text().split()[0])
            answer = await connection.ask(CANARY)
            taken_s.append(time.perf_counter() - began)
            ran_s.append((int(loop.read_text().split()[0]) - ran) / 1e9)
            statuses.add(answer.status)
            await asyncio.sleep(0.01)
    return {"taken_s": taken_s, "ran_s": ran_s, "statuses": sorted(statuses)}


if __name__ == "__main__":
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "slow":
        report = asyncio.run(slow_ones(port, int(sys.argv[3])))
    else:
        report = asyncio.run(canary(port, float(sys.argv[3]), int(sys.argv[4])))
    print(json.dumps(report))
