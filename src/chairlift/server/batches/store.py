"""The folder of files and batches: what is there, whose it is, and how much of it there may be.

    lock
    files/file-...          content: what was sent, and results, also of batches that still run
    files/file-....json     its record; content without one, and without a batch that writes it, is nothing
    batches/batch_....json  the record of a batch

Records are in memory too, and that is where they are read. Everything about the disk may take long and runs on threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from chairlift.core.errors import InvalidOption
from chairlift.server.batches.disk import PART, lock_folder, replace_file, sync_folder
from chairlift.server.batches.records import BatchRecord, FileRecord, is_batch_id, is_file_id
from chairlift.server.errors import DO_NOT_RETRY, ApiError

_log = logging.getLogger("chairlift.server")

T = TypeVar("T")
R = TypeVar("R", FileRecord, BatchRecord)

_FULL = (errno.ENOSPC, errno.EDQUOT)

Held = dict[str, tuple[int, int]]
"""Files and all their bytes, by owner."""
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one principal may keep, and what one file may be."""

    max_file_bytes: int = 128 << 20
    max_bytes: int = 1 << 30
    """Of all files of a principal, results included."""
    max_files: int = 1000
    max_unfinished: int = 100
    """Batches of a principal that have not ended."""
    max_batches: int = 1000
    """Batches of a principal that are remembered; older ones that have ended are forgotten."""
    max_lines: int = 50_000
    max_line_bytes: int = 4 << 20


