"""Clients of a server process by the thousand: streams that are read, not read, or watched to their end."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from server.fake_worker import answer_tokens
from server.raw_http import CLOSE, RawConnection, request

HOST = "127.0.0.1"
DONE = b"[DONE]"
PAGE_KIB = 4


@dataclass
class Stream:
    """One streamed completion: what was asked, and what came when."""

    prompt: list[int]
    num_tokens: int
    times: list[float] = field(default_factory=list)
    nums_tokens: list[int] = field(default_factory=list)
    """Of each event: bytes of a character come as tokens, and are an event when it is whole."""
    text: str = ""
    num_malformed: int = 0
    is_done: bool = False
    error: str = ""
    ended: float = 0.0
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_whole(self) -> bool:
        """Everything came that the worker gives for this prompt, and the end said so."""
        expected = bytes(answer_tokens(self.prompt, 0, self.num_tokens)).decode("utf-8", "ignore")
        return self.is_done and not self.error and self.text.removesuffix("\ufffd") == expected

    def gaps(self) -> list[float]:
        """Seconds between two events, for each token of the later one."""
        spans = zip(self.times, self.times[1:], self.nums_tokens[1:], strict=False)
        return [(later - earlier) / num_tokens for earlier, later, num_tokens in spans]

    async def read(self, port: int) -> None:
        """Ask, and read to the end."""
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(completion(self.prompt, self.num_tokens))
            rest = b""
            while data := await reader.read(1 << 16):
                *events, rest = (rest + data).split(b"\n\n")
                now = time.monotonic()
                for event in events:
                    self._take(event, now)
        finally:
            self.ended = time.monotonic()
            writer.close()

    def _take(self, event: bytes, now: float) -> None:
        start = event.rfind(b"data: ")
        if start < 0:
            return
        payload = event[start + 6 :]
        if payload == DONE:
            self.is_done = True
            return
        try:
            content = msgspec.json.decode(payload)
            if "error" in content:
                self.error = content["error"]["code"]
                return
            text = content["choices"][0]["text"]
        except (msgspec.DecodeError, LookupError):
            self.num_malformed += 1
            return
        self.text += text
        self.times.append(now)
        self.nums_tokens.append(max(1, len(text.encode())))
        self.began.set()


def completion(prompt: list[int], num_tokens: int) -> bytes:
    """A streamed completion as one HTTP request, after which the connection closes."""
    body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    return request("/v1/completions", json.dumps(body).encode(), CLOSE)


def dead_reader(port: int, prompt: list[int], num_tokens: int) -> socket.socket:
    """Asks for a stream and reads nothing; its system takes as little as it can."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((HOST, port))
    sock.sendall(completion(prompt, num_tokens))
    return sock


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body; 0 if nobody answers."""
    try:
        async with RawConnection(port) as connection:
            answer = await connection.ask(request(path, b"", CLOSE, "GET"))
    except OSError:
        return 0, b""
    return answer.status, answer.body


async def metric(port: int, name: str) -> float:
    """The sum over a metric's series."""
    _, body = await get(port, "/metrics")
    lines = [line for line in body.decode().splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def resident_kib(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_KIB


Report = dict[str, Any]
