"""The requests of `vllm bench serve`, and its way of reading streams: what it needs of a server that it can drive."""

from __future__ import annotations

import codecs
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.running import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running
        running.wait_idle()


@dataclass
class Measured:
    text: str = ""
    num_chunks: int = 0
    num_output_tokens: int | None = None
    prompt_tokens: int | None = None
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    done: bool = False


def completions_body() -> dict[str, Any]:
    return {
        "model": "fake",
        "prompt": "once upon a time",
        "repetition_penalty": 1.0,
        "max_tokens": 24,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }


def chat_body() -> dict[str, Any]:
    return {
        "model": "fake",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "once upon a time"}]}],
        "max_completion_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }


def measure(server: RunningServer, path: str, body: dict[str, Any], read_size: int) -> Measured:
    """Read a stream as the benchmark does: in whatever pieces come, events parted by empty lines, usage in the last."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer None", "x-request-id": "bench-0"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    began = last = time.perf_counter()
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    measured = Measured()
    decoder = codecs.getincrementaldecoder("utf-8")()
    buffer = ""
    while piece := response.read(read_size):
        buffer += decoder.decode(piece)
        while "\n\n" in buffer:
            message, _, buffer = buffer.partition("\n\n")
            message = message.strip()
            if not message or message.startswith(":"):
                continue
            data = message.removeprefix("data: ")
            if data == "[DONE]":
                measured.done = True
                continue
            content = json.loads(data)
            now = time.perf_counter()
            if choices := content.get("choices"):
                text = choices[0]["delta"].get("content") if "delta" in choices[0] else choices[0].get("text")
                if measured.num_chunks == 0:
                    measured.ttft = now - began
                else:
                    measured.itls.append(now - last)
                measured.num_chunks += 1
                measured.text += text or ""
                last = now
            elif usage := content.get("usage"):
                measured.num_output_tokens = usage["completion_tokens"]
                measured.prompt_tokens = usage["prompt_tokens"]
    connection.close()
    assert buffer == ""
    return measured


@pytest.mark.parametrize("read_size", [1, 7, 65536])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", completions_body()), ("/v1/chat/completions", chat_body())]
)
def test_the_benchmark_can_drive_it(server: RunningServer, path: str, body: dict[str, Any], read_size: int) -> None:
    measured = measure(server, path, body, read_size)
    assert measured.done
    assert measured.num_output_tokens == 24
    assert measured.prompt_tokens
    assert measured.ttft > 0
    assert 1 < measured.num_chunks <= 26
    assert len(measured.itls) == measured.num_chunks - 1
    status, whole = server.json("POST", path, {k: v for k, v in body.items() if k not in ("stream", "stream_options")})
    assert status == 200
    choice = whole["choices"][0]
    assert measured.text == (choice["message"]["content"] if "message" in choice else choice["text"])


def test_its_readiness_probe_and_model_lookup(server: RunningServer) -> None:
    status, models = server.json("GET", "/v1/models")
    assert (status, models["data"][0]["id"]) == (200, "fake")
