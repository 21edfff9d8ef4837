"""Measuring: a sweep and traffic on a device whose cost is known, and the same traffic out of its journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.cli.calibrate import doubts
from chairlift.cli.main import main
from chairlift.core.engine import Engine, Recorder
from chairlift.core.errors import InvalidJournal
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, SamplingParams
from chairlift.executors.openvino.buckets import buckets_up_to
from chairlift.journal.options import JournalOptions
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal
from chairlift.sim.calibrate.calibration import Calibration, calibrate, load_calibration
from chairlift.sim.calibrate.from_journal import steps_of_journal
from chairlift.sim.calibrate.measured import Measured, RegimeError
from chairlift.sim.calibrate.sweep import MIN_SHAPES, REPEATS, Rig, shapes, sweep
from chairlift.sim.calibrate.traffic import StepTimes, run_traffic
from chairlift.sim.cost import ChunkCosts, Coefficients, RowCosts, SmoothCost
from chairlift.sim.cost.shape import REGIMES
from timed_executor import Clock, TimedExecutor

CPU = SmoothCost(
    Coefficients(
        weights_s=0.004,
        token_s=350e-6,
        token_sizes=tuple(buckets_up_to(256)),
        change_s=0.003,
        power=1.5,
        output_s=60e-6,
        decode=RowCosts(0.001, 40e-6, 0.6e-6),
        mixed=RowCosts(0.001, 50e-6, 0.7e-6),
        chunks=ChunkCosts(50e-6, 0.0, 20e-9, 100e-9, 12e-9, tile=1),
    )
)
NO_ERROR = RegimeError(9, 0.0, 0.0, 0.0, 0.0)
SIZES = CPU.coefficients.token_sizes
VOCAB_SIZE = 1000
PARAMS = SamplingParams(max_tokens=1 << 20, ignore_eos=True)


def rig(*, limits: Limits | None = None, num_blocks: int = 4096) -> tuple[Rig, TimedExecutor]:
    clock = Clock()
    limits = limits or Limits(64, 256, 2048)
    executor = TimedExecutor(CPU, clock, limits, CacheShape(num_blocks, 16))
    return Rig(executor, limits, executor.cache_shape, VOCAB_SIZE, PARAMS, clock), executor


def traffic(seconds: float, recorder: Recorder | None = None, journal: Journal | None = None) -> list[Measured]:
    """Steps of an engine on the same device, whose driver looks at the clock, which takes 0.1 ms."""
    clock = Clock(look_s=1e-4)
    limits = Limits(32, 256, 2048)
    executor = TimedExecutor(CPU, clock, limits, CacheShape(4096, 16))
    scheduler = Scheduler(
        limits, executor.cache_shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=True, policy=Policy()
    )
    listener = StepTimes()
    engine = Engine(scheduler, executor, observer=listener, recorder=recorder)
    if journal is not None:
        journal.attach(scheduler)
    run_traffic(
        engine, limits, lambda n: SamplingParams(max_tokens=n, ignore_eos=True), VOCAB_SIZE, clock, seconds, seed=1
    )
    return list(listener.measured(0))


# ---------------------------------------------------------------- the sweep


def test_a_sweep_finds_what_steps_cost() -> None:
    device, _ = rig()
    steps = list(sweep(device, 45.0))
    assert len(steps) == REPEATS * len({step.group for step in steps}) > 3 * 150
    calibration = calibrate(steps, token_sizes=SIZES)
    assert calibration.coefficients.change_s == pytest.approx(0.003, rel=0.1)
    assert set(calibration.errors) == {"decode", "prefill", "mixed"}
    assert all(error.mean < 0.02 for error in calibration.errors.values()), calibration.errors


def test_a_sweep_takes_the_time_it_is_given() -> None:
    device, executor = rig()
    begun = executor.clock.now
    assert list(sweep(device, 10.0))
    assert 10.0 <= executor.clock.now - begun < 12.0


def test_a_sweep_reaches_the_limits() -> None:
    device, executor = rig()
    list(sweep(device, 60.0))
    assert max(shape.num_rows for shape in executor.shapes) >= 60
    assert max(shape.num_tokens for shape in executor.shapes) == 256
    assert max(start for shape in executor.shapes for start, _, _ in shape.chunks) > 1500
    assert max(shape.num_context_tokens for shape in executor.shapes) > 20_000


def test_a_sweep_reads_only_memory_that_was_written() -> None:
    """Pages that nobody ever wrote to are all one page, which is in the nearest cache."""
    device, executor = rig(num_blocks=1024)
    list(sweep(device, 0.0))
    assert executor.written >= set(range(1024))


@pytest.mark.parametrize(
    "limits", [Limits(1, 1, 8), Limits(1, 64, 2048), Limits(8, 8, 64), Limits(4, 100, 5), Limits(64, 65, 4096)]
)
@pytest.mark.parametrize("num_blocks", [128, 4096])
def test_shapes_fit_whatever_the_engine_can_do(limits: Limits, num_blocks: int) -> None:
    """The executor asserts that each plan is one that could be."""
    device, executor = rig(limits=limits, num_blocks=max(num_blocks, -(-limits.max_model_len // 16)))
    assert list(sweep(device, 2.0, seed=3, max_context=1000))
    assert len(executor.slots) <= 1  # the next engine's sequences join from slot 0 on


def test_equal_seeds_draw_equal_shapes() -> None:
    device, _ = rig()
    drawn = [[wanted for wanted, _ in zip(shapes(device, seed, 1000), range(50), strict=False)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


# ---------------------------------------------------------------- traffic and journals


def test_traffic_is_of_all_regimes_and_says_what_lies_between_steps() -> None:
    steps = traffic(60.0)
    assert {step.shape.regime for step in steps} == {"decode", "prefill", "mixed"}
    assert max(step.shape.num_rows for step in steps) > 24
    assert max(step.shape.num_shared_context_tokens for step in steps) > 500
    for step in steps[:-1]:
        assert step.step_s == pytest.approx(CPU.of_shape(step.shape, step.before) + 1e-4)
        assert step.gap_s is not None and step.gap_s >= 2e-4 - 1e-12
    calibration = calibrate(steps, token_sizes=SIZES)
    assert calibration.coefficients.change_s == pytest.approx(0.003, rel=0.1)
    assert calibration.coefficients.host.step_s == pytest.approx(2e-4, rel=0.2)
    assert all(error.mean < 0.02 for error in calibration.errors.values()), calibration.errors


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Measured], Path]:
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal(JournalOptions(), SegmentFiles(path, 4))
    steps = traffic(60.0, journal, journal)
    journal.write()
    journal.close()
    return steps, path


def test_a_journal_tells_the_steps_that_there_were(recorded: tuple[list[Measured], Path]) -> None:
    steps, path = recorded
    with path.open("rb") as file:
        read = list(steps_of_journal(file, 7))
    assert [step.shape for step in read] == [step.shape for step in steps]
    assert [step.step_s for step in read] == [step.step_s for step in steps]
    assert [step.before for step in read] == [step.before for step in steps]
    assert [step.gap_s for step in read] == pytest.approx([step.gap_s for step in steps])
    assert read[0].group == 7 and read[-1].group == 7 + (len(read) - 1) // 16


def test_a_pause_is_no_gap(recorded: tuple[list[Measured], Path]) -> None:
    _, path = recorded
    lines = path.read_bytes().splitlines(keepends=True)
    place = [n for n, line in enumerate(lines) if b'"type":"begin"' in line][20]
    idle = b'{"type":"begin","now":0.0,"plan":null}\n'
    gaps = [step.gap_s for step in steps_of_journal([*lines[:place], idle, *lines[place:]])]
    assert [n for n, gap in enumerate(gaps[:40]) if gap is None] == [19]


def test_what_is_no_journal_is_refused(recorded: tuple[list[Measured], Path]) -> None:
    lines = recorded[1].read_bytes().splitlines(keepends=True)
    with pytest.raises(InvalidJournal, match="does not start with a segment"):
        list(steps_of_journal(lines[1:]))
    with pytest.raises(InvalidJournal, match="line 3"):
        list(steps_of_journal([*lines[:2], b"nonsense\n"]))
    assert len(list(steps_of_journal([*lines[:-1], lines[-1][:-5]]))) > 100


# ---------------------------------------------------------------- the command


def test_a_journal_is_calibrated_by_command(
    recorded: tuple[list[Measured], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "calibration.json"
    assert main(["calibrate", "--from-journal", str(recorded[1]), "--output", str(output)]) == 0
    calibration = load_calibration(output)
    out = capsys.readouterr().out
    assert f"Held out of {len(recorded[0])} measured steps" in out
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["decode", "prefill", "mixed"]
    assert check(calibration) < 0.02


@pytest.mark.long
def test_an_engine_is_calibrated_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the default model, whatever else this machine does: how far off it is, is not asked here."""
    output = tmp_path / "calibration.json"
    flags = ["--max-num-seqs", "4", "--max-model-len", "128", "--kv-cache-memory-bytes", "64M", "--seconds", "2"]
    assert main(["calibrate", *flags, "--output", str(output)]) == 0
    calibration = load_calibration(output)
    assert set(calibration.spans) == {"decode", "prefill", "mixed"}
    assert calibration.machine["cpu"] and calibration.engine["max_num_seqs"] == 4
    assert calibration.spans["decode"].num_rows == (1, 4)
    assert calibration.num_cache_tokens is not None and calibration.num_cache_tokens > 128
    assert "Held out of" in capsys.readouterr().out


