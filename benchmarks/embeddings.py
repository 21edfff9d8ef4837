#!/usr/bin/env python3
"""Texts a second over HTTP, beside infinity-emb over HTTP and sentence-transformers without, in the same minutes.

    .venv/bin/python benchmarks/embeddings.py compare --model FOLDER_OF_MINILM \\
        --sentence-transformers tmp/st/bin/python --infinity tmp/infinity/bin/infinity_emb

    python -m venv tmp/st && tmp/st/bin/pip install torch==2.13.0 sentence-transformers
    python -m venv tmp/infinity && tmp/infinity/bin/pip install torch==2.13.0 'infinity-emb[server,torch]'

Each peer lives in its own environment. Rounds alternate; infinity is stopped while it is not measured, so that it takes
no time from the others. Texts of 6 to 200 words, 32 clients that ask for one text after the other. Of
Chairlift it is also told how long texts waited, besides the delay and the longest batch. `drive URL` measures a server
that runs already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CLIENTS = 32
MIN_WORDS, MAX_WORDS = 6, 200
START_TIMEOUT_S = 240.0
WAIT_MS = 4.0
KEY = "benchmark"

SORTED_BATCHES = """
import json, sys, time
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = json.load(open(sys.argv[2]))
model.encode(texts[:32], batch_size=32)
start, count = time.perf_counter(), 0
while time.perf_counter() - start < float(sys.argv[3]):
    model.encode(texts, batch_size=32)
    count += len(texts)
print(json.dumps(count / (time.perf_counter() - start)))
"""
"""Run by the interpreter of the peer's environment: `encode` sorts by length itself."""


def texts_of(count: int) -> list[str]:
    """Texts of words that a vocabulary of English has, the same every time."""
    rng = random.Random(0)
    words = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    plain = [word for word in words if word.isascii() and word.isalpha()]
    return [" ".join(rng.choices(plain, k=rng.randrange(MIN_WORDS, MAX_WORDS + 1))) for _ in range(count)]


# ---------------------------------------------------------------- clients


async def client(port: int, path: str, model: str, texts: list[str], until: float, latencies: list[float]) -> None:
    """Ask for one text after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    at = 0
    while time.perf_counter() < until:
        body = json.dumps({"model": model, "input": [texts[at % len(texts)]]}).encode()
        at += 1
        begun = time.perf_counter()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        size = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        answer = await reader.readexactly(size)
        if " 200" not in lines[0]:
            raise RuntimeError(f"{lines[0]}: {answer[:200]!r}")
        latencies.append(time.perf_counter() - begun)
    writer.close()


def drive(port: int, path: str, model: str, texts: list[str], seconds: float) -> dict[str, float]:
    """Requests a second and latencies of so many clients for so long."""
    latencies: list[float] = []

    async def run() -> None:
        until = time.perf_counter() + seconds
        step = len(texts) // CLIENTS
        each = [texts[i * step :] + texts[: i * step] for i in range(CLIENTS)]
        await asyncio.gather(*(client(port, path, model, mine, until, latencies) for mine in each))

    begun = time.perf_counter()
    asyncio.run(run())
    taken = time.perf_counter() - begun
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "requests_per_s": round(len(latencies) / taken, 1),
        "p50_ms": round(cuts[49] * 1e3, 1),
        "p99_ms": round(cuts[98] * 1e3, 1),
    }


# ---------------------------------------------------------------- servers


class Server:
    """A process in a group of its own."""

    def __init__(self, command: list[str], port: int, ready: str, log: Path) -> None:
        self.port = port
        self._log = log.open("wb")
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, start_new_session=True, env=environment
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready(ready):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{command[0]} did not start: see {log}")
            time.sleep(0.2)

    def _is_ready(self, path: str) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """What an admin route tells."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {KEY}"})
        with urlopen(request, timeout=20) as response:
            return json.loads(response.read())

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def waits(server: Server) -> dict[str, float]:
    """How long the last texts waited before their batch began, and the longest batch among them, in milliseconds."""
    told = [choice for one in server.get("/admin/requests?limit=1000")["data"] for choice in one["choices"]]
    waited = [choice["decisions"]["started_after_s"] for choice in told]
    batches = [choice["decisions"]["ended_after_s"] - choice["decisions"]["started_after_s"] for choice in told]
    p99 = statistics.quantiles(waited, n=100)[98]
    return {"p99_wait_ms": round(p99 * 1e3, 1), "longest_batch_ms": round(max(batches) * 1e3, 1)}


