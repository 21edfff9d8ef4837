"""Single passes over texts, for every route that wants vectors: from a body to the engine of the encoder, and back.

    body -> job -> admission -> tokens of each item -> engine: one request an item -> vectors -> response

An item that cannot be read fails by itself where the client allows that; otherwise the error names it and nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import msgspec

from chairlift.core.admission import Admission, RefusalReason
from chairlift.core.errors import InvalidRequest, NeverFits, Overloaded
from chairlift.core.explain import missed
from chairlift.core.tickets import Ticket
from chairlift.core.types import NO_SAMPLING, Finish, FinishReason, PoolingParams, Request, TokenLogprob
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.client import EngineClient
from chairlift.server.errors import (
    ApiError,
    bad_request,
    deadline_exceeded,
    from_invalid,
    internal,
    never_fits,
    overloaded,
)
from chairlift.server.exchange import ClientGone, Exchange, safe_id
from chairlift.server.identity import tenant_name
from chairlift.server.json_body import read_object
from chairlift.server.validate import check_range, deadline_s, model_name, user_name
from chairlift.text.passages import Passage, PassageTokenizer

T = TypeVar("T")

_log = logging.getLogger("chairlift.server")

MAX_ITEMS = 2048
"""Most texts of one request, as in the OpenAI API."""
MAX_INT = 2**31 - 1
INLINE_BYTES = 16 << 10
"""Bodies up to this size are read on the event loop: a few milliseconds at most."""
INLINE_VECTORS = 32
"""Up to so many vectors are written on the event loop."""
CHARS_PER_TOKEN = 4
"""Of ordinary text: what a text is taken for until it is encoded."""
PROBE_CHARS_PER_TOKEN = 64
"""A text with more characters per token than this is encoded by its beginning first."""
CONTEXT_CODE = "context_length_exceeded"

Item = str | list[int] | tuple[str, str]
"""A text, token ids, or a pair of texts."""


class PassFields(msgspec.Struct, kw_only=True):
    """What every route here understands. `partial`: an item that fails has its error in its place in the response."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    priority: int | None = None
    request_id: str | None = None
    truncate_prompt_tokens: int | None = None
    truncate: bool | None = None
    partial: bool | None = None
    e2e_deadline_ms: float | None = None
    ttft_deadline_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all responses carry."""

    id: str
    created: int
    model: str
    num_tokens: int
    """Of all items that were read."""


Vector = Sequence[float]
Outcome = bytes | ApiError
"""float32 numbers, little-endian, or why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one body asks for. `name` says what its API calls item i."""

    items: list[Item]
    params: PoolingParams
    fields: PassFields
    name: Callable[[int], str]
    write: Callable[[list[Outcome], Envelope], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A loaded encoder behind a client."""

    client: EngineClient
    passages: PassageTokenizer
    max_model_len: int
    num_outputs: int
    labels: tuple[str, ...]
    """What it tells apart; empty: it gives embeddings."""
    served_names: tuple[str, ...]
    """Names that requests may use; the first is the one that responses carry."""
    created: int

    @property
    def admission(self) -> Admission:
        return self.client.pass_admission

    @property
    def metrics(self) -> ServingMetrics | None:
        return self.client.pass_metrics


MakeJob = Callable[[dict[str, Any], Reader], Job]
"""Raises an ApiError for a body that is wrong in itself."""


