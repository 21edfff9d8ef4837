"""Nobody learns from the prefix cache what somebody else asked (reliability K1, K2, S21).

The real scheduler and cache, on a device whose steps take as long as they compute tokens: what a cache saves is seen
from outside, by the counter in a response and by the time to the first token.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from server.raw_http import RawConnection, request
from server.served import served

A, A_AGAIN, B = "key-of-a-0", "key-of-a-1", "key-of-b-0"
KEYS = [{"name": "a", "key": [A, A_AGAIN]}, {"name": "b", "key": B}]
PREFIX_TOKENS = 320
TOKEN_S = 5e-5


def prompt(generator: random.Random, length: int = PREFIX_TOKENS) -> list[int]:
    return [generator.randrange(256) for _ in range(length)]


def header(key: str) -> bytes:
    return f"authorization: Bearer {key}\r\n".encode()


async def cached(connection: RawConnection, key: str, tokens: list[int], **fields: Any) -> int:
    """Prompt tokens that a key is told were in the cache."""
    body = json.dumps({"prompt": tokens, "max_tokens": 1} | fields).encode()
    answer = await connection.ask(request("/v1/completions", body, header(key)))
    assert answer.status == 200, answer
    return int(json.loads(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"])


async def ttft_s(connection: RawConnection, key: str, tokens: list[int]) -> float:
    body = json.dumps({"prompt": tokens, "max_tokens": 1}).encode()
    began = time.perf_counter()
    answer = await connection.ask(request("/v1/completions", body, header(key)))
    assert answer.status == 200
    return time.perf_counter() - began


def auc(hits: list[float], misses: list[float]) -> float:
    """How well a time tells a hit: the chance that a hit is faster than a miss."""
    pairs = len(hits) * len(misses)
    return sum((hit < miss) + (hit == miss) / 2 for hit, miss in itertools.product(hits, misses)) / pairs


async def told(port: int, count: int) -> dict[str, int]:
    """Who is told of cached tokens, of `count` prompts that A has asked before."""
    generator = random.Random(1)
    seen = {"a": 0, "a with another key": 0, "b": 0, "a with a salt": 0, "b with a's name for a salt": 0}
    async with RawConnection(port) as connection:
        for _ in range(count):
            tokens = prompt(generator, 64)
            await cached(connection, A, tokens)
            seen["b"] += await cached(connection, B, tokens) > 0
            seen["b with a's name for a salt"] += await cached(connection, B, tokens, cache_salt="a") > 0
            seen["a with a salt"] += await cached(connection, A, tokens, cache_salt="x") > 0
            seen["a"] += await cached(connection, A, tokens) > 0
            seen["a with another key"] += await cached(connection, A_AGAIN, tokens) > 0
    return seen


async def timed(port: int, count: int) -> dict[str, float]:
    """How well the time to the first token tells what A has asked before: to A, and to B."""
    generator = random.Random(2)
    times: dict[str, list[float]] = {"a hit": [], "a miss": [], "b hit": [], "b miss": []}
    async with RawConnection(port) as connection:
        for _ in range(count):
            warm, cold, cold_too = (prompt(generator) for _ in range(3))
            await cached(connection, A, warm)
            probes = [("b hit", B, warm), ("b miss", B, cold), ("a hit", A, warm), ("a miss", A, cold_too)]
            generator.shuffle(probes)
            for name, key, tokens in probes:
                times[name].append(await ttft_s(connection, key, tokens))
    return {who: round(auc(times[f"{who} hit"], times[f"{who} miss"]), 3) for who in ("a", "b")}


def check(tmp_path: Path, num_probes: int, num_timed: int, max_auc: float) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    keys.chmod(0o600)
    engine = {"token_s": TOKEN_S, "num_blocks": 65_536}
    with served(engine, script="serve_engine.py", api_key_file=str(keys), log_requests=False) as server:
        seen = asyncio.run(told(server.port, num_probes))
        areas = asyncio.run(timed(server.port, num_timed))
    print(json.dumps({"probes": num_probes, "told": seen, "timed": num_timed, "auc": areas}))
    assert (seen["b"], seen["a with a salt"], seen["b with a's name for a salt"]) == (0, 0, 0)
    assert min(seen["a"], seen["a with another key"]) >= 0.99 * num_probes, "or the rest proves nothing"
    assert areas["a"] >= 0.9, "or the rest proves nothing"
    assert 1 - max_auc <= areas["b"] <= max_auc


def test_k1_k2_a_few_probes(tmp_path: Path) -> None:
    check(tmp_path, 40, 20, max_auc=0.92)


@pytest.mark.long
def test_s21_thousands_of_probes(tmp_path: Path) -> None:
    check(tmp_path, 2000, 400, max_auc=0.55)
