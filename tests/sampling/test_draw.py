"""The edges of one draw: the ends of the unit interval, weights of zero, borders inside a tie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chairlift.sampling.draw import Draw

ALMOST_ONE = 1.0 - 2.0**-53


@pytest.mark.parametrize("vocab", [3, 255, 256, 257, 5000])
@pytest.mark.parametrize("peak", [0.0, -500.0, 80.0, 3e38])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (0, 0.999999, 0.0), (3, 1.0, 0.0), (0, 1.0, 0.9)])
def test_a_token_without_weight_is_never_drawn(vocab: int, peak: float, top_k: int, top_p: float, min_p: float) -> None:
    row = np.full(vocab, -np.inf, np.float32)
    row[1] = peak
    draw = Draw(vocab)
    for uniform in (0.0, 0.5, ALMOST_ONE):
        assert draw(row, float(row[1]), 1.0, top_k, top_p, min_p, uniform) == 1


@pytest.mark.parametrize("vocab", [2, 300, 5000])
def test_both_ends_can_be_drawn(vocab: int) -> None:
    draw, row = Draw(vocab), np.zeros(vocab, np.float32)
    assert draw(row, 0.0, 1.0, 0, 1.0, 0.0, 0.0) == 0
    assert draw(row, 0.0, 1.0, 0, 1.0, 0.0, ALMOST_ONE) == vocab - 1


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"), [(0, 0.4, 2000), (4000, 0.5, 2000), (1500, 1.0, 1500), (0, 1e-9, 1)]
)
def test_a_border_inside_a_tie_keeps_the_lowest_ids(top_k: int, top_p: float, kept: int) -> None:
    draw, row = Draw(5000), np.zeros(5000, np.float32)
    assert draw(row, 0.0, 1.0, top_k, top_p, 0.0, ALMOST_ONE) == kept - 1
    assert draw(row, 0.0, 1.0, top_k, top_p, 0.0, 0.5) == kept // 2


def test_a_nucleus_of_thousands_is_the_smallest_that_has_the_mass() -> None:
    """Found through the histogram; here by sorting everything."""
    row = (np.random.default_rng(3).normal(size=20_000) * 0.8).astype(np.float32)
    draw, peak = Draw(len(row)), float(row.max())
    weights = np.exp(row.astype(np.float64))
    order = np.argsort(-row, kind="stable")
    for top_p in (0.3, 0.7, 0.95, 0.9999):
        count = int(np.searchsorted(np.cumsum(weights[order]), top_p * weights.sum())) + 1
        kept = np.sort(order[:count])
        mass = np.cumsum(weights[kept]) / weights[kept].sum()
        for uniform in np.random.default_rng(4).random(50).tolist():
            token = draw(row, peak, 1.0, 0, top_p, 0.0, uniform)
            place = int(np.searchsorted(kept, token))
            assert kept[place] == token
            low = float(mass[place - 1]) if place else 0.0
            assert low - 1e-6 <= uniform <= mass[place] + 1e-6
        edge = draw(row, peak, 1.0, 0, top_p, 0.0, ALMOST_ONE)
        assert edge == kept[-1] or math.isclose(float(mass[-2]), 1.0, abs_tol=1e-6)


def test_parameters_that_keep_the_same_tokens_draw_the_same() -> None:
    row = (np.random.default_rng(0).normal(size=900)).astype(np.float32)
    row[10:] = -np.inf
    draw, peak = Draw(900), float(row.max())
    for uniform in np.linspace(0.001, 0.999, 40).tolist():
        plain = draw(row, peak, 1.0, 0, 1.0, 0.0, uniform)
        assert plain == draw(row, peak, 1.0, 10, 1.0, 0.0, uniform) == draw(row, peak, 1.0, 0, 1.0, 1e-6, uniform)
