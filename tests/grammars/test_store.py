"""The grammars of an engine: who waits, what is kept, what is held."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import Request, SamplingParams
from chairlift.grammars import store
from chairlift.grammars.child import Verdict
from chairlift.grammars.compiling import Vocabulary
from chairlift.grammars.store import Checked, Grammars
from chairlift.worker.process import resident_bytes
from grammars.small import END, OTHER_END, TOKENS, VOCABULARY, PlainChecker, asking, legal

WAIT_S = 10.0


def form(word: str) -> StructuredOutputs:
    return StructuredOutputs(regex=word)


class Bench:
    """A store, its checkers, and what it told."""

    def __init__(self) -> None:
        self.checkers: list[PlainChecker] = []
        self.told: SimpleQueue[Checked] = SimpleQueue()
        self.grammars = Grammars(VOCABULARY, lambda _: [], self.make_checker)

    def make_checker(self, vocabulary: Vocabulary) -> PlainChecker:
        checker = PlainChecker(vocabulary)
        self.checkers.append(checker)
        return checker

    def ask(self, request: Request) -> Checked:
        """Asked, and waited for if need be."""
        return self.grammars.ask(request, self.told.put) or self.told.get(timeout=WAIT_S)

    @property
    def num_tried(self) -> int:
        return sum(len(checker.asked) for checker in self.checkers)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.grammars.close()


def test_a_grammar_is_tried_once_and_kept(bench: Bench) -> None:
    for request_id in range(3):
        assert bench.ask(asking(request_id, form("ab"))) == Checked(request_id)
    assert bench.num_tried == 1
    assert bench.grammars.num_held == 3
    for request_id in range(3):
        bench.grammars.release(request_id)
    assert bench.grammars.num_held == 0
    assert bench.grammars.ask(asking(3, form("ab")), bench.told.put) == Checked(3)


def test_a_request_without_a_form_waits_for_nothing(bench: Bench) -> None:
    assert bench.grammars.ask(Request(0, [1], SamplingParams()), bench.told.put) == Checked(0)
    assert bench.grammars.num_held == 0


def test_it_is_held_until_all_answers_are_over(bench: Bench) -> None:
    bench.ask(asking(0, form("ab"), n=3))
    for _ in range(2):
        bench.grammars.release(0, 1)
        assert bench.grammars.num_held == 1
    bench.grammars.release(0, 1)
    assert bench.grammars.num_held == 0
    bench.grammars.release(0, 1)
    bench.grammars.release(17)


def test_src_vllm_18780_a_grammar_that_is_none_is_refused_and_remembered(bench: Bench) -> None:
    """Row 36: its request ends with a reason, at once and whenever it comes again."""
    first = bench.ask(asking(0, form("(")))
    assert first.error is not None
    assert not first.is_busy
    assert bench.grammars.ask(asking(1, form("(")), bench.told.put) == Checked(1, first.error)
    assert bench.ask(asking(2, StructuredOutputs(json=False))).error == "nothing satisfies the schema"  # type: ignore[arg-type]
    assert bench.grammars.num_held == 0


def test_those_who_ask_meanwhile_wait_for_the_same_trial(bench: Bench) -> None:
    gate = threading.Event()
    checks = PlainChecker.check

    class Slow(PlainChecker):
        def check(self, grammar: str) -> Verdict:
            gate.wait(WAIT_S)
            return checks(self, grammar)

    grammars = Grammars(VOCABULARY, lambda _: [], Slow)
    try:
        for request_id in range(20):
            assert grammars.ask(asking(request_id, form("ab")), bench.told.put) is None
        gate.set()
        assert {bench.told.get(timeout=WAIT_S) for _ in range(20)} == {Checked(i) for i in range(20)}
    finally:
        gate.set()
        grammars.close()


def test_principals_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who sends one hundred waits for them; somebody who sends one waits for one of those at most."""
    monkeypatch.setattr(store, "NUM_CHECKERS", 1)
    gate = threading.Semaphore(0)

    class Gated(PlainChecker):
        def check(self, grammar: str) -> Verdict:
            assert gate.acquire(timeout=WAIT_S)
            return Verdict("no")

    grammars = Grammars(VOCABULARY, lambda _: [], Gated)
    try:
        for request_id in range(100):
            grammars.ask(asking(request_id, form(f"a{{{request_id}}}"), principal="greedy"), bench.told.put)
        grammars.ask(asking(100, form("b"), principal="modest"), bench.told.put)
        order = []
        for _ in range(3):
            gate.release()
            order.append(bench.told.get(timeout=WAIT_S).request_id)
        assert 100 in order
    finally:
        grammars.close()
        for _ in range(101):
            gate.release()


def test_what_nobody_holds_is_kept_within_bounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 8 << 20)  # a plain checker says one MiB
    for request_id in range(40):
        bench.ask(asking(request_id, form(f"x{request_id}")))
    assert bench.grammars.kept_bytes == 40 << 20  # all held
    for request_id in range(40):
        bench.grammars.release(request_id)
    assert bench.grammars.kept_bytes == 8 << 20
    assert bench.grammars.ask(asking(50, form("x39")), bench.told.put) == Checked(50)
    assert bench.ask(asking(51, form("x0"))) == Checked(51)
    assert bench.num_tried == 41


def test_the_number_kept_is_bounded_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT", 3)
    for request_id in range(9):
        bench.ask(asking(request_id, form(f"x{request_id}")))
        bench.grammars.release(request_id)
    assert bench.grammars.kept_bytes == 3 << 20


