"""Thousands of broken requests: each a refusal, and the engine does not notice (reliability S8)."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from server.fake_text import VOCAB_SIZE
from server.fake_worker import FakeOptions
from server.running import RunningServer, running_server
from server.test_app import INSIDE
from server.test_validate import FIELDS

ALLOWED = {200, 400, 404, 408, 413, 415, 431}

VALUES: list[Any] = [
    -1, 0, 1, 1000, 2**31, 2**63, -(2**63), 10**30, 1e308, -0.0, 0.5, True, False, None, "", "1", "x" * 5000, "\x00",
    "\ud800", [], {}, [None], [[]], [1, "a"], [-1], [2**64], [VOCAB_SIZE], {"a": 1}, {"-1": 1}, {"1": 1e9}, [[[[]]]],
    {"type": "text"}, {"type": "json_schema", "json_schema": {"pattern": "(a+)+$"}}, [{"role": "user"}],
]  # fmt: skip
"""What a field may turn out to hold."""

PIECES = (b"[", b"{", b'"', b"\\u", b"\\ud800", b"NaN", b"1e999", b"9" * 400, b",", b"null", b"-", b"\x00", b"\xff")
"""What may turn up anywhere in a body."""

SEEDS: list[dict[str, Any]] = [
    {"model": "fake", "prompt": "seed", "max_tokens": 2},
    {"model": "fake", "prompt": ["a", "b"], "n": 2, "max_tokens": 2, "stream": True, "logprobs": 1},
    {"prompt": [[1, 2], [3]], "max_tokens": 2, "stop": ["x"], "logit_bias": {"1": 1.5}, "echo": True},
    {"messages": [{"role": "user", "content": "seed"}], "max_tokens": 2, "temperature": 0.5},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2, "stream": True,
     "stream_options": {"include_usage": True}, "top_logprobs": 2, "logprobs": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(FakeOptions(max_model_len=64), log_requests=False) as running:
        yield running


def broken_bytes(generator: random.Random, body: dict[str, Any]) -> bytes:
    """A right body with some bytes changed, cut out, repeated or put in."""
    data = bytearray(json.dumps(body).encode())
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(data) + 1)
        match generator.randrange(5):
            case 0:
                data[at : at + 1] = bytes([generator.randrange(256)])
            case 1:
                del data[at : at + generator.randint(1, 12)]
            case 2:
                data[at:at] = data[at : at + generator.randint(1, 30)]
            case 3:
                data[at:at] = generator.choice(PIECES)
            case 4:
                del data[at:]
    return bytes(data)


def broken_fields(generator: random.Random, seed: dict[str, Any]) -> bytes:
    """A body whose fields hold what fields do not hold."""
    body = dict(seed)
    for _ in range(generator.randint(1, 3)):
        body[generator.choice([*FIELDS, *body])] = generator.choice(VALUES)
    if generator.random() < 0.2 and isinstance(body.get("messages"), list) and body["messages"]:
        body["messages"] = [generator.choice(VALUES), *body["messages"]]
    return json.dumps(body).encode()


def run(server: RunningServer, count: int, seed: int) -> dict[int, int]:
    """Send `count` broken bodies and return how often each status came."""
    generator = random.Random(seed)
    expected = server.complete(prompt="canary", max_tokens=9)["choices"]
    statuses: dict[int, int] = {}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for number in range(count):
        make = broken_bytes if number % 2 else broken_fields
        body = make(generator, generator.choice(SEEDS))
        chat = (b"messages" in body) != (generator.random() < 0.1)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        connection.request("POST", path, body)
        response = connection.getresponse()
        content = response.read()
        status = response.status
        assert status in ALLOWED, (status, body, content)
        assert not INSIDE.search(content), (body, content)
        if status != 200:
            error = json.loads(content)["error"]
            assert error["message"], body
        statuses[status] = statuses.get(status, 0) + 1
        if number % 250 == 0:
            assert server.complete(prompt="canary", max_tokens=9)["choices"] == expected
    connection.close()
    server.wait_idle()
    assert server.json("GET", "/health")[0] == 200
    assert server.complete(prompt="canary", max_tokens=9)["choices"] == expected
    return statuses


def test_src_vllm_5822_broken_bodies_are_refused_and_nothing_else_happens(server: RunningServer) -> None:
    statuses = run(server, 5000, seed=1)
    assert statuses[400] > 2000
    assert statuses[200] > 200, "mutations that leave a request right are part of the test"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_hundred_thousand_broken_bodies(server: RunningServer, seed: int) -> None:
    run(server, 20_000, seed)


def test_src_vllm_27073_refusals_hold_no_blocks(server: RunningServer) -> None:
    for _ in range(1000):
        assert server.refused("/v1/completions", {"prompt": [1] * 70})[0] == 400
    assert server.worker.num_used_blocks == 0
    assert server.client.num_live == 0
