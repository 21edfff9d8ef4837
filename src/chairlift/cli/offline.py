"""A model served to this process alone, by the HTTP application without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from chairlift.cli.batch import Ask
from chairlift.core.errors import EngineDead, InvalidModel
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.access import Access
from chairlift.server.app import App
from chairlift.server.batches.lines import MAX_LINE_BYTES
from chairlift.server.client import EngineClient
from chairlift.server.generate import Engine, Generation
from chairlift.server.inner import InnerExchange
from chairlift.server.process import WorkerProcess
from chairlift.server.served_text import load_served_text
from chairlift.text import GivenTemplate
from chairlift.wire import Ready
from chairlift.worker.options import EngineOptions, worker_command
from chairlift.worker.process import EXIT_CANNOT_START

HOST = "127.0.0.1"
EXIT_TIMEOUT_S = 5.0


@asynccontextmanager
async def served_offline(
    options: EngineOptions, names: tuple[str, ...] = (), chat_template: GivenTemplate | None = None
) -> AsyncIterator[Ask]:
    """A way to ask a model that a worker process has loaded; the worker ends with the context.

    Raises:
        InvalidModel: the model cannot be loaded.
        EngineDead: the worker ended before it was ready.
    """

    def metrics(ready: Ready) -> ServingMetrics:
        return ServingMetrics(ready.model_name, ready.max_model_len, ready.num_blocks, ready.block_size)

    with WorkerProcess(lambda fd: worker_command(options, fd)) as process, ThreadPoolExecutor(2, "text") as pool:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_unix_connection(lambda: EngineClient(metrics), sock=process.sock)
        text = await loop.run_in_executor(pool, load_served_text, options.model, chat_template)
        await asyncio.wait((client.ready, client.dead), return_when=asyncio.FIRST_COMPLETED)
        if client.dead.done():
            status = await process.wait(EXIT_TIMEOUT_S)
            raise (InvalidModel if status == EXIT_CANNOT_START else EngineDead)(client.dead.result())
        ready = client.ready.result()
        engine = Engine(
            client=client,
            text=text,
            max_model_len=ready.max_model_len,
            served_names=names or (ready.model_name,),
            created=int(time.time()),
        )
        generation = Generation(
            engine,
            pool,
            time.monotonic,
            time.time,
            max_body_bytes=MAX_LINE_BYTES,
            max_pending_bytes=MAX_LINE_BYTES,
        )
        app = App(Access((), HOST, ()), time.monotonic, stall_timeout_s=float("inf"), log_requests=False)
        app.serving = engine, generation
        try:
            yield lambda url, body: _ask(app, url, body)
        finally:
            client.close()


async def _ask(app: App, url: str, body: bytes) -> tuple[int, bytes]:
    """Post a body as if it had come over HTTP."""
    exchange = InnerExchange(url, body)
    await app.answer(exchange)
    return exchange.status or 0, exchange.answer