def compare(arguments: argparse.Namespace) -> None:
    """Rounds of all three, their medians, and the ratios."""
    texts, folder = texts_of(arguments.texts), arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.json").write_text(json.dumps(texts))
    chairlift = [sys.executable, "-m", "chairlift"]
    chairlift += ["serve", arguments.model, "--port", "8461", "--admin-api-key", KEY, "--no-enable-log-requests"]
    chairlift += ["--embedding-max-batch-wait-ms", str(WAIT_MS), *arguments.flags]
    ours = Server(chairlift, 8461, "/ready", folder / "chairlift.log")
    theirs: Server | None = None
    rounds: dict[str, list[dict[str, float]]] = {"chairlift": [], "infinity": [], "sentence-transformers": []}
    name = Path(arguments.model).name
    try:
        if arguments.infinity:
            command = [arguments.infinity, "v2", "--model-id", arguments.model, "--served-model-name", "minilm"]
            command += ["--engine", "torch", "--device", "cpu", "--port", "8462", "--host", "127.0.0.1"]
            theirs = Server(command, 8462, "/health", folder / "infinity.log")
            theirs.pause()
        seconds = arguments.seconds
        for _ in range(arguments.rounds):
            found = drive(8461, "/v1/embeddings", name, texts, seconds) | waits(ours)
            rounds["chairlift"].append(found)
            print(json.dumps({"chairlift": found}), flush=True)
            if theirs is not None:
                theirs.go_on()
                found = drive(8462, "/embeddings", "minilm", texts, seconds)
                theirs.pause()
                rounds["infinity"].append(found)
                print(json.dumps({"infinity": found}), flush=True)
            if arguments.sentence_transformers:
                command = [arguments.sentence_transformers, "-c", SORTED_BATCHES, arguments.model]
                command += [str(folder / "texts.json"), str(seconds)]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found = {"requests_per_s": round(json.loads(output.splitlines()[-1]), 1)}
                rounds["sentence-transformers"].append(found)
                print(json.dumps({"sentence-transformers": found}), flush=True)
    finally:
        ours.close()
        if theirs is not None:
            theirs.close()
    medians = {
        engine: {key: round(statistics.median(one[key] for one in found), 1) for key in found[0]}
        for engine, found in rounds.items()
        if found
    }
    mine = medians["chairlift"]
    ratios = {
        engine: round(mine["requests_per_s"] / median["requests_per_s"], 2)
        for engine, median in medians.items()
        if engine != "chairlift"
    }
    bound_ms = WAIT_MS + mine["longest_batch_ms"]
    print(json.dumps({"medians": medians, "ratios": ratios, "p99_wait_bound_ms": round(bound_ms, 1)}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compare", help="all three in turns")
    one.add_argument("--model", required=True, help="folder of a sentence-transformers model")
    one.add_argument("--sentence-transformers", metavar="PYTHON", help="interpreter of its environment")
    one.add_argument("--infinity", metavar="EXECUTABLE", help="infinity_emb of its environment")
    one.add_argument("--seconds", type=float, default=15.0)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--texts", type=int, default=512)
    one.add_argument("--out", type=Path, default=Path("tmp/embeddings"))
    one.add_argument("flags", nargs="*", help="further flags of chairlift serve, after --")
    one.set_defaults(run=compare)
    two = commands.add_parser("drive", help="a server that runs already")
    two.add_argument("port", type=int)
    two.add_argument("--path", default="/v1/embeddings")
    two.add_argument("--model", default="all-minilm-l6-v2")
    two.add_argument("--seconds", type=float, default=15.0)
    two.set_defaults(
        run=lambda given: print(json.dumps(drive(given.port, given.path, given.model, texts_of(512), given.seconds)))
    )
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
