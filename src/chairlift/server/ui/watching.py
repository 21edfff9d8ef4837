"""The routes of who watches: a page that holds nothing, the figures that it asks for, and what became of a request.

Nothing is made until somebody asks. Whoever asks within a moment gets what was made for the first of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from chairlift.server.errors import ApiError
from chairlift.server.exchange import Exchange
from chairlift.server.explanations import Explanations
from chairlift.server.generate import Engine
from chairlift.server.openapi.admin_answers import RequestList
from chairlift.server.route import Operation, Route, at
from chairlift.server.shapes import encode_json
from chairlift.server.ui.live import Scene
from chairlift.server.ui.page import HEADERS, to_html
from chairlift.server.ui.shapes import LIVE_PATH, PAGE_PATH, STORY_PATH, Live
from chairlift.wire import Watched

MOMENT_S = 0.2
"""So old a picture may be that is given out again."""
LOOK_TIMEOUT_S = 0.7
"""An engine answers between two steps; one that takes longer is shown as it was before."""
MAX_SAME = 20
"""Most requests of one id that are told of: clients may choose ids."""

_HTML = b"text/html; charset=utf-8"
_FRESH = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

PAGE = Operation(about="A page to watch the server and to chat.", tag="Watching", answer_media="text/html")
LIVE = Operation(about="The server at this moment, as far as the key shows it.", tag="Watching", answer=Live)
STORY = Operation(
    about="Every request of an id that is live or remembered and that the key shows.",
    tag="Watching",
    answer=RequestList,
    statuses=(404,),
)


class Watching:
    """Endpoints for one client's engines. `clock` is the engine's clock."""

    def __init__(self, explanations: Explanations, clock: Callable[[], float], *, moment_s: float = MOMENT_S) -> None:
        self._explanations = explanations
        self._clock = clock
        self._moment_s = moment_s
        self._started = clock()
        self._page = to_html()
        self._watched: Watched | None = None
        """What the engine told last."""
        self._asked: asyncio.Future[Watched] | None = None
        self._asked_at = -math.inf
        self._made: dict[str | None, bytes] = {}
        """Bodies of this moment, by whose requests they tell; None tells of everybody's."""
        self._made_at = 0.0

    def routes(self, engine: Callable[[], Engine], state: Callable[[], str]) -> Iterator[Route]:
        """All paths. `engine` raises an ApiError if there is none; `state` says in a word how it is."""

        async def live(exchange: Exchange) -> None:
            await self.live(exchange, engine(), state())

        async def story(exchange: Exchange) -> None:
            await self.story(exchange, engine())

        yield at(PAGE_PATH, is_open=True, is_logged=False, GET=(self.page, PAGE))
        yield at(LIVE_PATH, is_watched=True, is_logged=False, GET=(live, LIVE))
        yield at(STORY_PATH + "{id}", is_watched=True, is_logged=False, GET=(story, STORY))

    async def page(self, exchange: Exchange) -> None:
        """GET: the page. It holds nothing of this server, so it is open."""
        await exchange.respond(200, self._page, _HTML, HEADERS)

    async def live(self, exchange: Exchange, engine: Engine, state: str) -> None:
        """GET: the server at this moment."""
        view = exchange.view
        await self._look(engine)
        now = self._clock()
        if now - self._made_at >= self._moment_s:
            self._made.clear()
            self._made_at = now
        key = None if view.sees_all else view.principal.name
        if (body := self._made.get(key)) is None:
            scene = Scene(engine.client, self._explanations, view, self._watched, now)
            body = encode_json(scene.live(state, engine.served_names, now - self._started))
            self._made[key] = body
        await exchange.respond(200, body, headers=_FRESH)

    async def story(self, exchange: Exchange, engine: Engine) -> None:
        """GET: what became of the request in the path, in words; of all with this id that may be seen."""
        view = exchange.view
        scene = Scene(engine.client, self._explanations, view, None, self._clock())
        public_id = unquote(exchange.path[len(STORY_PATH) :].decode("latin-1"))
        found = [told for told in self._explanations.find(public_id) if scene.may_see(told)]
        if not found:
            raise ApiError(404, "No request of this id is live or remembered.", code="request_not_found")
        data = [told.as_json(scene.name) for told in found[:MAX_SAME]]
        await exchange.respond(200, encode_json({"object": "list", "data": data}), headers=_FRESH)

    async def _look(self, engine: Engine) -> None:
        """Ask the engine who runs, at most once a moment, and wait a little for its answer."""
        client, now = engine.client, self._clock()
        if client.dead.done():
            self._watched = None
            return
        if self._asked is None or self._asked.done():
            if now - self._asked_at < self._moment_s:
                return
            self._asked, self._asked_at = client.watch(), now
        asked = self._asked
        await asyncio.wait({asked}, timeout=LOOK_TIMEOUT_S)
        if asked.done() and not asked.cancelled() and self._watched is not asked.result():
            self._watched = asked.result()
            self._made.clear()
