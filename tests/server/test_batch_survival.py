"""Batches of a server that is a process of its own: killed, stopped, and with an engine that dies."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from server.batch_files import Asking, Remote, follow, line
from server.fake_worker import DIE, HANG
from server.served import Served, served

WORKER: dict[str, Any] = {"max_num_seqs": 8, "step_s": 0.002, "heartbeat_s": 0.05}
IDS = [f"r{i}" for i in range(60)]


def folder(path: Path) -> dict[str, Any]:
    """Options; asked again and again, a server would fill a pipe with its log."""
    return {"batch_dir": str(path), "log_requests": False}


def asking(server: Served) -> Asking:
    return Asking(Remote(server.port))


def lines(**body: Any) -> list[str]:
    return [line(one, max_tokens=3 + int(one[1:]) % 40, ignore_eos=True, **body) for one in IDS]


def check_whole(asking: Asking, batch_id: str) -> None:
    """Every line has its one answer."""
    batch = asking.ended(batch_id)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 60, "completed": 60, "failed": 0})
    assert set(asking.results(batch["output_file_id"])) == set(IDS)


def num_answered(asking: Asking, batch_id: str) -> int:
    return int(asking.batch(batch_id)["request_counts"]["completed"])


def until_answered(asking: Asking, batch_id: str, count: int) -> None:
    follow(lambda: num_answered(asking, batch_id) >= min(len(IDS), count))


@pytest.mark.parametrize("num_kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_server_that_is_killed_again_and_again_answers_every_line_once(tmp_path: Path, num_kills: int) -> None:
    """At moments that are drawn: while it reads, asks, writes, and makes files of results."""
    rng, batch_id = random.Random(1), ""
    for _ in range(num_kills):
        with served(WORKER, **folder(tmp_path)) as server:
            anna = asking(server)
            batch_id = batch_id or anna.begin(lines())
            until_answered(anna, batch_id, num_answered(anna, batch_id) + rng.randrange(1, 4))
            server.tell(signal.SIGKILL)
            server.status()
    with served(WORKER, **folder(tmp_path)) as server:
        check_whole(asking(server), batch_id)
        assert not list((tmp_path / "files").glob("*.part"))


def test_a_server_that_is_stopped_waits_for_no_batch_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with served(WORKER, **folder(tmp_path)) as server:
        anna = asking(server)
        batch_id = anna.begin([*lines(), line("long", max_tokens=4000, ignore_eos=True)])
        follow(lambda: num_answered(anna, batch_id) >= 60)
        server.tell(signal.SIGTERM)
        assert server.status() == 0
    with served(WORKER | {"step_s": 0.0}, **folder(tmp_path)) as server:
        batch = asking(server).ended(batch_id)
        assert batch["request_counts"] == {"total": 61, "completed": 61, "failed": 0}


@pytest.mark.parametrize("poison", [DIE, pytest.param(HANG, marks=pytest.mark.long)])
def test_what_was_in_a_lost_engine_is_asked_again_and_what_kills_it_is_given_up(tmp_path: Path, poison: str) -> None:
    """The line that kills the engine is asked three times, twice of them alone; the others that were with it are not
    lost, and not blamed."""
    with served(WORKER, **folder(tmp_path), stall_timeout_s=0.5) as server:
        anna = asking(server)
        batch_id = anna.begin([*lines()[:20], line("poison", prompt=f"{poison} at once", max_tokens=9), *lines()[20:]])
        follow(lambda: anna.batch(batch_id)["status"] not in ("validating", "in_progress"))
        batch = anna.ended(batch_id)
        assert batch["request_counts"] == {"total": 61, "completed": 60, "failed": 1}
        assert set(anna.results(batch["output_file_id"])) == set(IDS)
        error = anna.results(batch["error_file_id"])["poison"]["response"]
        assert (error["status_code"], error["body"]["error"]["code"]) == (503, "engine_dead")
        assert server.metric("chairlift:engine_restarts_total") == 3
