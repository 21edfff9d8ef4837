"""The file of API keys: what it may say, what it must not be, and what those may who have a key of it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.core.allowances import OwnLimits
from chairlift.core.errors import InvalidOption
from chairlift.server import run as server_run
from chairlift.server.access import Access
from chairlift.server.api_keys import key_digest, read_api_keys
from chairlift.server.errors import ApiError
from chairlift.server.identity import cache_salt, named_principal, unnamed_principal
from chairlift.server.options import ServerOptions
from server.fake_worker import FakeOptions
from server.running import RunningServer, running_server, until
from server.served import served

FIRST, SECOND, THIRD = "first-key-0000", "second-key-000", "third-key-0000"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a key file of its owner's alone, and give its path."""

    def written(content: Any, mode: int = 0o600) -> str:
        path = tmp_path / "keys.yaml"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        return str(path)

    return written


# ---------------------------------------------------------------- reading


def test_everything_that_it_may_say(write: Callable[..., str]) -> None:
    digest = hashlib.sha256(SECOND.encode()).hexdigest()
    keys = read_api_keys(
        write(
            f"""
# who may ask
- name: chat
  key: [{FIRST}, {THIRD}]
  sha256: {digest.upper()}
  weight: 2.5
  max_num_reqs: 4
  max_num_queued_reqs: 3
  max_num_queued_tokens: 1000
  max_reqs_per_minute: 60
  max_tokens_per_minute: 5000
  routes: [/v1/models, /v1/completions]
- a-key-by-itself
"""
        )
    )
    chat = named_principal("chat", frozenset({"/v1/models", "/v1/completions"}))
    assert {keys.principals[key_digest(key.encode())] for key in (FIRST, SECOND, THIRD)} == {chat}
    assert len(keys.principals) == 4
    assert keys.weights == {"chat": 2.5}
    assert keys.limits == {
        "chat": OwnLimits(
            max_num_reqs=4,
            max_num_queued_reqs=3,
            max_num_queued_tokens=1000,
            max_reqs_per_minute=60,
            max_tokens_per_minute=5000,
        )
    }


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "must be a list"),
        ("{}", "must be a list"),
        ("secret-0001", "must be a list"),
        ("[]", "no key"),
        ("- [x", "not YAML (line 1)"),
        ("- secret-0001: secret-0002\n  x", "not YAML (line"),
        ("- secret-0001: secret-0002", "a field in it is not known"),
        ("!!python/object:os.system {}", "not YAML"),
        ([{"name": "a"}], "key or sha256 is missing"),
        ([{"key": "secret-0001"}], "name"),
        ([{"name": "a b", "key": "secret-0001"}], "letters"),
        ([{"name": "../a", "key": "secret-0001"}], "letters"),
        ([{"name": "a", "key": "secret-0001", "wait": 2}], "wait"),
        ([{"name": "a", "key": "secret-0001", "weight": 0}], "weight"),
        ([{"name": "a", "key": "secret-0001", "weight": -1}], "weight"),
        ("- {name: a, key: secret-0001, weight: .inf}", "weight"),
        ("- {name: a, key: secret-0001, weight: .nan}", "weight"),
        ([{"name": "a", "key": "secret-0001", "max_num_reqs": 0}], "max_num_reqs"),
        ([{"name": "a", "key": "secret-0001", "max_num_reqs": True}], "max_num_reqs"),
        ([{"name": "a", "key": "secret-0001", "max_num_reqs": 1.5}], "max_num_reqs"),
        ([{"name": "a", "key": "secret-0001", "routes": []}], "routes"),
        ([{"name": "a", "key": "secret-0001", "routes": ["v1"]}], "routes"),
        ([{"name": "a", "key": "short"}], "8 to 512"),
        ([{"name": "a", "key": "secret 0001"}], "8 to 512"),
        ([{"name": "a", "key": "secret-0001\n"}], "8 to 512"),
        ([{"name": "a", "key": "secret-\u00e9\u00e9\u00e9\u00e9"}], "8 to 512"),
        ([{"name": "a", "key": 123456789}], "key"),
        ([{"name": "a", "sha256": "secret-0001"}], "64 hexadecimal"),
        (["secret-0001", "secret-0001"], "there already"),
        ([{"name": "a", "key": ["secret-0001", "secret-0001"]}], "there already"),
        ([{"name": "a", "key": "secret-0001"}, {"name": "a", "key": "secret-0002"}], "second principal"),
        (["owner-secret-0"], "admin or metrics"),
        (["a" * 2_000_000], "more than"),
        ("[" * 100_000, "not YAML"),
        ("\x00", "not YAML"),
    ],
)
def test_what_makes_no_sense_is_said_without_any_key(write: Callable[..., str], content: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=r"keys\.yaml") as caught:
        read_api_keys(write(content), ["owner-secret-0"])
    assert named in str(caught.value)
    assert "secret-0" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_others_may_write_or_that_is_none(write: Callable[..., str], tmp_path: Path) -> None:
    for mode in (0o622, 0o602, 0o660):
        with pytest.raises(InvalidOption, match="others may write it"):
            read_api_keys(write([FIRST], mode))
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidOption, match="cannot be read"):
            read_api_keys(str(path))
    with pytest.raises(InvalidOption, match="more than"):
        read_api_keys("/dev/zero")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidOption, match="not UTF-8"):
        read_api_keys(str(tmp_path / "binary"))


