"""The life of batches: each line of a file is asked like any other request, in the background of the engine.

    validate ──> a queue for each owner ──> answer (answering.py) ──> results on disk ──> finalise

A result is on disk, for good, before it is counted. So whatever happens to this process, what was in flight is all that
is asked again, and nothing has two results.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from chairlift.metrics.batches import BatchMetrics
from chairlift.server.batches.answering import Answering, recount
from chairlift.server.batches.content import append_unanswered, check_input, sizes
from chairlift.server.batches.lines import BadLine
from chairlift.server.batches.records import OUTPUT, BatchRecord, FileRecord, LineError
from chairlift.server.batches.store import Store
from chairlift.server.batches.turns import Turns
from chairlift.server.errors import ApiError
from chairlift.server.identity import Principal
from chairlift.server.inner import InnerExchange

_log = logging.getLogger("chairlift.server")

AGAIN_S = 5.0
"""When is tried again what a disk did not take."""


class Runner:
    """Works at all batches of a store that have not ended.

    `ask` serves a request of this process's own. `principal` gives who goes by a name now and may use a path.
    """

    def __init__(
        self,
        store: Store,
        metrics: BatchMetrics,
        ask: Callable[[InnerExchange], Awaitable[None]],
        principal: Callable[[str, str], Principal | None],
        turns_for: Callable[[str], Turns],
        is_up: Callable[[], bool],
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._ask = ask
        self._principal = principal
        self._turns_for = turns_for
        self._is_up = is_up
        self._wall_clock = wall_clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, deque[BatchRecord]] = {}
        """By owner: batches that are in progress, the one that is being answered first. Each has a task of its own."""
        self._runs: dict[str, Answering] = {}
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
                num_requests, errors = 0, [_told(error)]
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
        await self._store.save_if_possible(batch)
        if batch.is_in("in_progress"):
            self._enqueue(batch)
        else:
            await self._finalize(batch)

    # ------------------------------------------------------------ answering

    def _enqueue(self, batch: BatchRecord) -> None:
        queue = self._queues.get(batch.owner)
        if queue is None:
            queue = self._queues[batch.owner] = deque()
            self._spawn(self._serve_owner(batch.owner, queue))
        queue.append(batch)

    async def _serve_owner(self, owner: str, queue: deque[BatchRecord]) -> None:
        """One batch after the other, so that what is in memory is bounded by owners."""
        try:
            while queue:
                batch = queue[0]
                try:
                    await self._answer(batch)
                except Exception:
                    _log.exception("batch %s is not worked at any longer, until the next start", batch.id)
                queue.popleft()
        finally:
            del self._queues[owner]

    async def _answer(self, batch: BatchRecord) -> None:
        """Everything that can be answered, and then its end; nothing of it is lost if this is cancelled."""
        run = self._runs[batch.id] = Answering(
            batch,
            self._store,
            self._metrics,
            self._ask,
            partial(self._principal, batch.owner, batch.endpoint),
            self._turns_for(batch.endpoint),
            self._is_up,
            self._wall_clock,
        )
        try:
            await run.run()
        except ApiError as error:
            self._fail(batch, _told(error))
        except Exception:
            _log.exception("batch %s failed", batch.id)
            self._fail(batch, LineError("internal_error", "The server failed to answer the batch."))
        finally:
            del self._runs[batch.id]
        await self._finalize(batch)

    def _fail(self, batch: BatchRecord, error: LineError) -> None:
        batch.errors = [error]
        batch.ends_as = "failed"

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
            await recount(store, batch)
        except ApiError as error:
            _note(batch, _told(error))
        if batch.ends_as == "completed" and batch.num_unanswered:
            _note(batch, LineError("disk_error", f"{batch.num_unanswered} results were written and are gone."))
            batch.ends_as = "failed"
        await store.save(batch)
        num_expired = await self._answer_expired(batch) if batch.ends_as == "expired" else 0
        await self._add_results(batch)
        batch.become(batch.ends_as, self._now())
        batch.losses = {}
        await store.save(batch)
        store.release(batch)
        self._metrics.num_batches_finished[batch.status] += 1
        self._metrics.num_finished["expired"] += num_expired
        self._metrics.num_finished["cancelled"] += batch.num_unanswered
        _log.info(
            "batch %s is %s: %d requests, %d answered, %d failed",
            batch.id, batch.status, batch.num_requests, batch.num_completed, batch.num_failed,
        )  # fmt: skip

    async def _answer_expired(self, batch: BatchRecord) -> int:
        """Write results for requests whose time is over; gives their number."""
        store = self._store
        source = store.content_path(batch.input_file_id)
        write = partial(append_unanswered, source, *store.result_paths(batch), batch.endpoint, store.limits)
        try:
            num_expired = await store.on_disk(write, in_order=True)
        except BadLine as error:
            _note(batch, LineError("disk_error", f"A file of the batch is damaged at line {error.number}."))
            return 0
        batch.num_failed += num_expired
        return num_expired

    async def _add_results(self, batch: BatchRecord) -> None:
        """Make files of the results that there are."""
        store = self._store
        found = await store.on_disk(partial(sizes, store.result_paths(batch)), in_order=True)
        for file_id, num_bytes, kind in zip(batch.result_ids, found, ("output", "error"), strict=True):
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
        batch.has_output, batch.has_errors = found[0] > 0, found[1] > 0


def _told(error: ApiError) -> LineError:
    """What a batch says of an error that is about all of it."""
    return LineError(error.code or "disk_error", error.message)


def _note(batch: BatchRecord, error: LineError) -> None:
    """Tell of an error once, however often the batch is finalised."""
    if error not in batch.errors:
        batch.errors.append(error)
