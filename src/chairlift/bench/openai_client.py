"""Asks an OpenAI-compatible server, and measures the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from chairlift.bench.datasets import Sample
from chairlift.bench.exchange import Exchange
from chairlift.bench.http_client import HttpClient
from chairlift.bench.sse import EventStream
from chairlift.core.errors import ChairliftError

DONE = b"[DONE]"


class BadAnswer(ChairliftError):
    """An answer that says it failed, or does not say how it ended."""


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        """The text that this choice brought, whichever of the API's forms it came in."""
        if self.text is not None:
            return self.text
        said = self.delta or self.message
        return "" if said is None else said.content or said.reasoning or said.reasoning_content or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Payload(msgspec.Struct):
    """A response, a chunk of one, or an error in place of one."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Form:
    """How questions are put: `extra` goes into every body as it is, over what stands there otherwise."""

    model: str
    path: str
    chat: bool
    stream: bool = True
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()

    def body(self, sample: Sample) -> bytes:
        """The JSON of one question."""
        body: dict[str, Any] = {"model": self.model, "temperature": 0.0, "stream": self.stream}
        if self.chat:
            body["messages"] = [{"role": "user", "content": sample.prompt}]
            body["max_completion_tokens"] = sample.num_output_tokens
        else:
            body["prompt"] = sample.prompt
            body["max_tokens"] = sample.num_output_tokens
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body | dict(self.extra))


class OpenAIClient:
    """Puts questions in one form; failures come back as exchanges with an error, never as exceptions.

    `num_chunks` counts deliveries of text so far, over all exchanges.
    """

    def __init__(self, http: HttpClient, form: Form, clock: Callable[[], float]) -> None:
        self._http = http
        self._form = form
        self._clock = clock
        self._payloads = msgspec.json.Decoder(_Payload)
        self.num_chunks = 0

    async def ask(self, sample: Sample) -> Exchange:
        """One question, until its answer ended."""
        form = self._form
        body = form.body(sample)
        exchange = Exchange(start=self._clock(), num_input_tokens=sample.num_input_tokens)
        answer = _Answer(self, exchange, self._payloads)
        on_body = answer.on_stream if form.stream else None
        try:
            response = await self._http.request("POST", form.path, body=body, headers=form.headers, on_body=on_body)
            if response.status != 200:
                raise BadAnswer(f"HTTP {response.status}: {response.body[:500].decode(errors='replace')}")
            if form.stream:
                answer.end_stream()
            else:
                answer.on_whole(response.body, self._clock())
        except (ChairliftError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            exchange.error = str(error) or type(error).__name__
        if exchange.error is not None:
            exchange.finished = self._clock()
        return exchange


class _Answer:
    """An answer coming in."""

    def __init__(self, owner: OpenAIClient, exchange: Exchange, payloads: msgspec.json.Decoder[_Payload]) -> None:
        self._owner = owner
        self._exchange = exchange
        self._payloads = payloads
        self._events = EventStream()
        self._pieces: list[str] = []
        self._finished = False
        self._usage: _Usage | None = None

    def on_stream(self, piece: bytes, now: float) -> None:
        exchange = self._exchange
        for data in self._events.feed(piece):
            if data == DONE:
                self._finished = True
                continue
            payload = self._decode(data)
            for choice in payload.choices:
                if text := choice.piece:
                    self._pieces.append(text)
                    exchange.deliveries.append(now)
                    self._owner.num_chunks += 1
                if text or choice.finish_reason is not None:
                    exchange.finished = now
                self._finished = self._finished or choice.finish_reason is not None

    def end_stream(self) -> None:
        if not self._finished:
            raise BadAnswer("the stream ended before the answer did")
        exchange = self._exchange
        if exchange.finished == 0.0:
            raise BadAnswer("the stream had no answer in it")
        self._close(len(exchange.deliveries))

    def on_whole(self, body: bytes, now: float) -> None:
        payload = self._decode(body)
        self._pieces = [choice.piece for choice in payload.choices]
        self._exchange.finished = now
        if not payload.choices or payload.usage is None:
            raise BadAnswer("the response has no choices, or no usage to count its tokens by")
        self._close(0)

    def _decode(self, data: bytes) -> _Payload:
        payload = self._payloads.decode(data)
        if payload.error is not None:
            raise BadAnswer(f"the server reported: {msgspec.json.encode(payload.error)[:500].decode()}")
        self._usage = payload.usage or self._usage
        return payload

    def _close(self, num_chunks: int) -> None:
        """A server's own counts win; without them a chunk is taken for a token."""
        exchange, usage = self._exchange, self._usage
        exchange.text = "".join(self._pieces)
        exchange.num_output_tokens = num_chunks
        if usage is not None:
            exchange.num_output_tokens = usage.completion_tokens
            exchange.num_input_tokens = usage.prompt_tokens or exchange.num_input_tokens


async def first_model(http: HttpClient, headers: tuple[tuple[str, str], ...]) -> str:
    """The id of the first model that a server has.

    Raises:
        ChairliftError: it does not say.
    """
    try:
        response = await http.request("GET", "/v1/models", headers=headers)
        if response.status == 200:
            models = msgspec.json.decode(response.body, type=_Models).data
            if models:
                return models[0].id
        reason = f"HTTP {response.status}: {response.body[:200].decode(errors='replace')}"
    except (msgspec.MsgspecError, TimeoutError) as error:
        reason = str(error) or "no answer in time"
    raise BadAnswer(f"the server names no model at /v1/models ({reason}): give one with --model")


async def wait_until_ready(http: HttpClient, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Return when the server answers 200 at /health.

    Raises:
        BadAnswer: it did not in time, or `alive` says that it never will.
    """
    reason = "no answer"
    try:
        async with asyncio.timeout(timeout_s):
            while alive():
                try:
                    response = await http.request("GET", "/health")
                    if response.status == 200:
                        return
                    reason = f"HTTP {response.status}"
                except (ChairliftError, OSError) as error:
                    reason = str(error)
                await asyncio.sleep(0.05)
            reason = "it exited"
    except TimeoutError:
        pass
    raise BadAnswer(f"the server did not become ready: {reason}")
