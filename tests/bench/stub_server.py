"""A small OpenAI-like server: says what it is told to, cut into pieces at random places.

Also a script: `stub_server.py -m chairlift serve [MODEL] [--max-num-seqs N] --host HOST --port PORT` stands in for
the Python interpreter that starts the real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any


class StubServer:
    """Answers completions and chat with as many words as were asked for. A body's `stub` field asks for trouble:

    refuse: status 503   break: the connection ends inside the stream   error: an error event in the stream
    close: a response without length that ends with the connection      hang: no answer until the client has gone
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.num_connections = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.close_after_response = False
        self.client_gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split()
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                if json.loads(body or b"{}").get("stub") == "hang":
                    await reader.read()
                    self.client_gone.set()
                    return
                if not await self._respond(writer, method, path, json.loads(body or b"{}")):
                    return
                if self.close_after_response:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _respond(self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]) -> bool:
        """Whether the connection may be used again."""
        if (method, path) == ("GET", "/health"):
            await self._whole(writer, 200, {})
        elif (method, path) == ("GET", "/v1/models"):
            await self._whole(writer, 200, {"data": [{"id": "stub/model"}]})
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self.bodies.append(body)
            return await self._answer(writer, path.endswith("/chat/completions"), body)
        else:
            await self._whole(writer, 404, {"error": {"message": f"no {path}"}})
        return True

    async def _answer(self, writer: asyncio.StreamWriter, chat: bool, body: dict[str, Any]) -> bool:
        trouble = body.get("stub")
        count = body["max_completion_tokens" if chat else "max_tokens"]
        usage = {"prompt_tokens": 9, "completion_tokens": count}
        words = [f" w{i}" for i in range(count)]
        if trouble == "refuse":
            await self._whole(writer, 503, {"error": {"message": "full"}})
            return True
        if not body["stream"]:
            whole: dict[str, Any] = {"message": {"content": "".join(words)}} if chat else {"text": "".join(words)}
            await self._whole(writer, 200, {"choices": [{**whole, "finish_reason": "length"}], "usage": usage})
            return True
        events: list[dict[str, Any]] = []
        for i, word in enumerate(words):
            said: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
            events.append({"choices": [{"index": 0, **said, "finish_reason": "length" if i == count - 1 else None}]})
        if chat:
            events.insert(0, {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
        if trouble == "error":
            events = [*events[:1], {"error": {"message": "the engine died"}}]
        elif trouble == "break":
            del events[len(events) // 2 :]
        else:
            events.append({"choices": [], "usage": usage})
        stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        if trouble is None or trouble == "close":
            stream += b"data: [DONE]\n\n"
        length = b"" if trouble == "close" else b"Transfer-Encoding: chunked\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + length + b"\r\n")
        for piece in self._pieces(stream):
            writer.write(piece if trouble == "close" else f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        if trouble in ("break", "close"):
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _pieces(self, stream: bytes) -> Iterator[bytes]:
        place = 0
        while place < len(stream):
            size = self.random.choice([1, 5, 40, 200])
            yield stream[place : place + size]
            place += size

    async def _whole(self, writer: asyncio.StreamWriter, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """The server's base URL while it listens."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(asyncio.CancelledError):
                await self.serve(reader, writer)

        server = await asyncio.start_server(connected, host, port)
        try:
            yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()


@contextlib.contextmanager
def in_thread(stub: StubServer) -> Iterator[str]:
    """The base URL of a server that runs in a thread meanwhile."""
    started = threading.Event()
    url: list[str] = []

    async def main() -> None:
        async with stub.listening() as base:
            url.append(base)
            stop.append(asyncio.get_running_loop())
            over.append(asyncio.Event())
            started.set()
            await over[0].wait()

    stop: list[asyncio.AbstractEventLoop] = []
    over: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait(10.0)
    try:
        yield url[0]
    finally:
        stop[0].call_soon_threadsafe(over[0].set)
        thread.join(10.0)


async def _script(arguments: list[str]) -> None:
    flags = dict(pairwise(arguments))
    if flags.get("--max-num-seqs") == "0":
        print("chairlift: max_num_seqs must be at least 1", file=sys.stderr)
        sys.exit(2)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with StubServer().listening(flags["--host"], int(flags["--port"])):
        await over.wait()


if __name__ == "__main__":
    asyncio.run(_script(sys.argv[1:]))
