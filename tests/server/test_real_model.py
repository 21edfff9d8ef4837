"""The whole thing with a real model: `chairlift serve` as a user runs it."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from chairlift.server.served_text import load_served_text
from server.fake_worker import FakeOptions
from server.running import RunningServer, running_server, until
from server.test_disconnects import storm

MODEL = "smollm2-135m-instruct"


class RealServer:
    def __init__(self, model: str = MODEL, *flags: str) -> None:
        command = [sys.executable, "-c", "import sys; from chairlift.cli.main import main; sys.exit(main())"]
        command += ["serve", model, "--port", "0", "--admin-api-key", "owner-key"]
        command += flags or ("--max-model-len", "512", "--tool-call-parser", "json")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if match is None:
            self.close()
        assert match, self.log
        self.port = int(match[1])

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            self._reader.join()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    def metrics(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, _, value in values}

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, json.dumps(body), {"Authorization": "Bearer owner-key"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        assert response.status == 200, answer
        return answer

    def num_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def wait_idle(self) -> None:
        deadline = time.monotonic() + 10
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        while any(self.metrics()[name] for name in names):
            assert time.monotonic() < deadline, self.metrics()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def real() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    assert server.close() == 0


@pytest.fixture
def client(real: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{real.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name three colours, in French: é, ü, 日本."}],
        "max_tokens": 40,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked)
    pieces = client.chat.completions.create(**asked, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text
    assert text == whole.choices[0].message.content


def test_a_stop_string_ends_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": "One, two, three, four, five,",
        "temperature": 0,
        "max_tokens": 30,
    }
    free = client.completions.create(**asked).choices[0].text
    stop = free[4:7]
    cut = client.completions.create(**asked, stop=stop).choices[0]
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"


def test_the_prompt_s_scores_add_up(client: openai.OpenAI) -> None:
    """A likely ending scores above an unlikely one: what an evaluation harness relies on."""

    def score(ending: str) -> float:
        answer = client.completions.create(
            model=MODEL, prompt=f"The capital of France is{ending}", echo=True, max_tokens=0, logprobs=1
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        return logprobs.token_logprobs[-1]

    assert score(" Paris") > score(" cheese")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": [1] * 512}, "context_length_exceeded"),
        ({"prompt": [1] * 500, "max_tokens": 13}, "context_length_exceeded"),
        ({"prompt": ""}, None),
        ({"prompt": "x", "temperature": -1}, None),
        ({"prompt": "x", "logit_bias": {"49152": 1}}, None),
        ({"prompt": [49152]}, None),
        ({"prompt": "x", "n": 129}, None),
    ],
)
def test_what_cannot_be_served_is_a_400_and_the_engine_goes_on(
    client: openai.OpenAI, fields: dict[str, Any], code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, **fields)
    assert caught.value.code == code
    assert client.completions.create(model=MODEL, prompt=[1] * 500, max_tokens=1).usage is not None


def test_limits_change_while_it_serves_and_the_wait_is_explained(client: openai.OpenAI, real: RealServer) -> None:
    """One slot, two clients: one of them waits for it, and is told so; the owner reads the same."""
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "extra_body": {"explain": True, "ignore_eos": True}}

    def ask(prompt: str) -> dict[str, Any]:
        *_, last = client.completions.create(prompt=prompt, stream=True, **fields)
        assert last.model_extra is not None
        explanation: dict[str, Any] = last.model_extra["explanation"][0]
        return explanation | {"id": last.id}

    configured = real.admin("GET", "/admin/limits")["configured"]
    real.admin("PATCH", "/admin/limits", {"max_num_seqs": 1})
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(ask, ("One, two,", "Three, four,")))
    assert real.metrics()["chairlift:max_num_seqs"] == 1
    real.admin("PATCH", "/admin/limits", {"max_num_seqs": configured["max_num_seqs"]})
    first, second = sorted(told, key=lambda one: float(one["decisions"]["ended_after_s"]))
    assert "slots" not in first["decisions"]["waited_s"]
    assert second["decisions"]["waited_s"]["slots"] > 0
    assert " for a slot; " in second["sentence"]
    assert [(one["decisions"]["output_tokens"], one["decisions"]["chunks"]) for one in told] == [(12, 1)] * 2
    (entry,) = real.admin("GET", f"/admin/requests/{second['id']}")["data"]
    assert entry["choices"][0] == {name: second[name] for name in ("index", "sentence", "decisions")}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_satisfies_its_schema(client: openai.OpenAI, choice: Any) -> None:
    """Even of the smallest model: whole and streamed."""
    properties = {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}}
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in Bern, in Celsius?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 60,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    for answer in (whole, streamed):
        assert answer.finish_reason == "tool_calls"
        assert answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        assert isinstance(arguments["city"], str)
        assert arguments["unit"] in ("C", "F")
        assert not answer.message.content


def test_a_response_says_the_same_streamed_and_whole_and_as_a_chat(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"instructions": "Be brief.", "input": "Name a colour.", "temperature": 0}
    fields |= {"model": MODEL, "max_output_tokens": 12, "top_logprobs": 2}
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    messages: list[Any] = [
        {"role": "system", "content": fields["instructions"]},
        {"role": "user", "content": fields["input"]},
    ]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
    assert whole.output_text == final.output_text == text == chat.choices[0].message.content
    assert chat.usage is not None
    for response in (whole, final):
        assert response.usage is not None
        assert response.usage.input_tokens == chat.usage.prompt_tokens
        assert response.usage.output_tokens == chat.usage.completion_tokens
        items: list[Any] = list(response.output)
        (part,) = items[0].content
        assert b"".join(bytes(score.bytes) for score in part.logprobs).decode() == text


def test_a_response_calls_what_it_must(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}
    tool: Any = {"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}
    fields: dict[str, Any] = {"model": MODEL, "input": "Weather?", "tools": [tool], "temperature": 0}
    fields |= {"tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 60}
    response = client.responses.create(**fields)
    (call,) = items = list[Any](response.output)
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Bern"}, "completed")
    gave: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    turns = [{"role": "user", "content": "Weather?"}, *items, gave]
    went_on = client.responses.create(**fields | {"input": turns, "tool_choice": "none", "max_output_tokens": 4})
    assert went_on.output_text


def test_a_deadline_ends_a_long_answer_with_an_error(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 490}
    extra = {"ignore_eos": True, "e2e_deadline_ms": 800}
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**fields, extra_body=extra)
    assert (caught.value.status_code, caught.value.code) == (504, "e2e_deadline_exceeded")
    assert caught.value.response.headers["x-should-retry"] == "false"
    chunks = []
    with pytest.raises(openai.APIError, match="e2e deadline") as ended:
        for chunk in client.completions.create(**fields, extra_body=extra, stream=True):
            chunks.append(chunk)
    assert ended.value.code == "e2e_deadline_exceeded"
    assert chunks
    assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)


def test_a_full_queue_of_a_real_engine_refuses_and_opens_again(client: openai.OpenAI, real: RealServer) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "extra_body": {"ignore_eos": True}}
    configured = real.admin("GET", "/admin/limits")["configured"]
    real.wait_idle()
    real.admin("PATCH", "/admin/limits", {"max_num_seqs": 1, "max_num_queued_reqs": 1})
    with client.completions.create(max_tokens=490, stream=True, **fields) as running:
        next(iter(running))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: client.completions.create(max_tokens=1, **fields))
            until(lambda: real.metrics()["vllm:num_requests_waiting"] == 1)
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(max_tokens=1, **fields)
            assert caught.value.code == "max_num_queued_reqs"
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120
            running.close()
            assert waiting.result(30).choices[0].finish_reason == "length"
    restored = {name: configured[name] for name in ("max_num_seqs", "max_num_queued_reqs")}
    real.admin("PATCH", "/admin/limits", restored)
    assert client.completions.create(max_tokens=1, **fields).choices


def test_special_tokens_in_a_message_stay_text(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=1)
        for content in ("a", "a<|im_end|>")
    ]
    usages = [answer.usage.prompt_tokens for answer in answers if answer.usage is not None]
    assert usages[1] > usages[0] + 1


def test_fifty_clients_of_which_half_leave(real: RealServer) -> None:
    real.wait_idle()
    before = real.num_descriptors()
    outcomes = asyncio.run(storm(real.port, 50, seed=3))
    assert outcomes["served"] > 10
    real.wait_idle()
    until(lambda: real.num_descriptors() <= before)


@pytest.mark.long
def test_two_thousand_clients_of_which_half_leave(real: RealServer) -> None:
    outcomes = asyncio.run(storm(real.port, 2000, seed=4))
    assert outcomes["served"] > 800
    real.wait_idle()
    assert not [line for line in real.log if "Traceback" in line or "ERROR" in line]


def test_src_vllm_24910_a_large_text_does_not_stop_the_others() -> None:
    """Megabytes of text, tokens, structure: nobody else waits for 250 ms because of them (with the real tokenizer)."""
    bodies = {
        "words": json.dumps({"prompt": "some words again and again " * 140_000}),
        "chat": json.dumps({"messages": [{"role": "user", "content": "some words again and again " * 37_000}]}),
        "ids": json.dumps({"prompt": [1] * 1_000_000}),
        "messages": json.dumps({"messages": [{"role": "user", "content": "x"}] * 80_000}),
    }
    with running_server(FakeOptions(), load_served_text(MODEL), log_requests=False) as server:
        for name, body in bodies.items():
            path = "/v1/chat/completions" if "messages" in body[:20] else "/v1/completions"
            stalls = sorted(longest_stall(server, path, body.encode()) for _ in range(3))
            assert stalls[0] < 0.25, (name, stalls)  # the best of three: other processes stop a loop too


def longest_stall(server: RunningServer, path: str, body: bytes) -> float:
    """The longest time, in seconds, for which the server's loop did nothing else while it refused `body`."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            gaps.append(now - last - 0.002)
            last = now

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(tick())

    ticking: asyncio.Task[None] = server.run(start())
    status, _, _ = server.request("POST", path, body)
    server.loop.call_soon_threadsafe(ticking.cancel)
    assert status == 400
    return max(gaps)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_has_the_form_of_its_schema(client: openai.OpenAI, temperature: float) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Who is Alice?"}],
        "max_tokens": 200,
        "temperature": temperature,
        "seed": 7,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    }
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "stop"
    person = json.loads(whole.message.content or "")
    assert list(person) == ["name", "age"]
    assert isinstance(person["name"], str) and isinstance(person["age"], int)
    pieces = client.chat.completions.create(**asked, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.message.content


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"choice": ["red", "green", "blue"]}, "red|green|blue"),
        ({"regex": r"\d{3}-\d{4}"}, r"\d{3}-\d{4}"),
        ({"grammar": 'start: "SELECT " NAME\nNAME: /[a-z]{1,8}/'}, "SELECT [a-z]{1,8}"),
    ],
)
def test_an_answer_has_the_form_of_its_grammar(client: openai.OpenAI, form: dict[str, Any], expected: str) -> None:
    extra = {"structured_outputs": form}
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=40, n=2, extra_body=extra)
    assert all(re.fullmatch(expected, choice.text) for choice in answer.choices)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [({"type": "thing"}, "thing"), ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"$ref": "#"}, "no text")],
)
def test_src_vllm_48942_a_schema_that_is_none_is_a_400_and_the_engine_goes_on(
    client: openai.OpenAI, schema: dict[str, Any], reason: str
) -> None:
    extra = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    for _ in range(2):
        with pytest.raises(openai.BadRequestError, match=reason):
            client.completions.create(model=MODEL, prompt="x", extra_body=extra)
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).usage is not None
