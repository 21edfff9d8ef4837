"""Ten times more than a server can serve: who is refused, how fast, what is served meanwhile, and what is left of it.

    python benchmarks/overload.py [--seconds 30] [--factor 10] [--tokens 32] [--queue-s 2] [--fake] [-- FLAGS OF SERVE]

Five phases against a server in a process of its own: its capacity, measured with as many clients as keep it full; a
baseline of a fifth of that; `--factor` times the capacity, whether it answers or not; the baseline again; and once more
the capacity, since on a machine that others use only neighbouring phases compare: the goodput counts against the mean
of both. Nobody comes back when refused, so that the offered rate is what it says. Capacity and goodput are output
tokens per second of answers that are complete, the first sixth of each phase left out. The cap on waiting requests is
set on the running server to what it serves in `--queue-s` seconds: after the overload that is how long its queue lasts.

`--fake` puts a worker without a model behind the real server: its capacity does not depend on the machine.
Prints one JSON object; status 1 if a bar of `BARS` is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import httptools
import uvloop

HOST = "127.0.0.1"
ADMIN_KEY = "of-no-use-elsewhere"
BASELINE_SHARE = 0.2
SAMPLE_S = 0.25
BACK_S = 5.0
"""How long after the overload the baseline's latency has to be back."""
FLUSH_S = 60.0

