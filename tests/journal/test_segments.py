"""Files of a journal: private, bounded, never in each other's way."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.journal.segments import OPENING, File, SegmentFiles, create

HEAD = OPENING + b',"number":%d}\n'


class Quota:
    """Files on a disk with room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def create(self, path: Path) -> File:
        return QuotaFile(create(path), self)


class QuotaFile:
    def __init__(self, file: File, quota: Quota) -> None:
        self._file = file
        self._quota = quota

    def write(self, data: memoryview, /) -> int | None:
        fitting = min(len(data), self._quota.room)
        if not fitting:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._quota.room -= fitting
        return self._file.write(data[:fitting])

    def close(self) -> None:
        self._file.close()


@contextmanager
def files_at(path: Path, max_segments: int = 3, create_file: Callable[[Path], File] = create) -> Iterator[SegmentFiles]:
    files = SegmentFiles(path, max_segments, create_file)
    try:
        yield files
    finally:
        files.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_segments_get_older_names_and_the_oldest_goes(tmp_path: Path) -> None:
    with files_at(tmp_path / "j") as files:
        for number in range(5):
            files.begin([HEAD % number])
            files.write(b"%d\n" % number)
            assert files.size == len(HEAD % number) + 2 and files.snapshot_size == len(HEAD % number)
    assert contents(tmp_path) == {name: HEAD % i + b"%d\n" % i for name, i in (("j", 4), ("j.1", 3), ("j.2", 2))}


def test_one_segment_is_replaced(tmp_path: Path) -> None:
    with files_at(tmp_path / "j", 1) as files:
        files.begin([HEAD % 0])
        files.begin([HEAD % 1])
    assert contents(tmp_path) == {"j": HEAD % 1}


def test_an_earlier_process_s_segments_are_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with files_at(tmp_path / "j") as files:
            files.begin([HEAD % 0])
    assert list(contents(tmp_path)) == ["j", "j.1"]


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_may_read(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with files_at(tmp_path / "j") as files:
            files.begin([HEAD % 0])
            files.begin([HEAD % 1])
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_full_disk_costs_no_segment_that_is_there(tmp_path: Path) -> None:
    quota = Quota(3 * len(HEAD % 0))
    with files_at(tmp_path / "j", 2, quota.create) as files:
        files.begin([HEAD % 0])
        files.begin([HEAD % 1])
        before = contents(tmp_path)
        with pytest.raises(OSError, match="No space"):
            files.begin([HEAD % 2, b"{}\n"])
        assert contents(tmp_path) == before
        with pytest.raises(OSError, match="no segment"):
            files.write(b"{}\n")
        quota.room = 1000
        files.begin([HEAD % 3])
    assert contents(tmp_path) == {"j": HEAD % 3, "j.1": HEAD % 1}


def test_what_a_killed_process_left_half_done_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "j.new").write_bytes(b"half")
    with files_at(tmp_path / "j") as files:
        files.begin([HEAD % 0])
    assert contents(tmp_path) == {"j": HEAD % 0}


@pytest.mark.parametrize("name", ["j", "j.1", "j.2"])
def test_other_files_are_not_touched(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"export PATH=/usr/bin\n")
    with pytest.raises(InvalidOption, match="not a journal"):
        SegmentFiles(tmp_path / "j", 3)
    assert contents(tmp_path) == {name: b"export PATH=/usr/bin\n"}


def test_an_empty_file_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "j").touch()
    with files_at(tmp_path / "j") as files:
        files.begin([HEAD % 0])
    assert contents(tmp_path) == {"j": HEAD % 0}


def test_paths_that_cannot_be_used_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "folder", tmp_path / "link"):
        with pytest.raises(InvalidOption, match="not a regular file"):
            SegmentFiles(path, 3)
    with pytest.raises(InvalidOption, match="No such file"):
        SegmentFiles(tmp_path / "missing" / "j", 3)
    with pytest.raises(InvalidOption, match="Not a directory"):
        SegmentFiles(Path("/dev/null") / "j", 3)


def test_two_writers_of_one_journal_are_refused(tmp_path: Path) -> None:
    with files_at(tmp_path / "j") as files:
        files.begin([HEAD % 0])
        with pytest.raises(InvalidOption, match="another process"):
            SegmentFiles(tmp_path / "j", 3)
    with files_at(tmp_path / "j"):
        pass


def test_of_two_writers_who_started_at_once_one_writes(tmp_path: Path) -> None:
    """Both found nobody there, and then took turns to make the other's segment an old one."""
    with files_at(tmp_path / "j") as one, files_at(tmp_path / "j") as other:
        one.begin([HEAD % 0])
        with pytest.raises(OSError, match="written by another process"):
            other.begin([HEAD % 1])
        one.write(b"more\n")
        assert contents(tmp_path) == {"j": HEAD % 0 + b"more\n"}
        one.close()
        other.begin([HEAD % 2])
        assert contents(tmp_path) == {"j": HEAD % 2, "j.1": HEAD % 0 + b"more\n"}


def test_a_segment_that_another_one_begins_is_left_alone(tmp_path: Path) -> None:
    with files_at(tmp_path / "j") as other:
        begun = create(tmp_path / "j.new")
        with pytest.raises(OSError, match="written by another process"):
            other.begin([HEAD % 1])
        begun.close()
        other.begin([HEAD % 2])
        assert contents(tmp_path) == {"j": HEAD % 2}
