"""When requests come, and how long they are."""

from __future__ import annotations

import math
import statistics
from itertools import islice, pairwise
from random import Random

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals, Phase, on_off, parse_phases, steady
from chairlift.sim.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform, parse_lengths


def gaps(arrivals: Arrivals, num: int = 20000) -> list[float]:
    return [later - earlier for earlier, later in pairwise(islice(arrivals.times(Random(1)), num))]


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Arrivals(steady(4.0)), 1.0),
        (Arrivals(steady(4.0), "gamma", burstiness=0.25), 2.0),
        (Arrivals(steady(4.0), "gamma", burstiness=4.0), 0.5),
        (Arrivals(steady(4.0), "constant"), 0.0),
    ],
)
def test_gaps_have_the_mean_and_the_variation_that_was_asked_for(arrivals: Arrivals, variation: float) -> None:
    found = gaps(arrivals)
    mean = statistics.fmean(found)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(found) / mean == pytest.approx(variation, rel=0.05, abs=1e-9)


def test_poisson_gaps_are_those_of_the_standard_library() -> None:
    random, now, expected = Random(3), 0.0, []
    for _ in range(5):
        now += random.expovariate(7.0)
        expected.append(now)
    assert list(islice(Arrivals(steady(7.0)).times(Random(3)), 5)) == pytest.approx(expected, rel=1e-12)


def test_a_ramp_has_as_many_arrivals_as_the_area_under_it() -> None:
    arrivals = Arrivals((Phase(100.0, 0.0, 20.0), Phase(50.0, 20.0, 20.0), Phase(100.0, 20.0, 0.0)), "constant")
    times = list(arrivals.times(Random(1)))
    assert len(times) == pytest.approx(3000, abs=1)
    assert sum(time < 50.0 for time in times) == pytest.approx(250, abs=1)
    assert sum(100.0 <= time < 150.0 for time in times) == pytest.approx(1000, abs=1)
    assert times == sorted(times) and times[-1] <= 250.0


def test_nothing_comes_while_it_is_off() -> None:
    arrivals = Arrivals(on_off(10.0, 5.0, 15.0), repeats=True)
    times = list(islice(arrivals.times(Random(2)), 2000))
    assert all(time % 20.0 <= 5.0 + 1e-9 for time in times)
    assert times[-1] == pytest.approx(2000 / 10.0 * 4.0, rel=0.1)


def test_phases_from_a_text() -> None:
    assert parse_phases("60:2, 30:2-10,inf:10") == (
        Phase(60.0, 2.0, 2.0),
        Phase(30.0, 2.0, 10.0),
        Phase(math.inf, 10.0, 10.0),
    )


@pytest.mark.parametrize("text", ["", "60", "x:1", "60:-1", "0:1", "inf:1-2", "10:nan", "10:1-inf"])
def test_what_are_no_phases(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_phases(text)


def test_what_never_arrives_is_refused() -> None:
    with pytest.raises(InvalidOption, match="nothing ever arrives"):
        Arrivals((Phase(10.0, 0.0, 0.0),), repeats=True)
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidOption):
            steady(rate)


@pytest.mark.parametrize(
    ("lengths", "mean", "low", "high"),
    [
        (Fixed(7), 7.0, 7, 7),
        (Uniform(10, 20), 15.0, 10, 20),
        (LogNormal(90.0, 1.0, 2000.0), 147.0, 1, 2000),
        (Empirical([(10, 3.0), (20, 1.0), (0, 0.0)]), 12.5, 10, 20),
    ],
)
def test_lengths_are_as_described(lengths: Lengths, mean: float, low: int, high: int) -> None:
    random = Random(5)
    drawn = [lengths.draw(random) for _ in range(20000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert low <= min(drawn) and max(drawn) <= high


def test_lengths_from_a_text() -> None:
    assert parse_lengths("12") == parse_lengths("fixed:12") == Fixed(12)
    assert parse_lengths("uniform:2:9") == Uniform(2, 9)
    assert parse_lengths("lognormal:90:1") == LogNormal(90.0, 1.0)
    assert parse_lengths("empirical:f:x", lambda rest: [(5.0, float(rest == "f:x"))]).draw(Random(0)) == 5


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-3", "1.5", "uniform:9:2", "uniform:1", "lognormal:0:1", "lognormal:9:-1", "empirical:f"]
)
def test_what_are_no_lengths(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_lengths(text)
