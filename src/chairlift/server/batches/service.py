"""Files and batches of one server, put together."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from chairlift.core.admission import Admission
from chairlift.metrics.batches import BatchMetrics
from chairlift.server.access import Access
from chairlift.server.batches.batches import Batches
from chairlift.server.batches.files import Files
from chairlift.server.batches.runner import Runner
from chairlift.server.batches.store import BatchLimits, Store
from chairlift.server.batches.turns import Turns
from chairlift.server.client import EngineClient
from chairlift.server.identity import Principal
from chairlift.server.inner import InnerExchange
from chairlift.server.options import ServerOptions

_NUM_THREADS = 2
_OF_TEXTS = "/v1/embeddings"
"""What an encoder answers, which may have an engine of its own."""


def open_store(options: ServerOptions, stack: contextlib.ExitStack) -> Store | None:
    """The folder of files and batches, if there is to be one, until the stack is left.

    Raises:
        InvalidOption: it cannot be used.
    """
    if options.batch_dir is None:
        return None
    limits = BatchLimits(
        max_file_bytes=options.max_batch_file_bytes,
        max_bytes=options.max_batch_bytes,
        max_line_bytes=options.max_body_bytes,
    )
    pool = stack.enter_context(ThreadPoolExecutor(_NUM_THREADS, "files"))
    keeper = stack.enter_context(ThreadPoolExecutor(1, "records"))
    store = Store(options.batch_dir, limits, pool, keeper)
    stack.callback(store.close)
    return store


class BatchService:
    """Serves a store's files and batches, and works at the batches while the engine of `client` is there.

    `ask` serves a request of this process's own; `is_open` says whether such requests are still begun.
    """

    def __init__(
        self,
        store: Store,
        ask: Callable[[InnerExchange], Awaitable[None]],
        is_open: Callable[[], bool],
        access: Access,
        client: EngineClient,
        wall_clock: Callable[[], float],
    ) -> None:
        self._access = access
        self._client = client
        self.metrics = BatchMetrics(
            {} if client.metrics is None else client.metrics.labels,
            lambda: ((one.status, one.num_unanswered) for one in store.unfinished()),
        )
        self._turns = Turns(lambda: client.admission.max_num_seqs)
        self._turns_of_texts = Turns(lambda: self._admission_of_texts.max_num_seqs)
        self.runner = Runner(
            store,
            self.metrics,
            ask,
            self._principal,
            self._turns_for,
            lambda: is_open() and not client.dead.done(),
            wall_clock,
        )
        self.files = Files(store, wall_clock)
        self.batches = Batches(store, self.runner, wall_clock)

    def start(self) -> None:
        """Go on with what the last server left."""
        self.runner.start()

    async def close(self) -> None:
        """Stop where it is; the next server goes on. Doing it again changes nothing."""
        await self.runner.close()

    @property
    def _admission_of_texts(self) -> Admission:
        return self._client.pass_admission

    def _turns_for(self, endpoint: str) -> Turns:
        is_apart = self._admission_of_texts is not self._client.admission
        return self._turns_of_texts if endpoint == _OF_TEXTS and is_apart else self._turns

    def _principal(self, name: str, path: str) -> Principal | None:
        """Who goes by this name, if they still have a key that may use the path."""
        principal = self._access.named(name)
        return principal if principal is not None and principal.may_use(path) else None
