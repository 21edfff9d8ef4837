"""Keeping an engine behind a client: start it, watch it, kill it if it hangs, start another if it is lost.

    start ──> connected ──> ready ──┬── lost (it ended, or sent what cannot be used) ──┬── wait ──> start ...
                                    └── hangs: killed, and everybody told ─────────────┴── too often: given up

One client serves all engines after one another: its counters, its ids and the limits that were set go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from chairlift.server.client import EngineClient
from chairlift.server.process import WorkerCommand, WorkerProcess
from chairlift.server.restarts import Restarts
from chairlift.server.watchdog import Watchdog

_log = logging.getLogger("chairlift.server")

LOOK_S = 0.25
KILL_TIMEOUT_S = 5.0
MIN_RELOAD_S = 60.0
"""An engine that is started again may take so long, and `RELOAD_FACTOR` times what it took first."""
RELOAD_FACTOR = 10.0


class Supervisor:
    """Owns the worker process of one server."""

    def __init__(
        self,
        command: WorkerCommand,
        client: EngineClient,
        watchdog: Watchdog,
        restarts: Restarts,
        clock: Callable[[], float],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._command = command
        self._tell = tell
        """Where lines go that a worker writes to standard error; None: to this process's own."""
        self._client = client
        self._watchdog = watchdog
        self._restarts = restarts
        self._clock = clock
        self._process: WorkerProcess | None = None
        self._started = 0.0
        self.may_restart = True
        """Put to False when the server is stopping: what is lost now stays lost."""

    async def start(self) -> None:
        """Start a worker and connect the client to it. It is there, not ready."""
        if self._process is not None:
            self._process.close()
        self._process = WorkerProcess(self._command, self._tell)
        self._started = self._clock()
        await asyncio.get_running_loop().create_unix_connection(lambda: self._client, sock=self._process.sock)

    async def run(self) -> None:
        """Watch over a worker that was ready once, and over those that follow; returns when it is given up."""
        client = self._client
        while True:
            await self._lost()
            status = await self._bury()
            _log.error("the engine is lost (%s): %s", ending(status), client.lost.result())
            delay_s = self._restarts.next(self._clock()) if self.may_restart else None
            if delay_s is None:
                return
            client.retry_after_s = delay_s + client.ready.result().load_s
            await asyncio.sleep(delay_s)
            if not self.may_restart:
                return
            _log.info("starting the engine again")
            try:
                await self.start()
            except OSError as error:
                _log.error("no process could be started: %s", error.strerror)
                continue
            client.up.add_done_callback(self._back)

    async def wait(self, timeout_s: float) -> int | None:
        """The worker's exit status, or None if it still runs after `timeout_s` seconds."""
        return None if self._process is None else await self._process.wait(timeout_s)

    async def end(self, timeout_s: float) -> None:
        """Wait for the worker to end; kill it if that takes longer than `timeout_s` seconds."""
        if self._process is not None:
            await self._process.end(timeout_s)

    def close(self) -> None:
        """Whatever happened, no worker is left behind."""
        if self._process is not None:
            self._process.close()

    async def _lost(self) -> None:
        """Until the worker can give nothing more, or hangs; then the client knows."""
        client = self._client
        loading = Watchdog(self._max_reload_s())
        while not (await asyncio.wait({client.lost}, timeout=LOOK_S))[0]:
            now = self._clock()
            if self._watchdog.look(now, client.last_heard, client.longest_step_s):
                client.give_up("The engine does not make progress.")
            elif not client.up.done() and loading.look(now, self._started, 0.0):
                client.give_up("The engine does not get ready.")

    async def _bury(self) -> int | None:
        """The worker's exit status once nothing of it is left."""
        if self._process is None:
            return None
        self._process.kill()
        status = await self._process.wait(KILL_TIMEOUT_S)
        self._client.close()
        await asyncio.wait({self._client.gone}, timeout=KILL_TIMEOUT_S)
        return status

    def _max_reload_s(self) -> float:
        return max(MIN_RELOAD_S, RELOAD_FACTOR * self._client.ready.result().load_s)

    def _back(self, up: asyncio.Future[None]) -> None:
        if not up.cancelled():
            _log.info("the engine is back after %.1f s", self._clock() - self._started)


def ending(status: int | None) -> str:
    """An exit status in words, for a log."""
    if status is None:
        return "it does not end"
    if status >= 0:
        return f"exit status {status}"
    return f"ended by signal {-status}" + (", perhaps for want of memory" if status == -9 else "")
