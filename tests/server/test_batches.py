"""Batches: every line has one result, whatever happens to the server, the engine and the disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.admission import AdmissionLimits
from chairlift.core.errors import InvalidOption
from chairlift.core.types import BACKGROUND_PRIORITY
from chairlift.server.batches import content, disk
from chairlift.server.batches.service import open_store
from chairlift.server.options import ServerOptions
from server.batch_files import Asking, follow, line
from server.fake_text import TURN
from server.fake_worker import FakeOptions, answer_tokens
from server.running import RunningServer, running_server, until

KEYS = ("key-of-anna", "key-of-bert")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("batches")
    with running_server(api_keys=KEYS, batch_dir=str(folder)) as running:
        yield running
        running.wait_idle()


@pytest.fixture
def anna(server: RunningServer) -> Asking:
    return Asking(server, KEYS[0])


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as client:
        yield client


def told(server: RunningServer, name: str) -> dict[str, float]:
    """The values of a series of batches, by their last label, as far as they are not 0."""
    families = text_string_to_metric_families(server.request("GET", "/metrics")[2].decode())
    samples = [sample for family in families for sample in family.samples if sample.name == f"chairlift:{name}"]
    assert samples, name
    own = [(sample.labels.keys() - {"model_name", "engine"}, sample) for sample in samples]
    return {sample.labels[next(iter(labels))] if labels else "": sample.value for labels, sample in own if sample.value}


def text_of(custom_id: str, count: int = 5) -> str:
    return bytes(answer_tokens([TURN, *f"prompt of {custom_id}".encode()], 0, count)).decode("utf-8", "replace")


# ---------------------------------------------------------------- the official client


def test_the_official_client_sends_a_file_and_gets_its_answers(client: openai.OpenAI, server: RunningServer) -> None:
    lines = [line(f"r{i}") for i in range(20)] + [line("wrong", temperature=-1)]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    assert (file.purpose, file.bytes, file.filename) == ("batch", len("\n".join(lines)), "in.jsonl")
    assert client.files.content(file.id).text == "\n".join(lines)
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"a": "b"}
    )
    follow(lambda: client.batches.retrieve(batch.id).status == "completed")
    batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed, batch.metadata) == (21, 20, 1, {"a": "b"})
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    answers = [json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()]
    assert {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in answers} == {
        f"r{i}": text_of(f"r{i}") for i in range(20)
    }
    (error,) = [json.loads(one) for one in client.files.content(batch.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["response"]["status_code"]) == ("wrong", 400)
    assert error["response"]["body"]["error"]["param"] == "temperature"
    assert batch.id in [one.id for one in client.batches.list(limit=2)]
    assert {file.id, batch.output_file_id, batch.error_file_id} <= {one.id for one in client.files.list()}
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    asked = [request for request in server.worker.adds if request.priority]
    assert {request.priority for request in asked} == {BACKGROUND_PRIORITY}


def test_chats(client: openai.OpenAI, anna: Asking) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": None}
    batch = anna.ended(anna.begin([line("a", "/v1/chat/completions", **body)], "/v1/chat/completions"))
    assert batch["status"] == "completed", batch
    direct = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
    answer = anna.results(batch["output_file_id"])["a"]["response"]
    assert answer["body"]["choices"][0]["message"]["content"] == direct.choices[0].message.content
    assert answer["request_id"]


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"{}\n", "invalid_json_line", 1),
        (b"not json\n", "invalid_json_line", 1),
        (b"[" * 100_000, "invalid_json_line", 1),
        (b"\xff\n", "invalid_json_line", 1),
        (f"{line('a')}\n\n{line('a')}\n".encode(), "duplicate_custom_id", 3),
        (f"{line('a')}\n{line(5)}\n".replace('"5"', "5").encode(), "invalid_custom_id", 2),
        (f"{line('')}\n".encode(), "invalid_custom_id", 1),
        (f"{line('x' * 513)}\n".encode(), "invalid_custom_id", 1),
        (line("a", "/v1/chat/completions").encode(), "invalid_url", 1),
        (line("a").replace("POST", "GET").encode(), "invalid_method", 1),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": []}', "invalid_body", 1),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": {"temperature": NaN}}', "invalid_json_line", 1),
        (b"x" * (5 << 20) + b"\n" + line("a").encode(), "invalid_json_line", 1),
        (line("a").replace('"a"', '"\\ud800"').encode(), "invalid_json_line", 1),
        (b"\n \n", "empty_file", None),
    ],
)
def test_a_malformed_file_fails_as_a_whole_and_its_lines_are_named(
    anna: Asking, content: bytes, code: str, number: int | None
) -> None:
    batch = anna.ended(anna.begin(content))
    assert batch["status"] == "failed"
    error = batch["errors"]["data"][0]
    assert (error["code"], error["line"]) == (code, number)
    assert batch["output_file_id"] is None
    assert batch["failed_at"] is not None
    assert len(error["message"]) < 200


def test_more_lines_than_a_batch_may_have(anna: Asking) -> None:
    batch = anna.ended(anna.begin(b"".join(line(i).encode() + b"\n" for i in range(50_001))))
    assert [one["code"] for one in batch["errors"]["data"]] == ["too_many_requests"]


@pytest.mark.parametrize("field", ["stream", "priority", "ttft_deadline_ms", "e2e_deadline_ms"])
def test_what_no_line_can_have_is_refused_by_name(anna: Asking, field: str) -> None:
    value: Any = True if field == "stream" else 5
    batch = anna.ended(anna.begin([line("a", **{field: value}), line("b")]))
    assert batch["status"] == "completed"
    error = anna.results(batch["error_file_id"])["a"]["response"]["body"]["error"]
    assert error["param"] == field
    assert set(anna.results(batch["output_file_id"])) == {"b"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "../lock"}, "input_file_id"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: ""}}, "metadata"),
        ({"metadata": {"x": "x" * 513}}, "metadata"),
        ({"metadata": {"x": 1}}, "metadata"),
        ({"output_expires_after": {"seconds": 3600}}, "output_expires_after"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(anna: Asking, change: dict[str, Any], param: str) -> None:
    good = {"input_file_id": anna.upload([line("a")]), "endpoint": "/v1/completions", "completion_window": "24h"}
    status, answer = anna.server.json("POST", "/v1/batches", good | change, anna.headers)
    assert (status, answer["error"]["param"]) == (400, param)


def test_results_are_no_input(anna: Asking) -> None:
    batch = anna.ended(anna.begin([line("a")]))
    body = {"input_file_id": batch["output_file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    assert anna.server.json("POST", "/v1/batches", body, anna.headers)[0] == 400


# ---------------------------------------------------------------- whose it is


def test_a_key_sees_its_own_files_and_batches_only(server: RunningServer, anna: Asking) -> None:
    bert = Asking(server, KEYS[1])
    file_id = anna.upload([line("a")])
    batch_id = anna.begin([line("a")])
    output = anna.ended(batch_id)["output_file_id"]
    for one in (file_id, output):
        for method, path in (
            ("GET", f"/v1/files/{one}"),
            ("GET", f"/v1/files/{one}/content"),
            ("DELETE", f"/v1/files/{one}"),
        ):
            status, answer = server.json(method, path, None, bert.headers)
            assert (status, answer["error"]["code"]) == (404, "file_not_found")
    for method, path in (("GET", f"/v1/batches/{batch_id}"), ("POST", f"/v1/batches/{batch_id}/cancel")):
        status, answer = server.json(method, path, None, bert.headers)
        assert (status, answer["error"]["code"]) == (404, "batch_not_found")
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    assert server.json("POST", "/v1/batches", body, bert.headers)[0] == 400
    for path in ("/v1/files", "/v1/batches"):
        assert bert.get(path)["data"] == []
        assert anna.get(path)["data"] != []
    status, answer = server.json("GET", f"/v1/files?after={file_id}", None, bert.headers)
    assert (status, answer["error"]["param"]) == (400, "after")


def test_a_batch_is_charged_to_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "- {name: anna, key: key-of-anna, max_num_reqs: 1}\n"
        "- {name: bert, key: key-of-bert, routes: [/v1/files, /v1/batches, /v1/completions]}\n"
    )
    keys.chmod(0o600)
    log = tmp_path / "usage.jsonl"
    folder = str(tmp_path / "batches")
    with running_server(api_key_file=str(keys), batch_dir=folder, usage_log=str(log)) as server:
        anna, bert = (Asking(server, key) for key in KEYS)
        anna.headers["x-gateway-inference-fairness-id"] = "nightly"
        batch_id = anna.begin([line(i, ignore_eos=True) for i in "abcdef"])
        assert anna.ended(batch_id)["request_counts"]["completed"] == 6
        until(lambda: log.read_text().count("\n") == 6)
        asked = list(server.worker.adds)
        assert {(request.principal, request.tenant) for request in asked} == {("anna", "nightly")}
        direct = {"Authorization": "Bearer key-of-anna"}
        server.request("POST", "/v1/completions", {"prompt": "x"}, direct)
        assert server.worker.adds[-1].salt == asked[0].salt, "its prefixes are those of the key"
        body = {"input_file_id": bert.upload([line("a")]), "completion_window": "24h"}
        for endpoint, status in (("/v1/chat/completions", 403), ("/v1/completions", 200)):
            assert server.json("POST", "/v1/batches", body | {"endpoint": endpoint}, bert.headers)[0] == status
    lines = [json.loads(one) for one in log.read_text().splitlines()]
    own = [one for one in lines if one.get("batch") == batch_id]
    assert len(own) == 6
    assert {(one["principal"], one["tenant"], one["route"], one["status"]) for one in own} == {
        ("anna", "nightly", "/v1/completions", 200)
    }
    assert sum(one["completion_tokens"] for one in own) == 30


def test_who_has_used_up_a_minute_waits_and_is_not_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: anna, key: key-of-anna, max_reqs_per_minute: 600}\n")
    keys.chmod(0o600)
    with running_server(api_key_file=str(keys), batch_dir=str(tmp_path / "batches")) as server:
        anna = Asking(server, KEYS[0])
        server.run(used_up(server, 598))
        batch = anna.ended(anna.begin([line(i) for i in range(6)]))
        assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        assert len(server.worker.adds) == 6


async def used_up(server: RunningServer, num_requests: int) -> None:
    """So many requests of Anna's were let in just now."""
    for _ in range(num_requests):
        (ticket,) = server.admission.admit("anna", [1], time.monotonic())
        server.admission.ended(ticket, time.monotonic())


