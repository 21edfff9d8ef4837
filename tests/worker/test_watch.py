"""Who looks is told once for each time they ask, with or without work, and nobody else is."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from chairlift.core.look import Phase
from chairlift.core.types import CacheShape
from chairlift.wire import Add, Drain, Watch, Watched
from chairlift.worker.loop import EngineLoop
from fakes import FakeExecutor
from worker.running import TIMEOUT_S, Emitted, fake_engine, request


def test_a_loop_tells_who_runs_while_it_computes_and_when_it_is_idle() -> None:
    gate = threading.Semaphore(0)
    executor = FakeExecutor(CacheShape(64, 4), gate=gate)
    emitted, told = Emitted(), SimpleQueue[Watched]()
    loop = EngineLoop(fake_engine(executor, max_num_seqs=1), time.monotonic, emitted, heartbeat_s=60.0, tell=told.put)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    loop.submit(Watch())
    (idle,) = told.get(timeout=TIMEOUT_S).looks
    assert (idle.running, idle.waiting) == ([], [])
    loop.submit(Add(request(1)))
    loop.submit(Add(request(2)))
    loop.submit(Watch())
    executor.submitted.acquire(timeout=TIMEOUT_S)
    gate.release()
    executor.submitted.acquire(timeout=TIMEOUT_S)
    seen = told.get(timeout=TIMEOUT_S)
    assert [(one.id, one.slot) for one in seen.looks[0].running] == [(1, 0)]
    assert [(one.id, one.phase) for one in seen.looks[0].waiting] == [(2, Phase.WAITING)]
    gate.release(100)
    loop.submit(Drain())
    thread.join(TIMEOUT_S)
    assert told.empty()


def test_without_anybody_to_tell_a_question_is_nothing() -> None:
    emitted = Emitted()
    loop = EngineLoop(fake_engine(FakeExecutor(CacheShape(64, 4))), time.monotonic, emitted)
    loop.submit(Watch())
    loop.submit(Drain())
    loop.run()
    assert emitted.messages == []


def test_both_engines_are_told_of() -> None:
    told: list[Watched] = []
    engines = [fake_engine(FakeExecutor(CacheShape(64, 4))) for _ in range(2)]
    loop = EngineLoop(engines[0], time.monotonic, Emitted(), encoder=engines[1], tell=told.append)
    loop.submit(Watch())
    loop.submit(Drain())
    loop.submit(Watch())
    loop.run()
    assert [len(one.looks) for one in told] == [2]
