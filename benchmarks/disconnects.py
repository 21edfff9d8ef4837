"""Clients that leave a real server at random moments: what stays behind, which must be nothing.

    python benchmarks/disconnects.py [--requests 2000] [--concurrency 64] [--seed 1] [--model NAME] [-- FLAGS OF SERVE]

Half of the clients leave: while sending, at once after it, while the prompt is computed, within the stream, or when
they have read the end; by FIN or by RST. They ask for streams and whole answers, chats and completions, several choices
and several prompts, long and short. Then everything is counted as before: sequences, blocks, descriptors and threads of
server and worker. Prints one JSON object; status 1 if something stayed behind, or a client that stayed was not served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

from chairlift.bench.http_client import HttpClient

HOST = "127.0.0.1"
SETTLE_S = 30.0
PHASES = ("sending", "sent", "prefill", "stream", "end")
RESET = struct.pack("ii", 1, 0)
GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "used_blocks",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("serve_flags", nargs="*")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "chairlift", "serve", arguments.model, "--port", "0", *arguments.serve_flags]
    with subprocess.Popen([*command, "--no-enable-log-requests"], stdout=subprocess.PIPE, text=True) as process:
        try:
            report = asyncio.run(measure(process, arguments))
        finally:
            process.terminate()
    report["exit_status"] = process.returncode
    print(json.dumps(report, indent=2))
    served = report["outcomes"].keys() <= {"served", *(f"left: {phase}" for phase in PHASES)}
    return 0 if served and report["after"] == report["before"] and process.returncode == 0 else 1


async def measure(process: subprocess.Popen[str], arguments: argparse.Namespace) -> dict[str, Any]:
    port = await asyncio.to_thread(listening_port, process.stdout)
    warm = [client(port, random.Random(f"warm {i}"), leaves=False) for i in range(arguments.concurrency)]
    await asyncio.gather(*warm)  # threads and buffers that are made at the first need
    before = await settled(port, process.pid)
    begun, gate, outcomes = time.perf_counter(), asyncio.Semaphore(arguments.concurrency), Counter[str]()

    async def one(i: int) -> None:
        generator = random.Random(f"{arguments.seed} {i}")
        async with gate:
            outcomes[await client(port, generator, leaves=generator.random() < 0.5)] += 1

    await asyncio.gather(*(one(i) for i in range(arguments.requests)))
    elapsed_s = time.perf_counter() - begun
    after = await settled(port, process.pid, before)
    return {
        "requests": arguments.requests,
        "elapsed_s": round(elapsed_s, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "before": before,
        "after": after,
    }


def listening_port(stdout: IO[str] | None) -> int:
    """The port that the server names once it is ready."""
    match = re.search(rf"http://{re.escape(HOST)}:(\d+)", stdout.readline() if stdout is not None else "")
    if match is None:
        raise RuntimeError("the server did not start")
    return int(match[1])


# ---------------------------------------------------------------- clients


def request(generator: random.Random, *, long: bool) -> bytes:
    """A whole HTTP request; a long one takes several steps until its first token."""
    text = f"Client {generator.random()} says: " + "word " * (generator.randint(600, 1200) if long else 8)
    body: dict[str, Any] = {
        "max_tokens": generator.randint(1, 24),
        "n": generator.choice([1, 1, 1, 2, 4]),
        "stream": generator.random() < 0.6,
        "ignore_eos": True,
    }
    path = generator.choice(["/v1/completions", "/v1/chat/completions"])
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = [text, "Another."] if generator.random() < 0.2 else text
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


async def client(port: int, generator: random.Random, *, leaves: bool) -> str:
    """One client; what became of it."""
    phase = generator.choice(PHASES) if leaves else ""
    data = request(generator, long=phase == "prefill" or generator.random() < 0.05)
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    try:
        if phase == "sending":
            writer.write(data[: generator.randrange(len(data))])
            await asyncio.sleep(generator.random() * 0.01)
        else:
            writer.write(data)
        if phase == "prefill":
            await asyncio.sleep(generator.random() * 0.3)
        elif phase == "stream":
            await reader.read(generator.randint(1, 3000))
        elif phase in ("", "end"):
            outcome = await whole_response(reader)
            if not phase:
                return outcome
        return f"left: {phase}"
    finally:
        if leaves and generator.random() < 0.5:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()


async def whole_response(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"text/event-stream" in head:
        body = await reader.readuntil(b"\r\n0\r\n\r\n")
        good = b"data: [DONE]" in body
    else:
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        good = b" 200 " in head
    return "served" if good else "failed"


# ---------------------------------------------------------------- what there is


async def settled(port: int, server_pid: int, baseline: dict[str, int] | None = None) -> dict[str, int]:
    """Counts once nothing is in flight: when they are those of `baseline`, or as they are after `SETTLE_S`."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = await counts(port, server_pid)
        idle = not (found["running"] or found["waiting"] or found["used_blocks"])
        if (idle and baseline in (None, found)) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)


async def counts(port: int, server_pid: int) -> dict[str, int]:
    """Sequences and blocks by the server's metrics; descriptors and threads by the system."""
    http = HttpClient(f"http://{HOST}:{port}", clock=time.monotonic, timeout_s=10.0)
    try:
        text = (await http.request("GET", "/metrics")).body.decode()
    finally:
        await http.close()
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    shape = re.search(r'num_gpu_blocks="(\d+)"', text)
    num_blocks = int(shape[1]) if shape is not None else 0
    found = {name: round(values[gauge]) for gauge, name in GAUGES.items() if name != "used_blocks"}
    found["used_blocks"] = round(values["vllm:kv_cache_usage_perc"] * num_blocks)
    (worker_pid,) = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text(encoding="ascii").split()
    for name, pid in (("server", str(server_pid)), ("worker", worker_pid)):
        with contextlib.suppress(FileNotFoundError):
            found[f"{name}_descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found[f"{name}_threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
    return found


if __name__ == "__main__":
    sys.exit(main())
