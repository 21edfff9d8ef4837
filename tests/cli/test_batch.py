"""Batch files: every request gets one result, whatever happened before, in between and at the same time."""

from __future__ import annotations

import asyncio
import errno
import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chairlift.cli.batch import (
    Ask,
    Progress,
    check_requests,
    finished_ids,
    open_results,
    read_requests,
    run_batch,
)
from chairlift.core.errors import EngineDead, InvalidOption
from chairlift.server.batches.lines import BatchRequest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def line(custom_id: object = "a", url: object = COMPLETION, body: object = None, **more: object) -> str:
    content = {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "x"} if body is None else body}
    return json.dumps({**content, **more}) + "\n"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def asked(custom_id: str, url: str, body: dict[str, Any]) -> BatchRequest:
    return BatchRequest(custom_id, url, json.dumps(body).encode())


def run(requests: Sequence[BatchRequest], ask: Ask, output: Any, max_in_flight: int = 3) -> Progress:
    async def main() -> Progress:
        return await run_batch(
            iter(requests), ask, output, max_in_flight=max_in_flight, on_result=lambda progress: None
        )

    return asyncio.run(main())


def results(output: bytes) -> dict[str, Any]:
    parsed = [json.loads(each) for each in output.decode().splitlines()]
    assert len({each["custom_id"] for each in parsed}) == len(parsed)
    return {each["custom_id"]: each for each in parsed}


async def echo(url: str, body: bytes) -> tuple[int, bytes]:
    """Answers in an order of its own; refuses what asks for it."""
    content = json.loads(body)
    for _ in range(content.get("turns", 0)):
        await asyncio.sleep(0)
    if content.get("bad"):
        return 400, json.dumps({"error": {"message": "bad"}}).encode()
    return 200, json.dumps({"id": "x", "usage": {"completion_tokens": 2}, "echo": content["prompt"]}).encode()


class TestInput:
    def test_requests_in_order(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "in.jsonl", line("a"), "\n", line("b", CHAT, {"messages": []}), line("ü" * 100).rstrip()
        )
        assert [request.custom_id for request in read_requests(path)] == ["a", "b", "ü" * 100]
        assert check_requests(path) == {"a", "b", "ü" * 100}

    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ("{", "not JSON"),
            ('{"body": ' + "[" * 100_000, "not JSON"),
            ("[" * 100_000, "must be an object"),
            ("[]", "must be an object"),
            (line(custom_id=None), "custom_id"),
            (line(custom_id=""), "custom_id"),
            (line(custom_id=3), "custom_id"),
            (line(url="/v1/embeddings"), "url"),
            (line(url=None), "url"),
            (line(url=["/v1/completions"]), "url"),
            (line(body="text"), "body"),
            (line(method="GET"), "method"),
        ],
    )
    def test_a_bad_line_is_named_before_anything_runs(self, tmp_path: Path, bad: str, reason: str) -> None:
        path = write(tmp_path / "in.jsonl", line("a"), bad.rstrip("\n") + "\n")
        with pytest.raises(InvalidOption, match="line 2") as caught:
            check_requests(path)
        assert reason in str(caught.value)

    def test_ids_that_come_twice(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="'a' comes twice"):
            check_requests(write(tmp_path / "in.jsonl", line("a"), line("b"), line("a")))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="cannot be read"):
            check_requests(tmp_path / "none.jsonl")


