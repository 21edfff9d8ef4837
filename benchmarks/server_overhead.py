"""CPU time of the HTTP server per streamed chunk: many streams, tokens at no cost, everything else as in `serve`.

    python benchmarks/server_overhead.py [--streams 256] [--tokens 256] [--step-ms 40] [--model NAME] [--api chat]

The server is the real one in a process of its own, with the real tokenizer. In place of the engine stands a process
that gives every stream a token every `--step-ms`; with 0 it does not wait, which shows the highest rate but lets chunks
share a write. The client only counts. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.types import EngineStats, Finish, FinishReason, Request
from chairlift.server import ServerOptions, serve
from chairlift.wire import Abort, Add, Drain, Ready, Step, decode_to_worker, encode

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
APIS = {
    "chat": ("/v1/chat/completions", "max_tokens", "messages", b"[DONE]"),
    "responses": ("/v1/responses", "max_output_tokens", "input", b'"total_tokens":'),
    "messages": ("/v1/messages", "max_tokens", "messages", b'"message_stop"}'),
}
"""Where to ask, what the fields are called, and what the end of a whole stream holds."""
VOCABULARY = range(300, 30_000)
"""Ordinary tokens of the default model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--api", choices=APIS, default="chat")
    parser.add_argument("--role", choices=("client", "server", "worker"), default="client", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "worker":
        give_tokens(arguments.fd, arguments.streams, arguments.step_ms / 1000)
    elif arguments.role == "server":
        sys.exit(serve(ServerOptions(port=0, log_requests=False), arguments.model, worker_command))
    else:
        print(json.dumps(asyncio.run(measure(arguments)), indent=2))


def worker_command(fd: int) -> list[str]:
    return [sys.executable, *sys.argv, "--role", "worker", "--fd", str(fd)]


# ---------------------------------------------------------------- the engine's stand-in


def give_tokens(fd: int, num_streams: int, step_s: float) -> None:
    """Once all streams are there, a token for each of them per step, until each has what it asked for."""
    sock = socket.socket(fileno=fd)
    sock.sendall(encode(Ready("stand-in", 8192, num_streams, 2048, 1 << 20, 16, 0.0, 1)))
    generator = random.Random(1)
    received = bytearray()
    requests: list[Request] = []
    while True:
        data = sock.recv(1 << 20)
        if not data:
            return
        received += data
        while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "little"):
            end = 4 + int.from_bytes(received[:4], "little")
            message = decode_to_worker(bytes(received[4:end]))
            del received[:end]
            if isinstance(message, Drain):
                return
            if isinstance(message, Add):
                requests.append(message.request)
            elif isinstance(message, Abort):
                raise SystemExit("a stream was aborted: the figures would be wrong")
        if len(requests) == num_streams:
            generate(sock, requests, step_s, generator)
            requests = []


def generate(sock: socket.socket, requests: list[Request], step_s: float, generator: random.Random) -> None:
    ids = [request.id for request in requests]
    num_tokens = requests[0].params.max_tokens or 1
    began = due = time.monotonic()
    for step in range(num_tokens):
        tokens = generator.choices(VOCABULARY, k=len(ids))
        now = time.monotonic()
        last = step == num_tokens - 1
        finishes = [finish(request, num_tokens, began, now) for request in requests] if last else []
        stats = EngineStats(0 if last else len(ids), 0, 1, 0, 0, 0, 0, num_step_tokens=len(ids), step_s=step_s)
        sock.sendall(encode(Step(ids, [0] * len(ids), tokens, [], [], [], finishes, stats, now)))
        due += step_s
        time.sleep(max(0.0, due - time.monotonic()))


def finish(request: Request, num_tokens: int, began: float, now: float) -> Finish:
    return Finish(
        request.id, 0, FinishReason.LENGTH, None, None, len(request.prompt), num_tokens, 0, 0,
        request.arrival, began, began, now,
    )  # fmt: skip


# ---------------------------------------------------------------- the client


@dataclass
class Counts:
    num_events: int = 0
    num_reads: int = 0
    num_bytes: int = 0
    num_done: int = 0
    first_at: list[float] = field(default_factory=list)


async def measure(arguments: argparse.Namespace) -> dict[str, float | int | str]:
    server = subprocess.Popen([sys.executable, *sys.argv, "--role", "server"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline().rpartition(":")[2])
    results = []
    for _ in range(2):  # the first round warms caches up
        counts = Counts()
        before, began = cpu_seconds(server.pid), time.monotonic()
        streams = (stream(port, arguments.api, arguments.tokens, counts) for _ in range(arguments.streams))
        await asyncio.gather(*streams)
        cpu_s, wall_s = cpu_seconds(server.pid) - before, time.monotonic() - began
        results.append((counts, cpu_s, wall_s))
    server.terminate()
    server.wait()
    counts, cpu_s, wall_s = results[-1]
    num_tokens = arguments.streams * arguments.tokens
    return {
        "streams": arguments.streams,
        "tokens_per_stream": arguments.tokens,
        "streams_complete": counts.num_done,
        "chunks": counts.num_events,
        "reads_per_chunk": round(counts.num_reads / counts.num_events, 3),
        "bytes_per_chunk": round(counts.num_bytes / counts.num_events, 1),
        "server_cpu_us_per_chunk": round(cpu_s / counts.num_events * 1e6, 1),
        "server_cpu_us_per_token": round(cpu_s / num_tokens * 1e6, 1),
        "server_cpu_share": round(cpu_s / wall_s, 3),
        "tokens_per_s": round(num_tokens / wall_s),
    }


async def stream(port: int, api: str, num_tokens: int, counts: Counts) -> None:
    path, max_tokens, messages, whole = APIS[api]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {
            messages: [{"role": "user", "content": "count the chunks"}],
            "stream": True,
            max_tokens: num_tokens,
        }
    ).encode()
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    end = b""
    while whole not in end:
        data = await reader.read(1 << 16)
        if not data:
            break
        counts.num_reads += 1
        counts.num_bytes += len(data)
        counts.num_events += data.count(b"data: {")
        end = (end + data)[-64:]
    else:
        counts.num_done += 1
    writer.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


if __name__ == "__main__":
    main()
