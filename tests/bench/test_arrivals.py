from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from chairlift.bench.arrivals import Arrivals
from chairlift.core.errors import InvalidOption


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


def test_all_at_once() -> None:
    assert Arrivals().times(3, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_of_their_distribution(burstiness: float) -> None:
    times = Arrivals(rate=20.0, burstiness=burstiness).times(20_000, 3)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1000.0)
    assert statistics.pstdev(gaps(times)) * 20.0 == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_seed_decides() -> None:
    process = Arrivals(rate=5.0)
    assert process.times(50, 1) == process.times(50, 1) != process.times(50, 2)
    assert process.times(0, 1) == []


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_moves_the_rate_from_one_end_to_the_other(strategy: str, middle: float) -> None:
    process = Arrivals(burstiness=4.0, ramp_up=strategy, ramp_start=1.0, ramp_end=100.0)  # type: ignore[arg-type]
    means = [
        statistics.fmean(column) for column in zip(*(gaps(process.times(9, seed)) for seed in range(1000)), strict=True)
    ]
    assert means[0] == pytest.approx(1.0, rel=0.1)
    assert means[4] == pytest.approx(1.0 / middle, rel=0.1)
    assert means[8] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": math.nan},
        {"burstiness": 0.0},
        {"burstiness": math.inf},
        {"ramp_up": "linear"},
        {"ramp_up": "linear", "ramp_start": 1.0, "ramp_end": 0.0},
        {"ramp_up": "linear", "ramp_start": 1.0, "ramp_end": 2.0, "rate": 3.0},
    ],
)
def test_refuses_what_makes_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidOption):
        Arrivals(**wrong)  # type: ignore[arg-type]