class TestRun:
    def test_every_request_gets_its_own_result_in_any_order(self) -> None:
        random = Random(1)
        requests = [
            asked(str(i), COMPLETION, {"prompt": f"p{i}", "turns": random.randrange(9), "bad": i % 7 == 0})
            for i in range(60)
        ]
        output = io.BytesIO()
        progress = run(requests, echo, output)
        assert (progress.num_answered, progress.num_failed, progress.num_output_tokens) == (51, 9, 102)
        written = results(output.getvalue())
        assert set(written) == {request.custom_id for request in requests}
        assert list(written) != [request.custom_id for request in requests]
        for request in requests:
            response = written[request.custom_id]["response"]
            if json.loads(request.body)["bad"]:
                assert (response["status_code"], response["body"]["error"]["message"]) == (400, "bad")
            else:
                assert (response["status_code"], response["body"]["echo"]) == (200, json.loads(request.body)["prompt"])

    def test_no_more_in_flight_than_allowed(self) -> None:
        now, most = 0, 0

        async def ask(url: str, body: bytes) -> tuple[int, bytes]:
            nonlocal now, most
            now += 1
            most = max(most, now)
            for _ in range(3):
                await asyncio.sleep(0)
            now -= 1
            return await echo(url, body)

        run([asked(str(i), CHAT, {"prompt": ""}) for i in range(30)], ask, io.BytesIO(), max_in_flight=4)
        assert most == 4

    def test_a_stream_is_refused(self) -> None:
        output = io.BytesIO()
        progress = run([asked("a", CHAT, {"prompt": "", "stream": True})], echo, output)
        assert progress.num_failed == 1
        assert results(output.getvalue())["a"]["response"]["body"]["error"]["param"] == "stream"

    def test_a_lost_engine_writes_no_result_for_what_it_lost(self) -> None:
        async def ask(url: str, body: bytes) -> tuple[int, bytes]:
            if json.loads(body)["prompt"] >= 5:
                return 503, b'{"error": {"message": "The engine stopped."}}'
            return await echo(url, body)

        output = io.BytesIO()
        with pytest.raises(EngineDead, match=r"The engine stopped\."):
            run([asked(str(i), CHAT, {"prompt": i}) for i in range(30)], ask, output)
        assert set(results(output.getvalue())) <= {str(i) for i in range(5)}


class FullDisk(io.RawIOBase):
    """Takes a few bytes at a time, and none after the first hundred."""

    def __init__(self) -> None:
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(self.content) >= 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.content += data[:7]
        return min(7, len(data))


class TestDisk:
    def test_a_file_that_takes_little_at_a_time_gets_everything(self) -> None:
        class Slow(FullDisk):
            def write(self, data: Any) -> int:
                self.content += data[:7]
                return min(7, len(data))

        output = Slow()
        run([asked(str(i), CHAT, {"prompt": i}) for i in range(3)], echo, output)
        assert set(results(output.content)) == {"0", "1", "2"}

    def test_a_full_disk_ends_the_run_and_what_is_in_flight(self) -> None:
        cancelled = 0

        async def ask(url: str, body: bytes) -> tuple[int, bytes]:
            nonlocal cancelled
            if json.loads(body)["prompt"] == 0:
                return await echo(url, body)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
            raise AssertionError

        with pytest.raises(InvalidOption, match="cannot be written: No space left"):
            run([asked(str(i), CHAT, {"prompt": i}) for i in range(3)], ask, FullDisk())
        assert cancelled == 2


class TestResume:
    def test_a_file_cut_at_any_byte_goes_on_without_loss_or_repetition(self, tmp_path: Path) -> None:
        requests = [asked(str(i), COMPLETION, {"prompt": f"ü{i}"}) for i in range(4)]
        whole = io.BytesIO()
        run(requests, echo, whole)
        path = tmp_path / "out.jsonl"
        for cut in range(len(whole.getvalue()) + 1):
            path.write_bytes(whole.getvalue()[:cut])
            done = finished_ids(path)
            assert done == finished_ids(path), "repairing once is enough"
            with path.open("ab") as file:
                rest = io.BytesIO()
                run([request for request in requests if request.custom_id not in done], echo, rest)
                file.write(rest.getvalue())
            assert set(results(path.read_bytes())) == {"0", "1", "2", "3"}

    def test_no_file_and_an_empty_one(self, tmp_path: Path) -> None:
        assert finished_ids(tmp_path / "none") == set()
        assert finished_ids(write(tmp_path / "empty")) == set()

    @pytest.mark.parametrize("path", ["/dev/null", "/dev/full", "/"])
    def test_what_is_no_file_is_not_read(self, path: str) -> None:
        with pytest.raises(InvalidOption, match="not a regular file"):
            finished_ids(Path(path))

    def test_the_requests_are_not_taken_for_results(self, tmp_path: Path) -> None:
        path = write(tmp_path / "in.jsonl", line("a"), line("b"))
        with pytest.raises(InvalidOption, match="line 1 is not a result"):
            finished_ids(path)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="no-such-folder/x: cannot be written"):
            open_results(tmp_path / "no-such-folder" / "x")

    def test_some_other_file_is_left_alone(self, tmp_path: Path) -> None:
        path = write(tmp_path / "notes.txt", "dear diary\n", "today\n")
        with pytest.raises(InvalidOption, match="line 1 is not a result"):
            finished_ids(path)
        assert path.read_text(encoding="utf-8") == "dear diary\ntoday\n"