# ---------------------------------------------------------------- in the background


def test_a_full_queue_keeps_no_batch_out_and_a_batch_keeps_nobody_out(tmp_path: Path) -> None:
    caps = AdmissionLimits(max_num_queued_reqs=0, max_num_reqs_per_principal=1)
    options = FakeOptions(max_num_seqs=2, step_s=0.001, heartbeat_s=0.05)
    with running_server(options, batch_dir=str(tmp_path), admission=caps) as server:
        anna = Asking(server)
        batch_id = anna.begin([line(i, max_tokens=40, ignore_eos=True) for i in range(30)])
        until(lambda: server.admission.num_background > 0)
        assert server.complete(max_tokens=1)["choices"]
        batch = anna.ended(batch_id)
        assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        running = [request.id for request in server.worker.adds]
        assert len(running) == 31, "nothing was asked twice"


def test_what_is_in_flight_is_bounded_by_slots(tmp_path: Path) -> None:
    options = FakeOptions(max_num_seqs=4, step_s=0.001, heartbeat_s=0.05)
    with running_server(options, batch_dir=str(tmp_path)) as server:
        anna, most = Asking(server), 0
        batch_id = anna.begin([line(i, n=1 + i % 3, max_tokens=9) for i in range(30)])
        while anna.batch(batch_id)["status"] not in ("completed", "failed"):
            most = max(most, server.admission.num_background)
        assert 4 <= most <= 5
        assert len(anna.results(anna.batch(batch_id)["output_file_id"])) == 30


