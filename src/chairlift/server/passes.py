"""Single passes over texts, for every route that wants vectors: from a body to the engine of the encoder, and back.

    body -> job -> admission -> tokens of each item -> engine: one request an item -> vectors -> response

An item that cannot be read fails by itself where the client allows that; otherwise the error names it and nothing runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from chairlift.core.admission import Admission
from chairlift.core.errors import InvalidRequest, NeverFits
from chairlift.core.tickets import Ticket
from chairlift.core.types import NO_SAMPLING, PoolingParams, Request
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.bounds import DeadlineMs, Priority, RequestId, Truncation, UserName, tells
from chairlift.server.client import EngineClient
from chairlift.server.collection import Collection
from chairlift.server.entrance import INLINE_BYTES, Admitted, admit, check_model, here_or_on, refusals
from chairlift.server.errors import ApiError, from_invalid, never_fits
from chairlift.server.exchange import ClientGone, Exchange, safe_id
from chairlift.server.fields import check_priority_and_cut, deadline_s, user_name
from chairlift.server.identity import tenant_name
from chairlift.server.items import Item, estimated, passage_of
from chairlift.server.json_body import field_of, read_object
from chairlift.server.outcomes import Outcome
from chairlift.server.route import OF_ENGINE, Operation
from chairlift.text.passages import Passage, PassageTokenizer

MAX_ITEMS = 2048
"""Most texts of one request, as in the OpenAI API."""
INLINE_VECTORS = 32
"""Up to so many vectors are written on the event loop."""


class PassFields(msgspec.Struct, kw_only=True):
    """What every route here understands."""

    model: str | None = None
    user: UserName | None = None
    safety_identifier: UserName | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    truncate_prompt_tokens: Truncation | None = None
    truncate: Annotated[bool, tells("Cut texts that are longer than the model reads.")] | None = None
    partial: Annotated[bool, tells("One that fails has its error in its place; the others are read.")] | None = None
    e2e_deadline_ms: DeadlineMs | None = None
    ttft_deadline_ms: DeadlineMs | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all responses carry."""

    id: str
    created: int
    model: str
    num_tokens: int
    """Of all items that were read."""

    def usage(self) -> dict[str, int]:
        """As clients of the OpenAI API read it."""
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one body asks for. `name` says what its API calls item i."""

    items: list[Item]
    params: PoolingParams
    fields: PassFields
    name: Callable[[int], str]
    write: Callable[[list[Outcome], Envelope], bytes]
    takes_empty: bool = False
    """Whether a text may be empty: one of a pair may, and then matches little."""


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


def operation(about: str, body: type, answer: Any) -> Operation:
    """Of a route that reads texts."""
    return Operation(about=about, tag="Texts", body=body, answer=answer, statuses=OF_ENGINE)


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
        self._collecting: set[Collection] = set()

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
        job = await here_or_on(self._pool, partial(self._prepare, body, make_job), inline=inline)
        if exchange.priority is not None:
            job.fields.priority = exchange.priority
        admitted = self._admit(exchange, job, arrival)
        try:
            fitted = await here_or_on(self._pool, partial(self._fit, job), inline=inline)
            if not job.fields.partial:
                for one in fitted:
                    if isinstance(one, ApiError):
                        raise one
            asked = list(self._requests(job, admitted, fitted))
            collection = Collection(self.reader.client, fitted, exchange.id)
            await self._collect(exchange, job, collection, asked)
        finally:
            now = self._clock()
            for ticket in admitted.tickets:
                self.reader.admission.ended(ticket, now)

    def _admit(self, exchange: Exchange, job: Job, arrival: float) -> Admitted:
        """Raises an ApiError if there is no place for it."""
        principal, tenant = exchange.principal.name, tenant_name(exchange.headers, user_name(job.fields))
        if exchange.used is not None:
            exchange.used.model = self.reader.served_names[0]
            exchange.used.tenant = tenant
        ttft_deadline_s = deadline_s("ttft_deadline_ms", job.fields.ttft_deadline_ms)
        e2e_deadline_s = deadline_s("e2e_deadline_ms", job.fields.e2e_deadline_ms)
        with refusals(self.reader.metrics, self._overload_status):
            return admit(
                self.reader.admission,
                [estimated(item, self.reader.max_model_len) for item in job.items],
                arrival,
                principal=principal,
                tenant=tenant,
                arrival=arrival,
                ttft_deadline_s=ttft_deadline_s,
                e2e_deadline_s=e2e_deadline_s,
                priority=job.fields.priority or 0,
            )

    def _requests(
        self, job: Job, admitted: Admitted, fitted: Sequence[Passage | ApiError]
    ) -> Iterator[tuple[Request, Ticket]]:
        """One for each item that can be read; the others give their places back."""
        for ticket, one in zip(admitted.tickets, fitted, strict=True):
            if isinstance(one, ApiError):
                self.reader.admission.ended(ticket, admitted.arrival)
                continue
            self.reader.admission.tokenised(ticket, len(one.tokens))
            request = Request(
                id=self.reader.client.new_id(),
                prompt=one.tokens,
                params=NO_SAMPLING,
                arrival=admitted.arrival,
                priority=job.fields.priority or 0,
                principal=admitted.principal,
                tenant=admitted.tenant,
                ttft_deadline=admitted.ttft_deadline,
                e2e_deadline=admitted.e2e_deadline,
                pooling=replace(job.params, num_first=one.num_first),
            )
            yield request, ticket

    def _prepare(self, body: bytes, make_job: MakeJob) -> Job:
        content = read_object(body)
        check_model(content, self.reader.served_names)
        job = make_job(content, self.reader)
        check_priority_and_cut(job.fields.priority, job.fields.truncate_prompt_tokens)
        if len(job.items) > MAX_ITEMS:
            raise never_fits(f"at most {MAX_ITEMS} texts are read at once", field_of(job.name(0)))
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
                if item == "" and not job.takes_empty:
                    raise InvalidRequest("the text must not be empty", "input")
                fitted.append(passage_of(item, self.reader.passages, most, keep))
            except InvalidRequest as error:
                refusal = from_invalid(error)
                refusal.message = f"{job.name(i)}: {refusal.message}"
                refusal.param = job.name(i)
                refusal.code = refusal.code if isinstance(error, NeverFits) else None
                fitted.append(refusal)
        return fitted

    async def _collect(
        self, exchange: Exchange, job: Job, collection: Collection, asked: Sequence[tuple[Request, Ticket]]
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
        inline = len(outcomes) <= INLINE_VECTORS
        await exchange.respond(200, await here_or_on(self._pool, write, inline=inline))

    async def _watch(self, exchange: Exchange, collection: Collection) -> None:
        await exchange.left()
        if not collection.done.is_set():
            collection.client_left = True
            if self.reader.metrics is not None:
                self.reader.metrics.num_disconnects += 1
            collection.done.set()
