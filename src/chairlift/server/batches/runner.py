"""Answering batches: each line of a file is asked like any other request, in the background of the engine.

    validate ──> a queue for each owner ──> ask line by line, as turns come ──> results on disk ──> finalise

A result is on disk, for good, before it is counted. So whatever happens to this process, what was in flight is all that
is asked again, and nothing has two results.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chairlift.core.types import BACKGROUND_PRIORITY
from chairlift.server.batches.disk import append_lines
from chairlift.server.batches.lines import (
    BadLine,
    BatchRequest,
    finished_ids,
    read_requests,
    result_line,
    scan_requests,
    unanswered_line,
    unmet_wish,
)
from chairlift.server.batches.records import OUTPUT, BatchRecord, FileRecord, LineError, Status
from chairlift.server.batches.store import BatchLimits, Store, no_room
from chairlift.server.batches.turns import Turns, num_answers
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.identity import TENANT_HEADERS, Principal
from chairlift.server.inner import InnerExchange

_log = logging.getLogger("chairlift.server")

MAX_ERRORS = 100
"""Of a file that cannot be used, so many are told."""
MAX_ID_CHARS = 512
READ_AHEAD_BYTES = 1 << 20
"""Lines that are read at a time, and at least one."""
MAX_LOSSES = 3
"""A request that was in the engine so often when that was lost is not asked again: it may be what kills it. From the
first time on it is asked alone."""
AGAIN_S = 5.0
"""When is tried again what a disk did not take, and a request that was refused for now without saying for how long."""
MAX_PAUSE_S = 60.0
LOOK_S = 0.25
"""How often is looked whether the engine is back, or whoever a batch is for."""


@dataclass(frozen=True, slots=True)
class Question:
    """A line, and what was found out about it where it was read."""

    request: BatchRequest
    num_answers: int
    wish: str | None
    """The field by which it asks for what it cannot have."""


class Run:
    """A batch that is being answered."""

    def __init__(self, batch: BatchRecord) -> None:
        self.batch = batch
        self.ready: deque[Question] = deque()
        """Read and not asked, or to be asked again."""
        self.done: set[str] = set()
        """What had a result before."""
        self.offset = 0
        """Of the first byte of the input that was not read."""
        self.is_read = False
        self.not_before = 0.0
        self.results: list[tuple[bool, bytes]] = []
        """Not on disk yet: whether it is an answer, and its line."""
        self.writing = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None

    def end(self, status: Status) -> None:
        """Stop asking: it becomes that."""
        self.batch.ends_as = status
        if self.task is not None:
            self.task.cancel()


class Runner:
    """Works at all batches of a store that have not ended.

    `ask` serves a request of this process's own. `principal` gives who goes by a name now and may use a path.
    """

    def __init__(
        self,
        store: Store,
        ask: Callable[[InnerExchange], Awaitable[None]],
        principal: Callable[[str, str], Principal | None],
        turns_for: Callable[[str], Turns],
        is_up: Callable[[], bool],
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._ask = ask
        self._principal = principal
        self._turns_for = turns_for
        self._is_up = is_up
        self._wall_clock = wall_clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, deque[BatchRecord]] = {}
        """By owner: batches that are in progress, the one that is being answered first."""
        self._runs: dict[str, Run] = {}
        """Those that are being answered, by id."""
        self._validating = asyncio.Semaphore(1)
        self._is_closed = False

    # ------------------------------------------------------------ from outside

    def start(self) -> None:
        """Go on with what was there when the last server ended."""
        for batch in self._store.unfinished():
            _log.info("batch %s is %s and goes on", batch.id, batch.status)
            if batch.status == "validating":
                self.begin(batch)
            elif batch.status == "in_progress":
                self._enqueue(batch)
            else:
                self._spawn(self._finalize(batch))

    def begin(self, batch: BatchRecord) -> None:
        """A new batch is there."""
        self._spawn(self._validate(batch))

    async def cancel(self, batch: BatchRecord) -> None:
        """Stop asking, and keep what was answered.

        Raises:
            ApiError: the disk does not take it.
        """
        if batch.status == "cancelling":
            return
        batch.become("cancelling", self._now())
        batch.ends_as = "cancelled"
        run = self._runs.get(batch.id)
        queue = self._queues.get(batch.owner)
        if run is not None:
            run.end("cancelled")
        elif queue is not None and batch in queue:
            queue.remove(batch)
            self._spawn(self._finalize(batch))
        await self._store.save(batch)

    async def close(self) -> None:
        """Stop everything where it is; the next server goes on with it."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:
            work.close()
            return

        async def logged() -> None:
            try:
                await work
            except Exception:
                _log.exception("a batch is not worked at any longer, until the next start")

        task = asyncio.create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> int:
        return int(self._wall_clock())

    # ------------------------------------------------------------ validating

    async def _validate(self, batch: BatchRecord) -> None:
        path = self._store.content_path(batch.input_file_id)
        async with self._validating:
            if not batch.is_in("validating"):
                await self._finalize(batch)
                return
            try:
                check = partial(check_input, path, batch.endpoint, self._store.limits)
                num_requests, errors = await self._store.on_disk(check)
            except ApiError as error:
                num_requests, errors = 0, [LineError(error.code or "disk_error", error.message)]
        if not batch.is_in("validating"):  # cancelled meanwhile
            await self._finalize(batch)
            return
        batch.num_requests = num_requests
        if errors:
            batch.errors = errors
            batch.ends_as = "failed"
            await self._finalize(batch)
            return
        batch.become("in_progress", self._now())
        await self._keep(batch)
        if batch.is_in("in_progress"):
            self._enqueue(batch)
        else:
            await self._finalize(batch)

    # ------------------------------------------------------------ answering

    def _enqueue(self, batch: BatchRecord) -> None:
        queue = self._queues.setdefault(batch.owner, deque())
        queue.append(batch)
        if len(queue) == 1:
            self._spawn(self._serve_owner(batch.owner, queue))

    async def _serve_owner(self, owner: str, queue: deque[BatchRecord]) -> None:
        """One batch after the other, so that what is in memory is bounded by owners."""
        try:
            while queue:
                await self._answer_batch(queue[0])
                queue.popleft()
        finally:
            del self._queues[owner]

    async def _answer_batch(self, batch: BatchRecord) -> None:
        """Everything that can be answered, and then its end; nothing of it is lost if this is cancelled."""
        run = self._runs[batch.id] = Run(batch)
        loop = asyncio.get_running_loop()
        left_s = max(0.0, batch.expires_at - self._wall_clock())
        timer = loop.call_later(left_s, run.end, "expired")
        run.task = asyncio.create_task(self._answer_all(run))
        try:
            await asyncio.wait((run.task,))
        finally:
            timer.cancel()
            if not run.task.done():
                run.task.cancel()
                await asyncio.gather(run.task, return_exceptions=True)
            del self._runs[batch.id]
        if not run.task.cancelled():
            error = run.task.exception()
            if isinstance(error, ApiError):
                batch.errors = [LineError(error.code or "disk_error", error.message)]
                batch.ends_as = "failed"
            elif error is not None:
                _log.error("batch %s failed", batch.id, exc_info=error)
                batch.errors = [LineError("internal_error", "The server failed to answer the batch.")]
                batch.ends_as = "failed"
        await self._finalize(batch)

    async def _answer_all(self, run: Run) -> None:
        """Raises an ApiError if results or requests cannot be written or read."""
        batch = run.batch
        run.done = await self._recount(batch)
        turns = self._turns_for(batch.endpoint)
        try:
            async with asyncio.TaskGroup() as lines:
                pending: set[asyncio.Task[None]] = set()
                while True:
                    if not run.ready and not run.is_read:
                        await self._read_on(run)
                    if not run.ready:
                        if not pending:
                            break
                        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    await self._pause(run)
                    question = run.ready.popleft()
                    alone = question.request.custom_id in batch.losses
                    taken = await turns.take(question.num_answers, alone=alone)
                    task = lines.create_task(self._answer_line(run, question, turns, taken))
                    pending.add(task)
                    task.add_done_callback(pending.discard)
        except ExceptionGroup as group:  # the first failure ended the others
            raise next((one for one in group.exceptions if isinstance(one, ApiError)), group) from None

    async def _pause(self, run: Run) -> None:
        """Until the next request may be asked, as far as that is known."""
        batch = run.batch
        while True:
            wait_s = run.not_before - self._wall_clock()
            if 0 < wait_s <= MAX_PAUSE_S:
                await asyncio.sleep(wait_s)
            elif not self._is_up() or self._principal(batch.owner, batch.endpoint) is None:
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _answer_line(self, run: Run, question: Question, turns: Turns, taken: int) -> None:
        """Ask once; what was refused for now, or lost with the engine, goes back to what is to be asked."""
        batch, request, wish = run.batch, question.request, question.wish
        try:
            if wish is not None:
                error = bad_request(f"{wish} is not possible in a batch", wish, "unsupported_parameter")
                await self._keep_result(run, request, 400, error.body())
                return
            principal = self._principal(batch.owner, batch.endpoint)
            if principal is None:
                run.ready.appendleft(question)
                return
            exchange = InnerExchange(request.url, request.body, principal)
            exchange.priority, exchange.batch = BACKGROUND_PRIORITY, batch.id
            if batch.tenant:
                exchange.headers[TENANT_HEADERS[0]] = batch.tenant.encode("latin-1")
            await self._ask(exchange)
            if exchange.status == 503 and exchange.error_code == "engine_dead" and exchange.was_in_engine:
                losses = batch.losses[request.custom_id] = batch.losses.get(request.custom_id, 0) + 1
                await self._keep(batch)
                if losses < MAX_LOSSES:
                    run.ready.appendleft(question)
                    return
            elif exchange.status in (429, 503):
                run.not_before = self._wall_clock() + _wait_s(exchange)
                run.ready.appendleft(question)
                return
            await self._keep_result(run, request, exchange.status or 500, exchange.answer, exchange.id)
        finally:
            turns.give(taken)

    async def _keep_result(
        self, run: Run, request: BatchRequest, status: int, answer: bytes, request_id: str = ""
    ) -> None:
        """Write a result, together with all that came meanwhile; then it counts.

        Raises:
            ApiError: the disk does not take it, or the owner may not have so much.
        """
        batch, store = run.batch, self._store
        run.results.append((status == 200, result_line(request.custom_id, status, request_id, answer)))
        async with run.writing:
            results, run.results = run.results, []
            if not results:
                return  # somebody wrote it along with theirs
            room, num_results, num_bytes = store.room(batch.owner), len(results), 0
            for number, (_, line) in enumerate(results):
                if num_bytes + len(line) > room:
                    del results[number:]
                    break
                num_bytes += len(line)
            write = partial(_append, store.content_path(batch.output_file_id), store.content_path(batch.error_file_id))
            # A thread that writes goes on when nobody waits any longer: whatever follows waits for it.
            job = asyncio.ensure_future(store.on_disk(partial(write, results), in_order=True))
            try:
                await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait((job,))
                raise
            finally:
                if job.done() and not job.cancelled() and job.exception() is None:
                    store.add_written(batch, num_bytes)
                    batch.num_completed += sum(is_answer for is_answer, _ in results)
                    batch.num_failed += sum(not is_answer for is_answer, _ in results)
            if len(results) < num_results:
                raise no_room(store.limits.max_bytes)

    async def _recount(self, batch: BatchRecord) -> set[str]:
        """What has a result, by the files of results; what was torn off there is put right.

        Raises:
            ApiError: they cannot be read.
        """
        store = self._store
        paths = store.content_path(batch.output_file_id), store.content_path(batch.error_file_id)
        try:
            answered, failed = await store.on_disk(lambda: [finished_ids(path) for path in paths], in_order=True)
        except BadLine as error:
            raise ApiError(500, f"The results are damaged at line {error.number}.", code="disk_error") from None
        batch.num_completed, batch.num_failed = len(answered), len(failed)
        return answered | failed

    async def _read_on(self, run: Run) -> None:
        """Read the next lines, those that are done left out."""
        batch, store = run.batch, self._store
        path = store.content_path(batch.input_file_id)
        read = partial(_read_lines, path, run.offset, batch.endpoint, store.limits)
        try:
            questions, run.offset, run.is_read = await store.on_disk(read)
        except BadLine as error:
            raise ApiError(500, f"The input is damaged: {error.message}.", code="disk_error") from None
        run.ready.extend(one for one in questions if one.request.custom_id not in run.done)

    # ------------------------------------------------------------ the end

    async def _finalize(self, batch: BatchRecord) -> None:
        """What was answered becomes files, and the batch what it ends as. Done again, it comes to the same."""
        while True:
            try:
                await self._finalize_once(batch)
                return
            except ApiError as error:
                _log.error("batch %s cannot be finished yet: %s", batch.id, error.message)
                await asyncio.sleep(AGAIN_S)

    async def _finalize_once(self, batch: BatchRecord) -> None:
        store = self._store
        if batch.status != "cancelling":
            batch.become("finalizing", self._now())
        try:
            await self._recount(batch)
        except ApiError as error:
            batch.errors.append(LineError(error.code or "disk_error", error.message))
        await store.save(batch)
        output, errors = store.content_path(batch.output_file_id), store.content_path(batch.error_file_id)
        if batch.ends_as == "expired":
            source = store.content_path(batch.input_file_id)
            write = partial(_append_unanswered, source, output, errors, batch.endpoint, store.limits)
            batch.num_failed += await store.on_disk(write, in_order=True)
        sizes = await store.on_disk(partial(_sizes, (output, errors)), in_order=True)
        ids = batch.output_file_id, batch.error_file_id
        for file_id, num_bytes, kind in zip(ids, sizes, ("output", "error"), strict=True):
            if num_bytes and file_id not in store.files:
                await store.add_file(
                    FileRecord(
                        id=file_id,
                        owner=batch.owner,
                        filename=f"{batch.id}_{kind}.jsonl",
                        purpose=OUTPUT,
                        num_bytes=num_bytes,
                        created_at=self._now(),
                        serial=store.next_serial(),
                    )
                )
        batch.has_output, batch.has_errors = sizes[0] > 0, sizes[1] > 0
        batch.become(batch.ends_as, self._now())
        batch.losses = {}
        await store.save(batch)
        store.release(batch)
        _log.info(
            "batch %s is %s: %d requests, %d answered, %d failed",
            batch.id, batch.status, batch.num_requests, batch.num_completed, batch.num_failed,
        )  # fmt: skip

    async def _keep(self, batch: BatchRecord) -> None:
        """Save what can be found out again; a disk that does not take it now is no reason to stop."""
        try:
            await self._store.save(batch)
        except ApiError as error:
            _log.error("batch %s cannot be kept: %s", batch.id, error.message)