# ---------------------------------------------------------------- ends before the end

SLOW = FakeOptions(max_num_seqs=2, step_s=0.002, heartbeat_s=0.05)
LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}


def test_cancelling_keeps_what_was_answered_and_stops_the_rest(tmp_path: Path) -> None:
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line("a"), line("b"), *(line(i, **LONG) for i in range(20))])
        behind = anna.begin([line("c")])
        follow(lambda: anna.batch(batch_id)["request_counts"]["completed"] == 2)
        follow(lambda: anna.batch(behind)["status"] == "in_progress")
        follow(lambda: told(server, "num_batch_requests_running") == {"": 3.0})
        assert told(server, "num_batch_requests_waiting") == {"": 18.0}
        assert told(server, "num_batches") == {"in_progress": 2.0}
        status, answer = server.json("POST", f"/v1/batches/{batch_id}/cancel")
        assert (status, answer["status"]) == (200, "cancelling")
        server.json("POST", f"/v1/batches/{batch_id}/cancel")
        batch = anna.ended(batch_id)
        assert batch["status"] == "cancelled"
        assert batch["request_counts"] == {"total": 22, "completed": 2, "failed": 0}
        assert set(anna.results(batch["output_file_id"])) == {"a", "b"}
        assert batch["error_file_id"] is None
        assert None not in (batch["cancelling_at"], batch["cancelled_at"])
        assert anna.ended(behind)["status"] == "completed"
        status, answer = server.json("POST", f"/v1/batches/{batch_id}/cancel")
        assert (status, answer["error"]["code"]) == (409, "batch_has_ended")
        server.wait_idle()
        assert told(server, "batch_requests_finished_total") == {"completed": 3.0, "cancelled": 20.0}
        assert told(server, "batches_finished_total") == {"completed": 1.0, "cancelled": 1.0}
        for name in ("num_batch_requests_running", "num_batch_requests_waiting", "num_batches"):
            assert told(server, name) == {}


