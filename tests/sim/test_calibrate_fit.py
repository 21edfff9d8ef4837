"""Fitting: what made the steps is found again, and what they do not tell is not made up."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.errors import InvalidOption
from chairlift.core.types import StepPlan
from chairlift.metrics.latency import percentile
from chairlift.sim.calibrate.calibration import Calibration, calibrate, decode, encode, load_calibration, noise_of
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.calibrate.measured import Measured, error_of, errors_of, table
from chairlift.sim.calibrate.nnls import solve_nonnegative
from chairlift.sim.cost import (
    ChunkCosts,
    Coefficients,
    NoisyCost,
    RowCosts,
    SmoothCost,
    StepShape,
    device_named,
    smooth_roofline,
    transformer_named,
)

TRUTH = SmoothCost(
    Coefficients(
        weights_s=0.005,
        token_s=20e-6,
        power=2.2,
        output_s=5e-6,
        decode=RowCosts(0.001, 8e-6, 90e-9),
        mixed=RowCosts(0.0012, 20e-6, 200e-9),
        chunks=ChunkCosts(60e-6, 4e-6, 3e-9, 300e-9, 2e-9, tile=64),
    )
)


def log_uniform(random: Random, low: int, high: int) -> int:
    """One order of magnitude is as likely as another."""
    return int(low * (high / low) ** random.random())


def drawn_shapes(count: int, seed: int, *, regimes: int = 3) -> list[StepShape]:
    """Decode, prefill and mixed in turn, or only the first of these."""
    random = Random(seed)
    log = partial(log_uniform, random)
    shapes = []
    for number in range(count):
        regime = number % regimes
        rows = 0 if regime == 1 else log(1, 256)
        chunks = [(random.choice((0, log(1, 8192))), log(1, 2048), random.random() < 0.5)]
        chunks += [(0, log(1, 512), True)] * random.choice((0, 0, 1, 3))
        shapes.append(StepShape(rows, rows * log(1, 4096), () if regime == 0 else tuple(chunks)))
    return shapes


def steps_by(cost: SmoothCost, shapes: list[StepShape], *, noise: float = 0.0, seed: int = 0) -> list[Measured]:
    random = Random(seed)
    return [
        Measured(shape, cost.of_shape(shape) * math.exp(random.gauss(0.0, noise) if noise else 0.0), group=number)
        for number, shape in enumerate(shapes)
    ]


# ---------------------------------------------------------------- non-negative least squares


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_least_squares_are_the_best_of_all_sets_of_columns(seed: int, num_columns: int) -> None:
    """Among all subsets, solved without bounds, the best that has no negative coefficient."""
    generator = np.random.default_rng(seed)
    columns = generator.normal(size=(12, num_columns)) * 10.0 ** generator.integers(-6, 6, num_columns)
    target = generator.normal(size=12)
    best = float(target @ target)
    for size in range(1, num_columns + 1):
        for subset in itertools.combinations(range(num_columns), size):
            x = np.linalg.lstsq(columns[:, subset], target, rcond=None)[0]
            if (x >= 0.0).all():
                best = min(best, float(((columns[:, subset] @ x - target) ** 2).sum()))
    found = solve_nonnegative(columns, target)
    assert (found >= 0.0).all()
    assert float(((columns @ found - target) ** 2).sum()) <= best * (1 + 1e-6) + 1e-12


def test_what_the_rows_do_not_tell_stays_at_the_prior() -> None:
    columns = np.array([[1.0, 0.0, 2.0], [2.0, 0.0, 4.0]])
    x = solve_nonnegative(columns, np.array([9.0, 18.0]), np.array([1.0, 7.0, 3.0]), pull=1e-6)
    assert x[1] == 7.0  # never seen
    assert x[0] + 2 * x[2] == pytest.approx(9.0, rel=1e-4)  # only their sum was seen
    # Moved from (1, 3), which gives 7, by what is missing, in proportion to the columns' sizes: none was favoured.
    assert (x[0] - 1.0, 2 * (x[2] - 3.0)) == pytest.approx((1.0, 1.0), rel=1e-3)


# ---------------------------------------------------------------- the fit


def test_steps_without_noise_are_predicted_where_they_were_not_measured() -> None:
    cost = fit(steps_by(TRUTH, drawn_shapes(600, 1)))
    errors = errors_of(cost.of_shape, steps_by(TRUTH, drawn_shapes(300, 2)))
    assert {regime: error.mean < 0.01 and error.p95 < 0.03 for regime, error in errors.items()} == {
        "decode": True,
        "prefill": True,
        "mixed": True,
    }, table(errors)
    assert cost.coefficients.decode.context_token_s == pytest.approx(90e-9, rel=0.02)
    assert cost.coefficients.mixed.context_token_s == pytest.approx(200e-9, rel=0.05)


def test_noise_does_not_make_steps_shorter_than_they_are() -> None:
    """Dividing by what was measured would: with 20 % of noise, by 8 %."""
    cost = fit(steps_by(TRUTH, drawn_shapes(3000, 1), noise=0.2))
    errors = errors_of(cost.of_shape, steps_by(TRUTH, drawn_shapes(600, 2)))
    for regime, error in errors.items():
        assert abs(error.total - (math.exp(0.02) - 1)) < 0.025, (regime, error)
        assert error.mean < 0.05


def test_a_few_steps_that_took_far_too_long_change_nothing() -> None:
    clean = steps_by(TRUTH, drawn_shapes(600, 1))
    disturbed = [replace(step, step_s=step.step_s * (20.0 if n % 40 == 0 else 1.0)) for n, step in enumerate(clean)]
    errors = errors_of(fit(disturbed).of_shape, steps_by(TRUTH, drawn_shapes(300, 2)))
    assert max(error.mean for error in errors.values()) < 0.03, table(errors)


def test_padding_is_seen_through() -> None:
    sizes = tuple(range(1, 9)) + tuple(2**i for i in range(4, 13))
    truth = SmoothCost(replace(TRUTH.coefficients, token_sizes=sizes))
    steps = steps_by(truth, drawn_shapes(600, 1))
    held = steps_by(truth, drawn_shapes(300, 2))
    known, unknown = fit(steps, token_sizes=sizes), fit(steps)
    assert error_of([(known.of_shape(s.shape), s.step_s) for s in held]).mean < 0.01
    assert error_of([(unknown.of_shape(s.shape), s.step_s) for s in held]).mean > 0.02


def test_without_mixed_steps_their_rows_cost_what_others_do() -> None:
    c = fit([s for s in steps_by(TRUTH, drawn_shapes(600, 1)) if s.shape.regime != "mixed"]).coefficients
    assert c.mixed.context_token_s == c.decode.context_token_s
    assert c.mixed.row_s == c.decode.row_s


def test_a_prior_stands_for_what_was_not_measured() -> None:
    prior = smooth_roofline(transformer_named("llama-3.1-8b"), device_named("h100")).coefficients
    c = fit(steps_by(TRUTH, drawn_shapes(200, 1, regimes=1)), prior=prior).coefficients
    assert c.chunks.half_square_s == prior.chunks.half_square_s
    assert c.mixed.context_token_s == prior.mixed.context_token_s
    assert c.decode.context_token_s == pytest.approx(90e-9, rel=0.02)


def test_prompts_without_a_past_tell_what_a_past_would_cost() -> None:
    """Nobody measured a chunk after another: its pairs cost what other pairs do, not nothing."""
    shapes = [StepShape(chunks=((0, tokens, True),)) for tokens in range(16, 4096, 64)]
    c = fit(steps_by(TRUTH, [*shapes, *drawn_shapes(60, 3, regimes=1)])).coefficients
    assert c.chunks.tile_pair_s == c.chunks.half_square_s > 0.0
    assert c.chunks.prefix_token_s == c.decode.context_token_s


def test_mixed_steps_alone_are_enough_for_mixed_steps() -> None:
    """A loaded server has few others."""
    mixed = [shape for shape in drawn_shapes(1200, 1) if shape.regime == "mixed"]
    cost = fit(steps_by(TRUTH, mixed[:300]))
    assert error_of([(cost.of_shape(s.shape), s.step_s) for s in steps_by(TRUTH, mixed[300:])]).mean < 0.02


def test_the_host_is_what_lies_between_steps() -> None:
    random = Random(3)
    steps = [
        replace(
            step, gap_s=(5.0 if n % 50 == 0 else 1.0) * (0.0004 + 3e-6 * step.shape.num_rows) * random.uniform(0.9, 1.1)
        )
        for n, step in enumerate(steps_by(TRUTH, drawn_shapes(400, 1, regimes=1)))
    ]
    host = fit(steps).coefficients.host
    assert (host.step_s, host.row_s) == pytest.approx((0.0004, 3e-6), rel=0.25)
    assert not host.overlaps


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(InvalidOption, match="too few"):
        fit(steps_by(TRUTH, drawn_shapes(11, 1)))


# ---------------------------------------------------------------- the file


def made() -> Calibration:
    steps = [replace(step, gap_s=0.001) for step in steps_by(TRUTH, drawn_shapes(800, 1), noise=0.05)]
    return calibrate(steps, noise=0.05, machine={"cpu": "a test"}, engine={"max_num_seqs": 256})


def test_errors_are_of_steps_that_were_kept_from_the_fit() -> None:
    calibration = made()
    assert sum(error.num_steps for error in calibration.errors.values()) == 200
    assert all(0.02 < error.mean < 0.06 for error in calibration.errors.values())  # 5 % of noise has a mean of 4 %
    assert calibration.coefficients.host.step_s == pytest.approx(0.001, rel=0.01)


def test_noise_is_that_of_repeats_and_not_of_the_model() -> None:
    random = Random(5)
    wrong = SmoothCost(replace(TRUTH.coefficients, token_s=40e-6))
    repeats = [
        Measured(shape, TRUTH.of_shape(shape) * math.exp(random.gauss(0.0, 0.03)), group=group)
        for group, shape in enumerate(drawn_shapes(100, 6))
        for _ in range(9)
    ]
    assert noise_of(repeats, wrong) == pytest.approx(0.03, rel=0.15)


def test_a_file_gives_the_same_calibration(tmp_path: Path) -> None:
    calibration = made()
    path = tmp_path / "calibration.json"
    path.write_bytes(encode(calibration))
    loaded = load_calibration(path)
    assert loaded == calibration
    told: list[str] = []
    step = StepPlan(0, decodes=[0, 1], num_context_tokens=100)
    assert loaded.cost(told.append)(step) == calibration.cost(told.append)(step)
    assert loaded.cost(told.append, noise_seed=1)(step) != loaded.cost(told.append)(step)
    assert told == []


@pytest.mark.parametrize(
    "change",
    [
        (b'"format": 1', b'"format": 2'),
        (b'"power": ', b'"power": -'),
        (b'"token_s": ', b'"token_s": -'),
        (b'"weights_s": ', b'"weights_s": null, "x": '),
        (b'"tile": ', b'"tile": -'),
        (b'"token_sizes": []', b'"token_sizes": [2, 1]'),
        (b"{", b"["),
        (b'"weights_s": ', b'"weights_s": 1e308, "x": '),
        (b'"engine": {', b'"engine": {"num_blocks": 10, "block_size": -16, '),
        (b'"engine": {', b'"engine": {"num_blocks": 1' + 30 * b"0" + b', "block_size": 16, '),
        (b"{", 20_000 * b'{"a":'),
    ],
)
def test_a_file_that_is_none_is_refused(change: tuple[bytes, bytes]) -> None:
    data = encode(made())
    assert change[0] in data
    with pytest.raises(InvalidOption, match="is not a calibration"):
        decode(data.replace(*change, 1), "file")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot read"):
        load_calibration(tmp_path / "none")


def test_the_host_does_not_count_where_no_gap_was_seen() -> None:
    """A sweep drives the device alone: its held-out steps are compared with the device alone."""
    device = steps_by(TRUTH, drawn_shapes(400, 1))
    busy = [replace(step, gap_s=0.01, group=step.group + 1000) for step in steps_by(TRUTH, drawn_shapes(400, 2))]
    calibration = calibrate([*device, *busy])
    host = calibration.coefficients.host
    assert host.step_s == pytest.approx(0.01) and host.row_s == pytest.approx(0.0, abs=1e-9)
    assert max(error.mean for error in calibration.errors.values()) < 0.01


# ---------------------------------------------------------------- a machine that others use too


def test_disturbed_steps_bend_nothing_and_make_all_of_it_longer() -> None:
    """A third of the small steps take 1.8 times as long: what the others say stays, and the total comes out right."""
    ordinary = steps_by(TRUTH, drawn_shapes(600, seed=5), noise=0.01)
    small = [n for n, step in enumerate(ordinary) if step.shape.num_tokens < 20]
    disturbed = list(ordinary)
    for n in small[::3]:
        disturbed[n] = replace(ordinary[n], step_s=1.8 * ordinary[n].step_s)
    used = [step for step in disturbed if step.group % 4 != 3]
    lengthening = sum(step.step_s for step in used) / sum(TRUTH.of_shape(step.shape) for step in used)

    def ratios(cost: SmoothCost) -> list[float]:
        return sorted(cost.of_shape(step.shape) / TRUTH.of_shape(step.shape) for step in ordinary)

    robust = ratios(SmoothCost(calibrate(disturbed).coefficients))
    by_squares = ratios(fit(used))
    assert percentile(robust, 50.0) == pytest.approx(lengthening, rel=0.01)
    assert percentile(robust, 95.0) - percentile(robust, 5.0) < 0.03
    assert percentile(by_squares, 95.0) - percentile(by_squares, 5.0) > 0.08


def test_what_steps_differed_by_is_kept_with_its_tail() -> None:
    """One step in twenty takes twice as long: so do those that are drawn, and on average they take what they did."""
    ordinary = steps_by(TRUTH, drawn_shapes(800, seed=6))
    late = [replace(s, step_s=2.0 * s.step_s) if s.group % 20 == 0 else s for s in ordinary]
    calibration = calibrate(late)
    deviations = calibration.deviations
    assert len(deviations) == 201 and list(deviations) == sorted(deviations)
    mean = (sum(deviations) - (deviations[0] + deviations[-1]) / 2) / 200
    assert mean == pytest.approx(1.0)
    assert deviations[150] / deviations[50] == pytest.approx(1.0, abs=0.01)
    assert deviations[198] / deviations[100] == pytest.approx(2.0, rel=0.05)
    cost = calibration.cost(lambda _: None, noise_seed=1)
    assert isinstance(cost, NoisyCost) and cost.deviations == deviations


@pytest.mark.parametrize("deviations", [(1.0,), (1.0, -1.0), (1.0, math.inf)])
def test_what_cannot_be_drawn_from_is_no_calibration(deviations: tuple[float, ...]) -> None:
    calibration = calibrate(steps_by(TRUTH, drawn_shapes(100, seed=6)))
    with pytest.raises(InvalidOption, match="is not a calibration"):
        decode(encode(replace(calibration, deviations=deviations)), "it")
