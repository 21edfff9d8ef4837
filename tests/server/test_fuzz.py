"""Broken requests by the thousand against the whole server and the real scheduler (reliability S8, S20, I1, L1).

    python -m pytest tests/server/test_fuzz.py                 1,500 bodies
    python -m pytest tests/server/test_fuzz.py -m long -s      20,000 bodies, fifty times

Each body is a right one with bytes or fields changed, for a route drawn among all that take one. Besides the statuses
it is checked that the engine is the same process, that a canary gets its answer, that nothing of the machine is told,
that nothing was connected to, opened or started, and that every token is accounted for: by clients, the usage log and
metrics.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from server.raw_http import Answer, RawConnection, request
from server.running import until
from server.served import served
from server.surface import ROUTES, Opens, method_with_body
from server.test_app import INSIDE
from server.test_malformed import VALUES, broken_bytes

CLOSED_LIST = {200, 400, 404, 408, 413, 415, 429, 431, 504}
NUM_CONNECTIONS = 8
MARKER = "prompt-marker-93ab"
CANARY = request(
    "/v1/completions",
    json.dumps({"prompt": MARKER, "max_tokens": 9, "temperature": 0, "ignore_eos": True}).encode(),
)

FUZZED = {
    name: listed
    for name, listed in ROUTES.items()
    if listed.body is not None and listed.opens is Opens.CLIENTS and not (listed.reads or listed.needs_folder)
}

OWN_FIGURES = tuple(f"open ('/proc/{name}'" for name in ("stat", "self/stat", "self/limits"))
"""What is read to tell of the process itself, when metrics are asked for."""

COUNTING = (b"POST /tokenize", b"POST /detokenize", b"POST /v1/messages/count_tokens")
"""Requests that ask for no answer."""


def broken_fields(generator: random.Random, body: dict[str, Any], fields: list[str]) -> bytes:
    """Fields that hold what fields do not hold, at any depth."""
    body = json.loads(json.dumps(body))
    for _ in range(generator.randint(1, 3)):
        place: Any = body
        while generator.random() < 0.3:
            inner = [value for value in (place.values() if isinstance(place, dict) else place) if value]
            inner = [value for value in inner if isinstance(value, dict | list)]
            if not inner:
                break
            place = generator.choice(inner)
        value = copy.deepcopy(generator.choice(VALUES))
        if isinstance(place, list):
            place[generator.randrange(len(place))] = value
        else:
            place[generator.choice([*place, *(fields if place is body else ("type", "name", "x"))])] = value
    return json.dumps(body).encode()


def with_usage(body: bytes) -> bytes:
    """The same, asking to be told what it cost, if it may be served at all."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(content, dict) and content.get("stream") is True:
        content["stream_options"] = {"include_usage": True}
        return json.dumps(content).encode()
    return body


def broken(generator: random.Random) -> bytes:
    """One request."""
    path, listed = generator.choice(list(FUZZED.items()))
    body = generator.choice(list(listed.bodies().values()))
    if generator.random() < 0.5:
        data = broken_bytes(generator, body)
    else:
        data = broken_fields(generator, body, sorted(listed.fields))
    return request(path, with_usage(data), method=method_with_body(listed))


def right(generator: random.Random) -> bytes:
    path, listed = generator.choice(list(FUZZED.items()))
    return request(path, json.dumps(generator.choice(list(listed.bodies().values()))).encode())