def test_one_that_waits_behind_another_is_cancelled_at_once(tmp_path: Path) -> None:
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        first, second = anna.begin([line("a", **LONG)]), anna.begin([line("b")])
        follow(lambda: anna.batch(second)["status"] == "in_progress")
        server.json("POST", f"/v1/batches/{second}/cancel")
        assert anna.ended(second)["status"] == "cancelled"
        server.json("POST", f"/v1/batches/{first}/cancel")
        assert anna.ended(first)["status"] == "cancelled"


def test_what_its_time_is_over_for_has_a_result_that_says_so(tmp_path: Path) -> None:
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line("a"), *(line(i, **LONG) for i in range(5))])
        follow(lambda: anna.batch(batch_id)["request_counts"]["completed"] == 1)
        server.run(time_is_over(server, batch_id))
        batch = anna.ended(batch_id)
        assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 6, "completed": 1, "failed": 5})
        errors = anna.results(batch["error_file_id"])
        assert set(errors) == set(map(str, range(5)))
        assert {one["error"]["code"] for one in errors.values()} == {"batch_expired"}
        assert told(server, "batch_requests_finished_total") == {"completed": 1.0, "expired": 5.0}
        assert told(server, "batches_finished_total") == {"expired": 1.0}


async def time_is_over(server: RunningServer, batch_id: str) -> None:
    assert server.app.batches is not None
    server.app.batches.runner._runs[batch_id].end("expired")


# ---------------------------------------------------------------- pages of lists


