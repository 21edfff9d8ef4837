"""Connections that send slowly or not at all: closed in time, and nobody else waits for them (reliability S10, G3).

The canary and the slow clients are processes of their own. The slow ones give way to everybody else: thousands of
clients would not be on the machine of the server.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

import pytest

from server.served import HERE, served

GRACE_S = 3.0
NICENESS = "15"


def begun(*arguments: object, niceness: str = "0") -> subprocess.Popen[str]:
    """A client."""
    command = ["nice", "-n", niceness, sys.executable, str(HERE / "slow_clients.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def report_of(client: subprocess.Popen[str]) -> Any:
    """What it saw, once it is over."""
    said, _ = client.communicate()
    assert client.returncode == 0
    return json.loads(said)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def check(count: int, timeout_s: float, max_ratio: float) -> None:
    with served({"step_s": 0.002}, script="serve_engine.py", receive_timeout_s=timeout_s, log_requests=False) as server:
        canary = "canary", server.port, timeout_s + 2, server.process.pid
        control = report_of(begun(*canary))
        watching, slow = begun(*canary), begun("slow", server.port, count, niceness=NICENESS)
        seen, closed = report_of(watching), report_of(slow)
        after = report_of(begun(*canary))  # what else the machine does changes meanwhile
        control = {name: control[name] + after[name] for name in ("taken_s", "ran_s")}
        assert server.get("/health")[0] == 200

    figures: dict[str, Any] = {
        "connections": closed["closed"],
        "closed_s": {"first": round(closed["first_s"], 2), "last": round(closed["last_s"], 2)},
        "canaries": len(seen["taken_s"]),
        "p50_ratio": round(statistics.median(seen["taken_s"]) / statistics.median(control["taken_s"]), 2),
        "p99_ratio": round(p99(seen["taken_s"]) / p99(control["taken_s"]), 2),
        "p99_ms": round(p99(seen["taken_s"]) * 1000, 1),
        "loop_ran_ms": {
            "p99": round(p99(seen["ran_s"]) * 1000, 1),
            "longest": round(max(seen["ran_s"]) * 1000, 1),
            "p99_without": round(p99(control["ran_s"]) * 1000, 1),
        },
    }
    print(json.dumps(figures))
    assert closed["closed"] == count
    assert closed["last_s"] <= timeout_s + GRACE_S
    assert seen["statuses"] == [200]
    assert figures["p99_ratio"] <= max_ratio or p99(seen["taken_s"]) < 0.05
    assert max(seen["ran_s"]) < 0.25


def test_s10_a_hundred_slow_connections() -> None:
    check(100, 1.0, 4.0)


@pytest.mark.long
@pytest.mark.parametrize("count", [500, 5000])
def test_s10_slow_connections_by_the_thousand(count: int) -> None:
    check(count, 10.0, 2.0)