def check_input(path: Path, endpoint: str, limits: BatchLimits) -> tuple[int, list[LineError]]:
    """How many requests there are in a file, and what is wrong with it."""
    seen: set[str] = set()
    errors: list[LineError] = []
    with path.open("rb") as file:
        for number, one in enumerate(scan_requests(file, (endpoint,), limits.max_line_bytes), 1):
            if number > limits.max_lines:
                errors.append(LineError("too_many_requests", f"A batch has at most {limits.max_lines} requests."))
            elif isinstance(one, BadLine):
                code = "invalid_json_line" if one.param is None else f"invalid_{one.param}"
                errors.append(LineError(code, one.message, one.number, one.param))
            elif len(one.custom_id) > MAX_ID_CHARS:
                message = f"a custom_id has at most {MAX_ID_CHARS} characters"
                errors.append(LineError("invalid_custom_id", message, one.number, "custom_id"))
            elif one.custom_id in seen:
                errors.append(LineError("duplicate_custom_id", "the custom_id came before", one.number, "custom_id"))
            else:
                seen.add(one.custom_id)
            if len(errors) >= MAX_ERRORS or number > limits.max_lines:
                break
    if not seen and not errors:
        errors.append(LineError("empty_file", "There is no request in the file."))
    return len(seen), errors


