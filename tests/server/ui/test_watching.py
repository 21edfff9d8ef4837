"""What who watches is told: the server as it is, as far as their key goes, and never what anybody said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.core.types import Decisions, PreemptReason, Request
from chairlift.server.exchange import Exchange
from chairlift.server.explanations import Explanations
from chairlift.server.identity import ANYBODY, Principal, View
from chairlift.server.options import ServerOptions
from chairlift.server.ui.live import MAX_ENDED, MAX_GROUPS
from chairlift.server.ui.shapes import Live
from chairlift.server.ui.watching import MAX_SAME, MOMENT_S, Watching
from chairlift.wire import Watched
from server.fake_worker import DIE, FakeOptions
from server.running import RunningServer, running_server, until

SECRET = "a word that nobody else may read"
SLOW = FakeOptions(step_s=0.002, max_num_seqs=2, heartbeat_s=0.02, prefill_steps=2)
ALICE, BOB, OWNER = ({"Authorization": f"Bearer {key}"} for key in ("key-of-alice", "key-of-bob-1", "owner-key"))
Headers = dict[str, str]


def live(server: RunningServer, headers: Headers | None = None) -> Live:
    status, _, content = server.request("GET", "/ui/live", None, headers)
    assert status == 200, content
    assert SECRET.encode() not in content
    return msgspec.json.decode(content, type=Live, strict=True)


@contextlib.contextmanager
def asking(server: RunningServer, *names: str, keys: dict[str, str] | None = None) -> Iterator[None]:
    """Requests in flight, whose clients do not read; `keys` by name."""
    with contextlib.ExitStack() as socks:
        socks.callback(server.wait_idle)
        for name in names:
            key = (keys or {}).get(name)
            fields = {
                "prompt": SECRET,
                "max_tokens": 4000,
                "ignore_eos": True,
                "request_id": name,
                "user": f"of-{name}",
            }
            data = json.dumps(fields).encode()
            known = f"authorization: Bearer {key}\r\n" if key else ""
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{known}content-length: {len(data)}\r\n\r\n"
            sock = socks.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            num_adds = len(server.worker.adds)
            sock.sendall(head.encode() + data)
            until(lambda count=num_adds: len(server.worker.adds) > count)  # type: ignore[misc]
        yield


def ids(rows: list[Any]) -> list[str]:
    return [row.id.removeprefix("cmpl-") for row in rows]


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    with running_server(SLOW, log_requests=False) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With two users and an owner."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps([{"name": "alice", "key": "key-of-alice"}, {"name": "bob", "key": "key-of-bob-1"}]))
    keys: dict[str, Any] = {"api_key_file": str(file), "admin_api_keys": ("owner-key",), "ui": True}
    with running_server(SLOW, log_requests=False, **keys) as running:
        yield running


# ---------------------------------------------------------------- what is told


def test_who_runs_and_who_waits_is_told(open_server: RunningServer) -> None:
    with asking(open_server, "first", "second", "third"):
        until(lambda: [row.phase for row in live(open_server).engines[0].running] == ["decode", "decode"])
        told = live(open_server)
        (engine,) = told.engines
        assert (told.state, told.sees, told.models, engine.generates) == ("serving", "all", ["fake"], True)
        assert (ids(engine.running), ids(engine.waiting)) == (["first", "second"], ["third"])
        row, waiting = engine.running[0], engine.waiting[0]
        assert (row.slot, row.tenant, row.prompt_tokens) == (0, "of-first", 1 + len(SECRET))
        assert 0 < row.output_tokens <= row.max_output_tokens == 4000
        assert row.computed_tokens == row.prompt_tokens + row.output_tokens - 1
        assert row.age_s >= (row.running_s or 0.0) > 0
        assert (waiting.slot, waiting.phase, waiting.running_s) == (None, "waiting", None)
        counts = engine.counts
        assert counts is not None
        assert (counts.running, counts.waiting, counts.max_num_seqs) == (2, 1, 2)
        assert (counts.blocks.total, counts.blocks.size) == (4096, 16)
        assert counts.blocks.used > 0
        assert sorted((group.tenant, group.running, group.waiting) for group in told.groups) == [
            ("of-first", 1, 0), ("of-second", 1, 0), ("of-third", 0, 1)
        ]  # fmt: skip
        assert told.looked_s is not None
        assert told.looked_s < 5
    assert live(open_server).engines[0].running == []


def test_what_ended_is_listed_newest_first_and_told_of_in_words(open_server: RunningServer) -> None:
    open_server.complete(request_id="one", max_tokens=3, ignore_eos=True, user="me")
    open_server.complete(request_id="two", max_tokens=5, ignore_eos=True, n=2)
    told = live(open_server)
    assert ids(told.ended)[:2] == ["two", "one"]
    two, one = told.ended[:2]
    assert (one.tenant, one.choices, one.prompt_tokens, one.output_tokens, one.ended_by) == ("me", 1, 3, 3, "length")
    assert (two.choices, two.prompt_tokens, two.output_tokens) == (2, 3, 10)
    assert one.total_s >= (one.ttft_s or 0.0) >= (one.queue_s or 0.0) >= 0
    lately = told.lately
    assert lately is not None
    assert lately.ttft_s.count >= 3
    assert lately.itl_s.count >= 2 + 2 * 4
    status, story = open_server.json("GET", "/ui/requests/cmpl-two")
    assert status == 200
    assert [choice["index"] for choice in story["data"][0]["choices"]] == [0, 1]
    assert story["data"][0]["choices"][0]["sentence"].endswith("ended by its length.")
    status, error = open_server.json("GET", "/ui/requests/cmpl-three")
    assert (status, error["error"]["code"]) == (404, "request_not_found")


def test_lists_are_bounded(open_server: RunningServer) -> None:
    for number in range(MAX_ENDED + 5):
        open_server.complete(request_id="same", max_tokens=1, user=f"tenant {number}")
    told = live(open_server)
    assert len(told.ended) == MAX_ENDED
    assert len(told.groups) == MAX_GROUPS
    assert len(open_server.json("GET", "/ui/requests/cmpl-same")[1]["data"]) == MAX_SAME


def test_names_are_told_as_they_are(open_server: RunningServer) -> None:
    names = ["</script><script>alert(1)</script>", "‮evil‭", "x" * 128, "\x1b[2J\x07"]
    for name in names:
        open_server.complete(max_tokens=60, ignore_eos=True, user=name)
    assert {group.tenant for group in live(open_server).groups} >= set(names)


def test_a_dead_engine_is_told_of() -> None:
    with running_server(FakeOptions(step_s=0.001)) as server:
        assert live(server).state == "serving"
        server.refused("/v1/completions", {"prompt": DIE})
        told = live(server)
        assert told.state == "engine_dead"
        assert told.engines[0].running == []


def test_an_engine_that_does_not_answer_is_shown_as_it_was() -> None:
    with running_server(FakeOptions(step_s=0.001)) as server:
        server.complete(max_tokens=1)
        server.worker.hanging = True
        told = live(server)
        assert told.looked_s is not None
        server.worker.hanging = False


def test_who_asks_within_a_moment_costs_the_engine_nothing() -> None:
    """They are told what the first of them was; and the engine is not asked by anybody while it has not answered."""
    now, looks = 100.0, 0
    with running_server(SLOW) as server:
        server.complete(max_tokens=1)
        watch = server.client.watch

        def counted() -> asyncio.Future[Watched]:
            nonlocal looks
            looks += 1
            return watch()

        server.client.watch = counted  # type: ignore[method-assign]
        watching = Watching(server.client.explanations or Explanations(1), lambda: now)

        async def ask(view: View) -> bytes:
            sent: list[MutableMapping[str, Any]] = []

            async def send(message: MutableMapping[str, Any]) -> None:
                sent.append(message)

            exchange = Exchange({"method": "GET", "raw_path": b"/ui/live", "headers": []}, _nothing, send)
            exchange.view = view
            await watching.live(exchange, server.app.serving[0], "serving")  # type: ignore[index]
            return bytes(sent[1]["body"])

        async def ask_all(*views: View) -> list[bytes]:
            return await asyncio.gather(*map(ask, views))

        everything = View(ANYBODY, sees_all=True, sees_own=True, sees_sums=True)
        own = View(Principal("alice"), sees_all=False, sees_own=True, sees_sums=True)
        first = server.run(ask_all(everything, own, everything))
        assert (looks, first[0]) == (1, first[2])
        assert b'"sees":"own"' in first[1]
        assert server.run(ask_all(everything, own)) == first[:2]
        assert looks == 1
        now += MOMENT_S
        server.run(ask_all(everything))
        assert looks == 2


async def _nothing() -> MutableMapping[str, Any]:
    raise AssertionError("no body is read")


# ---------------------------------------------------------------- whose it is


def test_a_key_shows_its_own_requests_and_the_owner_s_all(keyed: RunningServer) -> None:
    with asking(keyed, "a", "b", keys={"a": "key-of-alice", "b": "key-of-bob-1"}):
        until(lambda: ids(live(keyed, OWNER).engines[0].running) == ["a", "b"])
        for headers, sees, seen in ((ALICE, "own", ["a"]), (BOB, "own", ["b"]), (OWNER, "all", ["a", "b"])):
            told = live(keyed, headers)
            assert (told.sees, ids(told.engines[0].running)) == (sees, seen)
            assert {group.principal for group in told.groups} == {{"a": "alice", "b": "bob"}[one] for one in seen}
            counts = told.engines[0].counts
            assert counts is not None
            assert counts.running == 2
        assert keyed.json("GET", "/ui/requests/cmpl-a", None, ALICE)[0] == 200
        assert keyed.json("GET", "/ui/requests/cmpl-a", None, BOB)[0] == 404
        assert keyed.json("GET", "/ui/requests/cmpl-a", None, OWNER)[0] == 200
    assert ids(live(keyed, ALICE).ended) == ["a"]
    assert ids(live(keyed, BOB).ended) == ["b"]


def test_who_preempted_is_named_to_those_who_know_of_them_only(keyed: RunningServer) -> None:
    def decide(request: Request) -> Decisions:
        return Decisions(preemptions=((request.id - 1, PreemptReason.PRIORITY),))

    body = {"prompt": "x", "max_tokens": 1}
    keyed.json("POST", "/v1/completions", body | {"request_id": "urgent"}, BOB)
    keyed.worker.decide = decide
    keyed.json("POST", "/v1/completions", body | {"request_id": "victim"}, ALICE)
    keyed.worker.decide = lambda _: Decisions()
    _, _, content = keyed.request("GET", "/ui/requests/cmpl-victim", None, ALICE)
    assert b"preempted once by another request" in content
    assert b"urgent" not in content
    _, _, content = keyed.request("GET", "/ui/requests/cmpl-victim", None, OWNER)
    assert b"preempted once by cmpl-urgent" in content


@pytest.mark.parametrize("path", ["/ui/live", "/ui/requests/cmpl-a"])
def test_without_a_key_nothing_is_told(keyed: RunningServer, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic owner-key"}):
        assert keyed.json("GET", path, None, headers)[0] == 401
    assert keyed.request("GET", "/ui")[0] == 200


def test_where_only_the_owner_has_a_key_others_see_sums() -> None:
    with running_server(SLOW, admin_api_keys=("owner-key",)) as server:
        server.complete(max_tokens=1, request_id="x")
        told = live(server)
        assert (told.sees, told.groups, told.ended) == ("none", [], [])
        assert told.engines[0].counts is not None
        assert server.json("GET", "/ui/requests/cmpl-x")[0] == 404
        assert ids(live(server, OWNER).ended) == ["x"]


def test_where_metrics_have_a_key_sums_are_the_owner_s() -> None:
    keys: dict[str, Any] = {"api_keys": ("key-of-alice",), "metrics_api_keys": ("metrics-key",), "ui": True}
    with running_server(SLOW, admin_api_keys=("owner-key",), **keys) as server:
        server.json("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, ALICE)
        told = live(server, ALICE)
        assert (told.engines[0].counts, told.lately, told.sees, len(told.ended)) == (None, None, "own", 1)
        assert live(server, OWNER).lately is not None
        assert server.json("GET", "/ui/live", None, {"Authorization": "Bearer metrics-key"})[0] == 401


def test_a_key_for_other_paths_does_not_watch(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": "alice", "key": "key-of-alice", "routes": ["/v1/completions"]}]))
    with running_server(SLOW, api_key_file=str(file), ui=True) as server:
        assert server.json("GET", "/ui/live", None, ALICE)[0] == 403


def test_pages_of_others_are_told_nothing(open_server: RunningServer) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        for path in ("/ui/live", "/ui/requests/cmpl-one"):
            assert open_server.json("GET", path, None, headers)[0] == 403
    _, headers, _ = open_server.request("GET", "/ui/live")
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("options", "has_ui"),
    [
        ({}, True), ({"ui": False}, False), ({"api_keys": ("k",)}, False), ({"api_keys": ("k",), "ui": True}, True),
        ({"admin_api_keys": ("k",)}, True), ({"api_keys": ("k",), "admin_api_keys": ("o",)}, False),
    ],
)  # fmt: skip
def test_the_page_is_there_by_itself_where_no_key_is_asked_for(options: dict[str, Any], has_ui: bool) -> None:
    assert ServerOptions(**options).has_ui is has_ui


def test_without_the_page_there_is_nothing() -> None:
    with running_server(ui=False) as server:
        for path in ("/ui", "/ui/live", "/ui/requests/x"):
            assert server.json("GET", path)[0] == 404
        assert server.explanations is None
        assert server.client.recent is None