@dataclass
class Seen:
    """What a run saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[object] = field(default_factory=list)
    canary_s: list[float] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)
    completion_tokens: int = 0
    """That clients were told of."""
    num_lines: int = 0
    """Of the usage log, at least."""
    num_untold: int = 0
    """Streams of which clients were not told."""


def usage_of(answer: Answer) -> int | None:
    """Generated tokens as the client is told, whatever its API calls them."""
    bodies = [answer.body]
    if answer.header("content-type").startswith("text/event-stream"):
        bodies = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    contents = [json.loads(body) for body in bodies]
    told: list[Any] = [content.get("usage") or (content.get("response") or {}).get("usage") for content in contents]
    told = [usage for usage in told if usage]
    return int(told[-1].get("completion_tokens", told[-1].get("output_tokens"))) if told else None


async def storm(port: int, requests: Iterator[bytes], seen: Seen) -> None:
    """Send all of these on a few connections, and meanwhile a canary on one of its own."""
    over = asyncio.Event()

    async def client() -> None:
        async with RawConnection(port) as connection:
            for data in requests:
                answer = await connection.ask(data)
                seen.statuses[answer.status] += 1
                seen.num_lines += not data.startswith(COUNTING)
                is_told = answer.status == 200 or b'"error"' in answer.body
                if answer.status not in CLOSED_LIST or INSIDE.search(answer.body) or not is_told:
                    seen.wrong.append((data[-600:], answer.status, answer.body[:200]))
                elif answer.status == 200:
                    tokens = usage_of(answer)
                    seen.completion_tokens += tokens or 0
                    seen.num_untold += tokens is None

    async def canary() -> None:
        async with RawConnection(port) as connection:
            while not over.is_set():
                began = time.perf_counter()
                answer = await connection.ask(CANARY)
                seen.canary_s.append(time.perf_counter() - began)
                seen.completion_tokens += usage_of(answer) or 0 if answer.status == 200 else 0
                seen.answers.add(text_of(answer))
                await asyncio.sleep(0.02)

    watching = asyncio.create_task(canary())
    await asyncio.gather(*(client() for _ in range(NUM_CONNECTIONS)))
    over.set()
    await watching


def text_of(answer: Answer) -> str:
    return str(json.loads(answer.body)["choices"][0]["text"]) if answer.status == 200 else f"status {answer.status}"


def check(tmp_path: Path, count: int, seed: int, max_ratio: float) -> None:
    generator = random.Random(seed)
    audit, usage, log = tmp_path / "audit", tmp_path / "usage", tmp_path / "log"
    with (
        log.open("w") as stderr,
        served(script="serve_engine.py", stderr=stderr, audit=audit, usage_log=str(usage)) as server,
    ):
        worker = server.worker_pids()
        num_before = len(audit.read_text().splitlines())
        control, seen = Seen(), Seen()
        asyncio.run(storm(server.port, (right(generator) for _ in range(max(300, count // 10))), control))
        began = time.perf_counter()
        asyncio.run(storm(server.port, (broken(generator) for _ in range(count)), seen))
        elapsed_s = time.perf_counter() - began
        until(lambda: server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.worker_pids() == worker
        assert server.get("/health")[0] == 200
        counted = tuple(int(server.metric(f"vllm:{kind}_tokens_total")) for kind in ("generation", "prompt"))
        until(lambda: len(usage.read_text().splitlines()) >= control.num_lines + seen.num_lines)
        events = audit.read_text().splitlines()[num_before:]
    assert control.statuses == {200: max(300, count // 10)}
    assert not seen.wrong, seen.wrong[:5]
    assert seen.answers == control.answers
    assert len(seen.answers) == 1
    assert not [event for event in events if not event.startswith("open ")], events[:5]
    strange = [event for event in events if str(usage) not in event and not event.startswith(OWN_FIGURES)]
    assert not strange, strange[:5]
    text = log.read_text()
    assert "Traceback" not in text
    assert MARKER not in text
    ratio = statistics.median(seen.canary_s) / statistics.median(control.canary_s)
    assert ratio <= max_ratio
    records = [json.loads(line) for line in usage.read_text().splitlines()]
    logged = sum(one["completion_tokens"] for one in records)
    whole, cut = prompts_of(records)
    told = control.completion_tokens + seen.completion_tokens
    figures = {
        "requests": count,
        "seed": seed,
        "per_s": round(count / elapsed_s),
        "statuses": dict(sorted(seen.statuses.items())),
        "canary_ratio": round(ratio, 2),
        "tokens": {"metrics": counted[0], "usage_log": logged, "clients": told, "untold_streams": seen.num_untold},
        "prompt_tokens": {"metrics": counted[1], "usage_log": whole, "of_cut": cut},
    }
    print(json.dumps(figures))
    assert counted[0] == logged
    assert whole <= counted[1] <= whole + cut
    assert told <= logged
    assert seen.statuses[400] > count // 3
    assert seen.statuses[200] > count // 40, "mutations that leave a request right are part of the test"


def prompts_of(records: list[dict[str, Any]]) -> tuple[int, int]:
    """Prompt tokens of requests that were answered, and of those whose deadline cut some of their prompts off: the log
    tells what was asked, metrics what was computed, and only for these is that not the same."""
    answered = [one for one in records if one["completion_tokens"]]
    of_cut = sum(one["prompt_tokens"] for one in answered if "deadline" in one["finish"])
    return sum(one["prompt_tokens"] for one in answered) - of_cut, of_cut


def test_s8_broken_bodies_are_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    check(tmp_path, 1500, seed=1, max_ratio=5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 52))
def test_s8_a_million_broken_bodies(tmp_path: Path, seed: int) -> None:
    check(tmp_path, 20_000, seed, max_ratio=3)
