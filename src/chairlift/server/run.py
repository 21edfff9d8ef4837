"""From options to a process that serves: start, serve, drain, end.

    bind ── start worker ──┬── HTTP up: 503 "loading" ──┬── ready: greet, serve ──┬── SIGTERM: drain ── exit 0
                           └── load the tokenizer ──────┘                         └── worker lost for good ── exit 1

The worker loads the model while this process loads the tokenizer. Later ones are the supervisor's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import uvloop

from chairlift.core.admission import Admission
from chairlift.core.errors import EngineDead, InvalidModel, InvalidOption
from chairlift.metrics.serving import ServingMetrics
from chairlift.models.resolve import resolve
from chairlift.server.api_keys import NO_KEYS, ApiKeys, read_api_keys
from chairlift.server.assembly import (
    make_access,
    make_app,
    make_explanations,
    make_passes,
    serve_batches,
    serve_engine,
)
from chairlift.server.batches.service import open_store
from chairlift.server.batches.store import Store
from chairlift.server.client import EngineClient
from chairlift.server.encoder_side import EncoderSide
from chairlift.server.errors import unavailable
from chairlift.server.generate import Engine
from chairlift.server.greeting import LOCAL_NAME, base_url, greeting
from chairlift.server.http_server import HttpServer, bind
from chairlift.server.logs import flush_logs, set_up_logs
from chairlift.server.options import ServerOptions
from chairlift.server.passage_text import PassageText
from chairlift.server.passes import Reader
from chairlift.server.ports import ServedText
from chairlift.server.process import WorkerCommand
from chairlift.server.restarts import Restarts
from chairlift.server.served_text import load_served_text
from chairlift.server.supervisor import Supervisor, ending
from chairlift.server.tls import load_certificate, server_context
from chairlift.server.traced import Traces
from chairlift.server.ui.recent import Recent
from chairlift.server.unix_socket import removed_at_end
from chairlift.server.usage_log import UsageLog
from chairlift.text.passages import PassageTokenizer, load_passages
from chairlift.wire import EncoderReady, Ready

_log = logging.getLogger("chairlift.server")
_worker_log = logging.getLogger("chairlift.worker")

EXIT_OK = 0
EXIT_LOST = 1
"""The engine died, or not everything could be finished in time."""

WORKER_EXIT_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 1.0
_POLL_S = 0.02
_NUM_THREADS = 2
_CANNOT_START = 2
"""Exit status of a worker whose model or options are at fault."""


def serve(
    options: ServerOptions,
    model: str,
    worker_command: WorkerCommand,
    load_text: Callable[[str], ServedText] = load_served_text,
    embedding_model: str | None = None,
    open_traces: Callable[[str], Traces] | None = None,
) -> int:
    """Serve `model` until told to stop; returns the exit status. Prints to standard output once it is ready.

    `embedding_model` is the one that reads texts for vectors, if it is another. `open_traces` gives what takes traces
    to the endpoint of the options.

    Raises:
        InvalidOption: the address cannot be bound.
        InvalidModel: the model cannot be loaded.
        EngineDead: the worker ended before it was ready.
    """
    set_up_logs(options.log_format, options.log_level)
    _allow_descriptors()
    keys = _keys(options)
    context = server_context(options)
    sock = bind(options)
    _log.info("loading %s", model)
    with contextlib.closing(sock), removed_at_end(options.uds), contextlib.ExitStack() as stack:
        stack.callback(flush_logs)
        usage_log = None
        if options.usage_log is not None:
            usage_log = UsageLog(options.usage_log, time.monotonic, time.time)
            stack.callback(usage_log.close, FLUSH_TIMEOUT_S)
        store = open_store(options, stack)
        traces = None
        if options.otlp_traces_endpoint is not None and open_traces is not None:
            traces = open_traces(options.otlp_traces_endpoint)
            stack.callback(traces.close, FLUSH_TIMEOUT_S)
        url = (
            f"http://{LOCAL_NAME}"
            if options.uds is not None
            else base_url(options.host, sock.getsockname()[1], "http" if context is None else "https")
        )
        service = _Service(
            options,
            worker_command,
            lambda: load_text(model),
            lambda: load_passages(resolve(embedding_model or model)),
            context,
            usage_log,
            keys,
            traces,
            store,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(service.run(HttpServer(service.app, sock, options, context), url))


def _keys(options: ServerOptions) -> ApiKeys:
    if options.api_key_file is None:
        return NO_KEYS
    path = options.api_key_file
    keys = read_api_keys(path, (*options.admin_api_keys, *options.metrics_api_keys))
    if keys.is_exposed:
        _log.warning("%s holds keys and can be read by others: chmod 600, or keep digests in it (sha256:)", path)
    return keys


def _allow_descriptors() -> None:
    """As many connections as the system lets this process have; the usual soft limit is a thousand."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Service:
    """One server process's life."""

    def __init__(
        self,
        options: ServerOptions,
        command: WorkerCommand,
        load_text: Callable[[], ServedText],
        load_passages: Callable[[], PassageTokenizer],
        context: ssl.SSLContext | None,
        usage_log: UsageLog | None,
        keys: ApiKeys,
        traces: Traces | None,
        store: Store | None,
    ) -> None:
        self._options = options
        self._context = context
        self._command = command
        self._load_text = load_text
        self._load_passages = load_passages
        self._store = store
        self._signals = 0
        self._told = asyncio.Event()
        """Something happened: a signal, or the engine is lost for good."""
        self._explanations = make_explanations(options)
        self._access = make_access(options, keys)
        self._admission = Admission(options.admission, policy=options.scheduling_policy)
        self._encoder_admission = Admission(options.admission, policy=options.scheduling_policy)
        self._set_own_limits(keys)
        self.app = make_app(options, self._access, self._explanations, usage_log, traces)

    async def run(self, http: HttpServer, url: str) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if self._context is not None or self._options.api_key_file is not None:
            loop.add_signal_handler(signal.SIGHUP, self._renew)
        side = EncoderSide(self._encoder_admission, self._encoder_metrics)
        recent = Recent() if self._options.has_ui else None
        client = EngineClient(self._metrics, self._explanations, self._admission, side, recent)
        restarts = Restarts(self._options.max_engine_restarts)
        tell = _worker_log.warning if self._options.log_format == "json" else None
        supervisor = Supervisor(self._command, client, self.app.watchdog, restarts, time.monotonic, tell)
        with contextlib.closing(supervisor), ThreadPoolExecutor(_NUM_THREADS, "text") as pool:
            try:
                await supervisor.start()
                await http.start()
                ready = await self._load(client, supervisor, pool)
                if ready is None:
                    return EXIT_OK
                self._greet(ready, url)
                gc.collect()
                gc.freeze()  # the model's vocabulary and the modules live as long as the process
                is_clean = await self._serve(client, supervisor)
                await self._leave_batches()
                client.drain()
                await http.stop()
                await supervisor.end(0.0 if client.dead.done() else WORKER_EXIT_TIMEOUT_S)
                return EXIT_OK if is_clean else EXIT_LOST
            finally:
                await self._leave_batches()
                client.close()
                await http.stop()

    async def _serve(self, client: EngineClient, supervisor: Supervisor) -> bool:
        """Until a signal has been obeyed, or the engine is lost for good; whether everything was finished."""
        watching = asyncio.create_task(supervisor.run())
        watching.add_done_callback(lambda _: self._told.set())
        try:
            await self._told.wait()
            if watching.done():
                watching.result()
                _log.error("stopping: there is no engine any longer")
                self.app.draining = True
                await self._until_quiet(FLUSH_TIMEOUT_S, lambda: False)
                return False
            supervisor.may_restart = False
            return await self._drain(client)
        finally:
            watching.cancel()

    async def _load(self, client: EngineClient, supervisor: Supervisor, pool: ThreadPoolExecutor) -> Ready | None:
        """Until everything is there; None if a signal came first."""
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(pool, self._load_text)
        told = asyncio.ensure_future(self._told.wait())
        await asyncio.wait((client.ready, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if client.dead.done():
            await self._explain(client, supervisor)
        if self._signals or not client.ready.done():
            return None
        ready = client.ready.result()
        if ready.encoder is not None:
            if isinstance(text, PassageText):  # an encoder alone: one tokenizer serves both
                passages = text.passages
            else:
                passages = await loop.run_in_executor(pool, self._load_passages)
            self.app.passes = make_passes(self._options, self._reader(client, ready, ready.encoder, passages), pool)
        engine = Engine(
            client=client,
            text=text,
            max_model_len=ready.max_model_len,
            served_names=self._names(ready),
            created=int(time.time()),
        )
        serve_engine(self.app, self._options, engine, pool)
        if self._store is not None:
            serve_batches(self.app, self._store, self._access, client)
        return ready

    def _reader(self, client: EngineClient, ready: Ready, encoder: EncoderReady, passages: PassageTokenizer) -> Reader:
        names = self._options.served_model_names if not ready.generates else ()
        return Reader(
            client=client,
            passages=passages,
            max_model_len=encoder.max_model_len,
            num_outputs=encoder.num_outputs,
            labels=tuple(encoder.labels),
            served_names=names or (encoder.model_name,),
            created=int(time.time()),
        )

    async def _explain(self, client: EngineClient, supervisor: Supervisor) -> None:
        """The worker ended before it was ready: its own words if it had any.

        Raises:
            InvalidModel: the model or an option is at fault.
            EngineDead: anything else.
        """
        status = await supervisor.wait(WORKER_EXIT_TIMEOUT_S)
        reason = client.dead.result()
        if status == _CANNOT_START:
            raise InvalidModel(reason)
        raise EngineDead(f"{reason} ({ending(status)})")

    def _names(self, ready: Ready) -> tuple[str, ...]:
        """What requests may call the model; the first is the one that is told."""
        return self._options.served_model_names or (ready.model_name,)

    def _metrics(self, ready: Ready) -> ServingMetrics:
        return ServingMetrics(self._names(ready)[0], ready.max_model_len, ready.num_blocks, ready.block_size)

    def _encoder_metrics(self, ready: EncoderReady) -> ServingMetrics:
        return ServingMetrics(ready.model_name, ready.max_model_len, 0, ready.max_model_len, engine="1")

    def _greet(self, ready: Ready, url: str) -> None:
        text = greeting(
            url,
            self._names(ready)[0],
            max_model_len=ready.max_model_len,
            load_s=ready.load_s,
            resident_bytes=ready.resident_bytes,
            needs_key=self._options.wants_keys,
            uds=self._options.uds,
            generates=ready.generates,
            has_ui=self._options.has_ui,
        )
        try:
            print(text, flush=True)
        except OSError as error:  # nobody reads it, or a full disk: no reason not to serve
            _log.warning("standard output cannot be written: %s", error.strerror)

    def _renew(self) -> None:
        """SIGHUP: read again what may change while serving."""
        if self._context is not None:
            self._renew_certificate(self._context)
        if self._options.api_key_file is not None:
            self._renew_keys()

    def _renew_keys(self) -> None:
        """Who has lost their key may finish what is in flight."""
        try:
            keys = _keys(self._options)
        except InvalidOption as error:
            _log.error("the API keys stay as they were: %s", error)
            return
        self._access.set_principals(keys.principals)
        self._set_own_limits(keys)
        _log.info("%d API keys were read; weights are those of the start", len(keys.principals))

    def _set_own_limits(self, keys: ApiKeys) -> None:
        for admission in (self._admission, self._encoder_admission):
            admission.set_own_limits(keys.limits)

    def _renew_certificate(self, context: ssl.SSLContext) -> None:
        try:
            load_certificate(context, self._options)
        except InvalidOption as error:
            _log.error("the certificate stays as it was: %s", error)
        else:
            _log.info("new connections get the new certificate")

    def _on_signal(self) -> None:
        self._signals += 1
        self._told.set()

    async def _drain(self, client: EngineClient) -> bool:
        """Let what is there finish; whether everything did. An engine that was lost before had nothing to finish."""
        was_dead = client.dead.done()
        app, timeout_s = self.app, self._options.shutdown_timeout_s
        app.draining = True
        _log.info("stopping: %d requests in flight, at most %g s", app.num_generating, timeout_s)
        await self._leave_batches()
        client.close_queue()
        await self._until_quiet(timeout_s, lambda: self._signals > 1 or client.dead.done())
        if not app.num_generating:
            return was_dead or not client.dead.done()
        _log.warning("stopping now: %d requests are not finished", app.num_generating)
        if app.serving is not None:
            error = unavailable("The server is shutting down.", "shutting_down")
            app.serving[1].fail_all(error)
            if app.passes is not None:
                app.passes.fail_all(error)
        await self._until_quiet(FLUSH_TIMEOUT_S, lambda: False)
        return False

    async def _leave_batches(self) -> None:
        """What is asked for them is asked again at the next start; nobody here waits for it."""
        if self.app.batches is not None:
            await self.app.batches.close()

    async def _until_quiet(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while self.app.num_generating and time.monotonic() < deadline and not give_up():
            await asyncio.sleep(_POLL_S)
