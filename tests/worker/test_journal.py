"""The worker with a journal: what it was told is on disk, however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.types import CacheShape, LimitChange
from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import Replayed
from chairlift.journal.writer import open_journal
from chairlift.wire import Abort, Add, Drain, Ready, SetLimits
from chairlift.worker.local import LocalEngine
from chairlift.worker.options import EngineOptions, decode_options, worker_command
from chairlift.worker.process import EXIT_OK
from fakes import FakeExecutor
from journal.recording import replay_file
from worker.fake_worker import JOURNAL
from worker.running import TIMEOUT_S, fake_engine, request
from worker.test_local import Inbox
from worker.test_local import request as local_request
from worker.test_process import Worker, start

Start = Callable[..., Worker]

__all__ = ["start"]  # a fixture of these tests, too


def replayed_equal(path: Path) -> Replayed:
    replayed = replay_file(path)
    assert replayed.difference is None
    return replayed


def test_everything_is_there_after_a_drain(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    worker = start(f"{JOURNAL}{path}")
    assert isinstance(worker.receive(), Ready)
    worker.generate(1)
    worker.send(SetLimits(LimitChange(max_num_seqs=3)), Add(request(2, max_tokens=50)), Abort(2), Drain())
    assert worker.exit_status() == EXIT_OK
    replayed = replayed_equal(path)
    assert replayed.num_steps >= 5 and not replayed.truncated
    text = path.read_text()
    assert all(f'"type":"{kind}"' in text for kind in ("add", "limits", "abort", "close", "begin", "finish"))


def test_a_killed_worker_leaves_what_it_did_up_to_the_last_second(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    worker = start(f"{JOURNAL}{path}")
    assert isinstance(worker.receive(), Ready)
    worker.generate(1)
    began = time.monotonic()
    while not path.exists() or b'"plan":null' not in path.read_bytes():
        assert time.monotonic() - began < TIMEOUT_S
        time.sleep(0.02)
    worker.process.kill()
    worker.exit_status()
    assert replayed_equal(path).num_steps == 5


def test_an_engine_in_this_process_closes_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path, JournalOptions(digest=True))
    engine = fake_engine(FakeExecutor(CacheShape(64, 4)))
    engine._recorder = journal
    journal.start(engine.scheduler)
    local, inbox = LocalEngine(engine, journal.close), Inbox()
    local.start(local_request(local), inbox)
    inbox.next()
    local.close()
    assert replayed_equal(path).num_steps >= 5


def test_options_of_the_journal_arrive(tmp_path: Path) -> None:
    options = EngineOptions(model="m", journal="/j", journal_digest=True, journal_max_bytes=1 << 20, journal_segments=2)
    assert options.journal_options() == JournalOptions(digest=True, max_bytes=1 << 20, max_segments=2)
    assert decode_options(worker_command(options, 3)[-1]) == options
    assert EngineOptions(model="m").journal is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"journal": ""}, "must name a file"),
        ({"journal_digest": True}, "goes with journal"),
        ({"journal": "j", "journal_max_bytes": 0}, "journal_max_bytes"),
        ({"journal": "j", "journal_segments": 0}, "journal_segments"),
        ({"journal": "j", "journal_segments": 10_000}, "journal_segments"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        EngineOptions(model="m", **options)  # type: ignore[arg-type]
