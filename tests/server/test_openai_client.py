"""The official client against the server: what most users' code does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from server.fake_text import END, TURN
from server.fake_worker import FAIL, answer_tokens, natural_length
from server.running import RunningServer, running_server

KEY = "sk-test-key"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(api_keys=("other-key", KEY)) as running:
        yield running
        running.wait_idle()


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def whole_text(content: str) -> str:
    prompt = [TURN, *f"user:{content}".encode(), END, TURN]
    return bytes(answer_tokens(prompt, 0, natural_length(prompt, 0))).decode("utf-8", "replace")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}], n=2
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole_text("hello")
    assert usage is not None
    assert usage.completion_tokens > 0


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=2, max_tokens=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2, 2, 2]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=5, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 5


def test_completions_streamed(client: openai.OpenAI) -> None:
    pieces = client.completions.create(model="fake", prompt="a", max_tokens=9, stream=True)
    expected = bytes(answer_tokens([TURN, *b"a"], 0, 9)).decode("utf-8", "replace")
    assert "".join(piece.choices[0].text for piece in pieces) == expected


def test_extensions_in_the_body(client: openai.OpenAI, server: RunningServer) -> None:
    client.completions.create(model="fake", prompt="a", extra_body={"top_k": 7, "ignore_eos": True})
    assert server.worker.adds[-1].params.top_k == 7


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("../../etc/passwd")


def test_every_error_has_its_class(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="fake", prompt=[1] * 5000)
    assert long.value.code == "context_length_exceeded"
    for key in ("wrong", KEY + "x", KEY[:-1]):
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError) as unknown,
        ):
            stranger.models.list()
        assert unknown.value.code == "invalid_api_key"


def test_an_engine_failure_is_a_500_and_says_nothing_of_the_inside(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        client.completions.create(model="fake", prompt=FAIL)
    assert "0x" not in str(failed.value)


def test_src_ninfer_137_a_failure_in_a_stream_is_an_error_not_an_end(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="fake", prompt=FAIL, stream=True)
    pieces = []
    with pytest.raises(openai.APIError) as failed:
        for piece in stream:
            pieces.append(piece)
    assert pieces
    assert "0x" not in str(failed.value)


async def _chat_many(url: str, count: int) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:

        async def one(number: int) -> str:
            stream: AsyncIterator[openai.types.chat.ChatCompletionChunk] = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": f"number {number}"}], stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return list(await asyncio.gather(*map(one, range(count))))


def test_a_hundred_streams_at_once_do_not_mix(server: RunningServer) -> None:
    """More than the worker runs at once, each answer its own."""
    texts = asyncio.run(_chat_many(server.url, 100))
    assert texts == [whole_text(f"number {number}") for number in range(100)]