class Passes:
    """Serves one encoder; knows every item in flight."""

    def __init__(
        self,
        reader: Reader,
        pool: Executor,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        max_body_bytes: int,
        overload_status: int = 429,
    ) -> None:
        self.reader = reader
        self._pool = pool
        self._clock = clock
        self._wall_clock = wall_clock
        self._max_body_bytes = max_body_bytes
        self._overload_status = overload_status
        self._collecting: set[_Collection] = set()

    def fail_all(self, error: ApiError) -> None:
        """End everything in flight with `error`."""
        for collection in list(self._collecting):
            collection.fail(error)

    async def serve(self, exchange: Exchange, make_job: MakeJob) -> None:
        """Answer one request.

        Raises:
            ApiError: nothing was sent yet, and this is what to send.
            ClientGone: nobody is there to answer.
        """
        arrival = self._clock()
        body = await exchange.body(self._max_body_bytes)
        inline = len(body) <= INLINE_BYTES
        job = await self._run(partial(self._prepare, body, make_job), inline)
        tenant = tenant_name(exchange.headers, user_name(job.fields))
        if exchange.used is not None:
            exchange.used.model = self.reader.served_names[0]
            exchange.used.tenant = tenant
        ttft = deadline_s("ttft_deadline_ms", job.fields.ttft_deadline_ms)
        e2e = deadline_s("e2e_deadline_ms", job.fields.e2e_deadline_ms)
        deadlines = [None if after is None else arrival + after for after in (ttft, e2e)]
        with self._refusals():
            tickets = self.reader.admission.admit(
                exchange.principal.name,
                [_estimated(item, self.reader.max_model_len) for item in job.items],
                arrival,
                tenant=tenant,
                priority=job.fields.priority or 0,
                ttft_deadline=deadlines[0],
                e2e_deadline=deadlines[1],
            )
        try:
            fitted = await self._run(partial(self._fit, job), inline)
            if not job.fields.partial:
                for one in fitted:
                    if isinstance(one, ApiError):
                        raise one
            asked: list[tuple[Request, Ticket]] = []
            for ticket, one in zip(tickets, fitted, strict=True):
                if isinstance(one, ApiError):
                    self.reader.admission.ended(ticket, arrival)
                    continue
                self.reader.admission.tokenised(ticket, len(one.tokens))
                request = Request(
                    id=self.reader.client.new_id(),
                    prompt=one.tokens,
                    params=NO_SAMPLING,
                    arrival=arrival,
                    priority=job.fields.priority or 0,
                    principal=exchange.principal.name,
                    tenant=tenant,
                    ttft_deadline=deadlines[0],
                    e2e_deadline=deadlines[1],
                    pooling=replace(job.params, num_first=one.num_first),
                )
                asked.append((request, ticket))
            collection = _Collection(self.reader.client, fitted)
            await self._collect(exchange, job, collection, asked)
        finally:
            now = self._clock()
            for ticket in tickets:
                self.reader.admission.ended(ticket, now)

    async def _run(self, work: Callable[[], T], inline: bool) -> T:
        """Here if it is little, else on a thread."""
        return work() if inline else await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _prepare(self, body: bytes, make_job: MakeJob) -> Job:
        content = read_object(body)
        name = model_name(content)
        if name is not None and name not in self.reader.served_names:
            raise ApiError(404, f"The model `{name[:128]}` does not exist.", param="model", code="model_not_found")
        job = make_job(content, self.reader)
        check_range("priority", job.fields.priority, -MAX_INT, MAX_INT)
        check_range("truncate_prompt_tokens", job.fields.truncate_prompt_tokens, -1, MAX_INT)
        if job.fields.truncate_prompt_tokens == 0:
            raise bad_request("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
        if len(job.items) > MAX_ITEMS:
            raise never_fits(f"at most {MAX_ITEMS} texts are read at once", job.name(0).partition("[")[0])
        return job

    def _fit(self, job: Job) -> list[Passage | ApiError]:
        """Each item as tokens, or what is wrong with it; on any thread."""
        most = self.reader.max_model_len
        keep = most if job.fields.truncate else job.fields.truncate_prompt_tokens
        if keep is not None:
            keep = most if keep < 0 else min(keep, most)
        fitted: list[Passage | ApiError] = []
        for i, item in enumerate(job.items):
            try:
                fitted.append(_passage(item, self.reader.passages, most, keep))
            except InvalidRequest as error:
                refusal = from_invalid(error)
                refusal.message = f"{job.name(i)}: {refusal.message}"
                refusal.param = job.name(i)
                refusal.code = refusal.code if isinstance(error, NeverFits) else None
                fitted.append(refusal)
        return fitted

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What admission refuses, as a response."""
        try:
            yield
        except Overloaded as error:
            if self.reader.metrics is not None:
                self.reader.metrics.on_rejection(RefusalReason(error.reason))
            raise overloaded(error, self._overload_status) from None
        except NeverFits as error:
            raise from_invalid(error) from None

    async def _collect(
        self, exchange: Exchange, job: Job, collection: _Collection, asked: Sequence[tuple[Request, Ticket]]
    ) -> None:
        watcher = asyncio.create_task(self._watch(exchange, collection))
        self._collecting.add(collection)
        try:
            for request, ticket in asked:
                collection.add(request, ticket)
            explanations = self.reader.client.explanations
            if explanations is not None and asked:
                label = safe_id(job.fields.request_id) or exchange.id
                explanations.expect(label, int(self._wall_clock()), [request for request, _ in asked])
            await collection.done.wait()
        finally:
            watcher.cancel()
            self._collecting.discard(collection)
            collection.leave()
            exchange.note = collection.summary()
            if exchange.used is not None:
                for finish in collection.finishes:
                    exchange.used.add(finish)
                exchange.used.num_prompt_tokens = collection.num_tokens
                exchange.used.client_left = collection.client_left
        if collection.client_left:
            raise ClientGone
        outcomes = collection.outcomes
        if not job.fields.partial:
            for i, outcome in enumerate(outcomes):
                if isinstance(outcome, ApiError):
                    if len(outcomes) > 1 and outcome.param is None:
                        outcome.message = f"{job.name(i)}: {outcome.message}"
                    raise outcome
        envelope = Envelope(
            safe_id(job.fields.request_id) or exchange.id,
            int(self._wall_clock()),
            self.reader.served_names[0],
            collection.num_tokens,
        )
        write = partial(job.write, outcomes, envelope)
        await exchange.respond(200, await self._run(write, len(outcomes) <= INLINE_VECTORS))

    async def _watch(self, exchange: Exchange, collection: _Collection) -> None:
        await exchange.left()
        if not collection.done.is_set():
            collection.client_left = True
            if self.reader.metrics is not None:
                self.reader.metrics.num_disconnects += 1
            collection.done.set()


class _Collection:
    """The items of one request while they are computed."""

    def __init__(self, client: EngineClient, fitted: Sequence[Passage | ApiError]) -> None:
        self._client = client
        self._in_flight: dict[int, int] = {}
        """Place in `outcomes` by request id."""
        self.outcomes: list[Outcome] = [one if isinstance(one, ApiError) else b"" for one in fitted]
        self._places = iter([i for i, one in enumerate(fitted) if isinstance(one, Passage)])
        self._num_open = sum(isinstance(one, Passage) for one in fitted)
        self.num_tokens = sum(len(one.tokens) for one in fitted if isinstance(one, Passage))
        self.finishes: list[Finish] = []
        self.client_left = False
        self.done = asyncio.Event()
        if not self._num_open:
            self.done.set()

    def add(self, request: Request, ticket: Ticket) -> None:
        """Hand the next item that can be read to the engine.

        Raises:
            ApiError: 503, the worker is not there.
        """
        place = next(self._places)
        item = _Item(partial(self._ended, request.id, place))
        self._client.submit(request, item, ticket, item.take)
        self._in_flight[request.id] = place

    def _ended(self, request_id: int, place: int, outcome: Outcome, finish: Finish | None) -> None:
        self._in_flight.pop(request_id, None)
        self.outcomes[place] = outcome
        if finish is not None:
            self.finishes.append(finish)
        self._num_open -= 1
        if self._num_open == 0:
            self.done.set()

    def fail(self, error: ApiError) -> None:
        """Nothing more is waited for."""
        for place in self._in_flight.values():
            self.outcomes[place] = error
        self.leave()
        self.done.set()

    def leave(self) -> None:
        """Whatever is still in the engine is wanted no longer."""
        for request_id in list(self._in_flight):
            self._client.abort(request_id)
        self._in_flight.clear()

    def summary(self) -> str:
        """For the log."""
        num_failed = sum(isinstance(outcome, ApiError) for outcome in self.outcomes)
        return f"texts={len(self.outcomes)} failed={num_failed} tokens={self.num_tokens}"


class _Item:
    """One item in the worker's hands: the client's listener, and its only choice."""

    __slots__ = ("_tell", "_vector", "heard", "push")

    def __init__(self, tell: Callable[[Outcome, Finish | None], None]) -> None:
        self._tell = tell
        self._vector: bytes | None = None
        self.heard: float | None = None
        self.push: Callable[[int], None] = _ignored

    @property
    def choices(self) -> tuple[_Item]:
        return (self,)

    def take(self, vector: bytes) -> None:
        """What its text gave."""
        self._vector = vector

    def score(self, logprob: TokenLogprob) -> None:
        """Nothing is sampled."""

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None:
        """Nothing is scored."""

    def hold(self) -> None:
        """There is no text to hold back."""

    def finish(self, finish: Finish) -> None:
        """It is over."""
        if finish.reason is FinishReason.STOP and self._vector is not None:
            self._tell(self._vector, finish)
        elif finish.reason is FinishReason.DEADLINE:
            self._tell(deadline_exceeded(missed(finish), finish.error), finish)
        else:
            _log.error("the engine failed a text: %s", finish.error)
            self._tell(internal(), finish)

    def fail(self, error: ApiError) -> None:
        """It is lost."""
        self._tell(error, None)


def _ignored(token: int) -> None:
    """No token comes."""


def _estimated(item: Item, most: int) -> int:
    """About how many tokens an item has."""
    if isinstance(item, str):
        size = len(item) // CHARS_PER_TOKEN
    elif isinstance(item, list):
        size = len(item)
    else:
        size = sum(map(len, item)) // CHARS_PER_TOKEN
    return max(1, min(size, most))


def _passage(item: Item, passages: PassageTokenizer, most: int, keep: int | None) -> Passage:
    """An item as tokens that the encoder can take; with `keep` it is cut to so many.

    Raises:
        InvalidRequest: it cannot be read, or is too long.
    """
    if isinstance(item, list):
        passage = passages.around(item if keep is None else item[:keep])
    elif isinstance(item, str):
        passage = passages.encode(_beginning(item, passages, most, keep), keep)
    else:
        first, second = (_beginning(text, passages, most, keep) for text in item)
        passage = passages.encode_pair(first, second, keep)
    if len(passage.tokens) > most:
        raise NeverFits(f"the text has {len(passage.tokens)} tokens; this model reads at most {most}", "input")
    return passage


def _beginning(text: str, passages: PassageTokenizer, most: int, keep: int | None) -> str:
    """A text, or as much of a very long one as decides what becomes of it: megabytes take seconds to encode.

    Raises:
        NeverFits: its beginning alone is too long.
    """
    size = PROBE_CHARS_PER_TOKEN * most
    while size < len(text):
        num_tokens = len(passages.encode(text[:size]).tokens)
        if num_tokens > 2 * most:
            if keep is None:
                raise NeverFits(f"the text has more than {num_tokens} tokens; this model reads at most {most}", "input")
            return text[:size]
        size *= 4
    return text


def numbers(vector: bytes) -> array[float]:
    """The float32 numbers of a vector."""
    values = array("f")
    values.frombytes(vector)
    return values


def cosine(one: bytes, two: bytes) -> float:
    """Of two vectors, 0 if one of them has no direction."""
    a, b = numbers(one), numbers(two)
    product = sum(map(float.__mul__, a, b))
    length = (sum(map(pow, a, repeat(2))) * sum(map(pow, b, repeat(2)))) ** 0.5
    return product / length if length else 0.0


def error_json(error: ApiError) -> dict[str, Any]:
    """The inside of an error's body, where it stands in for an item, with its status."""
    inner: dict[str, Any] = msgspec.json.decode(error.body())["error"]
    return inner | {"status": error.status}
