"""A whole server on a thread: real sockets, real HTTP, a fake worker at the other end of the frames."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import uvloop

from chairlift.core.admission import Admission
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.access import Access
from chairlift.server.api_keys import NO_KEYS, read_api_keys
from chairlift.server.app import App
from chairlift.server.assembly import make_access, make_app, make_explanations, serve_batches, serve_engine
from chairlift.server.batches.service import open_store
from chairlift.server.batches.store import Store
from chairlift.server.client import EngineClient
from chairlift.server.generate import Engine, Generation
from chairlift.server.http_server import HttpServer, bind
from chairlift.server.options import ServerOptions
from chairlift.server.ports import ServedText
from chairlift.server.tls import server_context
from chairlift.server.traced import Traces
from chairlift.server.ui.recent import Recent
from chairlift.server.usage_log import UsageLog
from chairlift.wire import Ready
from server.fake_text import FakeText
from server.fake_worker import FakeOptions, FakeWorker

TIMEOUT_S = 10.0
NUM_THREADS = 2
"""Of the pool that reads large bodies and tokenises, as in `chairlift serve`."""


class RunningServer:
    """The parts of `chairlift serve`, put together in this process, and ways to look into them."""

    def __init__(
        self,
        worker: FakeWorker,
        client_sock: socket.socket,
        options: ServerOptions,
        text: ServedText,
        traces: Traces | None = None,
    ) -> None:
        self.worker = worker
        self.options = options
        self.loop = uvloop.new_event_loop()
        self.explanations = make_explanations(options)
        self.usage_log = None if options.usage_log is None else UsageLog(options.usage_log, time.monotonic, time.time)
        self._client_sock = client_sock
        self._text = text
        self._traces = traces
        self.admission: Admission
        self.client: EngineClient
        self.app: App
        self.access: Access
        self.store: Store | None = None
        self.generation: Generation
        self.http: HttpServer
        self.port = 0
        self.baseline_tasks = 0
        self._pool = ThreadPoolExecutor(NUM_THREADS)
        self._stack = contextlib.ExitStack()
        """Leaves the folder of batches."""
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.run(self._start())

    async def _start(self) -> None:
        client_sock = self._client_sock
        client_sock.setblocking(False)
        options = self.options
        keys = NO_KEYS if options.api_key_file is None else read_api_keys(options.api_key_file)
        self.admission = Admission(options.admission, policy=options.scheduling_policy)
        self.admission.set_own_limits(keys.limits)
        recent = Recent() if options.has_ui else None
        _, self.client = await self.loop.create_unix_connection(
            lambda: EngineClient(_metrics, self.explanations, self.admission, recent=recent), sock=client_sock
        )
        self.access = make_access(options, keys)
        self.app = make_app(options, self.access, self.explanations, self.usage_log, self._traces, moment_s=0.0)
        sock = bind(options)
        self.port = 0 if options.uds is not None else sock.getsockname()[1]
        self.http = HttpServer(self.app, sock, options, server_context(options))
        await self.http.start()
        ready = await self.client.ready
        engine = Engine(
            client=self.client,
            text=self._text,
            max_model_len=ready.max_model_len,
            served_names=options.served_model_names or (ready.model_name,),
            created=1,
        )
        self.generation = serve_engine(self.app, options, engine, self._pool)
        self.store = open_store(options, self._stack)
        if self.store is not None:
            serve_batches(self.app, self.store, self.access, self.client)
        self.baseline_tasks = len(asyncio.all_tasks())

    def stop(self) -> None:
        if self.app.batches is not None:
            self.run(self.app.batches.close())
        self.run(self.http.stop())
        self.loop.call_soon_threadsafe(self.client.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self._pool.shutdown()
        self._stack.close()
        if self.usage_log is not None:
            self.usage_log.close(TIMEOUT_S)
        self.loop.close()

    @contextlib.contextmanager
    def held_pool(self) -> Iterator[Callable[[], int]]:
        """No thread of the pool is free meanwhile. Gives what says how many tasks wait for one."""
        gate = threading.Event()
        standing = threading.Barrier(NUM_THREADS + 1)

        def stand() -> None:
            standing.wait(TIMEOUT_S)
            gate.wait(TIMEOUT_S)

        for _ in range(NUM_THREADS):
            self._pool.submit(stand)
        standing.wait(TIMEOUT_S)
        try:
            yield self._pool._work_queue.qsize
        finally:
            gate.set()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(TIMEOUT_S)

    def num_tasks(self) -> int:
        """Tasks of the server's loop beyond those of an idle server."""

        async def count() -> int:
            return len(asyncio.all_tasks(self.loop)) - self.baseline_tasks

        return int(self.run(count()))

    def num_connections(self) -> int:
        """Open connections of clients."""

        async def count() -> int:
            return self.http.num_connections

        return int(self.run(count()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_idle(self) -> None:
        """Until nobody is served: no request in the engine, no block used, no task left."""
        until(lambda: self.client.num_live == 0)
        until(lambda: not self.worker.running and not self.worker.waiting)
        until(lambda: self.num_tasks() <= 0)
        assert self.worker.num_used_blocks == 0
        assert (self.admission.num_live, self.admission.num_queued, self.admission.num_principals) == (0, 0, 0)

    # ------------------------------------------------------------ requests

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, _, content = self.request(method, path, body, headers)
        return status, json.loads(content)

    def complete(self, **fields: Any) -> Any:
        """A completion that is expected to succeed."""
        status, answer = self.json("POST", "/v1/completions", {"model": "fake", "prompt": "hi"} | fields)
        assert status == 200, answer
        return answer

    def chat(self, **fields: Any) -> Any:
        """A chat that is expected to succeed."""
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]} | fields
        status, answer = self.json("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, parsed; `[DONE]` stays text."""
        status, headers, content = self.request("POST", path, body | {"stream": True})
        assert status == 200, content
        assert headers["content-type"].startswith("text/event-stream")
        pieces = content.decode().split("\n\n")
        assert pieces[-1] == ""
        lines = [piece.removeprefix("data: ") for piece in pieces[:-1]]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def refused(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """A request that is expected to fail: status and the error in the API's shape."""
        status, answer = self.json("POST", path, body, headers)
        assert status >= 400, answer
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        return status, answer["error"]


def _metrics(ready: Ready) -> ServingMetrics:
    return ServingMetrics("fake", ready.max_model_len, ready.num_blocks, ready.block_size)


def until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S, look_s: float = 0.002) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(look_s)


@contextlib.contextmanager
def running_server(
    worker_options: FakeOptions | None = None,
    text: ServedText | None = None,
    traces: Traces | None = None,
    **options: Any,
) -> Iterator[RunningServer]:
    """A server on a free port, stopped at the end."""
    theirs, ours = socket.socketpair()
    worker = FakeWorker(theirs, worker_options)
    thread = threading.Thread(target=worker.run, daemon=True)
    server = RunningServer(worker, ours, ServerOptions(**{"port": 0} | options), text or FakeText(), traces)
    thread.start()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(TIMEOUT_S)
        theirs.close()
        assert not thread.is_alive()
