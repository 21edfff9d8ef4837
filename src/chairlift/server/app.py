"""The ASGI application: routes, access, and what every response has in common.

A route is found by the raw path, byte for byte: what was not decoded cannot be decoded differently by somebody else.
Everything needs access except what a route says is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

from chairlift import __version__
from chairlift.metrics.serving import CONTENT_TYPE
from chairlift.server import operations
from chairlift.server.access import Access
from chairlift.server.admin import LIMITS_PATH, REQUEST_PATH, REQUESTS_PATH, Admin
from chairlift.server.anthropic.dialect import count_message, read_message
from chairlift.server.anthropic.operations import COUNT, MESSAGES
from chairlift.server.batches.routes import batch_routes
from chairlift.server.batches.service import BatchService
from chairlift.server.chunks import read_chat, read_completion
from chairlift.server.client import EngineClient
from chairlift.server.cors import Cors
from chairlift.server.dialect import Read
from chairlift.server.embeddings import PASS_ROUTES
from chairlift.server.errors import FOR_NOW, ApiError, internal, unavailable
from chairlift.server.exchange import ClientGone, Exchange, Receive, Scope, Send
from chairlift.server.generate import Engine, Generation
from chairlift.server.kserve import MODEL_PATH as PROBED_PATH
from chairlift.server.kserve import READY as PROBED_READY
from chairlift.server.kserve import Probes
from chairlift.server.logs import ABOUT
from chairlift.server.openapi.document import Keys, document
from chairlift.server.passes import MakeJob, Passes, Reader
from chairlift.server.request_line import RequestLine
from chairlift.server.rerank import PAIR_ROUTES
from chairlift.server.responses.request import read_response
from chairlift.server.route import Endpoint, Operation, Route
from chairlift.server.shapes import encode_json
from chairlift.server.tokenizing import ReadBody, Tokenizing, detokenize, tokenize
from chairlift.server.traced import Traced, Traces
from chairlift.server.ui.shapes import LIVE_PATH, PAGE_PATH, STORY_PATH
from chairlift.server.ui.watching import LIVE, PAGE, STORY, Watching
from chairlift.server.usage import Used
from chairlift.server.usage_log import UsageLog
from chairlift.server.watchdog import Watchdog

_log = logging.getLogger("chairlift.server")

_MODEL_PATH = b"/v1/models/"
_UNKNOWN = "unknown"
_CLOSE = (b"connection", b"close")

AdminEndpoint = Callable[[Exchange, EngineClient], Awaitable[None]]


class App:
    """Serves one engine, or says why not. `serving` is set once a model is loaded, `draining` before the end."""

    def __init__(
        self,
        access: Access,
        clock: Callable[[], float],
        *,
        stall_timeout_s: float,
        log_requests: bool,
        admin: Admin | None = None,
        watching: Watching | None = None,
        cors: Cors | None = None,
        root_path: str = "",
        usage_log: UsageLog | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.serving: tuple[Engine, Generation] | None = None
        self.tokenizing: Tokenizing | None = None
        """What tells tokens of texts; there as soon as a model is served."""
        self.passes: Passes | None = None
        """What reads texts for vectors, if there is a model for that."""
        self.draining = False
        self.num_generating = 0
        """Requests for answers that are not finished."""
        self._access = access
        self._clock = clock
        self.watchdog = Watchdog(stall_timeout_s)
        """Of the engine; whoever asks for its health looks, and so does who watches over it."""
        self._log_requests = log_requests
        self._cors = cors
        self._root = root_path.encode()
        self._usage_log = usage_log
        self._traces = traces
        post, get = ("POST",), ("GET", "HEAD")
        self._routes: dict[bytes, Route] = {}
        self._add("/v1/completions", post, self._completions, operations.COMPLETIONS)
        self._add("/v1/chat/completions", post, self._chat_completions, operations.CHATS)
        self._add("/v1/responses", post, self._responses, operations.RESPONSES)
        for path, (make_job, operation) in (PASS_ROUTES | PAIR_ROUTES).items():
            self._add(path, post, partial(self._read, make_job), operation)
        self._add("/v1/messages", post, self._messages, MESSAGES)
        self._add("/v1/messages/count_tokens", post, partial(self._look_at, count_message), COUNT)
        self._add("/tokenize", post, partial(self._look_at, tokenize), operations.TOKENIZE)
        self._add("/detokenize", post, partial(self._look_at, detokenize), operations.DETOKENIZE)
        self._add("/v1/models", get, self._models, operations.MODELS)
        self._add("/version", get, self._version, operations.VERSION)
        self._add("/metrics", get, self._metrics, operations.METRICS, is_logged=False, is_metrics=True)
        self._add("/health", get, self._health, operations.HEALTH, is_open=True, is_logged=False)
        self._add("/ready", get, self._ready, operations.READY, is_open=True, is_logged=False)
        self._add("/openapi.json", get, self._openapi, operations.OPENAPI)
        probes = Probes(self._check_ready, self._served)
        self._routes.update((route.name.encode(), route) for route in probes.routes())
        probed, probed_ready = probes.of_models()
        self._document: asyncio.Task[bytes] | None = None
        """Made when somebody asks for it first."""
        self._unknown_route = Route(_UNKNOWN)
        model = Route(
            "/v1/models/{model}", dict.fromkeys(get, self._model), operations=dict.fromkeys(get, operations.MODEL)
        )
        self._prefixes = {_MODEL_PATH: model, PROBED_PATH.encode(): probed}
        """Routes of paths that begin so, where no route has the whole path."""
        self.batches: BatchService | None = None
        """Files and batches, if there are any."""
        self._around: dict[tuple[bytes, bytes], Route] = {(PROBED_PATH.encode(), PROBED_READY.encode()): probed_ready}
        """Routes of paths that begin and end so."""
        for begin, end, route in batch_routes(self._batches):
            if end:
                self._around[begin, end] = route
            else:
                (self._prefixes if begin.endswith(b"/") else self._routes)[begin] = route
        if admin is not None:
            self._add_admin(admin)
        if watching is not None:
            self._add_watching(watching)

    def _add(
        self,
        path: str,
        methods: tuple[str, ...],
        endpoint: Endpoint,
        operation: Operation,
        *,
        is_open: bool = False,
        is_logged: bool = True,
        is_metrics: bool = False,
        is_watched: bool = False,
    ) -> None:
        self._routes[path.encode()] = Route(
            path,
            dict.fromkeys(methods, endpoint),
            is_open,
            is_logged,
            is_metrics=is_metrics,
            is_watched=is_watched,
            operations=dict.fromkeys(methods, operation),
        )

    def _add_admin(self, admin: Admin) -> None:
        def served(endpoint: AdminEndpoint) -> Endpoint:
            return lambda exchange: endpoint(exchange, self._engine()[0].client)

        def reads(name: str, endpoint: AdminEndpoint, operation: Operation) -> Route:
            methods = ("GET", "HEAD")
            return Route(
                name,
                dict.fromkeys(methods, served(endpoint)),
                is_admin=True,
                operations=dict.fromkeys(methods, operation),
            )

        limits = reads(LIMITS_PATH, admin.limits, operations.LIMITS)
        limits.methods["PATCH"] = served(admin.change_limits)
        limits.operations["PATCH"] = operations.CHANGE_LIMITS
        self._routes[LIMITS_PATH.encode()] = limits
        self._routes[REQUESTS_PATH.encode()] = reads(REQUESTS_PATH, admin.requests, operations.REQUESTS)
        self._prefixes[REQUEST_PATH.encode()] = reads(REQUEST_PATH + "{id}", admin.request, operations.REQUEST)

    def _add_watching(self, watching: Watching) -> None:
        async def live(exchange: Exchange) -> None:
            await watching.live(exchange, self._engine()[0], self._state())

        async def story(exchange: Exchange) -> None:
            await watching.story(exchange, self._engine()[0])

        get = ("GET", "HEAD")
        self._add(PAGE_PATH, get, watching.page, PAGE, is_open=True, is_logged=False)
        self._add(LIVE_PATH, get, live, LIVE, is_logged=False, is_watched=True)
        self._prefixes[STORY_PATH.encode()] = Route(
            STORY_PATH + "{id}",
            dict.fromkeys(get, story),
            is_logged=False,
            is_watched=True,
            operations=dict.fromkeys(get, STORY),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        arrival = self._clock()
        if self._root and exchange.path.startswith(self._root + b"/"):
            exchange.path = exchange.path[len(self._root) :]
        route = self._routes.get(exchange.path) or self._route_by_prefix(exchange.path)
        try:
            await self._serve(exchange, route)
        except ClientGone:
            exchange.note = exchange.note or "client=gone"
        except ApiError as error:
            await self._refuse(exchange, error)
        except Exception:
            _log.exception("a request failed: route=%s", route.name, extra={ABOUT: exchange.id})
            if exchange.status is not None:
                exchange.abort()
                raise
            await self._refuse(exchange, internal())
        finally:
            self._note(exchange, route, arrival)
            if exchange.used is not None:
                self._settle(exchange, exchange.used, route.name, arrival)

    async def answer(self, exchange: Exchange) -> None:
        """Serve a request that this process asks itself; that whoever it is for may ask so was found out before.

        What is refused for now, without having been worked at, was not asked: it is not written down.
        """
        arrival, route = self._clock(), self._routes[exchange.path]
        try:
            await route.methods[exchange.method](exchange)
        except ApiError as error:
            await self._refuse(exchange, error)
        except Exception:
            _log.exception("a request failed: route=%s", route.name, extra={ABOUT: exchange.id})
            await self._refuse(exchange, internal())
        finally:
            used = exchange.used
            if used is not None and (used.num_prompt_tokens or exchange.status not in (None, *FOR_NOW)):
                self._settle(exchange, used, route.name, arrival)

    def _batches(self) -> BatchService | None:
        self._engine()
        return self.batches

    @property
    def routes(self) -> tuple[Route, ...]:
        """All of them."""
        return (*self._routes.values(), *self._around.values(), *self._prefixes.values())

    def _route_by_prefix(self, path: bytes) -> Route:
        for (begin, end), route in self._around.items():
            if path.startswith(begin) and path.endswith(end) and len(path) > len(begin) + len(end):
                return route
        for prefix, route in self._prefixes.items():
            if path.startswith(prefix):
                return route
        return self._unknown_route

    async def _serve(self, exchange: Exchange, route: Route) -> None:
        if self._cors is not None and self._cors.admit(exchange):
            preflight = self._cors.preflight(exchange)
            if preflight is not None:
                await exchange.respond(200, b"", headers=preflight)
                return
        self._identify(exchange, route)
        if route is self._unknown_route:
            raise ApiError(404, "There is nothing at this path.", code="unknown_path")
        endpoint = route.methods.get(exchange.method)
        if endpoint is None:
            allow = ", ".join(route.methods)
            raise ApiError(
                405, f"This path takes {allow}.", code="method_not_allowed", headers=((b"allow", allow.encode()),)
            )
        await endpoint(exchange)

    def _identify(self, exchange: Exchange, route: Route) -> None:
        """Raises an ApiError if this route is not for who asks."""
        if route.is_admin:
            self._access.check_admin(exchange.headers)
        elif route.is_metrics:
            self._access.check_metrics(exchange.headers)
        elif not route.is_open:
            if route.is_watched:
                exchange.view = self._access.view(exchange.headers)
                principal = exchange.principal = exchange.view.principal
            else:
                principal = exchange.principal = self._access.principal(exchange.headers)
            if principal.routes is not None and route is not self._unknown_route and route.name not in principal.routes:
                raise ApiError(403, "This API key is not for this path.", code="route_not_allowed")

    async def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        exchange.error_code = error.code
        exchange.note += f" code={error.code or '-'}"
        headers = error.headers
        if self.draining and _CLOSE not in headers:
            headers = (*headers, _CLOSE)
        await exchange.refuse(error, headers)

    def _note(self, exchange: Exchange, route: Route, arrival: float) -> None:
        if self.serving is not None and exchange.status is not None:
            metrics = self.serving[0].client.metrics
            if metrics is not None:
                metrics.on_response(route.name, exchange.status)
        if self._log_requests and route.is_logged:
            _log.info(RequestLine(exchange, route.name, self._clock() - arrival))

    def _settle(self, exchange: Exchange, used: Used, route: str, arrival: float) -> None:
        """Once it is known what a request used, its principal is charged and a line is written."""
        line = None if self._usage_log is None else self._usage_line(self._usage_log, exchange, used, route, arrival)
        admission = self.serving[1].admission if self.serving is not None else None
        name = exchange.principal.name
        trace = None if self._traces is None else self._trace(self._traces, exchange, used, route, arrival)

        def settle() -> None:
            if admission is not None:
                admission.spent(name, used.num_output_tokens, self._clock())
            if line is not None:
                line()
            if trace is not None:
                trace()

        used.when_settled(settle)

    def _usage_line(
        self, log: UsageLog, exchange: Exchange, used: Used, route: str, arrival: float
    ) -> Callable[[], None]:
        """What writes the line of a request that is over."""
        about = {
            "id": exchange.id,
            "principal": exchange.principal.name,
            "route": route,
            "status": exchange.status,
        }
        if exchange.batch is not None:
            about["batch"] = exchange.batch
        total_s = {"total_s": round(self._clock() - arrival, 6)}
        metrics = self.serving[0].client.metrics if self.serving is not None else None
        if metrics is not None:
            metrics.num_usage_records_lost = log.num_lost
        return lambda: log.put(about | used.record() | total_s)

    def _trace(self, traces: Traces, exchange: Exchange, used: Used, route: str, arrival: float) -> Callable[[], None]:
        """What hands on the trace of a request that is over."""
        headers = exchange.headers
        traced = Traced(
            request_id=exchange.id,
            principal=exchange.principal.name,
            method=exchange.method,
            route=route,
            status=exchange.status,
            error_code=exchange.error_code,
            arrival=arrival,
            ended=self._clock(),
            used=used,
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            tracestate=headers.get(b"tracestate", b"").decode("latin-1"),
        )
        metrics = self.serving[0].client.metrics if self.serving is not None else None
        if metrics is not None:
            metrics.num_traces_lost = traces.num_lost
        return lambda: traces.put(traced)

    # ------------------------------------------------------------ endpoints

    async def _completions(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_completion)

    async def _chat_completions(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_chat)

    async def _responses(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_response)

    async def _messages(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_message)

    async def _generate(self, exchange: Exchange, read: Read) -> None:
        self._check_open()
        exchange.used = Used(exchange.id, is_traced=self._traces is not None)
        engine, generation = self._engine()
        with self._counted(engine.client):
            await generation.serve(exchange, read)

    async def _read(self, make_job: MakeJob, exchange: Exchange) -> None:
        self._check_open()
        client = self._engine()[0].client
        if self.passes is None:
            raise ApiError(404, "This server has no model that reads texts for vectors.", code="no_embedding_model")
        exchange.used = Used(exchange.id, is_traced=self._traces is not None)
        with self._counted(client):
            await self.passes.serve(exchange, make_job)

    async def _look_at(self, read: ReadBody, exchange: Exchange) -> None:
        self._check_open()
        if self.tokenizing is None:
            raise unavailable("The model is being loaded.", "loading")
        with self._counted(self._engine()[0].client):
            await self.tokenizing.serve(exchange, read)

    def _check_open(self) -> None:
        """Raises a 503 if nothing new is begun any longer."""
        if self.draining:
            raise unavailable("The server is shutting down.", "shutting_down")

    @contextmanager
    def _counted(self, client: EngineClient) -> Iterator[None]:
        """While this lasts, a request is in flight; raises a 503 if its engine is not there."""
        if client.dead.done():
            raise client.not_running()
        self.num_generating += 1
        try:
            yield
        finally:
            self.num_generating -= 1

    def _served(self) -> dict[str, Engine | Reader]:
        """Every name that requests may use, and what it names."""
        engine, _ = self._engine()
        served: dict[str, Engine | Reader] = dict.fromkeys(engine.served_names, engine)
        if self.passes is not None:
            for name in self.passes.reader.served_names:
                served.setdefault(name, self.passes.reader)
        return served

    async def _models(self, exchange: Exchange) -> None:
        models = [_model_card(engine, name) for name, engine in self._served().items()]
        await exchange.respond(200, encode_json({"object": "list", "data": models}))

    async def _model(self, exchange: Exchange) -> None:
        served = self._served()
        name = unquote(exchange.path[len(_MODEL_PATH) :].decode("latin-1"))
        if name not in served:
            raise ApiError(404, "The model does not exist.", param="model", code="model_not_found")
        await exchange.respond(200, encode_json(_model_card(served[name], name)))

    async def _version(self, exchange: Exchange) -> None:
        await exchange.respond(200, encode_json({"version": __version__}))

    async def _metrics(self, exchange: Exchange) -> None:
        others = () if self.batches is None else (self.batches.metrics,)
        body = b"" if self.serving is None else self.serving[0].client.render_metrics(*others)
        await exchange.respond(200, body, CONTENT_TYPE.encode())

    async def _openapi(self, exchange: Exchange) -> None:
        if self._document is None:  # takes long enough to be noticed by streams
            self._document = asyncio.create_task(asyncio.to_thread(lambda: encode_json(self.document())))
        await exchange.respond(200, await asyncio.shield(self._document))

    def document(self) -> dict[str, Any]:
        """What this server has, as an OpenAPI document."""
        keys = Keys(api=self._access.has_keys, metrics=self._access.has_metrics_keys)
        return document(self.routes, version=__version__, root_path=self._root.decode(), keys=keys)

    async def _health(self, exchange: Exchange) -> None:
        self._check_engine()
        await exchange.respond(200, encode_json({"status": "ok"}))

    def _check_ready(self) -> None:
        """Raises a 503 unless requests are served."""
        self._check_open()
        self._check_engine()

    async def _ready(self, exchange: Exchange) -> None:
        self._check_ready()
        await exchange.respond(200, encode_json({"status": "ready"}))

    def _engine(self) -> tuple[Engine, Generation]:
        if self.serving is None:
            raise unavailable("The model is being loaded.", "loading")
        return self.serving

    def _state(self) -> str:
        """How it is, in a word, for who watches."""
        client = self._engine()[0].client
        if client.dead.done():
            return "engine_dead"
        if self.watchdog.look(self._clock(), client.last_heard, client.longest_step_s):
            return "engine_stalled"
        return "draining" if self.draining else "serving"

    def _check_engine(self) -> None:
        """Raises a 503 unless the engine lives: it speaks after every step, and every second when idle."""
        client = self._engine()[0].client
        if client.dead.done():
            raise client.not_running()
        if self.watchdog.look(self._clock(), client.last_heard, client.longest_step_s):
            raise unavailable("The engine does not make progress.", "engine_stalled")


def _model_card(engine: Engine | Reader, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": engine.created,
        "owned_by": "chairlift",
        "root": engine.served_names[0],
        "parent": None,
        "max_model_len": engine.max_model_len,
    }