class Store:
    """Files and batches in one folder, which no other server may use meanwhile.

    `keeper` has one thread: what is kept of one record must not overtake what was kept before.

    Raises:
        InvalidOption: the folder cannot be used.
    """

    def __init__(self, folder: str, limits: BatchLimits, pool: Executor, keeper: Executor) -> None:
        self.limits = limits
        self.files: dict[str, FileRecord] = {}
        self.batches: dict[str, BatchRecord] = {}
        self._folder = Path(folder)
        self._pool = pool
        self._keeper = keeper
        self._lock = lock_folder(self._folder)
        self._coming: Held = {}
        """Uploads that are arriving, as far as they are here."""
        self._written: dict[str, int] = {}
        """Bytes of results that are no files yet, by batch."""
        self._kept: Held = {}
        """What is there, with the bytes of results that are no files yet."""
        try:
            self._load()
        except OSError as error:
            os.close(self._lock)
            raise InvalidOption(f"{folder}: batches cannot be kept there: {error.strerror}") from None
        serials = [*map(_serial_of, self.files.values()), *map(_serial_of, self.batches.values())]
        self._serial = max(serials, default=0)

    def close(self) -> None:
        """Let others use the folder."""
        os.close(self._lock)

    # ------------------------------------------------------------ the folder

    def content_path(self, file_id: str) -> Path:
        """Where the content of a file is. The id is one of ours."""
        return self._folder / "files" / file_id

    def result_paths(self, batch: BatchRecord) -> tuple[Path, Path]:
        """Where the results of a batch are: answers, and errors."""
        return self.content_path(batch.output_file_id), self.content_path(batch.error_file_id)

    async def on_disk(self, work: Callable[[], T], *, in_order: bool = False) -> T:
        """Do something that may have to wait for the disk; with `in_order`, after all that was asked for so before.

        Raises:
            ApiError: 507, it is full; 500, anything else about it.
        """
        pool = self._keeper if in_order else self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except OSError as error:
            raise disk_error(error) from None

    def _load(self) -> None:
        files, batches = self._folder / "files", self._folder / "batches"
        for path in (*files.glob(f"*{PART}"), *batches.glob(f"*{PART}")):
            path.unlink()
        known, num_bad = _records(batches, BatchRecord, is_batch_id)
        self.batches = {batch.id: batch for batch in known}
        there, num_bad_files = _records(files, FileRecord, is_file_id)
        for file in there:
            if self.content_path(file.id).is_file():
                self._add(file)
            else:
                _log.error("the content of %s is gone", file.id)
        written = {one for batch in self.unfinished() for one in batch.result_ids}
        for path in files.iterdir() if not num_bad + num_bad_files else ():
            is_ours = is_file_id(path.name) and (path.is_symlink() or path.is_file())
            if is_ours and path.name not in self.files and path.name not in written:
                path.unlink()  # an upload that was cut off, or a file whose deletion was
        for batch in self.unfinished():
            for file_id in batch.result_ids:
                path = self.content_path(file_id)
                if file_id not in self.files and path.exists():
                    self.add_written(batch, path.stat().st_size)

    # ------------------------------------------------------------ files

    def file(self, owner: str, file_id: str) -> FileRecord:
        """A file of this owner.

        Raises:
            ApiError: 404, there is none; that it may be somebody else's is not told.
        """
        file = self.files.get(file_id)
        if file is None or file.owner != owner:
            raise ApiError(404, "There is no such file.", param="file_id", code="file_not_found")
        return file

    def num_bytes(self, owner: str) -> int:
        """Bytes that an owner keeps, with those that are being written."""
        return sum(held.get(owner, _NOTHING)[1] for held in (self._kept, self._coming))

    def check_room(self, owner: str) -> None:
        """Raises an ApiError if an owner may not have another file."""
        num_files = self._kept.get(owner, _NOTHING)[0] + self.num_coming(owner)
        num_files += 2 * sum(batch.owner == owner for batch in self.unfinished())  # there may be results of each
        if num_files >= self.limits.max_files:
            raise _too_much(f"You have {num_files} files, of at most {self.limits.max_files}: delete some.")
        self.check_bytes(owner, 0)

    def check_bytes(self, owner: str, num_bytes: int) -> None:
        """Raises an ApiError if an owner may not have so many bytes more."""
        if num_bytes > self.room(owner):
            raise no_room(self.limits.max_bytes)

    def room(self, owner: str) -> int:
        """Bytes that an owner may have besides what is there."""
        return self.limits.max_bytes - self.num_bytes(owner)

    def num_coming(self, owner: str) -> int:
        """Files of an owner that are arriving."""
        return self._coming.get(owner, _NOTHING)[0]

    def begin_coming(self, owner: str) -> None:
        """A file is going to arrive."""
        _count(self._coming, owner, 1, 0)

    def add_coming(self, owner: str, num_bytes: int) -> None:
        """So much more of it has."""
        _count(self._coming, owner, 0, num_bytes)

    def end_coming(self, owner: str, num_bytes: int) -> None:
        """A file of so many bytes is there, or given up."""
        _count(self._coming, owner, -1, -num_bytes)

    def add_written(self, batch: BatchRecord, num_bytes: int) -> None:
        """There are so many bytes more of a batch's results."""
        self._written[batch.id] = self._written.get(batch.id, 0) + num_bytes
        _count(self._kept, batch.owner, 0, num_bytes)

    def release(self, batch: BatchRecord) -> None:
        """A batch has ended: its results are files like others."""
        _count(self._kept, batch.owner, 0, -self._written.pop(batch.id, 0))

    def _add(self, file: FileRecord) -> None:
        if file.id not in self.files:
            _count(self._kept, file.owner, 1, file.num_bytes)
        self.files[file.id] = file

    async def add_file(self, file: FileRecord) -> None:
        """Keep the record of a file whose content is there for good; adding it again changes nothing.

        Raises:
            ApiError: the disk does not take it.
        """
        await self._keep(self.content_path(file.id).with_suffix(".json"), file)
        self._add(file)

    async def delete_file(self, file: FileRecord) -> None:
        """Forget a file.

        Raises:
            ApiError: 409 if a batch still needs it.
        """
        if any(file.id == batch.input_file_id for batch in self.unfinished()):
            raise ApiError(
                409,
                "A batch that has not ended reads this file: cancel it first.",
                param="file_id",
                code="file_in_use",
                headers=DO_NOT_RETRY,
            )
        if self.files.pop(file.id, None) is not None:
            _count(self._kept, file.owner, -1, -file.num_bytes)
        await self.discard(file.id)

    async def discard(self, file_id: str) -> None:
        """Remove what the disk has of a file: its record first, since content without one is nothing.

        Raises:
            ApiError: the disk does not do it.
        """
        path = self.content_path(file_id)
        await self.on_disk(partial(_remove, (path.with_suffix(".json"), path)), in_order=True)

    # ------------------------------------------------------------ batches

    def unfinished(self) -> list[BatchRecord]:
        """Batches that have not ended, the oldest first."""
        return sorted((one for one in self.batches.values() if not one.has_ended), key=_serial_of)

    def batch(self, owner: str, batch_id: str) -> BatchRecord:
        """A batch of this owner.

        Raises:
            ApiError: 404, there is none; that it may be somebody else's is not told.
        """
        batch = self.batches.get(batch_id)
        if batch is None or batch.owner != owner:
            raise ApiError(404, "There is no such batch.", param="batch_id", code="batch_not_found")
        return batch

    async def add_batch(self, batch: BatchRecord) -> None:
        """Keep a new batch.

        Raises:
            ApiError: 429, the owner has too many that have not ended; or the disk does not take it.
        """
        own = [one for one in self.batches.values() if one.owner == batch.owner]
        if sum(not one.has_ended for one in own) >= self.limits.max_unfinished:
            most = self.limits.max_unfinished
            raise ApiError(
                429, f"You have {most} batches that have not ended, the most there may be.", code="too_many_batches"
            )
        self.batches[batch.id] = batch  # from here on its input cannot be deleted
        try:
            await self.save(batch)
        except ApiError:
            del self.batches[batch.id]
            raise
        ended = sorted((one for one in own if one.has_ended), key=_serial_of)
        for one in ended[: max(0, len(own) + 1 - self.limits.max_batches)]:
            del self.batches[one.id]
            await self.on_disk(partial(_remove, (self._batch_path(one.id),)), in_order=True)

    async def save(self, batch: BatchRecord) -> None:
        """Keep what a batch has become.

        Raises:
            ApiError: the disk does not take it.
        """
        await self._keep(self._batch_path(batch.id), batch)

    async def save_if_possible(self, batch: BatchRecord) -> None:
        """Keep what can be found out again: a disk that does not take it now is no reason to stop."""
        try:
            await self.save(batch)
        except ApiError as error:
            _log.error("batch %s cannot be kept: %s", batch.id, error.message)

    def next_serial(self) -> int:
        """Of the next record."""
        self._serial += 1
        return self._serial

    def _batch_path(self, batch_id: str) -> Path:
        return self._folder / "batches" / f"{batch_id}.json"

    async def _keep(self, path: Path, record: FileRecord | BatchRecord) -> None:
        await self.on_disk(partial(replace_file, path, msgspec.json.encode(record)), in_order=True)


