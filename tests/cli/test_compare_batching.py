"""`chairlift bench compare-batching` from its flags to its table, on the real scheduler and loop and a fake device."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chairlift.bench.compare_batching import Traffic
from chairlift.bench.load import Load
from chairlift.cli.in_process import EngineThread, Progress
from chairlift.cli.main import main
from chairlift.core.engine import Engine, Observer
from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepPlan
from fake_built import MODEL
from fakes import FakeExecutor

NUM_SLOTS = 4
TRAFFIC = Traffic(num_prompts=24, prompt_tokens=6, output_median=8.0, output_sigma=1.0, output_max=60)
FLAGS = ["--num-prompts", "24", "--prompt-tokens", "6", "--output-median", "8", "--output-max", "60"]


@dataclass
class Fake:
    """What `load` gives, with a fresh device for each engine."""

    options: object = None
    step_s: float = 0.0005
    max_model_len: int = 200
    model: object = MODEL
    policies: list[Policy] = field(default_factory=list)
    executors: list[FakeExecutor] = field(default_factory=list)

    def load(self, options: object) -> Fake:
        self.options = options
        return self

    def engine(self, policy: Policy, observer: Observer | None = None) -> Engine:
        self.policies.append(policy)
        self.executors.append(FakeExecutor(CacheShape(400, 4), step_s=self.step_s))
        limits = Limits(NUM_SLOTS, 64, self.max_model_len)
        scheduler = Scheduler(limits, self.executors[-1].cache, vocab_size=MODEL.config.vocab_size, policy=policy)
        return Engine(scheduler, self.executors[-1], observer=observer)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr("chairlift.worker.build.load", fake.load)
    return fake


def compare(*flags: str) -> int:
    return main(["bench", "compare-batching", "--max-num-seqs", str(NUM_SLOTS), *FLAGS, *flags])


def test_one_table_of_the_same_traffic(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert compare("--request-rate", "1000000", "--output-json", str(path)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("24 requests at 1000000.00/s")
    assert [line.split()[0] for line in printed[1:5]] == ["policy", "static", "dynamic", "continuous"]
    assert printed[5].startswith("continuous over static: ")
    figures = json.loads(path.read_text())
    assert figures["model"] == MODEL.name and figures["estimated_capacity"] is None
    static, _, continuous = figures["policies"]
    lens = TRAFFIC.output_lens()
    # All are there at once: full batches in order, each as long as its longest answer.
    num_steps = sum(max(lens[i : i + NUM_SLOTS]) for i in range(0, len(lens), NUM_SLOTS))
    assert static["num_steps"] == num_steps
    assert static["slot_use"] == pytest.approx(sum(lens) / num_steps / NUM_SLOTS)
    assert continuous["slot_use"] > 1.3 * static["slot_use"]
    assert {policy["total_output_tokens"] for policy in figures["policies"]} == {sum(lens)}
    assert [policy.batching for policy in fake.policies] == ["static", "dynamic", "continuous"]
    assert all(executor.violations == [] for executor in fake.executors)


def test_without_a_rate_one_is_measured(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.step_s = 0.002
    path = tmp_path / "figures.json"
    assert compare("--request-rate", "auto", "--max-batch-wait-ms", "3", "--output-json", str(path)) == 0
    assert "requests/s can be served in static batches" in capsys.readouterr().err
    figures = json.loads(path.read_text())
    capacity = figures["estimated_capacity"]
    assert capacity["static"] < figures["request_rate"] < capacity["continuous"]
    assert [(policy.batching, policy.max_batch_wait_s) for policy in fake.policies] == [
        ("static", None),
        ("static", None),
        ("dynamic", 0.003),
        ("continuous", None),
    ]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--batching", "dynamic"], "leave out --batching"),
        (["--journal", "somewhere"], "leave out --journal"),
        (["--prefill-first"], "leave out --prefill-first"),
        (["--num-prompts", "0"], "num_prompts"),
        (["--output-median", "100"], "output_median"),
        (["--output-json", "no-such-folder/x.json"], "no-such-folder"),
        (["--prompt-tokens", "500"], "500"),
    ],
)
def test_what_makes_no_sense(fake: Fake, flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*flags) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "soon"])
def test_what_is_no_rate(fake: Fake, rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare("--request-rate", rate)
    assert "neither a rate above 0 nor auto" in capsys.readouterr().err


def test_progress_on_a_terminal() -> None:
    now, terminal = [10.0], io.StringIO()
    show = Progress(terminal, lambda: now[0]).of("static")
    load = Load(8, 9.0, num_started=5, num_done=2)
    show(load, 30)
    assert terminal.getvalue() == ""
    now[0] = 11.0
    show(load, 50)
    assert terminal.getvalue() == "\r\x1b[Kstatic: 2/8 done, 3 in flight, 50 chunks/s, 2 s"


# ---------------------------------------------------------------- the thread


class Deaf:
    """A listener that keeps nothing."""

    def on_step(self, *_: object) -> None: ...

    def on_tokens(self, *_: object) -> None: ...


def thread_of(executor: FakeExecutor) -> EngineThread:
    scheduler = Scheduler(Limits(4, 64, 100), executor.cache, vocab_size=1000)
    return EngineThread(Engine(scheduler, executor), Deaf(), lambda: 0.0)


def request(length: int) -> Request:
    return Request(0, [1] * length, SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True))


def test_a_refused_request_is_said() -> None:
    thread = thread_of(FakeExecutor(CacheShape(100, 4)))
    thread.add(request(101))
    with pytest.raises(ChairliftError, match="101"):
        thread.wait(20.0)


def test_stopping_leaves_what_is_in_flight() -> None:
    gate = threading.Semaphore(3)
    executor = FakeExecutor(CacheShape(100, 4), gate=gate)
    thread = thread_of(executor)
    thread.add(request(5))
    for _ in range(4):
        executor.submitted.acquire()
    assert not thread.wait(0.0)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    gate.release(10)
    stopping.join(20.0)
    assert thread.wait(20.0)
    assert executor.num_steps < 50


def test_a_broken_engine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(CacheShape(100, 4))

    def broken(self: Engine, now: float) -> bool:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Engine, "begin", broken)
    thread = thread_of(executor)
    with pytest.raises(EngineDead, match="oops"):
        thread.wait(20.0)


def test_a_failed_step_is_an_error_of_its_answers(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: StepPlan) -> None:
        raise MemoryError

    plain = fake.engine

    def engine(policy: Policy, observer: Observer | None = None) -> Engine:
        made = plain(policy, observer)
        fake.executors[-1].fail_step = fail
        return made

    monkeypatch.setattr(fake, "engine", engine)
    assert compare("--request-rate", "100000") == 2
