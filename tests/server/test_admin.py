"""The owner's routes: not there without an admin key, closed to all others, and strict about what they take."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from chairlift.core.admission import AdmissionLimits
from chairlift.core.errors import InvalidOption
from chairlift.core.types import Decisions, LimitChange, PreemptReason, Request, SamplingParams
from chairlift.server.admin import Admin
from chairlift.server.client import EngineClient
from chairlift.server.exchange import Exchange
from chairlift.server.explanations import Explanations
from chairlift.server.options import ServerOptions
from server.fake_worker import DIE, MAX_NUM_BATCHED_TOKENS, REFUSE, FakeOptions
from server.running import RunningServer, running_server, until

OWNER = {"Authorization": "Bearer owner-key"}
CLIENT = {"Authorization": "Bearer client-key"}
LIMITS, REQUESTS = "/admin/limits", "/admin/requests"
ROUTES = [LIMITS, REQUESTS, f"{REQUESTS}/cmpl-x"]
METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "PATCH", "BREW", "get"]
DISGUISES = [
    "//admin/limits",
    "/admin//limits",
    "/admin/limits/",
    "/admin/limits;x",
    "/admin/%6cimits",
    "/%61dmin/limits",
    "/ADMIN/limits",
    "/admin",
    "/admin/",
    "/health/../admin/limits",
    "/v1/../admin/limits",
    "/admin/requests%2f",
]
NUM_KEPT = 8


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    keys: dict[str, Any] = {"api_keys": ("client-key",), "admin_api_keys": ("owner-key", "other-owner")}
    with running_server(FakeOptions(heartbeat_s=0.02), keep_explanations=NUM_KEPT, **keys) as running:
        yield running


def ask(server: RunningServer, method: str, path: str, body: Any = None, key: dict[str, str] = OWNER) -> Any:
    """What is expected to succeed."""
    status, answer = server.json(method, path, body, key)
    assert status == 200, answer
    return answer


def complete(server: RunningServer, name: str, **fields: Any) -> None:
    body = {"prompt": "x", "max_tokens": 3, "request_id": name} | fields
    assert server.json("POST", "/v1/completions", body, CLIENT)[0] == 200


def listed(server: RunningServer, query: str = "") -> list[str]:
    return [entry["id"] for entry in ask(server, "GET", f"{REQUESTS}{query}")["data"]]


# ---------------------------------------------------------------- access


@pytest.mark.parametrize("path", [*ROUTES, *DISGUISES])
def test_without_an_admin_key_there_is_nothing(path: str) -> None:
    with running_server() as open_server:
        for method in METHODS:
            for headers in ({}, OWNER):
                status, _, body = open_server.request(method, path, headers=headers)
                assert status in (404, 400), method  # 400: no method at all to the parser
                assert method == "HEAD" or json.loads(body)["error"]["code"] in ("unknown_path", None), method


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "Bearer",
        "Bearer client-key",
        "Bearer owner-key2",
        "Bearer owner-ke",
        "Basic owner-key",
        "owner-key",
        "Bearer owner-key other-owner",
    ],
)
@pytest.mark.parametrize("path", ROUTES)
def test_only_an_admin_key_opens(server: RunningServer, path: str, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    for method in METHODS:
        for query in ("", "?x=1"):
            status, answer_headers, body = server.request(method, path + query, {"max_num_seqs": 1}, headers)
            assert status in (401, 400), method
            if status == 401:
                assert answer_headers["www-authenticate"] == "Bearer"
            assert b"limits" not in body
    assert server.worker.changes == []


@pytest.mark.parametrize("path", DISGUISES)
def test_other_spellings_are_other_paths(server: RunningServer, path: str) -> None:
    for method in METHODS:
        assert server.request(method, path)[0] in (401, 400)
        assert server.request(method, path, headers=OWNER)[0] in (401, 400)
        assert server.request(method, path, headers=CLIENT)[0] in (404, 400)


@pytest.mark.parametrize("host", ["a/health", "localhost/admin/limits?", "[", "x@y", ""])
def test_the_host_header_does_not_open_anything(server: RunningServer, host: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(f"GET {LIMITS} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        assert sock.recv(1 << 16).split()[1] in (b"401", b"400")


@pytest.mark.parametrize("key", ["owner-key", "other-owner"])
def test_every_admin_key_opens_the_admin_routes_and_nothing_else(server: RunningServer, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    for path in (LIMITS, REQUESTS):
        assert server.request("GET", path, headers=headers)[0] == 200
        status, answer_headers, body = server.request("HEAD", path, headers=headers)
        assert (status, body) == (200, b"")
        assert int(answer_headers["content-length"]) > 0
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
    ):
        assert server.request(method, path, {"prompt": "x"}, headers)[0] == 401


@pytest.mark.parametrize("path", ROUTES)
def test_another_method_is_a_405_that_says_which(server: RunningServer, path: str) -> None:
    allowed = ["GET", "HEAD", *(["PATCH"] if path == LIMITS else [])]
    for method in set(METHODS) - set(allowed) - {"BREW", "get"}:
        status, headers, _ = server.request(method, path, headers=OWNER)
        assert (status, headers.get("allow")) == (405, ", ".join(allowed)), method


def test_no_response_holds_a_key(server: RunningServer) -> None:
    for headers in (OWNER, CLIENT, {}):
        for path in (*ROUTES, "/metrics", "/version"):
            body = server.request("GET", path, headers=headers)[2]
            assert b"owner-key" not in body
            assert b"client-key" not in body
    assert b"owner-key" not in server.request("PATCH", LIMITS, {"owner": 1}, OWNER)[2]


def test_a_key_for_clients_is_no_key_for_owners() -> None:
    with pytest.raises(InvalidOption, match="must not be an API key as well"):
        ServerOptions(api_keys=("a", "b"), admin_api_keys=("b",))
    for keys in (("",), ("ä",), ("a\n",)):
        with pytest.raises(InvalidOption):
            ServerOptions(admin_api_keys=keys)
    with pytest.raises(InvalidOption, match="can be reached from other machines"):
        ServerOptions(host="0.0.0.0", admin_api_keys=("a",))
    with pytest.raises(InvalidOption, match="keep_explanations"):
        ServerOptions(keep_explanations=-1)


# ---------------------------------------------------------------- limits


def test_limits_can_be_read_and_changed() -> None:
    options = FakeOptions(heartbeat_s=0.02, max_num_seqs=64)
    with running_server(options, admin_api_keys=("owner-key",)) as server:
        caps = {
            "max_num_queued_reqs": server.options.admission.max_num_queued_reqs,
            "max_num_queued_tokens": None,
            "max_num_queued_reqs_per_principal": None,
            "max_num_queued_tokens_per_principal": None,
            "max_num_reqs_per_principal": None,
        }
        configured = caps | {
            "max_num_seqs": 64,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "long_prefill_token_threshold": 0,
            "itl_objective_ms": 0.0,
            "ttft_objective_ms": 0.0,
        }
        told = ask(server, "GET", LIMITS)
        assert told["configured"] == told["set"] == configured
        changes = {"max_num_seqs": 3, "itl_objective_ms": 50, "long_prefill_token_threshold": 256}
        told = ask(server, "PATCH", LIMITS, changes)
        assert told["configured"] == configured
        assert told["set"] == configured | changes
        told = ask(server, "PATCH", LIMITS, {"max_num_batched_tokens": 100, "ttft_objective_ms": 1.5})
        assert told["set"] == configured | changes | {"max_num_batched_tokens": 100, "ttft_objective_ms": 1.5}
        ask(server, "PATCH", LIMITS, {"itl_objective_ms": 0})
        until(lambda: len(server.worker.changes) == 3)
        assert server.worker.changes == [
            LimitChange(max_num_seqs=3, itl_objective_s=0.05, long_prefill_token_threshold=256),
            LimitChange(max_num_batched_tokens=100, ttft_objective_s=0.0015),
            LimitChange(itl_objective_s=0.0),
        ]
        until(lambda: ask(server, "GET", LIMITS)["in_force"]["max_num_seqs"] == 3)
        told = ask(server, "GET", LIMITS)
        assert told["in_force"]["max_num_batched_tokens"] == 100
        assert told["set"]["itl_objective_ms"] == 0
        metrics = server.request("GET", "/metrics")[2]
        assert b'chairlift:max_num_seqs{engine="0",model_name="fake"} 3.0' in metrics


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_model_len": 5}, "max_model_len"),
        ({"max_num_seqs": 3, "Max_num_seqs": 3}, "Max_num_seqs"),
        ({"x" * 5000: 1}, "x" * 64),
        ({"max_num_seqs": None}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_seqs": "3"}, "max_num_seqs"),
        ({"max_num_seqs": 3.5}, "max_num_seqs"),
        ({"max_num_seqs": [3]}, "max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"max_num_seqs": 65}, "max_num_seqs"),
        ({"max_num_seqs": 10**30}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS + 1}, "max_num_batched_tokens"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"long_prefill_token_threshold": 2**31}, "long_prefill_token_threshold"),
        ({"itl_objective_ms": -0.1}, "itl_objective_ms"),
        ({"itl_objective_ms": 1e308}, "itl_objective_ms"),
        ({"ttft_objective_ms": "fast"}, "ttft_objective_ms"),
        ({"ttft_objective_ms": -1, "max_num_seqs": 3}, "ttft_objective_ms"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens"),
        ({"max_num_seqs": 40, "max_num_batched_tokens": 39}, "max_num_batched_tokens"),
        ({"max_num_queued_reqs": -1}, "max_num_queued_reqs"),
        ({"max_num_queued_tokens": 0.5}, "max_num_queued_tokens"),
        ({"max_num_queued_reqs_per_principal": True}, "max_num_queued_reqs_per_principal"),
        ({"max_num_queued_tokens_per_principal": 2**31}, "max_num_queued_tokens_per_principal"),
        ({"max_num_reqs_per_principal": 0}, "max_num_reqs_per_principal"),
        ({"max_num_queued_reqs": 3, "max_num_seqs": 0}, "max_num_seqs"),
        ({}, None),
        ([], None),
        (b"", None),
        (b"null", None),
        (b'{"max_num_seqs": 3', None),
        (b'{"max_num_seqs": 3, "max_num_seqs": 4}', None),
        (b'{"itl_objective_ms": NaN}', None),
        (b'{"itl_objective_ms": 1e999}', "itl_objective_ms"),
        (b"\xff", None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_change_is_taken_whole_or_not_at_all(server: RunningServer, body: Any, param: str | None) -> None:
    before = ask(server, "GET", LIMITS)["set"]
    num_changes = len(server.worker.changes)
    status, answer = server.json("PATCH", LIMITS, body, OWNER)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert ask(server, "GET", LIMITS)["set"] == before
    complete(server, "after")  # frames are read in order: a change would have arrived before this
    assert len(server.worker.changes) == num_changes


def test_caps_of_the_queue_hold_from_the_next_request_on() -> None:
    """Lowered while requests run and wait, a cap turns away who comes now; null lifts it again."""
    options = FakeOptions(heartbeat_s=0.02, step_s=0.002, max_num_seqs=1)
    with running_server(options, admin_api_keys=("owner-key",)) as server, ThreadPoolExecutor(2) as pool:
        body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}
        occupants = [pool.submit(server.json, "POST", "/v1/completions", body) for _ in range(2)]
        until(lambda: len(server.worker.running) == 1 and len(server.worker.waiting) == 1)
        told = ask(server, "PATCH", LIMITS, {"max_num_queued_reqs": 1})
        assert told["set"]["max_num_queued_reqs"] == 1
        assert told["configured"]["max_num_queued_reqs"] != 1
        status, answer = server.json("POST", "/v1/completions", {"prompt": "y"})
        assert (status, answer["error"]["code"]) == (429, "max_num_queued_reqs")
        ask(server, "PATCH", LIMITS, {"max_num_queued_reqs": None, "max_num_seqs": 1})
        assert server.admission.limits == AdmissionLimits()
        third = pool.submit(server.json, "POST", "/v1/completions", body | {"max_tokens": 1})
        for future in (*occupants, third):
            assert future.result()[0] == 200
        until(lambda: len(server.worker.changes) == 1)
        assert server.worker.changes == [LimitChange(max_num_seqs=1)]


def test_a_step_keeps_room_for_a_token_of_each_sequence() -> None:
    with running_server(FakeOptions(heartbeat_s=0.02, max_num_seqs=64), admin_api_keys=("owner-key",)) as server:
        ask(server, "PATCH", LIMITS, {"max_num_seqs": 10, "max_num_batched_tokens": 10})
        status, answer = server.json("PATCH", LIMITS, {"max_num_seqs": 11}, OWNER)
        assert (status, answer["error"]["param"]) == (400, "max_num_seqs")
        ask(server, "PATCH", LIMITS, {"max_num_seqs": 11, "max_num_batched_tokens": 11})


def test_without_chunks_a_step_keeps_room_for_the_longest_prompt() -> None:
    options = FakeOptions(heartbeat_s=0.02, enable_chunked_prefill=False)
    with running_server(options, admin_api_keys=("owner-key",)) as server:
        body = {"max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS - 1}
        status, answer = server.json("PATCH", LIMITS, body, OWNER)
        assert (status, answer["error"]["param"]) == (400, "max_num_batched_tokens")
        ask(server, "PATCH", LIMITS, {"max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS, "max_num_seqs": 2})
        status, answer = server.json("PATCH", LIMITS, {"long_prefill_token_threshold": 16}, OWNER)
        assert (status, answer["error"]["param"]) == (400, "long_prefill_token_threshold")
        ask(server, "PATCH", LIMITS, {"long_prefill_token_threshold": 0})


def test_bounds_are_said_as_they_may_be_asked_for(server: RunningServer) -> None:
    _, answer = server.json("PATCH", LIMITS, {"max_num_queued_reqs": -1}, OWNER)
    assert answer["error"]["message"] == "max_num_queued_reqs must be between 0 and 2147483647"
    _, answer = server.json("PATCH", LIMITS, {"itl_objective_ms": -1}, OWNER)
    assert answer["error"]["message"] == "itl_objective_ms must be between 0 and 3600000"


def test_nothing_is_in_force_until_the_engine_has_spoken() -> None:
    with running_server(FakeOptions(heartbeat_s=60), admin_api_keys=("owner-key",)) as server:
        assert set(ask(server, "GET", LIMITS)["in_force"].values()) == {None}
        server.complete()
        assert ask(server, "GET", LIMITS)["in_force"]["max_num_seqs"] == 64


def test_a_large_body_is_a_413(server: RunningServer) -> None:
    status, answer = server.json("PATCH", LIMITS, b'{"max_num_seqs": 3' + b" " * 20_000 + b"}", OWNER)
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


def test_a_dead_engine_has_no_limits_to_change() -> None:
    with running_server(FakeOptions(step_s=0.001), admin_api_keys=("owner-key",)) as server:
        server.refused("/v1/completions", {"prompt": DIE})
        status, answer = server.json("PATCH", LIMITS, {"max_num_seqs": 3}, OWNER)
        assert (status, answer["error"]["code"]) == (503, "engine_dead")
        told = ask(server, "GET", LIMITS)
        assert told["set"] == told["configured"]
        assert ask(server, "GET", REQUESTS) == {"object": "list", "data": [], "live": []}


# ---------------------------------------------------------------- explanations


def test_the_last_requests_are_explained_newest_first(server: RunningServer) -> None:
    for number in range(2 * NUM_KEPT):
        complete(server, f"r{number}")
    newest = [f"cmpl-r{number}" for number in range(2 * NUM_KEPT - 1, NUM_KEPT - 1, -1)]
    assert listed(server) == listed(server, "?limit=999999999") == newest
    assert listed(server, "?limit=3") == newest[:3]
    entry = ask(server, "GET", f"{REQUESTS}?limit=1")["data"][0]
    assert set(entry) == {"id", "created", "principal", "tenant", "priority", "state", "choices"}
    assert entry["state"] == "ended"
    complete(server, "named", user="a part", priority=3)
    named = ask(server, "GET", f"{REQUESTS}?limit=1")["data"][0]
    assert (named["tenant"], named["priority"]) == ("a part", 3)
    assert named["principal"] == entry["principal"] != ""
    (choice,) = entry["choices"]
    assert choice["index"] == 0
    assert choice["decisions"]["output_tokens"] == 3
    assert choice["sentence"].endswith("ended by its length.")


@pytest.mark.parametrize(
    "query", ["?limit=0", "?limit=-1", "?limit=", "?limit=1e3", "?limit=9999999999", "?limit=%31", "?x=1", "?limit=1&x"]
)
def test_a_query_is_a_limit_or_refused(server: RunningServer, query: str) -> None:
    assert server.json("GET", REQUESTS + query, None, OWNER)[0] == 400


def test_a_request_is_found_by_its_public_id(server: RunningServer) -> None:
    complete(server, "found:1", n=2)
    (entry,) = ask(server, "GET", f"{REQUESTS}/cmpl-found:1")["data"]
    assert [choice["index"] for choice in entry["choices"]] == [0, 1]
    assert ask(server, "GET", f"{REQUESTS}/cmpl-found%3a1")["data"] == [entry]
    status, chat = server.json(
        "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, CLIENT
    )
    assert status == 200
    assert ask(server, "GET", f"{REQUESTS}/{chat['id']}")["data"][0]["id"] == chat["id"]


@pytest.mark.parametrize("name", ["", "none", "..", "cmpl-found", "%00", "x" * 5000, "1"])
def test_any_other_id_is_a_404(server: RunningServer, name: str) -> None:
    status, answer = server.json("GET", f"{REQUESTS}/{name}", None, OWNER)
    assert (status, answer["error"]["code"]) == (404, "request_not_found")


def test_a_preempting_request_has_its_public_id_here_and_no_name_for_clients(server: RunningServer) -> None:
    def decide(request: Request) -> Decisions:
        return Decisions(preemptions=((request.id - 1, PreemptReason.PRIORITY),))

    complete(server, "urgent")
    server.worker.decide = decide
    body = {"prompt": "x", "max_tokens": 3, "request_id": "victim", "explain": True}
    _, _, content = server.request("POST", "/v1/completions", body, CLIENT)
    assert b"preempted once by another request (priority)" in content
    assert b"urgent" not in content
    (entry,) = ask(server, "GET", f"{REQUESTS}/cmpl-victim")["data"]
    assert "preempted once by cmpl-urgent (priority)" in entry["choices"][0]["sentence"]
    assert entry["choices"][0]["decisions"]["preemptions"] == [{"by": "cmpl-urgent", "reason": "priority", "count": 1}]


def test_what_the_engine_refuses_stays_nowhere(server: RunningServer) -> None:
    body = {"prompt": ["fine", REFUSE], "max_tokens": 3, "request_id": "refused"}
    assert server.json("POST", "/v1/completions", body, CLIENT)[0] == 400
    until(lambda: ask(server, "GET", REQUESTS)["live"] == [])
    body = {"prompt": REFUSE, "request_id": "refused-alone"}
    assert server.json("POST", "/v1/completions", body, CLIENT)[0] == 400
    assert ask(server, "GET", REQUESTS)["live"] == []
    assert server.json("GET", f"{REQUESTS}/cmpl-refused-alone", None, OWNER)[0] == 404


def test_who_left_is_explained_too_and_the_live_are_listed() -> None:
    options = FakeOptions(step_s=0.002, max_num_seqs=1, heartbeat_s=0.02)
    with running_server(options, admin_api_keys=("owner-key",)) as server:
        socks = []
        for name in ("first", "second"):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            data = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "request_id": name}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
            sock.sendall(head.encode() + data)
            socks.append(sock)
            until(lambda: len(server.worker.adds) == len(socks))

        def live() -> dict[str, str]:
            return {entry["id"]: entry["state"] for entry in ask(server, "GET", REQUESTS)["live"]}

        until(lambda: live() == {"cmpl-first": "running", "cmpl-second": "waiting"})
        assert ask(server, "GET", f"{REQUESTS}/cmpl-second")["data"][0]["state"] == "waiting"
        for sock in reversed(socks):
            sock.close()
        until(lambda: live() == {})
        by_id = {entry["id"]: entry["choices"][0]["sentence"] for entry in ask(server, "GET", REQUESTS)["data"]}
        assert set(by_id) == {"cmpl-first", "cmpl-second"}
        assert by_id["cmpl-second"].startswith("Never started; given up after ")
        assert by_id["cmpl-first"].startswith("Started ")
        server.wait_idle()


def test_a_long_list_gives_the_event_loop_its_turns() -> None:
    """Nobody waits for the explanations of others: between any two of them the loop runs."""

    async def run() -> None:
        explanations = Explanations(100)
        for number in range(20):
            explanations.expect(f"cmpl-{number}", 0, [Request(number, [1], SamplingParams())])
        num_turns = 0

        async def others() -> None:
            nonlocal num_turns
            while True:
                num_turns += 1
                await asyncio.sleep(0)

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        sent: list[MutableMapping[str, Any]] = []
        scope = {"method": "GET", "raw_path": REQUESTS.encode(), "headers": []}
        task = asyncio.create_task(others())
        await Admin(explanations, AdmissionLimits()).requests(Exchange(scope, _nothing, send), cast(EngineClient, None))
        task.cancel()
        assert len(json.loads(sent[1]["body"])["live"]) == 20
        assert num_turns >= 20

    asyncio.run(run())


async def _nothing() -> MutableMapping[str, Any]:
    raise AssertionError("no body is read")
