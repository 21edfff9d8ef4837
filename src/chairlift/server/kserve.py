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
from chairlift.server.route import Operation, Route, at
from chairlift.server.shapes import encode_json

_MODEL_PATH = "/v2/models/"
_READY = "/ready"
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


def _readiness(about: str) -> Operation:
    """Who is not ready says so in the same words, with a 503."""
    return Operation(about=about, tag=_TAG, answer=ReadyTold, failures={503: ReadyTold})


PING = _readiness("As /ready.")
READY = _readiness("As /ready, in KServe's words.")
MODEL_READY = _readiness("Whether a model serves, in KServe's words.")
LIVE = Operation(about="Whether the server answers, whatever it could serve.", tag=_TAG, answer=LiveTold)
SERVER = Operation(about="What this server is, in KServe's words.", tag=_TAG, answer=ServerTold)
MODEL = Operation(about="What a model is, in KServe's words.", tag=_TAG, answer=ModelTold)


class Probes:
    """Answers probes. `check_ready` raises an ApiError unless requests are served, `names` gives those of models."""

    def __init__(self, check_ready: Callable[[], None], names: Callable[[], Iterable[str]]) -> None:
        self._check_ready = check_ready
        self._names = names

    def routes(self) -> Iterator[Route]:
        """All paths."""
        yield at("/ping", is_open=True, is_logged=False, GET=(self._ready, PING))
        yield at("/v2/health/live", is_open=True, is_logged=False, GET=(self._live, LIVE))
        yield at("/v2/health/ready", is_open=True, is_logged=False, GET=(self._ready, READY))
        yield at("/v2", GET=(self._server, SERVER))
        yield at(f"{_MODEL_PATH}{{model}}", GET=(self._model, MODEL))
        yield at(f"{_MODEL_PATH}{{model}}{_READY}", GET=(self._model_ready, MODEL_READY))

    async def _live(self, exchange: Exchange) -> None:
        await exchange.respond(200, encode_json(LiveTold(live=True)))

    async def _ready(self, exchange: Exchange) -> None:
        await self._tell(exchange, self._refusal())

    async def _tell(self, exchange: Exchange, refusal: ApiError | None) -> None:
        """In the same words whether it is ready or not."""
        status, headers = (200, ()) if refusal is None else (refusal.status, refusal.headers)
        await exchange.respond(status, encode_json(ReadyTold(ready=refusal is None)), headers=headers)

    def _refusal(self) -> ApiError | None:
        """Why requests are not served, if they are not."""
        try:
            self._check_ready()
        except ApiError as error:
            return error
        return None

    async def _server(self, exchange: Exchange) -> None:
        await exchange.respond(200, encode_json(ServerTold(name="chairlift", version=__version__, extensions=[])))

    async def _model(self, exchange: Exchange) -> None:
        name = self._name(exchange.path[len(_MODEL_PATH) :])
        told = ModelTold(name=name, platform="chairlift", versions=["1"], inputs=[], outputs=[])
        await exchange.respond(200, encode_json(told))

    async def _model_ready(self, exchange: Exchange) -> None:
        refusal = self._refusal()
        if refusal is None:  # which models there are is not known before
            self._name(exchange.path[len(_MODEL_PATH) : -len(_READY)])
        await self._tell(exchange, refusal)

    def _name(self, quoted: bytes) -> str:
        """Of a model that is served; raises a 404 for any other."""
        name = unquote(quoted.decode("latin-1"))
        if name not in self._names():
            raise ApiError(404, "The model does not exist.", param="model", code="model_not_found")
        return name
