"""Tokens that several rows read: what they cost less, from the scheduler's count of them to the fit."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from random import Random

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.quiet import advance, quiet_rows
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepPlan, StepResult
from chairlift.sim.calibrate.calibration import calibrate, decode, encode
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.calibrate.measured import errors_of
from chairlift.sim.calibrate.sweep import Rig, shapes, sweep
from chairlift.sim.cost import (
    LineModel,
    RowCosts,
    SmoothCost,
    StepShape,
    device_named,
    for_one_engine,
    shape_of,
    smooth_roofline,
    transformer_named,
)
from chairlift.sim.cost.ranges import WatchedCost, spans_of
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.result import Result
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.workload import Asked, Blocks, Part
from sim.test_calibrate_fit import TRUTH as UNSHARED
from sim.test_calibrate_fit import log_uniform, steps_by
from timed_executor import Clock, TimedExecutor

TRUTH = SmoothCost(
    replace(
        UNSHARED.coefficients,
        decode=RowCosts(0.001, 8e-6, 2.4e-6, 0.7e-6),
        mixed=RowCosts(0.0012, 20e-6, 3e-6, 1e-6),
    )
)


def drawn_shapes(count: int, seed: int, *, shared: float = 0.25, regimes: int = 3) -> list[StepShape]:
    """Decode, prefill and mixed in turn; in a share of those with rows these have a beginning in common."""
    random = Random(seed)
    log = partial(log_uniform, random)
    shapes = []
    for number in range(count):
        regime = number % regimes
        rows, context = (0, 0) if regime == 1 else (log(1, 64), log(16, 2048))
        common = int(context * random.uniform(0.25, 1.0)) if random.random() < shared else 0
        chunks = ((random.choice((0, log(1, 4096))), log(1, 1024), random.random() < 0.5),) if regime else ()
        shapes.append(StepShape(rows, rows * context, chunks, max(0, rows - 1) * common))
    return shapes


# ---------------------------------------------------------------- the form


def test_shared_tokens_by_hand() -> None:
    """10 rows of 300 tokens, 200 of them in common: 1,800 are read again."""
    plan = StepPlan(0, decodes=list(range(10)), num_context_tokens=3000, num_shared_context_tokens=1800)
    alone = replace(plan, num_shared_context_tokens=0)
    assert TRUTH(alone) - TRUTH(plan) == pytest.approx(1800 * 0.7e-6)
    assert TRUTH.of_shape(shape_of(plan)) == TRUTH(plan)
    mixed = replace(plan, chunks=[], num_chunk_tokens=0)
    shape = replace(shape_of(mixed), chunks=((0, 64, True),))
    none = replace(shape, num_shared_context_tokens=0)
    assert TRUTH.of_shape(none) - TRUTH.of_shape(shape) == pytest.approx(1800 * 1e-6)
    roofline = smooth_roofline(transformer_named("llama-3.1-8b"), device_named("h100"))
    assert roofline(plan) == roofline(alone)


def test_every_model_around_another_passes_on_what_is_shared() -> None:
    plan = StepPlan(0, decodes=list(range(10)), num_context_tokens=3000, num_shared_context_tokens=1800)
    changing = for_one_engine(SmoothCost(replace(TRUTH.coefficients, change_s=0.5)))
    changing(plan)
    for cost, factor in ((TRUTH, 1.0), (scaled(TRUTH, 2.0), 2.0), (WatchedCost(TRUTH, {}, print), 1.0), (changing, 1)):
        assert isinstance(cost, LineModel)
        assert cost(plan) == factor * TRUTH(plan)
        assert cost.decode_line(10, 1800).seconds(3000) == cost(plan)
        assert cost.decode_line(10).seconds(3000) > cost(plan)


def test_more_shared_tokens_than_were_measured_are_told() -> None:
    shapes = [StepShape(2, 1000, (), 400), StepShape(10, 100_000, (), 4000)]
    told: list[str] = []
    cost = WatchedCost(TRUTH, spans_of(shapes), told.append)
    cost.decode_line(10, 4000)
    cost.decode_line(10, 0)
    assert told == []
    cost(StepPlan(0, decodes=list(range(10)), num_context_tokens=9000, num_shared_context_tokens=5000))
    assert len(told) == 1 and "5000 shared context tokens (measured: up to 4000)" in told[0]
    unshared = WatchedCost(TRUTH, spans_of([replace(shape, num_shared_context_tokens=0) for shape in shapes]), print)
    unshared.decode_line(10, 5000)
    assert not unshared._warned


# ---------------------------------------------------------------- the fit


def test_what_a_shared_token_costs_is_found_again() -> None:
    cost = fit(steps_by(TRUTH, drawn_shapes(600, 1)))
    c = cost.coefficients
    assert (c.decode.context_token_s, c.decode.shared_saving_s) == pytest.approx((2.4e-6, 0.7e-6), rel=0.01)
    assert (c.mixed.context_token_s, c.mixed.shared_saving_s) == pytest.approx((3e-6, 1e-6), rel=0.02)
    errors = errors_of(cost.of_shape, steps_by(TRUTH, drawn_shapes(300, 2, shared=1.0)))
    assert max(error.p95 for error in errors.values()) < 0.01, errors


def test_what_was_not_shared_saves_nothing() -> None:
    steps = steps_by(TRUTH, drawn_shapes(300, 1, shared=0.0))
    prior = replace(TRUTH.coefficients, output_s=0.0)
    for c in (fit(steps).coefficients, fit(steps, prior=prior).coefficients):
        assert c.decode.context_token_s == pytest.approx(2.4e-6, rel=0.01)
        assert c.decode.shared_saving_s == c.mixed.shared_saving_s == 0.0


def test_beside_chunks_sharing_saves_what_it_does_alone_unless_it_was_measured() -> None:
    shapes = drawn_shapes(600, 1)
    apart = [replace(s, num_shared_context_tokens=0) if s.regime == "mixed" else s for s in shapes]
    c = fit(steps_by(TRUTH, apart)).coefficients
    assert c.mixed.context_token_s == pytest.approx(3e-6, rel=0.02)
    assert c.mixed.shared_saving_s / c.mixed.context_token_s == pytest.approx(0.7 / 2.4, rel=0.01)


def test_a_saving_is_never_negative_nor_more_than_all() -> None:
    dearer = replace(TRUTH.coefficients, decode=RowCosts(0.001, 8e-6, 2.4e-6, -0.5e-6))
    c = fit(steps_by(SmoothCost(dearer), drawn_shapes(300, 1, regimes=1))).coefficients
    assert c.decode.shared_saving_s == 0.0
    free = replace(TRUTH.coefficients, decode=RowCosts(0.001, 8e-6, 2.4e-6, 2.6e-6))
    c = fit(steps_by(SmoothCost(free), drawn_shapes(300, 1, regimes=1))).coefficients
    assert 0.0 < c.decode.shared_saving_s <= c.decode.context_token_s


def test_a_sweep_measures_some_shapes_apart_and_shared() -> None:
    clock, limits = Clock(), Limits(64, 256, 2048)
    executor = TimedExecutor(TRUTH, clock, limits, CacheShape(4096, 16))
    params = SamplingParams(max_tokens=1 << 20, ignore_eos=True)
    rig = Rig(executor, limits, executor.cache_shape, 1000, params, clock)
    drawn = list(islice(shapes(rig, 0, 4096), 200))
    pairs = [(apart, wanted) for apart, wanted in pairwise(drawn) if wanted.num_shared_blocks]
    assert len(pairs) > 20
    for apart, wanted in pairs:
        assert replace(wanted, num_shared_blocks=0) == apart
        assert len(wanted.contexts) > 1 and 0 < wanted.num_shared_blocks * 16 <= min(wanted.contexts)
    c = calibrate(list(sweep(rig, 30.0))).coefficients
    assert (c.decode.shared_saving_s, c.mixed.shared_saving_s) == pytest.approx((0.7e-6, 1e-6), rel=0.05)


# ---------------------------------------------------------------- the file


def test_files_of_before_save_nothing_and_nonsense_is_refused() -> None:
    calibration = calibrate(steps_by(TRUTH, drawn_shapes(300, 1)), noise=0.0)
    data = encode(calibration)
    assert decode(data, "file") == calibration
    old = json.loads(data)
    for rows in ("decode", "mixed"):
        del old["coefficients"][rows]["shared_saving_s"]
    for span in old["spans"].values():
        del span["num_shared_context_tokens"]
    loaded = decode(json.dumps(old).encode(), "file")
    assert loaded.coefficients.decode.shared_saving_s == 0.0
    wrong = replace(calibration.coefficients, decode=RowCosts(0.001, 0.0, 1e-6, 2e-6))
    with pytest.raises(InvalidOption, match="cannot cost less than nothing"):
        decode(encode(replace(calibration, coefficients=wrong)), "file")


# ---------------------------------------------------------------- the scheduler and the simulator


def test_the_scheduler_counts_holders_beyond_the_first() -> None:
    """Two full blocks of a prompt of 40 tokens, held by one, by three, and by two: steps alone or many at once."""
    scheduler = Scheduler(Limits(4, 256, 256), CacheShape(64, 16), vocab_size=10)

    def step(now: float) -> StepPlan:
        plan = scheduler.schedule(now)
        assert plan is not None
        scheduler.commit(StepResult([1] * plan.num_samples), now + 0.5)
        return plan

    for number, num_output in ((0, 60), (1, 20), (2, 60)):
        params = SamplingParams(max_tokens=num_output, ignore_eos=True)
        scheduler.add(Request(number, [7] * 39 + [number], params, 0.0))
    assert step(0.0).num_shared_context_tokens == 0  # nothing decodes, and the others wait for the first
    joined = step(1.0)
    assert len(joined.chunks) == 2 and joined.num_shared_context_tokens == min(2 * 32, joined.num_context_tokens) == 40
    assert step(2.0).num_shared_context_tokens == quiet_rows(scheduler)[3] == 64
    advance(scheduler, 1, [3.0 + i for i in range(10)])
    assert step(13.0).num_shared_context_tokens == quiet_rows(scheduler)[3] == 64
    plans = [step(14.0 + i) for i in range(20)]
    assert plans[-1].num_shared_context_tokens == 32 and len(plans[-1].decodes) == 2


def asked_alike(count: int, seed: int) -> list[Asked]:
    """Requests of which half begin with the same 8 blocks."""
    random = Random(seed)
    requests = []
    for number in range(count):
        parts = [Part(1, 1, 128)] * (number % 2) + [Part(number + 10, number + 10, random.randint(1, 60))]
        prompt = Blocks(tuple(parts), sum(part.width for part in parts))
        requests.append(Asked(arrival=number * 0.05, prompt=prompt, num_output=random.randint(2, 120)))
    return requests


def test_quiet_steps_share_to_the_last_bit_what_steps_one_by_one_do() -> None:
    shared: list[int] = []
    setup = EngineSetup(cost=TRUTH, max_num_seqs=16, num_blocks=2048)

    def run(setup: EngineSetup, *, skips: bool) -> Result:
        def note(plan: StepPlan, *_: object) -> None:
            shared.append(plan.num_shared_context_tokens)

        return simulate(asked_alike(60, 1), [setup.replica("e", on_step=None if skips else note)], RoundRobin())

    skipped, stepped = run(setup, skips=True), run(setup, skips=False)
    assert [s.finished for s in skipped.served] == [s.finished for s in stepped.served]
    assert [skipped.token_times(s) for s in skipped.served] == [stepped.token_times(s) for s in stepped.served]
    assert max(shared) >= 4 * 128
    c = TRUTH.coefficients
    without = replace(setup, cost=SmoothCost(replace(c, decode=replace(c.decode, shared_saving_s=0.0))))
    assert skipped.duration_s < run(without, skips=True).duration_s
