"""The grammars of one engine: who waits for one, which are kept, and the matchers of those that run.

A request is asked for before the engine hears of it. If its grammar is kept, it may go on at once; else it waits, and
nobody else does, while a thread has the grammar tried by a child and then compiles it here. From then on until its
request is over a grammar is held, however often the request is preempted. Grammars that nobody holds are kept within
bounds, the one used last the longest. Those that failed are remembered as well, since whoever sends one often sends it
again.

    ask ── kept? ──────────────────────────────────────────────── held ── joins ── ends
              └── queue, in turn by principal ── child ── compiled ──┘
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Protocol

import msgspec
from llguidance import LLMatcher

from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import Request
from chairlift.grammars.child import NICENESS, Verdict
from chairlift.grammars.compiling import InvalidGrammar, Vocabulary, compiled, tokenizer_of
from chairlift.grammars.matcher import Matcher
from chairlift.text.grammars import grammar_text

NUM_CHECKERS = 2
"""Grammars tried at once: one that takes its two seconds need not hold up the next."""
IDLE_S = 300.0
"""A child that had nothing to try for so long is ended."""
MAX_KEPT = 256
MAX_KEPT_BYTES = 32 << 20
"""Of grammars that nobody holds."""
MAX_HELD_BYTES = 256 << 20
"""Of those that requests hold, running or waiting; who would need more is told to come back."""
MAX_FAILURES = 1024
BYTES_PER_CHAR = 64
MIN_BYTES = 64 << 10
BYTES_PER_SECOND = 500_000_000
"""What tables grow by in a second of making them; measured at 450 bytes a microsecond."""
MAX_GROWN_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """The grammar of a request was looked at: the request may go on, or `error` says why not. `is_busy`: not now."""

    request_id: int
    error: str | None = None
    is_busy: bool = False


class GrammarChecker(Protocol):
    """Tries one grammar at a time."""

    def check(self, grammar: str) -> Verdict: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Kept:
    """A compiled grammar. Its matcher stays at the beginning: rows get copies, which share its tables."""

    matcher: LLMatcher
    num_bytes: float
    num_holders: int = 0


@dataclass(slots=True)
class _Job:
    key: bytes
    form: StructuredOutputs
    waiting: list[tuple[Request, Callable[[Checked], None]]] = field(default_factory=list)
    is_taken: bool = False


class Grammars:
    """Asked and released by the thread that drives the engine; compiles on threads of its own.

    Takes the time of a tokenizer to be made, and the interpreter with it: not while others are served.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encode: Callable[[str], list[int]],
        make_checker: Callable[[Vocabulary], GrammarChecker],
    ) -> None:
        self._vocabulary = vocabulary
        self._make_checker = make_checker
        self._tokenizer = tokenizer_of(vocabulary, encode)
        self._end_ids = tuple(vocabulary.end_ids)
        self._special_ids = {
            vocabulary.tokens[token].decode("utf-8", "replace"): token for token in vocabulary.special_ids
        }
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._failures: OrderedDict[bytes, str] = OrderedDict()
        self._jobs: dict[bytes, _Job] = {}
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._held: dict[int, tuple[_Kept, int]] = {}
        """By request: what it holds, and how many of its answers are not over."""
        self._held_bytes = 0.0
        self._num_threads = 0
        self._num_idle = 0
        self._checkers: set[GrammarChecker] = set()
        self._closed = False
        self._compiler = ThreadPoolExecutor(1, "grammar", initializer=_give_way)

    @property
    def num_held(self) -> int:
        """Requests that hold a grammar."""
        return len(self._held)

    @property
    def kept_bytes(self) -> float:
        """About what all grammars take, held or not."""
        with self._lock:
            return sum(kept.num_bytes for kept in self._kept.values())

    def ask(self, request: Request, tell: Callable[[Checked], None]) -> Checked | None:
        """Whether a request may go on. None: not yet known, and `tell` is called later, on another thread."""
        form = request.params.structured_outputs
        if form is None:
            return Checked(request.id)
        key = sha256(msgspec.msgpack.encode(form)).digest()
        with self._lock:
            if self._closed:
                return Checked(request.id, "the engine is shutting down", is_busy=True)
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return self._hold(request, kept)
            if (failure := self._failures.get(key)) is not None:
                self._failures.move_to_end(key)
                return Checked(request.id, failure)
            job = self._jobs.setdefault(key, _Job(key, form))
            job.waiting.append((request, tell))
            if not job.is_taken:
                self._queues.setdefault(request.principal, deque()).append(job)
                if not self._num_idle and self._num_threads < NUM_CHECKERS:
                    self._num_threads += 1
                    threading.Thread(target=self._work, name="grammars", daemon=True).start()
                self._changed.notify()
        return None

    def matcher(self, request: Request, output: list[int]) -> Matcher:
        """Follows an answer of a request that holds its grammar, from after what it has of output.

        Raises:
            InvalidRequest: the request was never asked for.
        """
        if request.id not in self._held:
            raise InvalidRequest("the grammar of the answer was not compiled", "structured_outputs")
        kept, _ = self._held[request.id]
        copy = kept.matcher.deep_copy()
        matcher = Matcher(copy, self._tokenizer.vocab_size, self._end_ids, partial(self._note, kept))
        matcher.accept_all(output)
        return matcher

    def release(self, request_id: int, num_answers: int | None = None) -> None:
        """So many answers of a request are over, or all; of requests that hold nothing too."""
        if request_id not in self._held:
            return
        with self._lock:
            kept, num_open = self._held[request_id]
            num_open -= num_open if num_answers is None else num_answers
            if num_open > 0:
                self._held[request_id] = kept, num_open
                return
            del self._held[request_id]
            kept.num_holders -= 1
            if not kept.num_holders:
                self._held_bytes -= kept.num_bytes
                self._trim()

    def close(self) -> None:
        """End the threads and the children; whoever waits is not told."""
        with self._lock:
            self._closed = True
            self._queues.clear()
            checkers = list(self._checkers)
            self._changed.notify_all()
        for checker in checkers:
            checker.close()
        self._compiler.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ with the lock held

    def _hold(self, request: Request, kept: _Kept) -> Checked:
        if not kept.num_holders:
            if self._held and self._held_bytes + kept.num_bytes > MAX_HELD_BYTES:
                return Checked(request.id, "too many large grammars are in use", is_busy=True)
            self._held_bytes += kept.num_bytes
        kept.num_holders += 1
        self._held[request.id] = kept, request.n
        return Checked(request.id)

    def _trim(self) -> None:
        """Let go of grammars that nobody holds, the one not used for longest first, until what is left is in bounds."""
        free = [key for key, kept in self._kept.items() if not kept.num_holders]
        num_bytes = sum(self._kept[key].num_bytes for key in free)
        for place, key in enumerate(free):
            if num_bytes <= MAX_KEPT_BYTES and len(free) - place <= MAX_KEPT:
                return
            num_bytes -= self._kept.pop(key).num_bytes

    # ------------------------------------------------------------ on threads of their own

    def _work(self) -> None:
        checker = self._make_checker(self._vocabulary)
        with self._lock:
            self._checkers.add(checker)
        try:
            while (job := self._next()) is not None:
                outcome = self._compile(job, checker)
                for answer, tell in self._settle(job, outcome):
                    tell(answer)
        finally:
            with self._lock:
                self._checkers.discard(checker)
            checker.close()

    def _next(self) -> _Job | None:
        """The next job in turn; None when there has been none for long, and the thread ends."""
        with self._lock:
            self._num_idle += 1
            while not self._closed:
                while self._queues:
                    principal, queue = self._queues.popitem(last=False)
                    job = queue.popleft()
                    if queue:
                        self._queues[principal] = queue
                    if not job.is_taken:
                        job.is_taken = True
                        self._num_idle -= 1
                        return job
                if not self._changed.wait(IDLE_S):
                    break
            self._num_idle -= 1
            self._num_threads -= 1
            return None

    def _compile(self, job: _Job, checker: GrammarChecker) -> _Kept | InvalidGrammar | EngineDead:
        try:
            grammar = grammar_text(job.form, self._special_ids)
            verdict = checker.check(grammar)
            if verdict.error is not None:
                return InvalidGrammar(verdict.error)
            matcher = self._compiler.submit(compiled, self._tokenizer, grammar).result()
        except (InvalidGrammar, EngineDead) as error:
            return error
        except ValueError as error:
            return InvalidGrammar(str(error))
        except BaseException:  # a panic of the library has no type with a name, and those who wait must hear of it
            return InvalidGrammar("it cannot be compiled")
        return _Kept(matcher, max(MIN_BYTES + BYTES_PER_CHAR * len(grammar), verdict.num_bytes))

    def _settle(
        self, job: _Job, outcome: _Kept | InvalidGrammar | EngineDead
    ) -> list[tuple[Checked, Callable[[Checked], None]]]:
        """Note what became of a job; who is to be told what."""
        with self._lock:
            del self._jobs[job.key]
            if isinstance(outcome, _Kept):
                self._kept[job.key] = outcome
                answers = [(self._hold(request, outcome), tell) for request, tell in job.waiting]
                self._trim()
                return answers
            if isinstance(outcome, InvalidGrammar):
                self._failures[job.key] = str(outcome)
                while len(self._failures) > MAX_FAILURES:
                    self._failures.popitem(last=False)
            is_busy = isinstance(outcome, EngineDead)
            return [(Checked(request.id, str(outcome), is_busy), tell) for request, tell in job.waiting]

    def _note(self, kept: _Kept, grown_s: float, is_broken: bool) -> None:
        """A matcher made new tables, or broke those that all copies of its grammar share."""
        with self._lock:
            grown = min(grown_s * BYTES_PER_SECOND, max(0.0, MAX_GROWN_BYTES - kept.num_bytes))
            kept.num_bytes += grown
            if kept.num_holders:
                self._held_bytes += grown
            if is_broken:
                for key in [key for key, one in self._kept.items() if one is kept]:
                    del self._kept[key]


def _give_way() -> None:
    """This thread computes when the engine does not."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
