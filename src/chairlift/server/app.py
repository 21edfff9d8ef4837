"""The ASGI application: routes, access, and what every response has in common.

Everything needs access except what a route says is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

from chairlift import __version__
from chairlift.metrics.serving import CONTENT_TYPE
from chairlift.server import operations
from chairlift.server.access import Access
from chairlift.server.accounts import Accounts
from chairlift.server.admin import Admin
from chairlift.server.admin_routes import admin_routes
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
from chairlift.server.kserve import Probes
from chairlift.server.logs import ABOUT
from chairlift.server.openapi.document import Keys, document
from chairlift.server.passes import MakeJob, Passes, Reader
from chairlift.server.request_line import RequestLine
from chairlift.server.rerank import PAIR_ROUTES
from chairlift.server.responses.request import read_response
from chairlift.server.route import Route, at
from chairlift.server.routes import Routes
from chairlift.server.shapes import encode_json
from chairlift.server.tokenizing import ReadBody, Tokenizing, detokenize, tokenize
from chairlift.server.traced import Traces
from chairlift.server.ui.watching import Watching
from chairlift.server.usage_log import UsageLog
from chairlift.server.watchdog import Watchdog

_log = logging.getLogger("chairlift.server")

_MODEL_PATH = "/v1/models/"
UNKNOWN = Route("unknown")
"""Of all paths at which there is nothing."""
_CLOSE = (b"connection", b"close")


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
        self._accounts = Accounts(clock, usage_log, traces)
        self.batches: BatchService | None = None
        """Files and batches, if there are any."""
        self._document: asyncio.Task[bytes] | None = None
        """Made when somebody asks for it first."""
        self._routes = Routes()
        self._routes.add(self._own_routes())
        self._routes.add(Probes(self._check_ready, self._served).routes())
        self._routes.add(batch_routes(self._batches))
        if admin is not None:
            self._routes.add(admin_routes(admin, lambda: self._engine()[0].client))
        if watching is not None:
            self._routes.add(watching.routes(lambda: self._engine()[0], self._state))

    def _own_routes(self) -> Iterator[Route]:
        yield at("/v1/completions", POST=(partial(self._generate, read_completion), operations.COMPLETIONS))
        yield at("/v1/chat/completions", POST=(partial(self._generate, read_chat), operations.CHATS))
        yield at("/v1/responses", POST=(partial(self._generate, read_response), operations.RESPONSES))
        yield at("/v1/messages", POST=(partial(self._generate, read_message), MESSAGES))
        yield at("/v1/messages/count_tokens", POST=(partial(self._look_at, count_message), COUNT))
        yield at("/tokenize", POST=(partial(self._look_at, tokenize), operations.TOKENIZE))
        yield at("/detokenize", POST=(partial(self._look_at, detokenize), operations.DETOKENIZE))
        for path, (make_job, operation) in (PASS_ROUTES | PAIR_ROUTES).items():
            yield at(path, POST=(partial(self._read, make_job), operation))
        yield at("/v1/models", GET=(self._models, operations.MODELS))
        yield at(f"{_MODEL_PATH}{{model}}", GET=(self._model, operations.MODEL))
        yield at("/version", GET=(self._version, operations.VERSION))
        yield at("/metrics", is_metrics=True, is_logged=False, GET=(self._metrics, operations.METRICS))
        yield at("/health", is_open=True, is_logged=False, GET=(self._health, operations.HEALTH))
        yield at("/ready", is_open=True, is_logged=False, GET=(self._ready, operations.READY))
        yield at("/openapi.json", GET=(self._openapi, operations.OPENAPI))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        arrival = self._clock()
        if self._root and exchange.path.startswith(self._root + b"/"):
            exchange.path = exchange.path[len(self._root) :]
        route = self._routes.find(exchange.path) or UNKNOWN
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
            self._settle(exchange, route, arrival)

    async def answer(self, exchange: Exchange) -> None:
        """Serve a request that this process asks itself; that whoever it is for may ask so was found out before.

        What is refused for now, without having been worked at, was not asked: it is not written down.
        """
        arrival, route = self._clock(), self._routes.find(exchange.path) or UNKNOWN
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
                self._settle(exchange, route, arrival)

    def _batches(self) -> BatchService | None:
        self._engine()
        return self.batches

    @property
    def routes(self) -> tuple[Route, ...]:
        """All of them."""
        return tuple(self._routes)

    async def _serve(self, exchange: Exchange, route: Route) -> None:
        if self._cors is not None and self._cors.admit(exchange):
            preflight = self._cors.preflight(exchange)
            if preflight is not None:
                await exchange.respond(200, b"", headers=preflight)
                return
        self._identify(exchange, route)
        if route is UNKNOWN:
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
            if route is not UNKNOWN and not principal.may_use(route.name):
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

    def _settle(self, exchange: Exchange, route: Route, arrival: float) -> None:
        if exchange.used is not None:
            admission = None if self.serving is None else self.serving[1].admission
            self._accounts.settle(exchange, exchange.used, route.name, arrival, admission)

    # ------------------------------------------------------------ endpoints

    async def _generate(self, read: Read, exchange: Exchange) -> None:
        self._check_open()
        self._accounts.open(exchange)
        engine, generation = self._engine()
        with self._counted(engine.client):
            await generation.serve(exchange, read)

    async def _read(self, make_job: MakeJob, exchange: Exchange) -> None:
        self._check_open()
        client = self._engine()[0].client
        if self.passes is None:
            raise ApiError(404, "This server has no model that reads texts for vectors.", code="no_embedding_model")
        self._accounts.open(exchange)
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
        await exchange.respond(200, self._scraped(), CONTENT_TYPE.encode())

    def _scraped(self) -> bytes:
        """All series; none before there is an engine."""
        if self.serving is None:
            return b""
        client = self.serving[0].client
        if client.metrics is not None:
            self._accounts.report(client.metrics)
        return client.render_metrics(*(() if self.batches is None else (self.batches.metrics,)))

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
