"""The parts of a server, made as its options say; whoever has a worker puts them together (`run.py`)."""

from __future__ import annotations

import time
from concurrent.futures import Executor

from chairlift.server.access import Access
from chairlift.server.admin import Admin
from chairlift.server.api_keys import ApiKeys
from chairlift.server.app import App
from chairlift.server.batches.service import BatchService
from chairlift.server.batches.store import Store
from chairlift.server.client import EngineClient
from chairlift.server.cors import Cors
from chairlift.server.explanations import Explanations
from chairlift.server.generate import Engine, Generation
from chairlift.server.options import ServerOptions
from chairlift.server.passes import Passes, Reader
from chairlift.server.tokenizing import Tokenizing
from chairlift.server.traced import Traces
from chairlift.server.ui.watching import MOMENT_S, Watching
from chairlift.server.usage_log import UsageLog


def make_access(options: ServerOptions, keys: ApiKeys) -> Access:
    """Who may ask; `keys` are those of the key file."""
    return Access(
        options.api_keys,
        options.host,
        options.allowed_hosts,
        options.admin_api_keys,
        options.metrics_api_keys,
        keys.principals,
    )


def make_explanations(options: ServerOptions) -> Explanations | None:
    """What remembers requests, if there is anybody who may ask about them."""
    return Explanations(options.keep_explanations) if options.admin_api_keys or options.has_ui else None


def make_app(
    options: ServerOptions,
    access: Access,
    explanations: Explanations | None,
    usage_log: UsageLog | None,
    traces: Traces | None,
    *,
    moment_s: float = MOMENT_S,
) -> App:
    """The app, which serves nothing yet."""
    admin, watching = None, None
    if explanations is not None and options.admin_api_keys:
        admin = Admin(explanations, options.admission)
    if explanations is not None and options.has_ui:
        watching = Watching(explanations, time.monotonic, moment_s=moment_s)
    return App(
        access,
        time.monotonic,
        stall_timeout_s=options.stall_timeout_s,
        log_requests=options.log_requests,
        admin=admin,
        watching=watching,
        cors=Cors(options.allowed_origins) if options.allowed_origins else None,
        root_path=options.root_path,
        usage_log=usage_log,
        traces=traces,
    )


def make_passes(options: ServerOptions, reader: Reader, pool: Executor) -> Passes:
    """What serves an encoder."""
    return Passes(
        reader,
        pool,
        time.monotonic,
        time.time,
        max_body_bytes=options.max_body_bytes,
        overload_status=options.overload_status,
    )


def serve_engine(app: App, options: ServerOptions, engine: Engine, pool: Executor) -> Generation:
    """Let the app serve a model."""
    generation = Generation(
        engine,
        pool,
        time.monotonic,
        time.time,
        max_body_bytes=options.max_body_bytes,
        max_pending_bytes=options.max_pending_bytes,
        overload_status=options.overload_status,
        tells_timings=options.enable_per_request_metrics,
        sse_keep_alive_interval_s=options.sse_keep_alive_interval_s,
    )
    app.tokenizing = Tokenizing(
        engine,
        pool,
        time.monotonic,
        max_body_bytes=options.max_body_bytes,
        overload_status=options.overload_status,
    )
    app.serving = engine, generation
    return generation


def serve_batches(app: App, store: Store, access: Access, client: EngineClient) -> None:
    """Let the app serve files and batches, and go on with those that there are."""
    app.batches = BatchService(store, app.answer, lambda: not app.draining, access, client, time.time)
    app.batches.start()
