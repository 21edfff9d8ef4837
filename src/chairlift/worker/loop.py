"""The loop that drives an engine on the wall clock: commands in, one step after the other, output out.

        inbox ──> begin k+1 ──> emit step k's output ──> wait k+1 ──> finish k+1 ──> inbox ...
                                (while the device computes k+1)

Only the thread in `run` touches the engine. Everybody else talks to it through `submit`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidOption, InvalidRequest, NeverFits
from chairlift.core.types import EngineStats, LimitChange, Request, StepOutput
from chairlift.grammars.store import Checked
from chairlift.wire import Abort, Add, Close, Drain, Refused, SetLimits, Step, ToWorker, Watch, Watched

HEARTBEAT_S = 1.0
"""How often an idle loop says that it is alive."""

Inbox = SimpleQueue[ToWorker | Checked | None]


class Gate(Protocol):
    """What requests that need something prepared wait at, before the engine hears of them."""

    def ask(self, request: Request, tell: Callable[[Checked], None]) -> Checked | None:
        """Whether a request may go on. None: not yet known, and `tell` is called later, on another thread."""
        ...

    def release(self, request_id: int, num_answers: int | None = None) -> None:
        """So many answers of a request are over, or all; of requests that never came here too."""
        ...


class EngineLoop:
    """Runs one engine until drained or stopped, or two that share the device: `encoder` gets the single passes.

    `emit` is called on the loop's thread, mostly while the device computes, and must not block. It owns what it gets.
    A step that the executor fails costs the requests in it (they finish with an error), not the loop.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        emit: Callable[[Refused | Step], None],
        *,
        inbox: Inbox | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        gate: Gate | None = None,
        encoder: Engine | None = None,
        tell: Callable[[Watched], None] | None = None,
    ) -> None:
        self._engine = engine
        self._encoder = encoder
        self._engines = (engine,) if encoder is None else (engine, encoder)
        self._turn = 0
        """Whose step is next if it has one: engines that share the device take turns."""
        self._clock = clock
        self._emit = emit
        self._tell = tell
        """Like `emit`, for those who look; None where nobody does."""
        self._inbox: Inbox = SimpleQueue() if inbox is None else inbox
        self._gate = gate
        self._waiting: dict[int, Request] = {}
        """At the gate."""
        self._heartbeat_s = heartbeat_s
        self._draining = False
        self._stopping = False
        self._is_watched = False
        """Somebody looks, and was not told yet."""

    def submit(self, command: ToWorker) -> None:
        """Hand over a command from any thread; it takes effect before the next step."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End `run` after the step in progress, whatever is still in flight; from any thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Serve until a `Drain` has been fulfilled or `stop` was called.

        Raises:
            Exception: the engine itself broke. What was in flight is lost and the engine must not be used again.
        """
        clock = self._clock
        output: StepOutput | None = None
        last, step_s, num_tokens, num_rows = self._engine, 0.0, 0, 0
        while True:
            self._take_commands()
            begun_at = clock()
            engine = None if self._stopping else self._begin(begun_at)
            if output is not None:
                self._send(last, output, last.stats(num_tokens, num_rows, step_s))
                output = None
            for other in self._engines:
                if other is not engine:
                    self._flush(other)
            if self._is_watched and self._tell is not None:  # here the device computes
                self._is_watched = False
                self._tell(Watched([one.look() for one in self._engines], self._clock()))
            if engine is not None:
                num_tokens, num_rows = engine.num_step_tokens, engine.num_step_rows
                engine.wait()
                now = clock()
                last, output = engine, engine.finish(now)
                step_s = now - begun_at
                continue
            if self._stopping or (self._draining and not self._has_work):
                return
            self._sleep()

    def _begin(self, now: float) -> Engine | None:
        """Begin a step of the next engine that has one, and say whose it is."""
        if self._encoder is None:
            return self._engine if self._engine.begin(now) else None
        for turn in (self._turn, 1 - self._turn):
            engine = self._engines[turn]
            if engine.has_work and engine.begin(now):
                self._turn = 1 - turn
                return engine
        return None

    def _flush(self, engine: Engine) -> None:
        """What ended without a step."""
        rest = engine.flush(self._clock())
        if rest.finishes:
            self._send(engine, rest, engine.stats())

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting) or any(engine.has_work for engine in self._engines)

    def _take_commands(self) -> None:
        try:
            while True:
                self._apply(self._inbox.get_nowait())
        except Empty:
            return

    def _sleep(self) -> None:
        """Wait for a command, or for what the engine waits for; if neither comes for long, send a heartbeat."""
        waiting = [engine for engine in self._engines if engine.has_work]  # others say what they last waited for
        wakes = [when for engine in waiting if (when := engine.wake_at()) is not None]
        rest_s = max(0.0, min(wakes) - self._clock()) if wakes else self._heartbeat_s
        try:
            command = self._inbox.get(timeout=min(rest_s, self._heartbeat_s))
        except Empty:
            if rest_s >= self._heartbeat_s:
                for engine in self._engines:
                    self._send(engine, StepOutput(), engine.stats())
        else:
            self._apply(command)

    def _apply(self, command: ToWorker | Checked | None) -> None:
        match command:
            case Add(request):
                self._add(request)
            case Checked():
                self._pass(command)
            case Abort(request_id):
                if self._waiting.pop(request_id, None) is not None:
                    self._emit(Refused(request_id, "the request was aborted", None, never=False))
                else:
                    for engine in self._engines:
                        engine.abort(request_id, self._clock())
            case Close():
                self._close()
            case Drain():
                self._draining = True
                self._close()
            case SetLimits(change):
                self._set_limits(change)
            case Watch():
                self._is_watched = True
            case None:
                self._stopping = True

    def _add(self, request: Request) -> None:
        if self._draining:
            self._emit(Refused(request.id, "the engine is shutting down", None, never=False))
            return
        if self._gate is None or request.params.structured_outputs is None:
            self._queue(request)
            return
        self._waiting[request.id] = request
        if (checked := self._gate.ask(request, self._inbox.put)) is not None:
            self._pass(checked)

    def _pass(self, checked: Checked) -> None:
        """A request's form was looked at. One that left meanwhile holds nothing."""
        request = self._waiting.pop(checked.request_id, None)
        if request is None:
            self._release(checked.request_id)
        elif checked.error is None:
            self._queue(request)
        else:
            message = f"structured output: {checked.error}"
            self._emit(Refused(request.id, message, "structured_outputs", never=False, is_busy=checked.is_busy))

    def _close(self) -> None:
        for engine in self._engines:
            engine.close()

    def _queue(self, request: Request) -> None:
        engine = self._engine if request.pooling is None or self._encoder is None else self._encoder
        try:
            engine.add(request)
        except InvalidRequest as error:
            self._release(request.id)
            self._emit(Refused(request.id, str(error), error.param, never=isinstance(error, NeverFits)))

    def _release(self, request_id: int, num_answers: int | None = None) -> None:
        if self._gate is not None:
            self._gate.release(request_id, num_answers)

    def _set_limits(self, change: LimitChange) -> None:
        """What is out of range was refused where it came in: a change that is refused here changes nothing."""
        try:
            self._engine.set_limits(change)
        except InvalidOption as error:
            print(f"chairlift: limits not changed: {error}", file=sys.stderr, flush=True)

    def _send(self, engine: Engine, output: StepOutput, stats: EngineStats) -> None:
        for finish in output.finishes:
            self._release(finish.id, 1)
        self._emit(to_step(output, stats, self._clock(), int(engine is self._encoder)))


def to_step(output: StepOutput, stats: EngineStats, now: float, engine: int = 0) -> Step:
    """The frame of one step's output. It shares no list with the engine, so that whoever gets it may change them."""
    return Step(
        ids=[key[0] for key in output.keys],
        choices=[key[1] for key in output.keys],
        tokens=list(output.tokens),
        logprobs=[(*key, logprob) for key, logprob in output.logprobs.items()],
        prompt_logprobs=[(*key, scored) for key, scored in output.prompt_logprobs.items()],
        joined=list(output.joined),
        finishes=list(output.finishes),
        stats=stats,
        now=now,
        vectors=list(output.vectors.items()),
        engine=engine,
    )