def test_keys_that_others_can_read_are_told_of_and_digests_are_not(write: Callable[..., str]) -> None:
    digests = [{"name": "a", "sha256": "0" * 64}]
    assert read_api_keys(write([FIRST], 0o644)).is_exposed
    assert read_api_keys(write([{"name": "a", "key": FIRST}], 0o640)).is_exposed
    assert not read_api_keys(write([FIRST], 0o600)).is_exposed
    assert not read_api_keys(write(digests, 0o644)).is_exposed


# ---------------------------------------------------------------- flags


def test_the_flag_reaches_the_server_and_weights_the_engine(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def serve(*arguments: Any) -> int:
        told.extend(arguments)
        return 0

    monkeypatch.setattr(server_run, "serve", serve)
    path = write([{"name": "chat", "key": FIRST, "weight": 3}])
    argv = ["serve", "m", "--host", "0.0.0.0", "--api-key-file", path, "--tenant-weights", "other=2,chat=1"]
    argv += ["--scheduling-policy", "fair"]
    assert main(argv) == 0
    assert told[0].api_key_file == path
    command = " ".join(told[2](3))
    assert '"chat":3.0' in command
    assert '"other":2.0' in command
    assert FIRST not in command
    assert main(["serve", "m", "--api-key-file", path]) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
def test_j3_a_public_address_without_a_key_is_refused_in_words(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m-instruct", "--host", host, "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "can be reached from other machines" in said
    assert "--api-key" in said
    assert said.count("\n") == 1
    assert ServerOptions(host=host, api_key_file="keys").wants_keys


def test_a_wrong_file_is_one_line_and_status_2(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m-instruct", "--api-key-file", write([{"name": "a"}])]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---------------------------------------------------------------- who asks


def test_k4_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early exit: the time taken says nothing about which key was close, or whether one was."""
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    keys = [f"key-number-{i}" for i in range(20)]
    access = Access(tuple(keys[:10]), "127.0.0.1", (), principals={key_digest(k.encode()): A for k in keys[10:]})
    monkeypatch.setattr("chairlift.server.access.hmac.compare_digest", compare)
    for key in (keys[0], keys[9], keys[19], "no-such-key"):
        compared.clear()
        try:
            access.principal({b"authorization": b"Bearer " + key.encode()})
        except ApiError:
            assert key == "no-such-key"
        assert sorted(compared) == sorted(key_digest(one.encode()) for one in keys)


A = named_principal("a")


def test_either_header_brings_the_key() -> None:
    access = Access((FIRST,), "127.0.0.1", ())
    principal = unnamed_principal(key_digest(FIRST.encode()))
    assert access.principal({b"x-api-key": FIRST.encode()}) == principal
    both = {b"x-api-key": FIRST.encode(), b"authorization": f"Bearer {FIRST}".encode()}
    assert access.principal(both) == principal
    assert access.principal(both | {b"x-api-key": b""}) == principal
    for headers in ({b"x-api-key": b"x"}, {b"x-api-key": FIRST.encode(), b"authorization": b"Basic x"}, {}):
        with pytest.raises(ApiError) as caught:
            access.principal(headers)
        assert caught.value.status == 401


def test_two_keys_at_once_are_refused_by_name() -> None:
    """Both may be right: whose request it is would depend on which of them is looked at."""
    access = Access((FIRST, "other-key-1"), "127.0.0.1", (), admin_api_keys=("owner-key-1",))
    for bearer, other in ((FIRST, "other-key-1"), (FIRST, "x"), ("x", FIRST)):
        headers = {b"x-api-key": other.encode(), b"authorization": f"Bearer {bearer}".encode()}
        for check in (access.principal, access.check_admin, access.check_metrics):
            with pytest.raises(ApiError) as caught:
                check(headers)
            assert (caught.value.status, caught.value.code) == (401, "ambiguous_api_key")
            assert bearer not in caught.value.message.split()


def test_k3_what_is_given_as_a_salt_cannot_be_taken_for_a_part_of_who_asks() -> None:
    """`org_1` with `2345` is not `org_12345` with nothing."""
    salts = {
        cache_salt(named_principal(name), given)
        for name, given in [("org_1", "2345"), ("org_12345", ""), ("org_12", "345"), ("", "org_12345"), ("a", "b:c")]
    }
    salts |= {cache_salt(unnamed_principal(b"ab"), b"c".decode()), cache_salt(unnamed_principal(b"a"), "bc"), b""}
    assert len(salts) == 8
    assert cache_salt(named_principal("a"), "") == cache_salt(named_principal("a", frozenset({"/x"})), "")


@pytest.fixture
def team(write: Callable[..., str]) -> str:
    return write(
        [
            {"name": "one", "key": [FIRST, SECOND], "max_reqs_per_minute": 3},
            {"name": "two", "key": THIRD, "routes": ["/v1/models", "/v1/models/{model}"]},
        ]
    )


def complete(server: RunningServer, key: str, **fields: Any) -> tuple[int, Any]:
    return server.json("POST", "/v1/completions", {"prompt": "same", "max_tokens": 4} | fields, bearer(key))


def test_all_keys_of_a_principal_share_its_cache_and_its_limits(team: str) -> None:
    with running_server(api_key_file=team) as server:
        assert [complete(server, key)[0] for key in (FIRST, SECOND, FIRST)] == [200] * 3
        status, answer = complete(server, SECOND)
        assert (status, answer["error"]["code"]) == (429, "max_reqs_per_minute")
        assert {(one.principal, one.salt) for one in server.worker.adds} == {("one", cache_salt(A_ONE, ""))}
        server.wait_idle()


A_ONE = named_principal("one")


def test_a_used_up_minute_is_a_429_whatever_overload_is(team: str) -> None:
    with running_server(api_key_file=team, overload_status=503) as server:
        for _ in range(3):
            complete(server, FIRST)
        body = {"prompt": "x"}
        status, headers, _ = server.request("POST", "/v1/completions", body, bearer(FIRST))
        assert status == 429
        assert 0 < int(headers["retry-after"]) <= 20
        assert "vllm:admission_rejections" in server.request("GET", "/metrics", headers=bearer(FIRST))[2].decode()


def test_tokens_of_answers_are_charged_also_to_those_who_left(write: Callable[..., str]) -> None:
    keys = write([{"name": "one", "key": FIRST, "max_tokens_per_minute": 60}])
    with running_server(FakeOptions(step_s=0.001), api_key_file=keys) as server:
        assert complete(server, FIRST, max_tokens=40, ignore_eos=True)[0] == 200
        assert complete(server, FIRST, max_tokens=40, ignore_eos=True)[0] == 200
        until(lambda: complete(server, FIRST)[0] == 429)
        status, answer = complete(server, FIRST)
        assert (status, answer["error"]["code"]) == (429, "max_tokens_per_minute")
        assert answer["error"]["estimated_wait_ms"] > 20_000


def test_a_key_for_some_routes_opens_no_others(team: str) -> None:
    with running_server(api_key_file=team) as server:
        for path in ("/v1/models", "/v1/models/fake"):
            assert server.request("GET", path, headers=bearer(THIRD))[0] == 200
        for path in ("/metrics", "/version"):
            status = server.request("GET", path, headers=bearer(THIRD))[0]
            assert status == (200 if path == "/metrics" else 403)
        status, answer = complete(server, THIRD)
        assert (status, answer["error"]["code"]) == (403, "route_not_allowed")
        assert not server.worker.adds
        assert server.request("GET", "/nowhere", headers=bearer(THIRD))[0] == 404


def test_metrics_are_for_metrics_keys_where_there_are_such() -> None:
    with running_server(api_keys=(FIRST,), metrics_api_keys=(SECOND,), admin_api_keys=(THIRD,)) as server:
        statuses = {key: server.request("GET", "/metrics", headers=bearer(key))[0] for key in (FIRST, SECOND, THIRD)}
        assert statuses == {FIRST: 401, SECOND: 200, THIRD: 401}
        assert server.request("GET", "/metrics")[0] == 401
        for path in ("/v1/models", "/admin/limits"):
            assert server.request("GET", path, headers=bearer(SECOND))[0] == 401
    with running_server(metrics_api_keys=(SECOND,)) as server:
        assert server.request("GET", "/metrics")[0] == 401
        assert server.request("GET", "/v1/models")[0] == 200


def test_keys_for_different_things_must_differ() -> None:
    for wrong in ({"api_keys": (FIRST,)}, {"admin_api_keys": (FIRST,)}):
        with pytest.raises(InvalidOption, match="metrics API key"):
            ServerOptions(metrics_api_keys=(FIRST,), **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- while serving


def test_sighup_reads_the_file_again_and_no_key_is_ever_logged(write: Callable[..., str], tmp_path: Path) -> None:
    path = write([{"name": "one", "key": FIRST, "weight": 2}], 0o644)
    log = tmp_path / "log"
    with log.open("w") as stderr, served(api_key_file=path, stderr=stderr) as server:

        def status(key: str) -> int:
            return server.ask("GET", "/v1/models", None, bearer(key))[0]

        assert (status(FIRST), status(SECOND)) == (200, 401)
        write([{"name": "one", "key": SECOND, "max_num_reqs": 1}])
        server.tell(signal.SIGHUP)
        until(lambda: status(SECOND) == 200)
        assert status(FIRST) == 401
        write("- [broken-key-0")
        server.tell(signal.SIGHUP)
        until(lambda: "stay as they were" in log.read_text())
        assert (status(FIRST), status(SECOND)) == (401, 200)
        os.truncate(path, 0)
        server.tell(signal.SIGHUP)
        until(lambda: log.read_text().count("stay as they were") == 2)
        assert status(SECOND) == 200
        text = log.read_text()
    assert "can be read by others" in text
    for key in (FIRST, SECOND, "broken-key-0"):
        assert key not in text


def test_l2_no_log_line_holds_a_key_or_a_prompt(
    team: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with running_server(api_key_file=team) as server:
        for key in (FIRST, THIRD, "wrong-key-0000"):
            complete(server, key, prompt="a secret prompt")
            complete(server, key, prompt="a secret prompt", n=0)
            server.request("GET", f"/{key}?{key}", headers=bearer(key) | {"X-Request-Id": "x y", "Host": key})
        server.wait_idle()
    text = "\n".join(record.getMessage() for record in caplog.records)
    for secret in (FIRST, THIRD, "wrong-key-0000", "secret prompt", key_digest(FIRST.encode()).hex()):
        assert secret not in text
