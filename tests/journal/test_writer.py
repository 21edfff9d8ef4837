"""Writing while serving: whatever happens to the disk, the engine goes on, and what is written replays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, FinishReason, Limits, Request, SamplingParams
from chairlift.journal import records
from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import replay
from chairlift.journal.segments import SegmentFiles, create
from chairlift.journal.writer import Journal
from fakes import VOCAB_SIZE, FakeExecutor
from journal.recording import replay_file, segments
from journal.test_segments import Quota

SHAPE = CacheShape(60, 4)
WAIT_S = 20.0


class Serving:
    """An engine with a journal and a clock of its own."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.scheduler = Scheduler(Limits(4, 40, 100), SHAPE, vocab_size=VOCAB_SIZE)
        self.engine = Engine(self.scheduler, FakeExecutor(SHAPE), recorder=journal)
        self.now = 0.0
        self.reasons: list[FinishReason] = []

    def serve(self, num_requests: int, first: int = 0) -> None:
        for number in range(first, first + num_requests):
            prompt = [(number * 7 + i) % VOCAB_SIZE for i in range(12)]
            self.engine.add(Request(number, prompt, SamplingParams(max_tokens=6, ignore_eos=True)))
            self.step()
        while self.step():
            pass

    def step(self) -> bool:
        self.now += 0.01
        if not self.engine.begin(self.now):
            return False
        self.reasons += [finish.reason for finish in self.engine.finish(self.now).finishes]
        return True

    def check(self, num_requests: int) -> None:
        assert self.reasons == [FinishReason.LENGTH] * num_requests


