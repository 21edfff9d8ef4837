"""What benchmarks without a server share: an engine's loop on a thread of this process, and a line of progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TextIO

from chairlift.bench.in_process import INTERVAL_S, Listener, Show
from chairlift.bench.load import Load
from chairlift.bench.progress import line
from chairlift.bench.status_line import StatusLine
from chairlift.core.engine import Engine
from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.core.types import Request
from chairlift.wire import Add, Drain, Refused, Step
from chairlift.worker.loop import EngineLoop

STOP_TIMEOUT_S = 10.0


class EngineThread:
    """Runs an engine's loop on a thread, until what came before `close` is served."""

    def __init__(self, engine: Engine, listener: Listener, clock: Callable[[], float]) -> None:
        self._listener = listener
        self._failure: Exception | None = None
        self._loop = EngineLoop(engine, clock, self._take)
        self._thread = threading.Thread(target=self._run, name="chairlift-engine", daemon=True)
        self._thread.start()

    def add(self, request: Request) -> None:
        self._loop.submit(Add(request))

    def close(self) -> None:
        self._loop.submit(Drain())

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception as error:
            self._failure = EngineDead(f"the engine broke: {type(error).__name__}: {error}")

    def _take(self, message: Refused | Step) -> None:
        if isinstance(message, Refused):
            self._failure = ChairliftError(message.message)
            self._loop.stop()
        elif message.ids or message.finishes:
            self._listener.on_tokens(message.ids, message.finishes, message.now)


class Progress:
    """How far a run is, on one line of a terminal."""

    def __init__(self, terminal: TextIO | None, clock: Callable[[], float]) -> None:
        self._terminal = terminal
        self._clock = clock

    def of(self, name: str) -> Show:
        """What shows the run of that name."""
        status, seen = StatusLine(self._terminal, self._clock, INTERVAL_S), 0

        def show(load: Load, num_tokens: int) -> None:
            nonlocal seen
            passed_s = status.due()
            if passed_s is None:
                return
            rate, seen = (num_tokens - seen) / passed_s, num_tokens
            status.show(f"{name}: {line(load, self._clock(), rate)}")

        return show

    def say(self, text: str) -> None:
        """Show that, until something else is shown."""
        StatusLine(self._terminal, self._clock, INTERVAL_S).show(text)

    def clear(self) -> None:
        """Take the line away."""
        self.say("")
