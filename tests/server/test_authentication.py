"""Every route, however it is spelled, is closed to who has no key (reliability J1, S22)."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from server.raw_http import CLOSED, RawConnection
from server.running import RunningServer, running_server
from server.surface import ROUTES, Opens, served_routes
from server.test_app import INSIDE

KEY, METRICS_KEY, OWNER = "client-key-1", "metrics-key-1", "owner-key-1"
SECRETS = (KEY, METRICS_KEY, OWNER)

METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "BREW")
MORE_METHODS = (*METHODS, "PATCH", "get", "PROPFIND", "CONNECT")
NUM_VARIANTS = 320
REFUSED = {400, 401, 408, 431, 501}
"""Without a key nothing else may come, but where anybody may ask."""

HOSTS = (
    b"host: localhost\r\n",
    b"",
    b"host:\r\n",
    b"host: a/health?\r\n",
    b"host: localhost/health?x=\r\n",
    b"host: health@localhost\r\n",
    b"host: [::1]/health\r\n",
    b"host: localhost\r\nhost: a/health\r\n",
    b"host: localhost\r\nx-original-url: /health\r\nx-rewrite-url: /health\r\n",
    b"host: localhost\r\nx-forwarded-prefix: /health\r\nx-forwarded-for: 127.0.0.1\r\nforwarded: for=127.0.0.1\r\n",
    b"host: localhost\r\nx-http-method-override: GET\r\n",
    b"host: localhost\r\nauthorization: Bearer \r\nx-api-key:\r\n",
    b"host: localhost\r\nauthorization: Bearer\r\nauthorization: Bearer client-key-1\r\n",
    b"host: localhost\r\nauthorization: Basic Y2xpZW50LWtleS0x\r\ncookie: api_key=client-key-1\r\n",
    b"host: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n",
)


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    keys: dict[str, Any] = {"api_keys": (KEY,), "metrics_api_keys": (METRICS_KEY,), "admin_api_keys": (OWNER,)}
    with running_server(log_requests=False, **keys) as running:
        yield running


def spellings(path: str) -> Iterator[bytes]:
    """A path in other words."""
    raw = path.encode()
    yield raw
    for before in (
        b"/",
        b"/.",
        b"/x/..",
        b"/%2e",
        b"/%2e%2e",
        b"/..;",
        b"/health/..",
        b"/health/../",
        b"//health/..",
        b"\\",
    ):
        yield before + raw
    for after in (
        b"/", b"//", b"/.", b"/..", b"?", b"?x=1", b"#", b";", b";/health", b"%00", b"%20", b".json", b"/../health",
        b"?/health", b"\\health", b"%3f/health", b"%23", b"/%2e%2e/health", b"\xc0\xaf", b"%c0%af",
    ):  # fmt: skip
        yield raw + after
    for base in (b"http://localhost", b"http://localhost/health/..", b"http://user@localhost", b"https://evil.example",
                 b"//evil.example", b"http://", b"file://", b"http://localhost:0", b"*"):  # fmt: skip
        yield base + raw
    for i in range(len(raw)):
        yield raw[:i] + b"%%%02x" % raw[i] + raw[i + 1 :]
        yield raw[:i] + raw[i : i + 1].upper() + raw[i + 1 :]
        yield raw[:i] + b"%%25%02X" % raw[i] + raw[i + 1 :]
    yield b""
    yield b"*"
    yield raw.lstrip(b"/")


def variants(path: str) -> list[tuple[bytes, bytes]]:
    """Targets and headers: every spelling, and other headers with some of them."""
    targets = list(dict.fromkeys(spellings(path)))
    usual = [(target, HOSTS[0]) for target in targets]
    others = list(itertools.product(targets[:32], HOSTS[1:]))
    return usual + random.Random(path).sample(others, max(0, NUM_VARIANTS - len(usual)))


def is_open(target: bytes) -> bool:
    """Whether anybody may ask for this, byte for byte; a URL in the place of a path is its path."""
    path = re.sub(rb"^[a-z]+://[^/?#]*", b"", re.split(rb"[?#]", target)[0])
    return path.decode("latin-1") in {name for name, listed in ROUTES.items() if listed.opens is Opens.ANYBODY}


def cases(server: RunningServer) -> list[tuple[str, bytes, bytes]]:
    paths = [name.replace("{model}", "fake").replace("{id}", "x") for name in served_routes(server.app)]
    return [
        (method, target, host) for path in paths for target, host in variants(path) for method in METHODS
    ]  # fmt: skip


async def check(port: int, asked: list[tuple[str, bytes, bytes]]) -> dict[int, int]:
    """Ask all of these without a key, on a few connections; how often each status came."""
    statuses: dict[int, int] = {}
    wrong: list[object] = []
    queue = iter(asked)

    async def worker() -> None:
        async with RawConnection(port) as connection:
            for method, target, host in queue:
                data = b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target, host)
                answer = await connection.ask(data, is_head=method == "HEAD")
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                allowed = REFUSED | ({200, 405, 426} if is_open(target) else set())
                leaks = INSIDE.search(answer.body) or any(secret.encode() in answer.body for secret in SECRETS)
                if (answer.status not in allowed and answer is not CLOSED) or leaks:
                    wrong.append((method, target, host, answer.status, answer.body[:100]))

    await asyncio.gather(*(worker() for _ in range(8)))
    assert not wrong, wrong[:10]
    return statuses


def test_j1_a_sample_of_everything_without_a_key_is_refused(locked: RunningServer) -> None:
    every = cases(locked)
    assert all(len(variants(path)) >= 300 for path in served_routes(locked.app))
    statuses = asyncio.run(check(locked.port, random.Random(1).sample(every, 4000)))
    assert statuses[401] > 1500
    assert not locked.worker.adds


@pytest.mark.long
def test_j1_everything_without_a_key_is_refused(locked: RunningServer) -> None:
    every = cases(locked)
    statuses = asyncio.run(check(locked.port, every))
    print({"requests": len(every), "statuses": statuses})
    assert not locked.worker.adds


STARTS = (b"/", b"/", b"/", b"//", b"/%2f", b"http://localhost/", b"http://", b"")
PIECES = (
    b"/", b"..", b".", b"%2f", b"%2e", b"?", b"#", b"@", b":", b"health", b"ready", b"v1", b"models", b"completions",
    b"chat", b"metrics", b"admin", b"limits", b"\\", b"%00", b"*", b"%", b";", b"/health", b"/v1/",
)  # fmt: skip


def fuzzed(generator: random.Random) -> tuple[str, bytes, bytes]:
    """A request line of pieces of paths, at random; now and then with what stands in no line."""
    target = generator.choice(STARTS) + b"".join(generator.choices(PIECES, k=generator.randint(0, 6)))
    if generator.random() < 0.1:
        target += generator.choice((b"\t", b"\xff", b"\x00", b" x", b"\x7f"))
    return generator.choice(MORE_METHODS), target, generator.choice(HOSTS)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 1500), *(pytest.param(seed, 10_000, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_j1_fuzzed_request_lines_open_nothing(locked: RunningServer, seed: int, count: int) -> None:
    generator = random.Random(seed)
    statuses = asyncio.run(check(locked.port, [fuzzed(generator) for _ in range(count)]))
    assert statuses[401] > count // 4
    assert not locked.worker.adds


def test_j2_each_kind_of_key_opens_its_own_routes_and_no_others(locked: RunningServer) -> None:
    opens = {Opens.ANYBODY: SECRETS, Opens.CLIENTS: (KEY,), Opens.METRICS: (METRICS_KEY,), Opens.OWNER: (OWNER,)}
    for name, methods in served_routes(locked.app).items():
        path = name.replace("{model}", "fake").replace("{id}", "x")
        for method in methods:
            for key in SECRETS:
                status, _, content = locked.request(method, path, headers={"Authorization": f"Bearer {key}"})
                assert (status != 401) == (key in opens[ROUTES[name].opens]), (method, path, key)
                assert not any(secret.encode() in content for secret in SECRETS), "J5: no response holds a key"


def test_admin_routes_are_not_there_unless_there_is_a_key_for_them() -> None:
    with running_server(api_keys=(KEY,)) as server:
        assert not [name for name in served_routes(server.app) if ROUTES[name].opens is Opens.OWNER]
        for path in ("/admin/limits", "/admin/requests", "/admin/requests/x"):
            assert server.request("GET", path)[0] == 401
            assert server.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})[0] == 404
