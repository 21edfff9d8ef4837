"""What can never be served is refused at once, and those behind it are (reliability S29, rows 13, 18 and 19 of §2)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.raw_http import Answer, RawConnection, request
from server.served import Served, served

MAX_REFUSAL_S = 0.05
NUM_FOLLOWERS = 100


def complete(**fields: Any) -> bytes:
    return request("/v1/completions", json.dumps({"prompt": "x", "max_tokens": 4} | fields).encode())


async def ask(port: int, data: bytes) -> tuple[Answer, float]:
    async with RawConnection(port) as connection:
        await connection.ask(complete())
        began = time.perf_counter()
        return await connection.ask(data), time.perf_counter() - began


async def followed(port: int, data: bytes) -> tuple[list[Answer], list[Answer]]:
    """The same impossible thing ten times, with a hundred others behind it."""
    impossible = [asyncio.create_task(ask(port, data)) for _ in range(10)]
    followers = [asyncio.create_task(ask(port, complete(prompt=f"follower {i}"))) for i in range(NUM_FOLLOWERS)]
    return [answer for answer, _ in await asyncio.gather(*impossible)], [
        answer for answer, _ in await asyncio.gather(*followers)
    ]


def check(server: Served, data: bytes, status: int) -> None:
    answers, times = zip(*(asyncio.run(ask(server.port, data)) for _ in range(5)), strict=True)
    assert {answer.status for answer in answers} == {status}, answers
    if status != 200:
        assert min(times) <= MAX_REFUSAL_S, times
    impossible, followers = asyncio.run(followed(server.port, data))
    assert {answer.status for answer in impossible} == {status}
    assert [answer.status for answer in followers] == [200] * NUM_FOLLOWERS
    assert server.get("/health")[0] == 200


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """8 blocks of 16 tokens, steps of 32 tokens, and a context of 512."""
    options = {"num_blocks": 8, "max_num_batched_tokens": 32, "max_num_seqs": 8}
    with served(options, script="serve_engine.py", log_requests=False) as running:
        yield running


@pytest.mark.parametrize(("length", "max_tokens"), [(200, 4), (400, 1), (600, 4)])
def test_src_vllm_39734_a_prompt_larger_than_the_cache_is_refused_and_nobody_waits_behind_it(
    server: Served, length: int, max_tokens: int
) -> None:
    check(server, complete(prompt=[1] * length, max_tokens=max_tokens), 400)


def test_src_sglang_15626_an_answer_that_fills_the_cache_ends_by_length_and_nothing_dies(server: Served) -> None:
    answer, _ = asyncio.run(ask(server.port, complete(prompt=[1] * 100, max_tokens=20, ignore_eos=True)))
    assert json.loads(answer.body)["choices"][0]["finish_reason"] == "length"
    check(server, complete(prompt=[1] * 100, max_tokens=20, ignore_eos=True), 200)


def test_src_tei_725_a_prompt_larger_than_a_step_is_cut_into_chunks(server: Served) -> None:
    check(server, complete(prompt=[1] * 120), 200)
