"""The poison catalogue against the real model: nobody else notices (reliability F1, S16)."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator, Sequence

import pytest

from server.listeners import listeners
from server.poisons import COMPLETION, Poison, poisons
from server.served import children
from server.test_real_model import RealServer

VOCAB_SIZE, CONTEXT = 49152, 512
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def main():",
    "In the beginning",
    "Water boils at",
    "Roses are red,",
    "My favourite food is",
    "The history of Rome",
)
LEAKED = re.compile(rb"0x[0-9a-f]{6,}|Traceback|site-packages|/(?:home|usr|work|root)/|<.* object at")
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def real() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    assert server.close() == 0


def post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Bystander(threading.Thread):
    """Asks the same thing again and again, and remembers each answer."""

    def __init__(self, port: int, prompt: str, num_tokens: int) -> None:
        super().__init__(daemon=True)
        self.answers: list[str] = []
        self.stop = threading.Event()
        fields = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        self._port, self._body = port, json.dumps(fields).encode()

    def run(self) -> None:
        while not self.stop.is_set() or not self.answers:
            self.answers.append(self.ask())

    def ask(self) -> str:
        status, content = post(self._port, COMPLETION, self._body)
        events = [event.removeprefix("data: ") for event in content.decode().split("\n\n")[:-1]]
        if status != 200 or events[-1] != "[DONE]":
            return f"{status} {events[-1:]}"
        return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def num_answers_among(port: int, catalogue: Sequence[Poison], num_streams: int, num_tokens: int) -> int:
    """Send every poison among streams that go on as if there were none; how many answers these got."""
    prompts = [f"{PROMPTS[i % len(PROMPTS)]}{'' if i < len(PROMPTS) else i}" for i in range(num_streams)]
    streams = [Bystander(port, prompt, num_tokens) for prompt in prompts]
    undisturbed = [stream.ask() for stream in streams]
    for stream in streams:
        stream.start()
    wrong = []
    for poison in catalogue:
        status, content = post(port, poison.path, poison.body)
        right = status == poison.status if poison.status is not None else status == 200 or 400 <= status < 500
        if not right or LEAKED.search(content[:100_000]):
            wrong.append((poison.name, status, content[:200]))
    for stream in streams:
        stream.stop.set()
    for stream in streams:
        stream.join(TIMEOUT_S)
    assert not wrong
    for stream, text in zip(streams, undisturbed, strict=True):
        assert set(stream.answers) == {text}
    return sum(len(stream.answers) for stream in streams)


def check(real: RealServer, catalogue: Sequence[Poison], num_streams: int, num_tokens: int) -> None:
    (worker,) = children(real.process.pid)
    num_answers_among(real.port, catalogue, num_streams, num_tokens)
    assert children(real.process.pid) == [worker]
    assert not [line for line in real.log if "Traceback" in line or " ERROR " in line]


def test_s24_a_real_server_and_its_engine_listen_on_one_loopback_address(real: RealServer) -> None:
    assert listeners(real.process.pid) == [f"127.0.0.1:{real.port}"]


def test_every_fifteenth_poison_disturbs_nobody(real: RealServer) -> None:
    check(real, list(poisons(VOCAB_SIZE, CONTEXT))[::15], num_streams=3, num_tokens=40)


@pytest.mark.long
def test_no_poison_disturbs_anybody(real: RealServer) -> None:
    catalogue = list(poisons(VOCAB_SIZE, CONTEXT))
    assert len(catalogue) > 400
    check(real, catalogue, num_streams=16, num_tokens=60)