class Told:
    """What was said on standard error, and a clock that stands."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.seconds = 1e9

    def say(self, message: str) -> None:
        self.messages.append(message)

    def clock(self) -> float:
        return self.seconds


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def journals() -> Iterator[list[Journal]]:
    """Closed at the end."""
    made: list[Journal] = []
    yield made
    for journal in made:
        journal.close()


def replay_all(path: Path) -> list[tuple[int, bool, int]]:
    """(number, after a gap, steps) of each segment; all are equal."""
    replays = [replay_file(name) for name in segments(path)]
    assert all(r.difference is None for r in replays)
    return [(r.segment.number, r.segment.gap, r.num_steps) for r in replays]


def test_a_full_disk_is_a_gap_and_nothing_else(told: Told, journals: list[Journal], tmp_path: Path) -> None:
    path, quota = tmp_path / "j", Quota(20_000)
    journal = Journal(JournalOptions(), SegmentFiles(path, 9, quota.create), say=told.say, clock=told.clock)
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    first = 0
    while not told.messages:
        serving.serve(1, first)
        journal.write()
        first += 1
    assert told.messages == ["the journal has a gap: No space left on device; serving goes on"]
    serving.serve(20, first)
    journal.write()
    told.seconds += 60  # it is tried again, in vain
    journal.write()
    serving.serve(5, first + 20)
    journal.write()
    assert [gap for _, gap, _ in replay_all(path)] == [False]

    quota.room = 1 << 20
    told.seconds += 60
    journal.write()
    serving.serve(5, first + 25)
    journal.write()
    serving.check(first + 30)
    assert [gap for _, gap, _ in replay_all(path)] == [False, True]
    assert len(told.messages) == 1


def test_a_disk_that_does_not_answer_bounds_what_is_remembered(
    told: Told, journals: list[Journal], tmp_path: Path
) -> None:
    journal = Journal(JournalOptions(), SegmentFiles(tmp_path / "j", 9), say=told.say, capacity=1000)
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    serving.serve(40)
    assert journal._num_waiting < 1100
    journal.write()
    serving.serve(3, 40)
    journal.write()
    serving.check(43)
    assert [gap for _, gap, _ in replay_all(tmp_path / "j")] == [False, True]
    assert told.messages == ["the journal has a gap: it is written too slowly; serving goes on"]


def test_a_defect_of_the_journal_ends_the_journal_only(
    told: Told, journals: list[Journal], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(JournalOptions(max_bytes=1), SegmentFiles(tmp_path / "j", 9), say=told.say)
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    serving.serve(5)
    journal.write()
    serving.scheduler.strange = object()  # type: ignore[attr-defined]
    serving.serve(40, 5)
    journal.write()
    serving.serve(40, 45)
    serving.check(85)
    assert told.messages == ["the journal ends here: no snapshot can be taken; serving goes on"]
    assert "no place in a snapshot" in capsys.readouterr().err
    assert len(journal._queue) == 0
    assert replay_all(tmp_path / "j")


def test_segments_are_bounded(journals: list[Journal], tmp_path: Path) -> None:
    journal = Journal(JournalOptions(max_bytes=40_000), SegmentFiles(tmp_path / "j", 3))
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    for first in range(0, 200, 2):
        serving.serve(2, first)
        journal.write()
    files = segments(tmp_path / "j")
    assert len(files) == 3
    print([n.stat().st_size for n in files])
    assert all(40_000 <= name.stat().st_size < 50_000 for name in files[:-1])
    assert replay_all(tmp_path / "j")[-1][0] > 5


def wait_for(path: Path, text: bytes) -> float:
    """Seconds until a file holds a text."""
    began = time.monotonic()
    while not (path.exists() and text in path.read_bytes()):
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.01)
    return time.monotonic() - began


def test_what_happened_is_in_the_file_soon_though_nobody_closes_it(journals: list[Journal], tmp_path: Path) -> None:
    """So that a killed process leaves it: within a second, if the machine has time for it."""
    journal = Journal(JournalOptions(), SegmentFiles(tmp_path / "j", 3))
    journals.append(journal)
    serving = Serving(journal)
    journal.start(serving.scheduler)
    serving.serve(3)
    assert wait_for(tmp_path / "j", b'"plan":null') < WAIT_S
    assert replay_all(tmp_path / "j")[0][2] > 3


def test_closing_writes_what_is_left(told: Told, tmp_path: Path) -> None:
    journal = Journal(JournalOptions(), SegmentFiles(tmp_path / "j", 3), poll_s=3600.0)
    serving = Serving(journal)
    journal.start(serving.scheduler)
    serving.serve(3)
    journal.close()
    journal.close()
    assert not any(thread.name == "journal" for thread in threading.enumerate())
    assert serving.journal is journal and replay_all(tmp_path / "j")[0][2] > 3


def test_a_process_that_is_killed_leaves_whole_lines_but_perhaps_the_last(
    journals: list[Journal], tmp_path: Path
) -> None:
    journal = Journal(JournalOptions(), SegmentFiles(tmp_path / "j", 3))
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    serving.serve(5)
    journal.write()
    whole = (tmp_path / "j").read_bytes()
    lines = whole.splitlines(keepends=True)
    head = len(b"".join(line for line in lines if line.startswith((b'{"type":"segment"', b'{"type":"object"'))))
    for cut in [head, head + 1, len(whole) - 1, *range(head + 50, len(whole), 997)]:
        (tmp_path / "cut").write_bytes(whole[:cut])
        replayed = replay_file(tmp_path / "cut")
        assert replayed.difference is None
        assert replayed.truncated == (not whole[:cut].endswith(b"\n"))


def test_a_file_is_made_anew_where_one_was_removed(journals: list[Journal], tmp_path: Path) -> None:
    """Somebody tidies up while we write: the next segment does not mind."""
    journal = Journal(JournalOptions(max_bytes=1), SegmentFiles(tmp_path / "j", 3, create))
    journals.append(journal)
    serving = Serving(journal)
    journal.attach(serving.scheduler)
    journal.write()
    os.unlink(tmp_path / "j")  # noqa: PTH108
    for first in range(0, 30, 3):
        serving.serve(3, first)
        journal.write()
    serving.check(30)
    assert replay_all(tmp_path / "j")


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("during", ["begin", "finish"])
def test_a_scheduler_that_breaks_leaves_what_broke_it(
    during: str, digest: bool, journals: list[Journal], tmp_path: Path
) -> None:
    """A block that two believe to be theirs: its second release is one too many, today and in every replay."""
    journal = Journal(JournalOptions(digest=digest), SegmentFiles(tmp_path / "j", 3))
    journals.append(journal)
    serving = Serving(journal)
    engine, scheduler = serving.engine, serving.scheduler
    engine.add(Request(1, [1, 2, 3, 4, 5], SamplingParams(max_tokens=2, ignore_eos=True), e2e_deadline=0.5))
    serving.step()
    (sequence,) = scheduler._live[1]
    scheduler.kv.pool._refs[sequence.blocks[-1]] = 0
    journal.attach(scheduler)
    if during == "begin":  # its deadline has passed
        with pytest.raises(ValueError, match="not held"):
            engine.begin(1.0)
    else:
        engine.begin(0.1)
        with pytest.raises(ValueError, match="not held"):
            engine.finish(0.2)
    journal.write()
    replayed = replay_file(tmp_path / "j")
    assert replayed.difference is None
    assert replayed.broken is not None and replayed.broken.startswith("ValueError: block ")

    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    pool = next(i for i, line in enumerate(lines) if b'"of":"BlockPool"' in line)
    entry = records.decode(lines[pool])
    assert isinstance(entry, records.Object)
    entry.fields["_refs"][sequence.blocks[-1]] = 1
    mended = replay([*lines[:pool], records.encode(entry), *lines[pool + 1 :]]).difference
    assert mended is not None and (mended.what, mended.replayed) == ("the scheduler failed", "no failure")
