"""The server's end of the frames, without a socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from chairlift.core.types import EngineStats, Finish, FinishReason, Request, SamplingParams, TokenLogprob
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.client import EngineClient
from chairlift.server.errors import ApiError
from chairlift.wire import (
    MAX_FRAME_BYTES,
    Abort,
    Add,
    Ready,
    Refused,
    Step,
    ToWorker,
    decode_to_worker,
    encode,
)

READY = Ready("m", 100, 4, 64, 10, 16, 0.0, 1)
STATS = EngineStats(1, 0, 2, 0, 0, 0, 0, num_step_tokens=1, step_s=0.01)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert int.from_bytes(data[:4], "little") == len(data) - 4
        self.sent.append(decode_to_worker(data[4:]))

    def close(self) -> None:
        self.closed = True


class Choice:
    def __init__(self) -> None:
        self.heard: float | None = None
        self.log: list[Any] = []
        self.push: Callable[[int], None] = self._push

    def _push(self, token: int) -> None:
        if token == 13:
            raise RuntimeError("unlucky")
        self.log.append(token)

    def score(self, logprob: TokenLogprob) -> None:
        self.log.append(("score", logprob.token))

    def hold(self) -> None:
        self.log.append("hold")

    def finish(self, finish: Finish) -> None:
        self.log.append(finish.reason)


class Listener:
    request_id = "r"

    def __init__(self, n: int = 1) -> None:
        self.choices = [Choice() for _ in range(n)]
        self.prompt_scores: list[TokenLogprob] = []
        self.errors: list[ApiError] = []

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None:
        self.prompt_scores += logprobs

    def fail(self, error: ApiError) -> None:
        self.errors.append(error)


def finish(request_id: int, choice: int = 0, reason: FinishReason = FinishReason.LENGTH) -> Finish:
    return Finish(request_id, choice, reason, None, None, 2, 1, 0, 0, 0.0, 0.5, 1.0, 2.0)


def step(ids: list[int], tokens: list[int], finishes: list[Finish] | None = None, **more: Any) -> Step:
    fields: dict[str, Any] = {
        "choices": [0] * len(ids),
        "logprobs": [],
        "prompt_logprobs": [],
        "joined": [],
        "now": 1.0,
    } | more
    return Step(ids=ids, tokens=tokens, finishes=finishes or [], stats=STATS, **fields)


def connected() -> tuple[EngineClient, Wire]:
    client = EngineClient(lambda ready: ServingMetrics("m", ready.max_model_len, ready.num_blocks, ready.block_size))
    wire = Wire()
    client.connection_made(cast(asyncio.Transport, wire))
    client.data_received(encode(READY))
    return client, wire


def submit(client: EngineClient, listener: Listener, n: int = 1) -> int:
    request = Request(client.new_id(), [1, 2], SamplingParams(), n=n)
    (ticket,) = client.admission.admit("", [2], 0.0, n=n)
    client.submit(request, listener, ticket)
    return request.id


def test_frames_are_read_however_they_are_cut() -> None:
    async def run() -> None:
        for size in (1, 2, 3, 7, 1000):
            client, _ = connected()
            listener = Listener()
            request_id = submit(client, listener)
            frames = [
                encode(step([request_id], [5], logprobs=[(request_id, 0, TokenLogprob(5, -1.0, 1))])),
                encode(step([request_id], [6], [finish(request_id)])),
            ]
            data = b"".join(frames)
            for start in range(0, len(data), size):
                client.data_received(data[start : start + size])
            assert listener.choices[0].log == [("score", 5), 5, 6, FinishReason.LENGTH]
            assert client.num_live == 0

    asyncio.run(run())


def test_a_request_ends_with_its_last_choice() -> None:
    async def run() -> None:
        client, wire = connected()
        listener = Listener(2)
        request_id = submit(client, listener, n=2)
        client.data_received(encode(step([], [], [finish(request_id, 1)])))
        assert client.num_live == 1
        client.data_received(encode(step([request_id], [7], [finish(request_id, 0, FinishReason.STOP)])))
        assert client.num_live == 0
        assert [choice.log for choice in listener.choices] == [
            ["hold", 7, FinishReason.STOP],
            [FinishReason.LENGTH],
        ]
        client.abort(request_id)
        assert [type(message) for message in wire.sent] == [Add]

    asyncio.run(run())


def test_who_left_hears_nothing_more() -> None:
    async def run() -> None:
        client, wire = connected()
        listener = Listener()
        request_id = submit(client, listener)
        client.abort(request_id)
        client.abort(request_id)
        assert wire.sent[1:] == [Abort(request_id)]
        client.data_received(encode(step([request_id], [5], [finish(request_id, 0, FinishReason.ABORT)])))
        client.data_received(encode(Refused(request_id, "late", None, False)))
        assert listener.choices[0].log == []
        assert listener.errors == []

    asyncio.run(run())


def test_a_listener_that_raises_loses_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client, wire = connected()
        unlucky, lucky = Listener(), Listener()
        first, second = submit(client, unlucky), submit(client, lucky)
        client.data_received(encode(step([first, second], [13, 13 + 1])))
        assert [error.status for error in unlucky.errors] == [500]
        assert lucky.choices[0].log == [14]
        assert wire.sent[-1] == Abort(first)
        assert not client.dead.done()

    asyncio.run(run())


def test_everybody_hears_of_the_end() -> None:
    async def run() -> None:
        client, _ = connected()
        listeners = [Listener() for _ in range(3)]
        for listener in listeners:
            submit(client, listener)
        client.connection_lost(None)
        client.connection_lost(None)
        assert [[error.code for error in listener.errors] for listener in listeners] == [["engine_dead"]] * 3
        with pytest.raises(ApiError):
            submit(client, Listener())

    asyncio.run(run())


def test_a_worker_that_ends_before_it_is_ready() -> None:
    async def run() -> None:
        client = EngineClient(lambda _: ServingMetrics("m", 1, 1, 1))
        client.connection_lost(None)
        assert client.ready.cancelled()
        assert client.dead.done()

    asyncio.run(run())


def test_broken_frames_end_the_connection_and_raise_nothing() -> None:
    """Mutated frames: read, or the end of this worker; never an exception in the loop, never an endless buffer."""

    async def run() -> None:
        generator = random.Random(1)
        num_dead = 0
        for _ in range(3000):
            client, wire = connected()
            listener = Listener()
            request_id = submit(client, listener)
            data = bytearray(encode(step([request_id], [5], [finish(request_id)])))
            for _ in range(generator.randint(1, 4)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            client.data_received(bytes(data))
            if client.dead.done():
                num_dead += 1
                assert wire.closed
                assert client.num_live == 0
        assert num_dead > 1000

    asyncio.run(run())


def test_a_frame_over_the_limit_is_not_waited_for() -> None:
    async def run() -> None:
        client, wire = connected()
        client.data_received((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        assert client.dead.done()
        assert wire.closed

    asyncio.run(run())


@pytest.mark.parametrize("end", ["finish", "refusal", "abort", "defect", "death"])
@pytest.mark.parametrize("joined", [False, True])
def test_src_tgi_1877_a_place_is_given_back_where_the_request_ends_and_once(
    end: str, joined: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        client, _ = connected()
        admission = client.admission
        request_id, other = submit(client, Listener(2), n=2), submit(client, Listener())
        if joined:
            client.data_received(encode(step([], [], joined=[request_id, request_id, 99])))
        assert (admission.num_live, admission.num_queued) == (3, 1 if joined else 3)
        for _ in range(2):
            if end == "finish":
                client.data_received(encode(step([], [], [finish(request_id, 0)])))
                client.data_received(encode(step([], [], [finish(request_id, 1)])))
            elif end == "refusal":
                client.data_received(encode(Refused(request_id, "no", None, never=True)))
            elif end == "abort":
                client.abort(request_id)
            elif end == "defect":
                client.data_received(encode(step([request_id], [13])))
            else:
                client.connection_lost(None)
            assert (admission.num_live, admission.num_queued) == ((0, 0) if end == "death" else (1, 1))
        client.abort(other)
        assert (admission.num_live, admission.num_queued, admission.num_principals) == (0, 0, 0)

    asyncio.run(run())


def test_a_first_token_says_that_a_request_joined() -> None:
    async def run() -> None:
        client, _ = connected()
        request_id = submit(client, Listener(2), n=2)
        client.data_received(encode(step([request_id], [5])))
        assert (client.admission.num_live, client.admission.num_queued) == (2, 0)

    asyncio.run(run())