def test_lists_are_given_in_pages_the_newest_first(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        ids = [anna.begin([line("a")]) for _ in range(5)]
        for one in ids:
            anna.ended(one)
        page = anna.get("/v1/batches?limit=2")
        assert [one["id"] for one in page["data"]] == ids[:2:-1]
        assert page["has_more"]
        page = anna.get(f"/v1/batches?limit=3&after={page['last_id']}")
        assert [one["id"] for one in page["data"]] == ids[2::-1]
        assert not page["has_more"]
        assert len(anna.get("/v1/files?purpose=batch_output")["data"]) == 5
        for query in ("limit=0", "limit=101", "limit=x", "after=nothing", "order=up", "limit=1&limit=2", "a=%ff"):
            assert server.json("GET", f"/v1/batches?{query}")[0] == 400, query


# ---------------------------------------------------------------- starting again


def test_a_batch_goes_on_at_the_next_start_and_answers_nothing_twice(tmp_path: Path) -> None:
    asked: list[str] = []
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        first = anna.begin([line(f"r{i}") for i in range(10)] + [line(f"s{i}", max_tokens=400) for i in range(4)])
        second = anna.begin([line("x")])
        follow(lambda: anna.batch(first)["request_counts"]["completed"] >= 9)
        follow(lambda: anna.batch(second)["status"] == "in_progress")
        asked += [bytes(request.prompt[1:]).decode() for request in server.worker.adds]
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch = anna.ended(first)
        assert batch["request_counts"] == {"total": 14, "completed": 14, "failed": 0}
        results = anna.results(batch["output_file_id"])
        assert set(results) == {f"r{i}" for i in range(10)} | {f"s{i}" for i in range(4)}
        again = [bytes(request.prompt[1:]).decode() for request in server.worker.adds]
        assert len(set(again) & set(asked)) <= 5, "only what was in flight"
        assert anna.ended(second)["status"] == "completed"


def test_the_folder_is_for_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        running_server(batch_dir=str(tmp_path)),
        pytest.raises(InvalidOption, match="another server"),
        contextlib.ExitStack() as stack,
    ):
        open_store(ServerOptions(batch_dir=str(tmp_path)), stack)


@pytest.mark.parametrize("step", [900, pytest.param(7, marks=pytest.mark.long)])
def test_results_cut_at_any_byte_are_put_right_at_the_next_start(tmp_path: Path, step: int) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line(f"r{i}") for i in range(4)])
        output = tmp_path / "files" / anna.ended(batch_id)["output_file_id"]
    record = tmp_path / "batches" / f"{batch_id}.json"
    whole, ended = output.read_bytes(), json.loads(record.read_bytes())
    for cut in range(0, len(whole), step):
        output.write_bytes(whole[:cut])
        output.with_suffix(".json").unlink(missing_ok=True)
        record.write_text(json.dumps(ended | {"status": "in_progress"}))
        (tmp_path / "files" / "file-000000000000000000000000").write_bytes(b"of an upload that was cut off")
        with running_server(batch_dir=str(tmp_path)) as server:
            anna = Asking(server)
            batch = anna.ended(batch_id)
            assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
            assert set(anna.results(batch["output_file_id"])) == {f"r{i}" for i in range(4)}
            assert len(server.worker.adds) == 4 - whole[:cut].count(b"\n")
        assert not (tmp_path / "files" / "file-000000000000000000000000").exists()


def test_results_that_are_damaged_end_their_batch_and_not_those_behind_it(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        damaged, behind = (anna.begin([line(f"r{i}") for i in range(4)]) for _ in range(2))
        output = tmp_path / "files" / anna.ended(damaged)["output_file_id"]
        other = tmp_path / "files" / anna.ended(behind)["output_file_id"]
    for path in (output, other):
        path.with_suffix(".json").unlink()
    output.write_bytes(b"{}\n" + output.read_bytes())
    for batch_id, changes in ((damaged, {"expires_at": 1}), (behind, {})):
        record = tmp_path / "batches" / f"{batch_id}.json"
        record.write_text(json.dumps(json.loads(record.read_bytes()) | {"status": "in_progress"} | changes))
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        assert anna.ended(behind)["status"] == "completed"
        batch = anna.ended(damaged)
        assert batch["status"] in ("expired", "failed")
        assert {error["code"] for error in batch["errors"]["data"]} == {"disk_error"}
        assert "line 1" in batch["errors"]["data"][0]["message"]
        assert anna.content(batch["output_file_id"]) == output.read_bytes(), "what there is stays"


def test_what_was_cancelled_when_the_server_ended_is_cancelled(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line(f"r{i}") for i in range(4)])
        output = tmp_path / "files" / anna.ended(batch_id)["output_file_id"]
    record = tmp_path / "batches" / f"{batch_id}.json"
    ended = json.loads(record.read_bytes())
    output.write_bytes(output.read_bytes()[:-5])
    output.with_suffix(".json").unlink()
    record.write_text(json.dumps(ended | {"status": "cancelling", "ends_as": "cancelled", "num_completed": 0}))
    with running_server(batch_dir=str(tmp_path)) as server:
        batch = Asking(server).ended(batch_id)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("cancelled", 3)
        assert len(Asking(server).results(batch["output_file_id"])) == 3
        assert not server.worker.adds


