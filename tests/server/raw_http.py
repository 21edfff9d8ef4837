"""HTTP as bytes: what no client library would send can be sent, and answers are read as they are."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from dataclasses import dataclass
from typing import Any, Self

TIMEOUT_S = 60.0
CLOSE = b"connection: close\r\n"
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Answer:
    """What a server said. `status` 0: it closed without a word."""

    status: int
    head: bytes = b""
    body: bytes = b""

    def header(self, name: str) -> str:
        start = self.head.lower().find(b"\r\n" + name.lower().encode() + b":")
        return "" if start < 0 else self.head[start + 2 :].split(b"\r\n")[0].partition(b":")[2].strip().decode()


CLOSED = Answer(0)


def request(path: str, body: bytes, headers: bytes = b"", method: str = "POST") -> bytes:
    """A request as it should be."""
    return b"%b %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b" % (
        method.encode(), path.encode(), headers, len(body), body,
    )  # fmt: skip


def drawn_request(generator: random.Random, prompt: str, headers: bytes = b"") -> bytes:
    """A completion or a chat, streamed or whole, with a choice or several, for a prompt or two."""
    body: dict[str, Any] = {
        "max_tokens": generator.randint(1, 60),
        "n": generator.choice([1, 1, 1, 2, 4]),
        "stream": generator.random() < 0.6,
        "ignore_eos": generator.random() < 0.5,
    }
    path = generator.choice(["/v1/completions", "/v1/chat/completions"])
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = [prompt, "other"] if generator.random() < 0.2 else prompt
    return request(path, json.dumps(body).encode(), headers)


async def leave(port: int, data: bytes, generator: random.Random) -> str:
    """A client that goes before its answer is whole, by FIN or RST: while it sends, soon after, or amid the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if generator.random() < 0.2:
            writer.write(data[: generator.randrange(len(data))])
            return "left while sending"
        writer.write(data)
        if generator.random() < 0.5:
            await asyncio.sleep(generator.random() * 0.05)
        else:
            await reader.read(generator.randint(1, 4000))
        return "left"
    finally:
        if generator.random() < 0.5:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()


class RawConnection:
    """A connection that is made anew whenever the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask(self, data: bytes, *, is_head: bool = False) -> Answer:
        """Send these bytes and read one answer."""
        for _ in range(2):
            is_new = self._streams is None
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
            try:
                answer = await asyncio.wait_for(self._ask(*self._streams, data, is_head), TIMEOUT_S)
            except (ConnectionError, asyncio.IncompleteReadError):
                answer = CLOSED
            if answer is CLOSED or b"connection: close" in answer.head.lower():
                self.close()
            if answer is not CLOSED or is_new:
                return answer
        return CLOSED

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, is_head: bool
    ) -> Answer:
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        lower = head.lower()
        if is_head or status in (204, 304):
            return Answer(status, head)
        if b"transfer-encoding: chunked" in lower:
            return Answer(status, head, await _chunks(reader))
        if b"content-length:" in lower:
            size = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            return Answer(status, head, await reader.readexactly(size))
        return Answer(status, head, await reader.read())


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)
