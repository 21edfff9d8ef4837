"""Small requests that might cost much: memory, and time in which nobody else is served (reliability S9, H2).

Memory is the growth of the peak of server and engine together. A stall is how long the event loop kept a neighbour
waiting, or the processor time of the server in that time, whichever is less: on a busy machine it may just not have
run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.fake_text import VOCAB_SIZE
from server.raw_http import CLOSED, RawConnection, request
from server.served import Served, served

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MAX_FACTOR = 100
MAX_MORE_BYTES = 8 << 20
MAX_STALL_S = 0.25
CUT = 299
"""Instead of a status: the engine was faster than the client, which was cut off for reading slowly."""
PROBE = request("/health", b"", method="GET")


@dataclass(frozen=True)
class Crafted:
    name: str
    path: str
    body: bytes
    headers: bytes = b""


LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETION: {"prompt": "x"},
    RESPONSE: {"input": "x"},
}


def of(name: str, path: str = COMPLETION, **fields: Any) -> Crafted:
    return Crafted(name, path, json.dumps(LEAST[path] | fields).encode())


def crafted() -> Iterator[Crafted]:
    """Sixty of them."""
    yield from answers()
    yield from prompts()
    yield from structures()
    yield from forms()
    yield from responses()


def answers() -> Iterator[Crafted]:
    most: dict[str, Any] = {"max_tokens": 500, "ignore_eos": True}
    for stream in (False, True):
        yield of(f"128 answers, {stream}", n=128, stream=stream, **most)
        yield of(f"128 prompts, {stream}", prompt=["x"] * 128, stream=stream, **most)
        yield of(f"ids, {stream}", n=128, stream=stream, return_token_ids=True, **most)
        yield of(f"scores, {stream}", n=4, stream=stream, logprobs=20, **most)
        yield of(f"chat scores, {stream}", CHAT, n=4, stream=stream, logprobs=True, top_logprobs=20, **most)
    yield of("128 scored answers", n=128, logprobs=20, **most)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    yield of("usage in each", n=16, stream=True, stream_options=usage, **most)
    yield of("echo of scores", prompt=[7] * 400, echo=True, n=64, logprobs=20, max_tokens=100, ignore_eos=True)
    yield of("everything", n=32, logprobs=20, return_token_ids=True, explain=True, **most)
    yield of("nearly everything", n=24, logprobs=20, return_token_ids=True, explain=True, **most)
    yield of("best of", best_of=128, **most)
    yield of("best of scored", best_of=24, logprobs=20, **most)
    yield of("echo", prompt=[7] * 400, echo=True, n=100, max_tokens=1)
    yield of("prompt ids", prompt=[7] * 400, return_token_ids=True, n=100, max_tokens=1)
    yield of("prompt scores", prompt=[7] * 400, prompt_logprobs=20, max_tokens=1)
    yield of("prompt scores, often", prompt=[[7] * 400] * 16, prompt_logprobs=20, max_tokens=1)
    yield of("prompt scores in each", prompt=[7] * 400, prompt_logprobs=20, n=30, max_tokens=1)


def prompts() -> Iterator[Crafted]:
    yield of("a long text", prompt="a" * 1_000_000)
    yield of("a long text of others", prompt="\u65e5" * 300_000)
    yield of("a long text, cut", prompt="a " * 400_000, truncate_prompt_tokens=10)
    yield of("many long texts", prompt=["a" * 30_000] * 100)
    yield of("many tokens", prompt=[1] * 500_000)
    yield of("many lists", prompt=[[1]] * 100_000)
    yield of("many texts", prompt=["a"] * 190_000)
    yield of("many messages", CHAT, messages=[{"role": "user", "content": "x"}] * 30_000)
    yield of("a long message", CHAT, messages=[{"role": "user", "content": "x" * 1_000_000}])
    yield of("many parts", CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 40_000}])
    call = {"function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "x", "tool_calls": [call] * 20_000}
    yield of("calls", CHAT, messages=[{"role": "user", "content": "x"}, calling])
    special = "<|im_start|>" * 50_000
    yield of("special tokens", prompt=special)
    yield of("special tokens, chat", CHAT, messages=[{"role": "user", "content": special}])
    yield Crafted("escapes", COMPLETION, b'{"prompt": "' + b"\\u0061" * 300_000 + b'"}')
    yield Crafted("pairs", COMPLETION, b'{"prompt": "' + b"\\ud83d\\ude00" * 100_000 + b'"}')


def structures() -> Iterator[Crafted]:
    for name, text in (
        ("brackets", b"[" * 190_000),
        ("closed brackets", b"[" * 90_000 + b"]" * 90_000),
        ("lists", b"[" + b"[]," * 190_000 + b"[]]"),
        ("objects", b"[" + b"{}," * 190_000 + b"{}]"),
        ("keys", b"{" + b",".join(b'"%d":1' % i for i in range(190_000)) + b"}"),
        ("numbers", b"[" + b"1," * 500_000 + b"1]"),
        ("floats", b"[" + b"1e300," * 300_000 + b"1]"),
        ("digits", b"9" * 1_000_000),
        ("fractions", b"0." + b"1" * 1_000_000),
        ("nulls", b"[" + b"null," * 300_000 + b"1]"),
        ("texts", b"[" + b'"",' * 500_000 + b"1]"),
        ("blanks", b" " * 3_000_000 + b"1"),
    ):
        yield Crafted(f"structure: {name}", COMPLETION, b'{"prompt": "x", "max_tokens": 1, "z": ' + text + b"}")
    yield of("stops", stop=["ab" * 128] * 16, max_tokens=400)
    yield of("stop tokens", stop_token_ids=list(range(VOCAB_SIZE)) * 15, max_tokens=400)
    yield of("bias", logit_bias={str(i): 1 for i in range(VOCAB_SIZE)}, n=64, max_tokens=100)
    yield of("allowed", allowed_token_ids=list(range(VOCAB_SIZE)) * 500, max_tokens=100)
    yield of("metadata", metadata={str(i): "x" * 100_000 for i in range(16)}, max_tokens=1)
    yield of("salt", cache_salt="x" * 2_000_000)
    yield of("user", user="x" * 2_000_000)
    yield of("id", request_id="x" * 2_000_000, max_tokens=1)
    yield of("model", model="x" * 2_000_000)


def forms() -> Iterator[Crafted]:
    tools = [{"type": "function", "function": {"name": f"f{i}", "description": "x" * 1000}} for i in range(128)]
    yield of("tools", CHAT, tools=tools, max_tokens=1)
    yield of("an enumeration", structured_outputs={"json": {"enum": [str(i) for i in range(15_000)]}}, max_tokens=1)
    yield of("a repetition", structured_outputs={"regex": "(a{1,1000}){1,1000}"}, max_tokens=1)
    yield of("a backtrack", structured_outputs={"regex": "(a+)+b"}, max_tokens=1)
    yield of("choices", structured_outputs={"choice": [str(i) for i in range(4096)]}, max_tokens=1)


def responses() -> Iterator[Crafted]:
    most: dict[str, Any] = {"max_output_tokens": 500, "ignore_eos": True}
    tools = [{"type": "function", "name": f"f{i}", "description": "x" * 20_000} for i in range(128)]
    call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}
    part = {"type": "reasoning_text", "text": ""}
    for stream in (False, True):
        yield of(f"response scores, {stream}", RESPONSE, top_logprobs=20, stream=stream, **most)
        yield of(f"response, {stream}", RESPONSE, stream=stream, **most)
        yield of(f"tools told back, {stream}", RESPONSE, tools=tools, tool_choice="none", stream=stream, **most)
    yield of("response items", RESPONSE, input=[{"role": "user", "content": "x"}] * 30_000)
    yield of("response calls", RESPONSE, input=[call] * 20_000)
    yield of("response thoughts", RESPONSE, input=[{"type": "reasoning", "content": [part]}] * 30_000)
    yield of("response parts", RESPONSE, input=[{"role": "user", "content": [part] * 40_000}])


class Memory:
    """Resident bytes of a process and its children."""

    def __init__(self, server: Served) -> None:
        self._pids = [server.process.pid, *server.worker_pids()]
        self.server_pid = server.process.pid

    def read(self, name: str) -> int:
        sizes = []
        for pid in self._pids:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            sizes.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":")))
        return sum(sizes)

    def forget_peak(self) -> None:
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.server_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, memory: Memory, one: Crafted) -> dict[str, Any]:
    """What one request costs."""
    memory.forget_peak()
    before = memory.read("VmRSS")
    over = asyncio.Event()
    longest = [0.0]

    async def probe() -> None:
        async with RawConnection(port) as connection:
            while not over.is_set():
                began, cpu_s = time.perf_counter(), memory.cpu_s()
                await connection.ask(PROBE)
                longest[0] = max(longest[0], min(time.perf_counter() - began, memory.cpu_s() - cpu_s))
                await asyncio.sleep(0.002)

    async with RawConnection(port) as connection:
        probing = asyncio.create_task(probe())
        began = time.perf_counter()
        answer = await connection.ask(request(one.path, one.body, one.headers))
        elapsed_s = time.perf_counter() - began
        over.set()
        await probing
    grown = memory.read("VmHWM") - before
    size = len(one.body)
    return {
        "name": one.name,
        "bytes": size,
        "status": CUT if answer is CLOSED else answer.status,
        "answer_bytes": len(answer.body),
        "grown_bytes": grown,
        "allowed_bytes": MAX_FACTOR * size + MAX_MORE_BYTES,
        "stall_s": round(longest[0], 3),
        "total_s": round(elapsed_s, 2),
    }


def check(names: slice) -> None:
    engine = {"max_num_seqs": 128, "num_blocks": 8192, "max_num_batched_tokens": 2048}
    with served(engine, script="serve_engine.py", log_requests=False) as server:
        memory = Memory(server)
        warm = [of("warm", n=8, max_tokens=100, logprobs=5), of("warm chat", CHAT, max_tokens=4)]
        for one in warm * 3:
            asyncio.run(measure(server.port, memory, one))
        reports = [asyncio.run(measure(server.port, memory, one)) for one in list(crafted())[names]]
        assert server.get("/health")[0] == 200
    wrong = []
    for report in reports:
        print(json.dumps(report))
        is_large = report["grown_bytes"] > report["allowed_bytes"]
        is_slow = report["stall_s"] > MAX_STALL_S
        if is_large or is_slow or report["status"] // 100 not in (2, 4):
            wrong.append(report)
    assert not wrong, wrong


def test_there_are_sixty() -> None:
    assert len({one.name for one in crafted()}) >= 60


def test_s9_a_few_small_requests_cost_little() -> None:
    check(slice(0, None, 6))


@pytest.mark.long
def test_s9_no_small_request_costs_much() -> None:
    check(slice(None))