def disk_error(error: OSError) -> ApiError:
    """What a client is told of a disk that does not do what it should."""
    if error.errno in _FULL:
        return ApiError(507, "The disk for files of this server is full.", code="disk_full", headers=DO_NOT_RETRY)
    _log.error("files: %s", error)
    return ApiError(500, "The server could not write or read its files.", code="disk_error")


def no_room(max_bytes: int) -> ApiError:
    """Somebody's files are as many bytes as they may be."""
    return _too_much(f"Your files may have {max_bytes} bytes in all: delete some.")


def _too_much(message: str) -> ApiError:
    return ApiError(413, message, code="storage_limit", headers=(*DO_NOT_RETRY, (b"connection", b"close")))


def _count(held: Held, owner: str, num_files: int, num_bytes: int) -> None:
    """An owner has so many more; who has nothing is forgotten."""
    files_before, bytes_before = held.get(owner, _NOTHING)
    held[owner] = files_before + num_files, bytes_before + num_bytes
    if held[owner] == _NOTHING:
        del held[owner]


def _serial_of(record: FileRecord | BatchRecord) -> int:
    return record.serial


def _records(folder: Path, kind: type[R], is_id: Callable[[str], bool]) -> tuple[list[R], int]:
    """What can be read of the records in a folder, and how many cannot: those are left alone, for whoever looks after
    the disk."""
    found: list[R] = []
    num_bad = 0
    for path in sorted(folder.glob("*.json")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
            _log.error("%s cannot be used: %s", path, error)
            num_bad += 1
            continue
        if is_id(record.id) and path.stem == record.id:
            found.append(record)
    return found, num_bad


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
