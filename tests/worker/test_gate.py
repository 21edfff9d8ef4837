"""Requests that wait at the gate, while the loop serves those that need not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import CacheShape, FinishReason, Request
from chairlift.grammars.store import Checked
from chairlift.journal.options import JournalOptions
from chairlift.journal.writer import open_journal
from chairlift.wire import Drain
from chairlift.worker.local import LocalEngine
from fakes import FakeExecutor, expected
from journal.recording import replay_file
from worker.running import TIMEOUT_S, Running, fake_engine, request
from worker.test_local import Inbox

FORM = StructuredOutputs(regex="a")


@dataclass
class Gate:
    """Lets through at once, never, or when it is told to."""

    at_once: bool = False
    asked: dict[int, Callable[[Checked], None]] = field(default_factory=dict)
    holding: dict[int, int] = field(default_factory=dict)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each that asks."""

    def ask(self, request: Request, tell: Callable[[Checked], None]) -> Checked | None:
        self.asked[request.id] = tell
        self.holding[request.id] = request.n
        self.arrived.release()
        return Checked(request.id) if self.at_once else None

    def release(self, request_id: int, num_answers: int | None = None) -> None:
        if request_id in self.holding:
            self.holding[request_id] -= self.holding[request_id] if num_answers is None else num_answers
            if not self.holding[request_id]:
                del self.holding[request_id]

    def answer(self, request_id: int, error: str | None = None, *, is_busy: bool = False) -> None:
        if error is not None:
            del self.holding[request_id]
        self.asked[request_id](Checked(request_id, error, is_busy))


def formed(request_id: int, n: int = 1) -> Request:
    plain = request(request_id, n=n)
    return replace(plain, params=replace(plain.params, structured_outputs=FORM))


def test_src_vllm_14151_others_are_served_while_one_waits() -> None:
    gate = Gate()
    with Running(gate=gate) as running:
        running.add(formed(1), request(2))
        running.wait_finished(2)
        assert (1, 0) not in running.emitted.finishes
        gate.answer(1)
        running.wait_finished(1)
    assert running.emitted.tokens(1) == expected(formed(1), 5)
    assert gate.holding == {}


def test_one_that_may_go_on_at_once_does() -> None:
    gate = Gate(at_once=True)
    with Running(gate=gate) as running:
        running.add(formed(1, n=3), request(2))
        running.wait_finished(1, 2)
        running.emitted.wait_for(lambda: len(running.emitted.finishes) == 4)
    assert list(gate.asked) == [1]
    assert gate.holding == {}


def test_src_vllm_47312_a_grammar_that_fails_ends_its_request_with_a_reason() -> None:
    gate = Gate()
    with Running(gate=gate) as running:
        running.add(formed(1), formed(2))
        assert gate.arrived.acquire(timeout=TIMEOUT_S) and gate.arrived.acquire(timeout=TIMEOUT_S)
        gate.answer(1, "unknown keyword")
        gate.answer(2, "later", is_busy=True)
        running.emitted.wait_for(lambda: len(running.emitted.refusals) == 2)
    refusals = {refusal.id: refusal for refusal in running.emitted.refusals}
    assert refusals[1].message == "structured output: unknown keyword"
    assert (refusals[1].param, refusals[1].is_busy) == ("structured_outputs", False)
    assert refusals[2].is_busy
    assert gate.holding == {}


def test_one_that_left_meanwhile_holds_nothing() -> None:
    gate = Gate()
    with Running(gate=gate) as running:
        running.add(formed(1))
        running.abort(1)
        running.emitted.wait_for(lambda: len(running.emitted.refusals) == 1)
        gate.answer(1)
        running.add(request(2))
        running.wait_finished(2)
        assert gate.holding == {}
    assert list(running.emitted.finishes) == [(2, 0)]


def test_one_that_the_engine_refuses_or_that_is_aborted_holds_nothing() -> None:
    gate = Gate(at_once=True)
    with Running(gate=gate) as running:
        running.add(formed(1, n=100))
        running.emitted.wait_for(lambda: len(running.emitted.refusals) == 1)
        running.add(formed(2, n=2))
        running.abort(2)
        running.emitted.wait_for(lambda: len(running.emitted.finishes) == 2)
    assert gate.holding == {}


def test_a_drain_waits_for_those_at_the_gate() -> None:
    gate = Gate()
    running = Running(gate=gate)
    with running:
        running.add(formed(1))
        running.loop.submit(Drain())
        running.add(request(2))
        running.emitted.wait_for(lambda: len(running.emitted.refusals) == 1)
        gate.answer(1)
        running.wait_finished(1)
    assert running.emitted.finishes[1, 0].reason is FinishReason.LENGTH


def test_a_journal_says_which_form_was_asked_for_and_replays(tmp_path: Path) -> None:
    """A request comes into it when its grammar is there: that is when the scheduler heard of it."""
    path = tmp_path / "journal"
    journal = open_journal(path, JournalOptions())
    engine = fake_engine(FakeExecutor(CacheShape(64, 4)))
    engine._recorder = journal
    journal.start(engine.scheduler)
    gate = Gate()
    local = LocalEngine(engine, journal.close, gate)
    inbox = Inbox()
    late, early = replace(formed(0), id=local.new_id()), replace(request(1), id=local.new_id())
    local.start(late, inbox)
    local.start(early, inbox)
    assert [answer.request.id for answer in inbox.next()] == [early.id]
    gate.answer(late.id)
    assert [answer.request.id for answer in inbox.next()] == [late.id]
    local.close()
    replayed = replay_file(path)
    assert replayed.difference is None
    text = path.read_text()
    assert '"regex":"a"' in text
    assert text.index(f'"id":{early.id}') < text.index(f'"id":{late.id}')