def test_doubts_are_told() -> None:
    calibration = calibrate([step for step in traffic(20.0) if step.shape.regime != "prefill"], noise=0.3)
    wrong = replace(calibration, errors={"decode": RegimeError(9, 0.4, 0.4, 0.4, 0.4), "mixed": NO_ERROR})
    assert doubts(wrong) == [
        "steps of one shape differ by 30%: something else used this machine",
        "decode steps: 40% off on average",
        "prefill steps were not checked: too few",
    ]
    assert doubts(replace(wrong, noise=0.01, errors=dict.fromkeys(REGIMES, NO_ERROR))) == []


def test_a_slow_machine_is_measured_for_longer_than_told() -> None:
    few, more = (len({step.group for step in sweep(rig()[0], seconds)}) for seconds in (0.5, 3.0))
    assert few < MIN_SHAPES == more


def check(calibration: Calibration) -> float:
    """The largest error of predictions for shapes of a sweep, beside what they cost in truth."""
    cost = SmoothCost(calibration.coefficients)
    host = cost.coefficients.host
    return max(
        abs((cost.of_shape(step.shape, step.before) - host.step_s) / step.step_s - 1.0) for step in traffic(20.0)
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seconds", "0"], "--seconds must be at least 1"),
        (["--max-context", "0"], "--max-context at least 1"),
        (["--from-journal", "nowhere"], "nowhere: No such file"),
        (["--from-profile", "nowhere"], "no known model is named in nowhere"),
        (["--from-profile", "nowhere", "--num-layers", "2"], "cannot read nowhere__dense.csv.gz"),
        (["--from-profile", "a", "--from-journal", "b"], "exclude each other"),
        (["--output", "/nowhere/at/all"], "cannot write /nowhere/at/all"),
    ],
)
def test_mistakes_are_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