def test_what_cannot_be_read_in_the_folder_is_left_alone_and_so_is_what_may_belong_to_it(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path)) as server:
        batch_id = Asking(server).begin([line("a")])
        Asking(server).ended(batch_id)
        kept = Asking(server).upload([line("b")])
    (tmp_path / "batches" / f"{batch_id}.json").write_bytes(b"\0\0\0")
    (tmp_path / "files" / f"{kept}.json").write_bytes(b"")
    before = {path.name for path in (tmp_path / "files").iterdir()}
    with running_server(batch_dir=str(tmp_path)) as server:
        assert Asking(server).get("/v1/batches")["data"] == []
        assert Asking(server).ended(Asking(server).begin([line("c")]))["status"] == "completed"
    assert before <= {path.name for path in (tmp_path / "files").iterdir()}


def test_who_has_no_key_any_longer_has_batches_that_wait(tmp_path: Path) -> None:
    folder = str(tmp_path / "batches")
    with running_server(SLOW, api_keys=KEYS, batch_dir=folder) as server:
        batch_id = Asking(server, KEYS[0]).begin([line("a", **LONG), line("b")])
        until(lambda: bool(server.worker.adds))
    with running_server(api_keys=KEYS[1:], batch_dir=folder) as server:
        bert = Asking(server, KEYS[1])
        assert bert.ended(bert.begin([line("c")]))["status"] == "completed"
        assert len(server.worker.adds) == 1
    with running_server(api_keys=KEYS, batch_dir=folder) as server:
        batch = Asking(server, KEYS[0]).ended(batch_id)
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


def test_a_file_that_a_batch_reads_stays(tmp_path: Path) -> None:
    with running_server(SLOW, batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch_id = anna.begin([line("a", **LONG)])
        file_id = anna.batch(batch_id)["input_file_id"]
        status, answer = server.json("DELETE", f"/v1/files/{file_id}")
        assert (status, answer["error"]["code"]) == (409, "file_in_use")
        server.json("POST", f"/v1/batches/{batch_id}/cancel")
        anna.ended(batch_id)
        assert server.json("DELETE", f"/v1/files/{file_id}")[0] == 200
        assert not list((tmp_path / "files").glob(f"{file_id}*"))


# ---------------------------------------------------------------- a disk that is full


def test_a_full_disk_ends_a_batch_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended, append = 0, disk.append_lines

    def append_some(path: Path, lines: list[bytes]) -> int:
        nonlocal appended
        appended += len(lines)
        if appended > 6:
            raise OSError(28, os.strerror(28))
        return append(path, lines)

    monkeypatch.setattr(content, "append_lines", append_some)
    with running_server(FakeOptions(max_num_seqs=1), batch_dir=str(tmp_path)) as server:
        anna = Asking(server)
        batch = anna.ended(anna.begin([line(i) for i in range(20)]))
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "disk_full")
        count = batch["request_counts"]["completed"]
        assert 1 <= count <= 6
        assert len(anna.results(batch["output_file_id"])) == count
        server.wait_idle()


def test_more_results_than_a_key_may_keep_end_a_batch(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path), max_batch_bytes=8000) as server:
        anna = Asking(server)
        batch = anna.ended(anna.begin([line(i) for i in range(30)]))
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "storage_limit")
        total = sum(one["bytes"] for one in anna.get("/v1/files")["data"])
        assert 4000 < total <= 8000


# ---------------------------------------------------------------- without a folder


def test_without_a_folder_there_are_no_files_and_batches() -> None:
    with running_server() as server:
        for method, path in (
            ("POST", "/v1/files"),
            ("GET", "/v1/files"),
            ("GET", "/v1/files/file-x/content"),
            ("POST", "/v1/batches"),
            ("POST", "/v1/batches/x/cancel"),
        ):
            status, answer = server.json(method, path)
            assert (status, answer["error"]["code"]) == (404, "batches_not_enabled")