def test_who_would_need_too_much_is_told_to_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_HELD_BYTES", 2 << 20)
    assert bench.ask(asking(0, form("a"))) == Checked(0)
    assert bench.ask(asking(1, form("b"))) == Checked(1)
    refused = bench.ask(asking(2, form("c")))
    assert refused.is_busy
    assert bench.ask(asking(3, form("a"))) == Checked(3)
    bench.grammars.release(1)
    assert bench.ask(asking(4, form("c"))) == Checked(4)


def test_a_matcher_goes_on_after_what_was_said(bench: Bench) -> None:
    """As after a preemption: the answer's tokens so far say where it is."""
    request = asking(0, StructuredOutputs(choice=("abc", "abd")))
    bench.ask(request)
    assert legal(bench.grammars.matcher(request, list(b"ab"))) == {ord("c"), ord("d")}
    assert legal(bench.grammars.matcher(request, [*b"abc", END])) == {END, OTHER_END}
    assert ord("a") in legal(bench.grammars.matcher(request, []))


@pytest.mark.parametrize(("opening", "closing"), [("<turn>", "<turn>"), ("<turn>", "ab"), ("z", "<turn>")])
def test_a_thought_may_stand_between_tokens_that_are_no_text(bench: Bench, opening: str, closing: str) -> None:
    """Mistral's are: the form would begin in the thought, since no text ends it."""
    begin, end = TOKENS.index(opening.encode()), TOKENS.index(closing.encode())
    free = asking(0, StructuredOutputs(choice=("c",), after=(opening, closing)))
    assert bench.ask(free) == Checked(0)
    assert legal(bench.grammars.matcher(free, [])) == {ord("c"), begin}
    thinking = legal(bench.grammars.matcher(free, [begin, *b"c"]))
    assert {end, ord("b"), ord("c")} <= thinking and END not in thinking
    assert legal(bench.grammars.matcher(free, [begin, *b"c", end])) == {ord("\n"), ord("c")}
    assert legal(bench.grammars.matcher(free, [begin, *b"c", end, *b"\nc"])) == {END, OTHER_END}
    begun = asking(1, StructuredOutputs(choice=("c",), after=("", closing)))
    assert bench.ask(begun) == Checked(1)
    assert legal(bench.grammars.matcher(begun, [*b"c", end])) == {ord("\n"), ord("c")}


def test_a_matcher_of_a_request_that_was_not_asked_for_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        bench.grammars.matcher(asking(0, form("a")), [])


def test_a_grammar_that_broke_is_made_anew_for_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies share tables: once these are full every copy would fail."""
    monkeypatch.setattr("chairlift.grammars.compiling.MAX_LEXER_STATES", 300)
    request = asking(0, form("(.*a.{30})*"))
    assert bench.ask(request) == Checked(0)
    matcher = bench.grammars.matcher(request, [])
    for i in range(2000):
        if not legal(matcher):
            break
        matcher.accept(ord("a" if i * i % 7 in (1, 2) else "b"))
    else:
        pytest.fail("it never became too much")
    bench.grammars.release(0)
    again = asking(1, form("(.*a.{30})*"))
    assert bench.ask(again) == Checked(1)
    assert bench.num_tried == 2
    assert legal(bench.grammars.matcher(again, []))


def test_a_child_that_cannot_be_started_is_no_fault_of_the_grammar(bench: Bench) -> None:
    class Absent(PlainChecker):
        def check(self, grammar: str) -> Verdict:
            raise EngineDead("no process")

    grammars = Grammars(VOCABULARY, lambda _: [], Absent)
    try:
        for request_id in range(2):
            assert grammars.ask(asking(request_id, form("a")), bench.told.put) is None
            assert bench.told.get(timeout=WAIT_S) == Checked(request_id, "no process", is_busy=True)
    finally:
        grammars.close()


def test_closing_ends_threads_and_children(bench: Bench) -> None:
    bench.ask(asking(0, form("a")))
    bench.grammars.close()
    for thread in threading.enumerate():
        if thread.name.startswith("grammar"):
            thread.join(WAIT_S)
    assert all(checker.closed for checker in bench.checkers)
    assert bench.ask(asking(1, form("b"))).is_busy


def test_a_child_with_nothing_to_do_is_let_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "IDLE_S", 0.0)
    for request_id in range(3):
        bench.ask(asking(request_id, form(f"x{request_id}")))
        for thread in threading.enumerate():
            if thread.name == "grammars":
                thread.join(WAIT_S)
    assert len(bench.checkers) == 3
    assert all(checker.closed for checker in bench.checkers)


@pytest.mark.parametrize(("count", "of"), [(1000, "short"), pytest.param(10_000, "long", marks=pytest.mark.long)])
def test_d2_thousands_of_schemas_take_no_more_than_their_bounds(bench: Bench, count: int, of: str) -> None:
    """Each has its own grammar, compiled and followed for some tokens; resident memory grows by at most 64 MiB."""

    def serve(request_id: int) -> None:
        schema: dict[str, Any] = {"type": "object", "properties": {f"field{request_id}": {"type": "string"}}}
        request = asking(request_id, StructuredOutputs(json=schema))  # type: ignore[arg-type]
        assert bench.ask(request).error is None
        matcher = bench.grammars.matcher(request, [])
        for token in b'{"fiel':
            legal(matcher)
            matcher.accept(token)
        bench.grammars.release(request_id)

    for request_id in range(100):
        serve(request_id)
    before = resident_bytes()
    for request_id in range(100, count):
        serve(request_id)
    assert resident_bytes() - before <= 64 << 20
    assert bench.grammars.kept_bytes <= store.MAX_KEPT_BYTES
