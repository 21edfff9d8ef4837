"""Answering one batch: its lines are asked as turns come, and each has its result on disk before it is counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from chairlift.core.types import BACKGROUND_PRIORITY
from chairlift.metrics.batches import BatchMetrics
from chairlift.server.batches.content import InputLine, append_results, read_input, results_in
from chairlift.server.batches.lines import BadLine, BatchRequest, result_line
from chairlift.server.batches.records import BatchRecord, Status
from chairlift.server.batches.store import Store, no_room
from chairlift.server.batches.turns import Turns
from chairlift.server.errors import FOR_NOW, ApiError, unsupported
from chairlift.server.identity import TENANT_HEADERS, Principal
from chairlift.server.inner import InnerExchange

MAX_LOSSES = 3
"""A request that was in the engine so often when that was lost is not asked again: it may be what kills it. From the
first time on it is asked alone."""
AGAIN_S = 5.0
"""When a request is asked again that was refused for now without saying for how long."""
MAX_PAUSE_S = 60.0
LOOK_S = 0.25
"""How often is looked whether the engine is back, or whoever a batch is for."""


class Answering:
    """A batch that is being answered.

    `ask` serves a request of this process's own; `principal` gives whom the batch is for, if they may ask now.
    """

    def __init__(
        self,
        batch: BatchRecord,
        store: Store,
        metrics: BatchMetrics,
        ask: Callable[[InnerExchange], Awaitable[None]],
        principal: Callable[[], Principal | None],
        turns: Turns,
        is_up: Callable[[], bool],
        wall_clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._store = store
        self._metrics = metrics
        self._ask = ask
        self._principal = principal
        self._turns = turns
        self._is_up = is_up
        self._wall_clock = wall_clock
        self._ready: deque[InputLine] = deque()
        """Read and not asked, or to be asked again."""
        self._done: set[str] = set()
        """What had a result before."""
        self._offset = 0
        """Of the first byte of the input that was not read."""
        self._is_read = False
        self._not_before = 0.0
        self._results: list[tuple[bool, bytes]] = []
        """Not on disk yet: whether it is an answer, and its line."""
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def end(self, status: Status) -> None:
        """Stop asking: the batch becomes that. Only the first end counts, and none that comes after the last answer."""
        if self._task is not None and not self._task.done() and not self._task.cancelling():
            self._batch.ends_as = status
            self._task.cancel()

    async def run(self) -> None:
        """Ask everything that can be asked, until the batch expires or is ended.

        Raises:
            ApiError: results or requests cannot be written or read.
        """
        left_s = max(0.0, self._batch.expires_at - self._wall_clock())
        timer = asyncio.get_running_loop().call_later(left_s, self.end, "expired")
        self._task = asyncio.create_task(self._answer_all())
        try:
            await asyncio.wait((self._task,))
        finally:
            timer.cancel()
            if not self._task.done():
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        if not self._task.cancelled():
            self._task.result()

    async def _answer_all(self) -> None:
        """Raises an ApiError if results or requests cannot be written or read."""
        losses, turns = self._batch.losses, self._turns
        self._done = await recount(self._store, self._batch)
        try:
            async with asyncio.TaskGroup() as lines:
                pending: set[asyncio.Task[None]] = set()
                while True:
                    if not self._ready and not self._is_read:
                        await self._read_on()
                    if not self._ready:
                        if not pending:
                            break
                        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    await self._pause()
                    line = self._ready.popleft()
                    taken = await turns.take(line.num_answers, alone=line.request.custom_id in losses)
                    task = lines.create_task(self._answer(line, taken))
                    pending.add(task)
                    task.add_done_callback(pending.discard)
        except ExceptionGroup as group:  # the first failure ended the others
            raise next((one for one in group.exceptions if isinstance(one, ApiError)), group) from None

    async def _read_on(self) -> None:
        """Read the next lines, those that are done left out."""
        batch, store = self._batch, self._store
        read = partial(read_input, store.content_path(batch.input_file_id), self._offset, batch.endpoint, store.limits)
        try:
            found, self._offset, self._is_read = await store.on_disk(read)
        except BadLine as error:
            raise ApiError(500, f"The input is damaged: {error.message}.", code="disk_error") from None
        self._ready.extend(line for line in found if line.request.custom_id not in self._done)

    async def _pause(self) -> None:
        """Until the next request may be asked, as far as that is known."""
        while True:
            wait_s = self._not_before - self._wall_clock()
            if 0 < wait_s <= MAX_PAUSE_S:
                await asyncio.sleep(wait_s)
            elif not self._is_up() or self._principal() is None:
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _answer(self, line: InputLine, taken: int) -> None:
        """Ask once, and give the turn back."""
        self._metrics.num_running += 1
        try:
            await self._answer_line(line)
        finally:
            self._metrics.num_running -= 1
            self._turns.give(taken)

    async def _answer_line(self, line: InputLine) -> None:
        """Ask once; what was refused for now, or lost with the engine, goes back to what is to be asked."""
        batch, request, wish = self._batch, line.request, line.wish
        if wish is not None:
            error = unsupported(f"{wish} is not possible in a batch", wish)
            await self._keep_result(request, 400, error.body())
            return
        principal = self._principal()
        if principal is None:
            self._ready.appendleft(line)
            return
        exchange = InnerExchange(request.url, request.body, principal)
        exchange.priority, exchange.batch = BACKGROUND_PRIORITY, batch.id
        if batch.tenant:
            exchange.headers[TENANT_HEADERS[0]] = batch.tenant.encode("latin-1")
        await self._ask(exchange)
        if exchange.status == 503 and exchange.error_code == "engine_dead" and exchange.was_in_engine:
            losses = batch.losses[request.custom_id] = batch.losses.get(request.custom_id, 0) + 1
            await self._store.save_if_possible(batch)
            if losses < MAX_LOSSES:
                self._ready.appendleft(line)
                return
        elif exchange.status in FOR_NOW:
            self._not_before = self._wall_clock() + _wait_s(exchange)
            self._ready.appendleft(line)
            return
        await self._keep_result(request, exchange.status or 500, exchange.answer, exchange.id)

    async def _keep_result(self, request: BatchRequest, status: int, answer: bytes, request_id: str = "") -> None:
        """Write a result, together with all that came meanwhile; then it counts.

        Raises:
            ApiError: the disk does not take it, or the owner may not have so much.
        """
        batch, store = self._batch, self._store
        self._results.append((status == 200, result_line(request.custom_id, status, request_id, answer)))
        async with self._writing:
            results, self._results = self._results, []
            if not results:
                return  # somebody wrote it along with theirs
            room, num_results, num_bytes = store.room(batch.owner), len(results), 0
            for number, (_, line) in enumerate(results):
                if num_bytes + len(line) > room:
                    del results[number:]
                    break
                num_bytes += len(line)
            # A thread that writes goes on when nobody waits any longer: whatever follows waits for it.
            write = partial(append_results, *store.result_paths(batch), results)
            job = asyncio.ensure_future(store.on_disk(write, in_order=True))
            try:
                await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait((job,))
                raise
            finally:
                if job.done() and not job.cancelled() and job.exception() is None:
                    store.add_written(batch, num_bytes)
                    self._count(sum(is_answer for is_answer, _ in results), len(results))
            if len(results) < num_results:
                raise no_room(store.limits.max_bytes)

    def _count(self, num_answers: int, num_results: int) -> None:
        self._batch.num_completed += num_answers
        self._batch.num_failed += num_results - num_answers
        self._metrics.num_finished["completed"] += num_answers
        self._metrics.num_finished["failed"] += num_results - num_answers


async def recount(store: Store, batch: BatchRecord) -> set[str]:
    """What has a result, by the files of results; what was torn off there is put right.

    Raises:
        ApiError: they cannot be read.
    """
    paths = store.result_paths(batch)
    try:
        answered, failed = await store.on_disk(lambda: [results_in(path) for path in paths], in_order=True)
    except BadLine as error:
        raise ApiError(500, f"The results are damaged at line {error.number}.", code="disk_error") from None
    batch.num_completed, batch.num_failed = len(answered), len(failed)
    return answered | failed


def _wait_s(exchange: InnerExchange) -> float:
    """What somebody who was refused for now is told to wait."""
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        text = exchange.answer_headers.get(name, b"")
        if text.isdigit():
            return min(float(text) / unit, MAX_PAUSE_S)
    return AGAIN_S
