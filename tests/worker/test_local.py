"""An engine shared by threads: everybody gets their own answer, and nobody waits for one that will not come."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from chairlift.core.errors import EngineDead, NeverFits
from chairlift.core.types import CacheShape, FinishReason, Request, SamplingParams, StepPlan
from chairlift.worker.answers import Answer
from chairlift.worker.local import LocalEngine
from fakes import FakeExecutor, expected, prompt
from worker.running import fake_engine


class Inbox:
    """A reader that waits on a thread."""

    def __init__(self) -> None:
        self.news: SimpleQueue[list[Answer]] = SimpleQueue()
        self.wake = self.news.put

    def next(self) -> list[Answer]:
        return self.news.get(timeout=20)


def request(
    engine: LocalEngine, *, length: int = 10, max_tokens: int = 5, n: int = 1, logprobs: int | None = None
) -> Request:
    request_id = engine.new_id()
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=3, ignore_eos=True, logprobs=logprobs)
    return Request(request_id, prompt(length, request_id + 1), params, n=n)


def local(**faults: Callable[..., object]) -> tuple[LocalEngine, FakeExecutor]:
    executor = FakeExecutor(CacheShape(64, 4), **faults)  # type: ignore[arg-type]
    return LocalEngine(fake_engine(executor)), executor


def test_many_threads_each_get_their_own_answers() -> None:
    engine, executor = local()
    wrong: list[str] = []

    def call(count: int) -> None:
        inbox = Inbox()
        requests = {each.id: each for each in (request(engine, max_tokens=3 + i % 9) for i in range(count))}
        for each in requests.values():
            engine.start(each, inbox)
        while requests:
            for answer in inbox.next():
                mine = requests.pop(answer.request.id, None)
                if mine is None or answer.choices[0].tokens != expected(mine, mine.params.max_tokens or 0):
                    wrong.append(f"request {answer.request.id}")

    threads = [threading.Thread(target=call, args=(25,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert executor.violations == []
    engine.close()


def test_with_each_step_a_reader_hears_of_every_token() -> None:
    engine, _ = local()
    inbox = Inbox()
    asked = request(engine, max_tokens=6, n=2, logprobs=2)
    answer = engine.start(asked, inbox, each_step=True)
    num_news = 0
    while answer.num_open or not inbox.news.empty():
        assert inbox.next() == [answer]
        num_news += 1
    assert num_news >= 6
    for index, choice in enumerate(answer.choices):
        assert choice.tokens == expected(asked, 6, index)
        assert [each.token for each in choice.logprobs] == choice.tokens
        assert choice.finish is not None
        assert choice.closed
    engine.close()


def test_without_it_only_of_the_end() -> None:
    engine, _ = local()
    inbox = Inbox()
    answer = engine.start(request(engine, n=3), inbox)
    assert inbox.next() == [answer]
    assert answer.num_open == 0
    assert inbox.news.empty()
    engine.close()


def test_a_refusal_reaches_who_asked() -> None:
    engine, _ = local()
    inbox = Inbox()
    answer = engine.start(request(engine, length=1000), inbox)
    assert inbox.next() == [answer]
    assert isinstance(answer.error, NeverFits)
    assert answer.error.param == "prompt"
    engine.close()


def test_an_abort_ends_an_answer() -> None:
    gate = threading.Semaphore(0)
    engine, executor = local(gate=gate)  # type: ignore[arg-type]
    inbox = Inbox()
    answer = engine.start(request(engine, max_tokens=100), inbox)
    executor.submitted.acquire()
    engine.abort(answer)
    gate.release(200)
    assert inbox.next() == [answer]
    finish = answer.choices[0].finish
    assert finish is not None
    assert finish.reason is FinishReason.ABORT
    engine.abort(answer)
    engine.close()


def test_closing_tells_those_who_wait_and_those_who_come() -> None:
    gate = threading.Semaphore(0)
    engine, executor = local(gate=gate)  # type: ignore[arg-type]
    inbox = Inbox()
    answers = [engine.start(request(engine, max_tokens=50), inbox) for _ in range(3)]
    executor.submitted.acquire()
    gate.release()
    engine.close()
    told = {answer.request.id for answers in (inbox.next(),) for answer in answers}
    assert told == {answer.request.id for answer in answers}
    assert all(isinstance(answer.error, EngineDead) for answer in answers)
    with pytest.raises(EngineDead, match="closed"):
        engine.start(request(engine), inbox)
    engine.close()


def test_a_fork_is_told_instead_of_waiting_forever() -> None:
    engine, _ = local()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            engine.start(request(engine), Inbox())
        except EngineDead:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    engine.close()
    assert status == 0


def test_a_broken_engine_tells_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(CacheShape(64, 4))
    broken = fake_engine(executor)

    def finish(now: float) -> object:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(broken, "finish", finish)
    engine = LocalEngine(broken)
    inbox = Inbox()
    answer = engine.start(request(engine), inbox)
    assert inbox.next() == [answer]
    assert isinstance(answer.error, EngineDead)
    assert "a fault of ours" in str(answer.error)


def test_a_failed_step_fails_its_requests_only() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step == 1:
            raise MemoryError

    engine, _ = local(fail_step=fail)
    inbox = Inbox()
    first = engine.start(request(engine), inbox)
    inbox.next()
    second = engine.start(request(engine), inbox)
    inbox.next()
    finishes = [answer.choices[0].finish for answer in (first, second)]
    assert [finish.reason for finish in finishes if finish is not None] == [FinishReason.ERROR, FinishReason.LENGTH]
    engine.close()
