"""The same health under the names that others probe: KServe's Open Inference Protocol, and `/ping`.

`live` only says that this process answers: who restarts what is not live would stop a server that is loading, or one
that is about to replace its engine by itself. `ready` is what `/ready` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict
from urllib.parse import unquote

from chairlift import __version__
from chairlift.server.errors import ApiError
from chairlift.server.exchange import Exchange
from chairlift.server.route import Endpoint, Operation, Route
from chairlift.server.shapes import encode_json

MODEL_PATH = "/v2/models/"
_READY = b"/ready"
_METHODS = ("GET", "HEAD")
_TAG = "Server"


class LiveTold(TypedDict):
    live: bool


class ReadyTold(TypedDict):
    ready: bool


class ServerTold(TypedDict):
    name: str
    version: str
    extensions: list[str]


class ModelTold(TypedDict):
    """`inputs` and `outputs` are empty: models are asked over the other APIs."""

    name: str
    platform: str
    versions: list[str]
    inputs: list[str]
    outputs: list[str]


class Probes:
    """Answers probes. `check_ready` raises an ApiError unless requests are served, `names` gives those of models."""

    def __init__(self, check_ready: Callable[[], None], names: Callable[[], Iterable[str]]) -> None:
        self._check_ready = check_ready
        self._names = names

    def routes(self) -> Iterator[Route]:
        """Each of one path but the last, which is of all that begin so."""
        yield _route("/ping", self._ping, Operation(about="As /ready.", tag=_TAG, answer=ReadyTold), is_open=True)
        live = Operation(about="Whether the server answers, whatever it could serve.", tag=_TAG, answer=LiveTold)
        yield _route("/v2/health/live", self._live, live, is_open=True)
        ready = Operation(about="As /ready, in KServe's words.", tag=_TAG, answer=ReadyTold)
        yield _route("/v2/health/ready", self._ready, ready, is_open=True)
        server = Operation(about="What this server is, in KServe's words.", tag=_TAG, answer=ServerTold)
        yield _route("/v2", self._server, server)
        model = Operation(about="What a model is; with /ready after it, whether it serves.", tag=_TAG, answer=ModelTold)
        yield _route(MODEL_PATH + "{model}", self._model, model)

    async def _live(self, exchange: Exchange) -> None:
        await exchange.respond(200, encode_json(LiveTold(live=True)))

    async def _ping(self, exchange: Exchange) -> None:
        await self._ready(exchange)

    async def _ready(self, exchange: Exchange) -> None:
        try:
            self._check_ready()
        except ApiError as error:
            await exchange.respond(error.status, encode_json(ReadyTold(ready=False)), headers=error.headers)
        else:
            await exchange.respond(200, encode_json(ReadyTold(ready=True)))

    async def _server(self, exchange: Exchange) -> None:
        await exchange.respond(200, encode_json(ServerTold(name="chairlift", version=__version__, extensions=[])))

    async def _model(self, exchange: Exchange) -> None:
        rest = exchange.path[len(MODEL_PATH) :]
        is_probe = rest.endswith(_READY)
        name = unquote(rest.removesuffix(_READY).decode("latin-1"))
        if name not in self._names():
            raise ApiError(404, "The model does not exist.", param="model", code="model_not_found")
        if is_probe:
            await self._ready(exchange)
            return
        told = ModelTold(name=name, platform="chairlift", versions=["1"], inputs=[], outputs=[])
        await exchange.respond(200, encode_json(told))


def _route(path: str, endpoint: Endpoint, operation: Operation, *, is_open: bool = False) -> Route:
    return Route(
        path,
        dict.fromkeys(_METHODS, endpoint),
        is_open,
        is_logged=not is_open,
        operations=dict.fromkeys(_METHODS, operation),
    )
