"""Every API that asks for answers: from a body to tokens in the engine, and from tokens to the client.

    body -> validate -> admission -> tokens that fit -> engine ... steps ... -> text -> bytes -> client
            `-- and --------------------------'
                on a thread if the body is large

Whatever happens, leaving this code aborts what was submitted and gives back every place that admission gave: a client
that left, a bug, a shutdown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from chairlift.core.admission import Admission
from chairlift.core.types import Request
from chairlift.server import validate
from chairlift.server.answer import Answer
from chairlift.server.asked import Asked
from chairlift.server.client import EngineClient
from chairlift.server.dialect import Heading, Question, Read
from chairlift.server.entrance import INLINE_BYTES, Admitted, admit, check_model, here_or_on, refusals
from chairlift.server.errors import ApiError
from chairlift.server.exchange import ClientGone, Exchange, safe_id
from chairlift.server.identity import cache_salt, tenant_name
from chairlift.server.json_body import read_object
from chairlift.server.keep_alive import kept_alive
from chairlift.server.message_parts import call_id, short_call_id
from chairlift.server.outlet import Outlet
from chairlift.server.ports import ServedText
from chairlift.server.prompts import Fitted, estimated_tokens, fit
from chairlift.server.readers import after_thought, reader_opener, shown_texts
from chairlift.server.timings import Timings
from chairlift.server.written import gathered, pieces_of

_LIFTS = re.compile(rb'"(?:priority|ttft_deadline_ms|e2e_deadline_ms|user|user_id|safety_identifier)"\s*:')
"""Fields that may lift a request over others; without them a full queue refuses it unread."""

INLINE_OUTPUT_TOKENS = 8 << 10
"""Answers up to this weight are turned into text on the event loop: some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded model behind a client."""

    client: EngineClient
    text: ServedText
    max_model_len: int
    served_names: tuple[str, ...]
    """Names that requests may use; the first is the one that responses carry."""
    created: int
    """When it was loaded, in seconds since 1970."""


class Generation:
    """Serves one engine; knows every answer in flight."""

    def __init__(
        self,
        engine: Engine,
        pool: Executor,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        max_body_bytes: int,
        max_pending_bytes: int,
        overload_status: int = 429,
        sse_keep_alive_interval_s: float = 0.0,
        tells_timings: bool = False,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._clock = clock
        self._wall_clock = wall_clock
        self._max_body_bytes = max_body_bytes
        self._max_pending_bytes = max_pending_bytes
        self._overload_status = overload_status
        self._sse_keep_alive_interval_s = sse_keep_alive_interval_s
        self._tells_timings = tells_timings
        self._answers: set[Answer] = set()

    @property
    def admission(self) -> Admission:
        """Who may enter; its limits may be changed while serving."""
        return self._engine.client.admission

    def fail_all(self, error: ApiError) -> None:
        """End every answer in flight with `error`."""
        for answer in list(self._answers):
            answer.fail(error)

    async def serve(self, exchange: Exchange, read: Read) -> None:
        """Answer one request, in the way of the API whose bodies `read` reads.

        Raises:
            ApiError: nothing was sent yet, and this is what to send.
            ClientGone: nobody is there to answer.
        """
        arrival = self._clock()
        body = await exchange.body(self._max_body_bytes)
        inline = len(body) <= INLINE_BYTES
        principal = exchange.principal.name
        if exchange.priority is None and not _LIFTS.search(body):
            with refusals(self._engine.client.metrics, self._overload_status):
                self.admission.check_room(principal, tenant_name(exchange.headers, ""))
        preparing = partial(self._prepare, body, read)
        question, nums_tokens = await here_or_on(self._pool, preparing, inline=inline)
        asked = question.asked
        if exchange.priority is not None:
            asked = replace(asked, priority=exchange.priority)
        if exchange.used is not None:
            exchange.used.model = self._engine.served_names[0]
            exchange.used.tenant = tenant_name(exchange.headers, asked.user)
        admitted = self._admit(exchange, asked, nums_tokens, principal, arrival)
        try:
            fitting = partial(fit, asked, self._engine.text, self._engine.max_model_len)
            fitted = await here_or_on(self._pool, fitting, inline=inline)
            fitted = after_thought(fitted, self._engine.text)
            for ticket, prompt in zip(admitted.tickets, fitted.prompts, strict=True):
                self.admission.tokenised(ticket, len(prompt))
            await self._generate(exchange, admitted, fitted, question, inline)
        except ApiError as error:
            raise question.in_its_words(error) from None
        finally:
            now = self._clock()
            for ticket in admitted.tickets:
                self.admission.ended(ticket, now)

    def _prepare(self, body: bytes, read: Read) -> tuple[Question, list[int]]:
        """What a body asks for, and about how many tokens its prompts have; on any thread.

        Raises:
            ApiError: everything that can be found wrong before there are tokens.
        """
        content = read_object(body)
        check_model(content, self._engine.served_names)
        question = read(content, self._engine.text)
        return question, estimated_tokens(question.asked, self._engine.max_model_len)

    def _admit(
        self, exchange: Exchange, asked: validate.Validated, nums_tokens: list[int], principal: str, arrival: float
    ) -> Admitted:
        """Raises an ApiError if there is no place for it."""
        with refusals(self._engine.client.metrics, self._overload_status):
            return admit(
                self.admission,
                nums_tokens,
                self._clock(),
                principal=principal,
                tenant=tenant_name(exchange.headers, asked.user),
                arrival=arrival,
                ttft_deadline_s=asked.ttft_deadline_s,
                e2e_deadline_s=asked.e2e_deadline_s,
                n=asked.n,
                priority=asked.priority,
            )

    async def _generate(
        self, exchange: Exchange, admitted: Admitted, fitted: Fitted, question: Question, inline: bool
    ) -> None:
        answer, asked = self._answer(exchange, fitted, question)
        watcher = asyncio.create_task(self._watch(exchange, answer))
        self._answers.add(answer)
        if exchange.used is not None:
            answer.used = exchange.used
            answer.used.params, answer.used.n = fitted.asked.params, fitted.asked.n
        try:
            if not inline:
                await asyncio.sleep(0)  # a client that left meanwhile is noticed before the engine hears of it
                if answer.outlet.closed:
                    raise ClientGone
            show = fitted.asked.show
            text = self._engine.text
            open_text = text.streams(
                fitted.asked.params,
                skip_special_tokens=show.skip_special_tokens,
                shown=shown_texts(fitted.asked, text),
                continues=show.continues,
            )
            answer.submit(asked, self._requests(exchange, admitted, fitted), admitted.tickets, open_text)
            if show.stream:
                with kept_alive(answer.outlet, self._sse_keep_alive_interval_s, question.sign_of_life):
                    await _stream(exchange, answer, watcher)
            else:
                await self._collect(exchange, answer, watcher)
        finally:
            watcher.cancel()
            self._answers.discard(answer)
            answer.leave()
            exchange.note = answer.summary(admitted.arrival, self._clock())
            answer.forget()

    def _answer(self, exchange: Exchange, fitted: Fitted, question: Question) -> tuple[Answer, list[Asked]]:
        asked, show = fitted.asked, fitted.asked.show
        label = safe_id(asked.request_id) or exchange.id
        dialect = question.dialect(Heading(label, int(self._wall_clock()), self._engine.served_names[0]))
        text = self._engine.text
        has_short_ids = asked.tools is not None and asked.tools.has_short_ids
        outlet = Outlet(self._max_pending_bytes, lambda: self._overrun(exchange, answer))
        timings = Timings() if self._tells_timings else None
        answer = Answer(self._engine.client, dialect, show, outlet, timings)
        return answer, [
            Asked(
                tokenizer=text,
                show=show,
                prompt=prompt,
                wants_logprobs=asked.shows_logprobs,
                wants_prompt_logprobs=asked.shows_prompt_logprobs,
                includes_stop=asked.params.include_stop_str_in_output,
                open_reader=reader_opener(asked, text, prompt),
                new_call_id=short_call_id if has_short_ids else call_id,
            )
            for prompt in fitted.prompts
        ]

    def _requests(self, exchange: Exchange, admitted: Admitted, fitted: Fitted) -> list[Request]:
        asked, engine = fitted.asked, self._engine
        salt = cache_salt(exchange.principal, asked.cache_salt)
        return [
            Request(
                id=engine.client.new_id(),
                prompt=prompt,
                params=params,
                arrival=admitted.arrival,
                n=asked.n,
                eos_token_ids=engine.text.eos_token_ids,
                priority=asked.priority,
                salt=salt,
                principal=admitted.principal,
                tenant=admitted.tenant,
                ttft_deadline=admitted.ttft_deadline,
                e2e_deadline=admitted.e2e_deadline,
            )
            for prompt, params in zip(fitted.prompts, fitted.params, strict=True)
        ]

    async def _watch(self, exchange: Exchange, answer: Answer) -> None:
        await exchange.left()
        if not answer.outlet.closed:
            answer.client_left = True
            if self._engine.client.metrics is not None:
                self._engine.client.metrics.num_disconnects += 1
        answer.leave()

    def _overrun(self, exchange: Exchange, answer: Answer) -> None:
        if self._engine.client.metrics is not None:
            self._engine.client.metrics.num_slow_readers += 1
        answer.leave()
        exchange.abort()

    async def _collect(self, exchange: Exchange, answer: Answer, watcher: asyncio.Task[None]) -> None:
        await answer.outlet.wait()
        if answer.outlet.error is not None:
            raise answer.outlet.error
        if not answer.finished:
            raise ClientGone
        inline = answer.weight() <= INLINE_OUTPUT_TOKENS
        made, piece, following = await here_or_on(self._pool, partial(_opened, answer), inline=inline)
        if following is None:
            await exchange.respond(200, piece)
            return
        await exchange.open(200)
        while following is not None:
            await exchange.write(piece, more=True)
            if watcher.done():
                raise ClientGone
            piece = following
            following = await here_or_on(self._pool, partial(next, made, None), inline=inline)
        await exchange.write(piece, more=False)


def _opened(answer: Answer) -> tuple[Iterator[bytes], bytes, bytes | None]:
    """A whole answer in pieces, and its first two: most answers have but one."""
    made = gathered(answer.body())
    return made, next(made, b""), next(made, None)


async def _stream(exchange: Exchange, answer: Answer, watcher: asyncio.Task[None]) -> None:
    """Pass on what the answer writes. The headers wait for the first of it: until then an error has a status."""
    outlet = answer.outlet
    await outlet.wait()
    if outlet.error is not None and not outlet.has_pending:
        raise outlet.error
    if outlet.closed and not outlet.has_pending:
        raise ClientGone
    await exchange.stream()
    more = True
    while more:
        await outlet.wait()
        data = outlet.take()
        more = outlet.has_pending or not outlet.closed
        if outlet.error is not None and not more:
            exchange.error_code = outlet.error.code
            made = gathered(chain((data,), pieces_of(answer.dialect.failure(outlet.error))))
            data = next(made, b"")
            for piece in made:
                await exchange.write(data, more=True)
                data = piece
        await exchange.write(data, more=more)
        if outlet.has_pending:
            if watcher.done():
                return
            await asyncio.sleep(0)  # what is made as it is taken must not keep others waiting
