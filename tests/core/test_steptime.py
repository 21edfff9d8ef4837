from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.steptime import StepTimes, solve

Step = tuple[int, int, int, int]


def cost(step: Step, factor: float = 1.0) -> float:
    rows, context_tokens, chunk_tokens, chunk_pairs = step
    return factor * (0.006 + 350e-6 * rows + 0.5e-6 * context_tokens + 450e-6 * chunk_tokens + 15e-9 * chunk_pairs)


def steps(seed: int, count: int) -> list[Step]:
    """Rows come and go one by one; some steps have chunks."""
    rng = random.Random(seed)
    rows, result = 16, []
    for _ in range(count):
        rows = min(max(rows + rng.choice((-1, 0, 1)), 1), 64)
        tokens = rng.choice((0, 0, 16, 48, 128))
        result.append((rows, rows * rng.randrange(200, 400), tokens, tokens * rng.randrange(tokens + 1, 2000)))
    return result


def trained(count: int = 2000, noise: float = 0.05) -> StepTimes:
    times, rng = StepTimes(), random.Random(2)
    for step in steps(1, count):
        times.observe(*step, cost(step) * rng.lognormvariate(0.0, noise))
    return times


def worst_error(times: StepTimes, factor: float = 1.0) -> float:
    return max(abs(times.predict(*step) / cost(step, factor) - 1.0) for step in steps(3, 200))


def test_a_noisy_device_is_learned_where_it_works() -> None:
    assert worst_error(trained()) < 0.06
    assert worst_error(trained(noise=0.0)) < 0.002


def test_a_hiccup_moves_nothing() -> None:
    times = trained()
    before = [times.predict(*step) for step in steps(3, 200)]
    times.observe(16, 4000, 0, 0, 30.0)
    for step in steps(4, 16):
        times.observe(*step, cost(step))
    assert [times.predict(*step) for step in steps(3, 200)] == pytest.approx(before, rel=0.02)


def test_a_hiccup_in_the_first_step_is_overcome() -> None:
    times = StepTimes()
    times.observe(1, 100, 0, 0, 30.0)
    for step in steps(1, 100):
        times.observe(*step, cost(step))
    assert worst_error(times) < 0.2


@pytest.mark.parametrize(("factor", "within"), [(3.0, 50), (0.3, 400)])
def test_another_regime_is_learned_and_a_slower_one_at_once(factor: float, within: int) -> None:
    times = trained()
    for step in steps(5, within):
        times.observe(*step, cost(step, factor))
    assert worst_error(times, factor) < 0.12


def test_short_steps_of_one_kind_say_nothing_of_the_others() -> None:
    times = trained(noise=0.0)
    for _ in range(100):
        times.observe(16, 4800, 0, 0, cost((16, 4800, 0, 0), 0.1))
    assert times.predict(0, 0, 512, 512 * 1000) > 0.9 * cost((0, 0, 512, 512 * 1000))


def test_what_chunks_cost_is_remembered_through_long_decoding() -> None:
    times, rng = trained(), random.Random(4)
    rows = 16
    for _ in range(20000):
        rows = min(max(rows + rng.choice((-1, 0, 1)), 1), 64)
        step = (rows, rows * rng.randrange(200, 400), 0, 0)
        times.observe(*step, cost(step) * rng.lognormvariate(0.0, 0.05))
    assert worst_error(times) < 0.1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4096), st.integers(0, 10**7), st.integers(0, 8192), st.integers(0, 10**8), st.floats(0, 1e3)
        ),
        max_size=60,
    )
)
def test_coefficients_are_finite_and_never_negative(observed: list[tuple[int, int, int, int, float]]) -> None:
    times = StepTimes()
    for rows, context_tokens, chunk_tokens, chunk_pairs, step_s in observed:
        times.observe(rows, context_tokens, chunk_tokens, chunk_pairs, step_s)
        assert all(0.0 <= value < float("inf") for value in times.coefficients)


def test_linear_equations_are_solved() -> None:
    assert solve([[4.0, 1.0, 0.0, 6.0], [1.0, 3.0, 1.0, 10.0], [0.0, 1.0, 2.0, 8.0]]) == pytest.approx([1.0, 2.0, 3.0])
