"""What the client makes of responses, with the time of every byte given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from chairlift.bench.datasets import Sample
from chairlift.bench.exchange import Exchange
from chairlift.bench.http_client import ConnectionLost, HttpClient, OnBody, Response
from chairlift.bench.openai_client import BadAnswer, Form, OpenAIClient, first_model

SAMPLE = Sample("Hello", 5, 7)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Scripted(HttpClient):
    """Hands on pieces of a body at given times, in place of a connection."""

    def __init__(
        self, clock: Clock, pieces: Iterable[tuple[float, bytes]], status: int, error: Exception | None
    ) -> None:
        self.clock = clock
        self.pieces = pieces
        self.status = status
        self.error = error
        self.asked: list[tuple[str, str, dict[str, Any], dict[str, str]]] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        on_body: OnBody | None = None,
    ) -> Response:
        self.asked.append((method, path, json.loads(body or b"{}"), dict(headers)))
        kept = b""
        for at, piece in self.pieces:
            self.clock.now = at
            if on_body is not None and self.status == 200:
                on_body(piece, at)
            else:
                kept += piece
        if self.error is not None:
            raise self.error
        return Response(self.status, kept)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": finish}])


def delta(finish: str | None = None, **said: str | None) -> bytes:
    return event(choices=[{"index": 0, "delta": said, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 4})
DONE = b"data: [DONE]\n\n"


def asked(
    *pieces: tuple[float, bytes],
    status: int = 200,
    error: Exception | None = None,
    chat: bool = False,
    stream: bool = True,
) -> Exchange:
    clock = Clock()
    form = Form(model="m", path="/v1/x", chat=chat, stream=stream)
    return asyncio.run(OpenAIClient(Scripted(clock, pieces, status, error), form, clock).ask(SAMPLE))


def test_completions_stream() -> None:
    exchange = asked(
        (103.0, text("He")), (104.0, text("")), (105.5, text("y")), (106.0, text("", "stop") + USAGE), (107.0, DONE)
    )
    assert exchange.error is None
    assert (exchange.start, exchange.finished) == (100.0, 106.0)
    assert exchange.deliveries == [103.0, 105.5]
    assert (exchange.text, exchange.num_input_tokens, exchange.num_output_tokens) == ("Hey", 11, 4)
    assert (exchange.ttft_s, exchange.itls_s, exchange.tpot_s, exchange.e2el_s) == (3.0, [2.5], 1.0, 6.0)


def test_chat_stream_counts_text_and_reasoning_but_not_the_role() -> None:
    exchange = asked(
        (101.0, delta(role="assistant", content="")),
        (102.0, delta(reasoning="hm ")),
        (103.0, delta(content="yes")),
        (104.0, delta("length", content="!")),
        (105.0, USAGE + DONE),
        chat=True,
    )
    assert exchange.deliveries == [102.0, 103.0, 104.0]
    assert (exchange.text, exchange.finished, exchange.error) == ("hm yes!", 104.0, None)


def test_without_usage_a_chunk_is_a_token() -> None:
    exchange = asked((101.0, text("a")), (102.0, text("b", "length")), (103.0, DONE))
    assert (exchange.num_input_tokens, exchange.num_output_tokens, exchange.error) == (5, 2, None)


def test_an_answer_without_text_is_one() -> None:
    exchange = asked(
        (101.0, text("", "stop")), (102.0, event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 1}))
    )
    assert exchange.error is None and exchange.deliveries == [] and exchange.ttft_s is None
    assert (exchange.e2el_s, exchange.num_output_tokens) == (1.0, 1)


def test_whole_response() -> None:
    body = {
        "choices": [{"message": {"content": "Hey"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3},
    }
    exchange = asked((104.0, json.dumps(body).encode()), chat=True, stream=False)
    assert (exchange.text, exchange.finished, exchange.num_input_tokens, exchange.num_output_tokens) == (
        "Hey",
        104.0,
        2,
        3,
    )
    assert exchange.deliveries == [] and exchange.tpot_s is None and exchange.error is None


@pytest.mark.parametrize(
    ("exchange", "reason"),
    [
        (lambda: asked((101.0, b'{"error": "full"}'), status=503), 'HTTP 503: {"error": "full"}'),
        (lambda: asked((101.0, b'{"error": "full"}'), status=503, stream=False), 'HTTP 503: {"error": "full"}'),
        (lambda: asked((101.0, text("a")), (102.0, event(error={"message": "died"}))), 'reported: {"message":"died"}'),
        (lambda: asked((101.0, text("a"))), "ended before the answer"),
        (lambda: asked((101.0, DONE)), "no answer in it"),
        (lambda: asked((101.0, b"data: {\n\n")), "truncated"),
        (lambda: asked((101.0, event(choices=[{"text": 5}]))), "Expected `str | null`"),
        (lambda: asked((101.0, text("a")), error=ConnectionLost("gone")), "gone"),
        (lambda: asked(error=TimeoutError()), "TimeoutError"),
        (lambda: asked((101.0, b'{"choices": []}'), stream=False), "no choices"),
        (lambda: asked((101.0, b'{"choices": [{"text": "x"}]}'), stream=False), "no usage"),
    ],
)
def test_failures_are_exchanges_with_an_error(exchange: Callable[[], Exchange], reason: str) -> None:
    failed = exchange()
    assert failed.error is not None and reason in failed.error
    assert failed.finished >= failed.start


def test_bodies() -> None:
    form = Form(model="m", path="/v1/completions", chat=False, ignore_eos=True, extra={"top_k": 3, "temperature": 0.5})
    assert json.loads(form.body(Sample([1, 2], 2, 7))) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    form = Form(model="m", path="/v1/chat/completions", chat=True, stream=False)
    assert json.loads(form.body(SAMPLE)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 7,
        "temperature": 0.0,
        "stream": False,
    }


@pytest.mark.parametrize("body", [b'{"data": []}', b"[]", b"nonsense"])
def test_a_server_without_models(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="--model"):
        asyncio.run(first_model(Scripted(Clock(), [(1.0, body)], 200, None), ()))


def test_the_first_model_is_asked_with_the_headers() -> None:
    http = Scripted(Clock(), [(1.0, b'{"data": [{"id": "a"}, {"id": "b"}]}')], 200, None)
    assert asyncio.run(first_model(http, (("Authorization", "Bearer k"),))) == "a"
    assert http.asked == [("GET", "/v1/models", {}, {"Authorization": "Bearer k"})]