BARS = {
    "queue_over_cap": 0,
    "refusal_p99_ms_max": 100.0,
    "goodput_share_min": 0.9,
    "latency_back_s_max": BACK_S,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the overload; other phases follow from it")
    parser.add_argument("--factor", type=float, default=10.0, help="offered over capacity")
    parser.add_argument(
        "--tokens", type=int, default=32, help="of a mean answer: from half of it to half as much again"
    )
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument(
        "--queue-s", type=float, default=2.0, help="cap on waiting requests, in seconds of the capacity"
    )
    parser.add_argument("--after", type=float, default=2 * BACK_S, help="seconds of the second baseline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fake", action="store_true", help="a worker without a model")
    parser.add_argument("--fake-step-ms", type=float, default=5.0)
    parser.add_argument("serve_flags", nargs="*")
    arguments = parser.parse_args()
    with server(arguments) as process, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(measure(process, arguments))
    report["exit_status"] = process.returncode
    print(json.dumps(report, indent=2))
    return 0 if not report["missed"] and process.returncode == 0 else 1


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """The server, ended as its owner would."""
    if arguments.fake:
        script = Path(__file__).resolve().parents[1] / "tests" / "server" / "serve_fake.py"
        worker = {"step_s": arguments.fake_step_ms / 1000, "max_num_seqs": arguments.slots}
        options = {"port": 0, "log_requests": False, "admin_api_keys": [ADMIN_KEY]}
        path = f"import sys; sys.path.insert(0, {str(script.parents[1])!r}); import runpy; sys.argv[:] = sys.argv[1:]; "
        run = "runpy.run_path(sys.argv[0], run_name='__main__')"
        command = [sys.executable, "-c", path + run, str(script), json.dumps(worker), json.dumps(options)]
    else:
        flags = ["--port", "0", "--no-enable-log-requests", "--max-num-seqs", str(arguments.slots)]
        flags += ["--admin-api-key", ADMIN_KEY, *arguments.serve_flags]
        command = [sys.executable, "-m", "chairlift", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def listening_port(stdout: IO[str] | None) -> int:
    """The port that the server names once it is ready."""
    match = re.search(rf"http://{re.escape(HOST)}:(\d+)", stdout.readline() if stdout is not None else "")
    if match is None:
        raise RuntimeError("the server did not start")
    return int(match[1])


# ---------------------------------------------------------------- requests


@dataclass(slots=True)
class Outcome:
    """One request: when it was sent and answered, in seconds, and what the answer said."""

    sent: float
    num_tokens: int
    answered: float = 0.0
    status: int = 0
    code: str = ""
    retry_after_s: int | None = None
    retry_after_ms: int | None = None

    @property
    def latency_s(self) -> float:
        return self.answered - self.sent


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time: as little work per request as there can be."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    async def exchange(self, message: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body; status 0 if the connection broke."""
        if self._transport is None:
            return 0, {}, b""
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body = {}, b""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        await self._done
        return (self._parser.get_status_code() if self.is_open else 0), self._headers, self._body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self._transport = False, None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass
class Clients:
    """Idle connections to one server, and everything that was asked on them."""

    port: int
    num_tokens: int
    generator: random.Random
    idle: list[Connection] = field(default_factory=list)

    async def get(self, path: str) -> str:
        _, _, body = await self._on_connection(f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        return body.decode()

    async def set_cap(self, max_num_queued_reqs: int) -> None:
        """Change the cap of the running server."""
        data = json.dumps({"max_num_queued_reqs": max_num_queued_reqs})
        head = f"PATCH /admin/limits HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
        status, _, body = await self._on_connection(f"{head}content-length: {len(data)}\r\n\r\n{data}".encode())
        if status != 200:
            raise RuntimeError(f"the cap was not changed: {status} {body.decode()}")

    async def complete(self) -> Outcome:
        """One completion with a prompt of its own."""
        prompt = f"Client {self.generator.random()} asks what a chairlift is, and what it is good for:"
        num_tokens = self.generator.randint(self.num_tokens // 2, self.num_tokens * 3 // 2)
        body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(data)}\r\n\r\n"
        outcome = Outcome(time.perf_counter(), num_tokens)
        status, headers, content = await self._on_connection(head.encode() + data)
        outcome.answered, outcome.status = time.perf_counter(), status
        if status != 200:
            with suppress(ValueError, KeyError, TypeError):
                outcome.code = json.loads(content)["error"]["code"]
            outcome.retry_after_s = _number(headers.get(b"retry-after"))
            outcome.retry_after_ms = _number(headers.get(b"retry-after-ms"))
        return outcome

    async def _on_connection(self, message: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                break
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, HOST, self.port)
        answer = await connection.exchange(message)
        if connection.is_open:
            self.idle.append(connection)
        return answer


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


# ---------------------------------------------------------------- phases


async def closed_loop(clients: Clients, concurrency: int, seconds: float) -> float:
    """Output tokens per second while so many clients each ask again as soon as they have an answer."""
    begun = time.perf_counter()
    outcomes: list[Outcome] = []

    async def client() -> None:
        while time.perf_counter() - begun < seconds:
            outcomes.append(await clients.complete())
            if outcomes[-1].status != 200:
                raise RuntimeError(f"not even its capacity was served: {outcomes[-1]}")

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return throughput(outcomes, begun, begun + seconds)


def throughput(outcomes: list[Outcome], begun: float, ended: float) -> float:
    """Output tokens per second of what was served, the first sixth of the time left out."""
    begun += (ended - begun) / 6
    num_tokens = sum(one.num_tokens for one in outcomes if one.status == 200 and begun <= one.answered < ended)
    return num_tokens / (ended - begun)


async def open_loop(clients: Clients, rate: float, seconds: float) -> list[asyncio.Task[Outcome]]:
    """Ask `rate` times a second, as a Poisson process does, whether there are answers or not."""
    tasks: list[asyncio.Task[Outcome]] = []
    begun = due = time.perf_counter()
    while (due := due + clients.generator.expovariate(rate)) < begun + seconds:
        if (wait_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(clients.complete()))
    await asyncio.sleep(max(0.0, begun + seconds - time.perf_counter()))
    return tasks


async def watch_queue(clients: Clients, found: list[float]) -> None:
    """How many requests wait in the engine, again and again."""
    while True:
        text = await clients.get("/metrics")
        found += [
            float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_waiting{")
        ]
        await asyncio.sleep(SAMPLE_S)


async def measure(process: subprocess.Popen[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """All phases."""
    seconds, slots = arguments.seconds, arguments.slots
    port = await asyncio.to_thread(listening_port, process.stdout)
    clients = Clients(port, arguments.tokens, random.Random(arguments.seed))
    num_clients = slots + max(1, slots // 2)
    capacity = await closed_loop(clients, num_clients, seconds)
    rate = capacity / arguments.tokens
    cap = max(1, round(arguments.queue_s * rate))
    await clients.set_cap(cap)
    baseline = await asyncio.gather(*await open_loop(clients, BASELINE_SHARE * rate, seconds / 2))

    queue: list[float] = []
    watcher = asyncio.create_task(watch_queue(clients, queue))
    begun = time.perf_counter()
    tasks = await open_loop(clients, arguments.factor * rate, seconds)
    ended = time.perf_counter()
    later = await open_loop(clients, BASELINE_SHARE * rate, arguments.after)
    overload = await asyncio.wait_for(asyncio.gather(*tasks), FLUSH_S)
    after = await asyncio.wait_for(asyncio.gather(*later), FLUSH_S)
    watcher.cancel()
    await clients.set_cap(num_clients)
    capacities = capacity, await closed_loop(clients, num_clients, seconds)
    for connection in clients.idle:
        connection.close()
    return report(arguments, capacities, cap, baseline, overload, after, (begun, ended), queue)


def report(
    arguments: argparse.Namespace,
    capacities: tuple[float, float],
    cap: int,
    baseline: list[Outcome],
    overload: list[Outcome],
    after: list[Outcome],
    window: tuple[float, float],
    queue: list[float],
) -> dict[str, Any]:
    """The figures, and the bars that were missed."""
    begun, ended = window
    capacity = sum(capacities) / 2
    refused = [one for one in overload if one.status in (429, 503)]
    served = [one for one in overload if one.status == 200]
    goodput = throughput(served, begun, ended)
    usual_s = quantile([one.latency_s for one in baseline], 0.95)
    slow = [one.sent - ended for one in after if one.status != 200 or one.latency_s > 1.5 * usual_s]
    figures: dict[str, Any] = {
        "capacity_before_tokens_per_s": round(capacities[0], 1),
        "capacity_after_tokens_per_s": round(capacities[1], 1),
        "goodput_tokens_per_s": round(goodput, 1),
        "capacity_rps": round(capacity / arguments.tokens, 2),
        "offered_rps": round(len(overload) / (ended - begun), 1),
        "goodput_share": round(goodput / capacity, 3),
        "outcomes": dict(Counter(f"{one.status} {one.code}".strip() for one in overload).most_common()),
        "queue_max": max(queue, default=0.0),
        "queue_cap": cap,
        "refusal_p50_ms": round(1000 * quantile([one.latency_s for one in refused], 0.5), 2),
        "refusal_p99_ms": round(1000 * quantile([one.latency_s for one in refused], 0.99), 2),
        "refusal_max_ms": round(1000 * quantile([one.latency_s for one in refused], 1.0), 2),
        "refusals_without_retry_after": sum(not _tells_when(one) for one in refused),
        "retry_after_ms_p50": quantile([one.retry_after_ms or 0 for one in refused], 0.5),
        "served_latency_p50_s": round(quantile([one.latency_s for one in served], 0.5), 3),
        "baseline_latency_p50_s": round(quantile([one.latency_s for one in baseline], 0.5), 3),
        "baseline_latency_p95_s": round(usual_s, 3),
        "latency_p95_when_back_s": round(quantile([one.latency_s for one in after[len(after) // 2 :]], 0.95), 3),
        "latency_back_s": round(max(slow, default=0.0), 2),
    }
    checks = {
        "queue": figures["queue_max"] <= cap + BARS["queue_over_cap"],
        "refusals are fast": figures["refusal_p99_ms"] <= BARS["refusal_p99_ms_max"],
        "refusals say when": bool(refused) and not figures["refusals_without_retry_after"],
        "goodput": figures["goodput_share"] >= BARS["goodput_share_min"],
        "latency is back": figures["latency_back_s"] <= BARS["latency_back_s_max"],
        "nothing else": {one.status for one in (*baseline, *overload, *after)} <= {200, 429, 503},
    }
    return figures | {"missed": [name for name, met in checks.items() if not met]}


def _tells_when(one: Outcome) -> bool:
    return 1 <= (one.retry_after_s or 0) <= 120 and 1 <= (one.retry_after_ms or 0) <= 120_000


def quantile(values: list[float] | list[int], share: float) -> float:
    """By nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


if __name__ == "__main__":
    sys.exit(main())