def _read_lines(path: Path, offset: int, endpoint: str, limits: BatchLimits) -> tuple[list[Question], int, bool]:
    """The next lines of an input that was checked, where to read on, and whether that was all."""
    questions: list[Question] = []
    with path.open("rb") as file:
        file.seek(offset)
        for request in read_requests(file, (endpoint,), limits.max_line_bytes):
            questions.append(Question(request, num_answers(request.body), unmet_wish(request.body)))
            if file.tell() - offset >= READ_AHEAD_BYTES:
                return questions, file.tell(), False
        return questions, file.tell(), True


def _sizes(paths: Iterable[Path]) -> list[int]:
    return [path.stat().st_size if path.exists() else 0 for path in paths]


def _append(output: Path, errors: Path, results: list[tuple[bool, bytes]]) -> None:
    """Results for good, in one file or the other."""
    for path, kind in ((output, True), (errors, False)):
        lines = [line for is_answer, line in results if is_answer is kind]
        if lines:
            append_lines(path, lines)


def _append_unanswered(source: Path, output: Path, errors: Path, endpoint: str, limits: BatchLimits) -> int:
    """A result for every request that has none, since its time is over; gives their number."""
    done = finished_ids(output) | finished_ids(errors)
    message = "This request could not be executed before the completion window expired."
    num_requests, lines = 0, []
    with source.open("rb") as file:
        for request in read_requests(file, (endpoint,), limits.max_line_bytes):
            if request.custom_id not in done:
                lines.append(unanswered_line(request.custom_id, "batch_expired", message))
                num_requests += 1
            if len(lines) >= 1000:
                append_lines(errors, lines)
                lines = []
    if lines:
        append_lines(errors, lines)
    return num_requests


def _wait_s(exchange: InnerExchange) -> float:
    """What somebody who was refused for now is told to wait."""
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        text = exchange.answer_headers.get(name, b"")
        if text.isdigit():
            return min(float(text) / unit, MAX_PAUSE_S)
    return AGAIN_S
