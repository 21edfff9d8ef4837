"""An engine on a thread of this process, for any number of callers on any threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Protocol

from chairlift.core.engine import Engine
from chairlift.core.errors import EngineDead, InvalidRequest, NeverFits
from chairlift.core.types import Request
from chairlift.wire import Abort, Add, Refused, Step
from chairlift.worker.answers import Answer
from chairlift.worker.loop import EngineLoop, Gate


class Reader(Protocol):
    """Whoever waits for answers."""

    def wake(self, answers: list[Answer]) -> None:
        """Some answers have news; called on the engine's thread, at most once a step. Must not block or raise."""
        ...


class QueueReader:
    """Waits on a thread."""

    def __init__(self) -> None:
        self._news: SimpleQueue[list[Answer]] = SimpleQueue()
        self.wake = self._news.put

    def take(self) -> list[Answer]:
        """Answers that have news; blocks until there are some."""
        return self._news.get()


class _Caller:
    __slots__ = ("answer", "each_step", "reader")

    def __init__(self, answer: Answer, reader: Reader, each_step: bool) -> None:
        self.answer = answer
        self.reader = reader
        self.each_step = each_step


class LocalEngine:
    """Starts the loop's thread and routes what comes out of it to the callers."""

    def __init__(
        self,
        engine: Engine,
        on_end: Callable[[], None] | None = None,
        gate: Gate | None = None,
        encoder: Engine | None = None,
    ) -> None:
        self._loop = EngineLoop(engine, time.monotonic, self._take, gate=gate, encoder=encoder)
        self._on_end = on_end
        """Called on the loop's thread after the last step."""
        self._callers: dict[int, _Caller] = {}
        self._ids = count()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._dead: str | None = None
        """Why there is no engine any more."""
        self._thread = threading.Thread(target=self._run, name="chairlift-engine", daemon=True)
        self._thread.start()

    def new_id(self) -> int:
        """An id that no other request of this engine has."""
        return next(self._ids)

    def start(self, request: Request, reader: Reader, *, each_step: bool = False) -> Answer:
        """Put a request in flight. The reader hears when it is over, and with `each_step` of every step before.

        Raises:
            EngineDead: the engine was closed or broke, or stayed in the process that this one was forked from.
        """
        if os.getpid() != self._pid:
            raise EngineDead("the engine stayed in the process that made it: a fork must make its own")
        answer = Answer(request)
        with self._lock:
            if self._dead is not None:
                raise EngineDead(self._dead)
            self._callers[request.id] = _Caller(answer, reader, each_step)
            self._loop.submit(Add(request))
        return answer

    def abort(self, answer: Answer) -> None:
        """Nobody waits for this answer any longer; harmless if it is over."""
        if answer.num_open:
            self._loop.submit(Abort(answer.request.id))

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop after the step in progress. What is in flight is lost, and those who wait for it are told."""
        self._loop.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        cause: Exception | None = None
        try:
            self._loop.run()
        except Exception as error:
            cause = error
        reason = "the engine was closed" if cause is None else f"the engine broke: {type(cause).__name__}: {cause}"
        with self._lock:
            self._dead = reason
            lost = list(self._callers.values())
            self._callers.clear()
        news: dict[Reader, list[Answer]] = {}
        for caller in lost:
            caller.answer.error = EngineDead(reason)  # one each: a traceback belongs to one thread
            caller.answer.error.__cause__ = cause
            caller.answer.num_open = 0
            news.setdefault(caller.reader, []).append(caller.answer)
        _wake(news)
        if self._on_end is not None:
            self._on_end()

    def _take(self, message: Refused | Step) -> None:
        """What the loop emits, on its thread."""
        news: dict[Reader, list[Answer]] = {}
        if isinstance(message, Refused):
            self._refuse(message, news)
        else:
            self._spread(message, news)
        _wake(news)

    def _refuse(self, refused: Refused, news: dict[Reader, list[Answer]]) -> None:
        caller = self._callers.pop(refused.id)
        kind = NeverFits if refused.never else InvalidRequest
        caller.answer.error = kind(refused.message, refused.param)
        caller.answer.num_open = 0
        news[caller.reader] = [caller.answer]

    def _spread(self, step: Step, news: dict[Reader, list[Answer]]) -> None:
        """Hand out a step's output in the order that `Choice` promises its readers."""
        callers = self._callers
        for request_id, choice, logprob in step.logprobs:
            callers[request_id].answer.choices[choice].logprobs.append(logprob)
        for request_id, choice, scored in step.prompt_logprobs:
            if choice == 0:  # the choices of a request have their prompt in common
                callers[request_id].answer.prompt_logprobs.extend(scored)
        for request_id, vector in step.vectors:
            callers[request_id].answer.vector = vector
        for finish in step.finishes:
            callers[finish.id].answer.choices[finish.choice].finish = finish
        fresh: dict[int, _Caller] = {}
        for request_id, choice, token in zip(step.ids, step.choices, step.tokens, strict=True):
            caller = callers[request_id]
            caller.answer.choices[choice].tokens.append(token)
            if caller.each_step:
                fresh[request_id] = caller
        for finish in step.finishes:
            caller = callers[finish.id]
            answer = caller.answer
            answer.choices[finish.choice].closed = True
            answer.num_open -= 1
            if answer.num_open == 0:
                del callers[finish.id]
            if answer.num_open == 0 or caller.each_step:
                fresh[finish.id] = caller
        for caller in fresh.values():
            news.setdefault(caller.reader, []).append(caller.answer)


def _wake(news: dict[Reader, list[Answer]]) -> None:
    for reader, answers in news.items():
        reader.wake(answers)
