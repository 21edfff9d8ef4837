"""A worker process on a fake device: `python fake_worker.py FD [fault]`, run by the tests of the process."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chairlift.core.errors import InvalidModel
from chairlift.core.types import CacheShape, StepOutput, StepPlan
from chairlift.journal.options import JournalOptions
from chairlift.journal.writer import open_journal
from chairlift.worker.process import Loaded, prepare_process, serve
from fakes import FakeExecutor
from worker.running import fake_engine

JOURNAL = "journal="
"""No fault, but a file to record into."""


def load(fault: str) -> Loaded:
    if fault == "no-model":
        raise InvalidModel("there is no such model")
    if fault == "no-memory":
        raise MemoryError("1 TiB for the block tables")
    if fault == "bug":
        raise RuntimeError("a fault of ours")
    if fault == "slow-load":
        time.sleep(600)
    executor = FakeExecutor(CacheShape(256, 4), fail_step=hang if fault == "hang" else None)
    engine = fake_engine(executor)
    if fault == "broken":
        engine.finish = broken  # type: ignore[method-assign]
    if fault.startswith(JOURNAL):
        journal = open_journal(Path(fault.removeprefix(JOURNAL)), JournalOptions())
        engine._recorder = journal
        journal.start(engine.scheduler)
        return Loaded("fake", engine, engine.scheduler.limits, executor.cache, close=journal.close)
    return Loaded("fake", engine, engine.scheduler.limits, executor.cache)


def hang(plan: StepPlan) -> None:
    time.sleep(600)


def broken(now: float) -> StepOutput:
    raise KeyError("a fault of ours")


if __name__ == "__main__":
    prepare_process()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        status = serve(sock, lambda: load(sys.argv[2] if len(sys.argv) > 2 else ""))
    sys.exit(status)
