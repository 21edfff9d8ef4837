"""What others notice of hostile grammars: the longest pause of their streams while such are sent to the same server.

    python benchmarks/hostile_grammars.py [--requests 200] [--rounds 4] [--streams 4] [--seed 1]

Streams run all the time. In turns, clients ask for one token each with no form (the control) and with one that is
hostile, the same number of times. A round gives the longest pause between two tokens of any stream in each of its two
halves; the bar is that the median of their ratios is at most 2. Every hostile request has to end in 200 or 400, and the
engine has to be the same process. Prints one JSON object; status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.http_client import HttpClient
from chairlift.bench.server_process import served

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from grammars.hostile import forms

MAX_RATIO = 2.0
NUM_CLIENTS = 4
STREAM_TOKENS = 400


class Streams:
    """Neighbours: streams that follow each other without end, and the longest pause of any of them."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._longest_s = 0.0
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(count)]

    def take(self) -> float:
        """The longest pause since it was asked for last."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int) -> None:
        http = HttpClient(self._url, clock=time.monotonic, timeout_s=120.0)
        serial = 0
        try:
            while True:
                serial += 1
                body = {
                    "prompt": f"Stream {index}, part {serial}:",
                    "max_tokens": STREAM_TOKENS,
                    "ignore_eos": True,
                    "stream": True,
                }
                await self._read(http, body)
        finally:
            await http.close()

    async def _read(self, http: HttpClient, body: dict[str, Any]) -> None:
        last: float | None = None

        def on_body(_: bytes, now: float) -> None:
            nonlocal last
            if last is not None:
                self._longest_s = max(self._longest_s, now - last)
            last = now

        await http.request("POST", "/v1/completions", body=json.dumps(body).encode(), on_body=on_body)


async def ask(url: str, bodies: Sequence[dict[str, Any]]) -> Counter[int]:
    """Send bodies, some at a time; how often each status came."""
    left = list(bodies)[::-1]
    statuses: Counter[int] = Counter()

    async def client() -> None:
        http = HttpClient(url, clock=time.monotonic, timeout_s=120.0)
        try:
            while left:
                response = await http.request("POST", "/v1/completions", body=json.dumps(left.pop()).encode())
                statuses[response.status] += 1
        finally:
            await http.close()

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return statuses


def plain(count: int) -> list[dict[str, Any]]:
    """Requests without a form."""
    return [{"prompt": f"Number {i}", "max_tokens": 1, "temperature": 0} for i in range(count)]


def hostile(count: int, seed: int) -> list[dict[str, Any]]:
    """The same with a form each, most of them none, or too much."""
    made = forms(count, seed)
    return [body | {"structured_outputs": form} for body, form in zip(plain(count), made, strict=True)]


async def run(arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "chairlift", "serve", arguments.model, "--max-model-len", "512"]
    statuses: Counter[int] = Counter()
    pauses: dict[str, list[float]] = {"control": [], "hostile": []}
    taken = 0.0
    async with served(command, clock=time.monotonic, ready_timeout_s=120.0) as url:
        streams = Streams(url, arguments.streams)
        await ask(url, hostile(4, arguments.seed + 1000))
        bodies = hostile(arguments.requests, arguments.seed)
        size = arguments.requests // arguments.rounds
        for place in range(arguments.rounds):
            halves = {"control": plain(size), "hostile": bodies[place * size : (place + 1) * size]}
            for kind in sorted(halves, reverse=bool(place % 2)):
                streams.take()
                begun = time.monotonic()
                told = await ask(url, halves[kind])
                if kind == "hostile":
                    statuses += told
                    taken = time.monotonic() - begun
                # The control lasts as long as the last hostile half did: a maximum grows with time.
                elif place and (rest := taken - (time.monotonic() - begun)) > 0:
                    await asyncio.sleep(rest)
                pauses[kind].append(streams.take())
        await streams.stop()
    ratios = [ours / theirs for ours, theirs in zip(pauses["hostile"], pauses["control"], strict=True)]
    result = {
        "requests": arguments.requests,
        "statuses": dict(statuses),
        "longest_pause_ms": {kind: [round(1000 * one) for one in each] for kind, each in pauses.items()},
        "ratios": [round(ratio, 2) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 2),
    }
    print(json.dumps(result))
    return 0 if statistics.median(ratios) <= MAX_RATIO and set(statuses) <= {200, 400} else 1


def main() -> int:
    """0 if the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
