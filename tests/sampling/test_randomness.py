from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.sampling.randomness import seeded_stream, uniforms, unseeded_stream
from sampling.reference import seeded_uniform
from sampling.statistics import chi_square, chi_square_limit


def numbers(streams: list[tuple[int, int]], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """uniforms[stream, position]"""
    grid = [
        uniforms(
            np.full(len(positions), low, np.uint64),
            np.full(len(positions), high, np.uint64),
            positions,
        )
        for low, high in streams
    ]
    return np.stack(grid)


@pytest.mark.parametrize("seed", [0, 1, -1, -(2**63), 2**63, 2**64 - 1])
def test_equals_integer_arithmetic(seed: int) -> None:
    positions = np.array([0, 1, 2, 1000, 2**40])
    (row,) = numbers([seeded_stream(seed, 3)], positions)
    assert row.tolist() == [seeded_uniform(seed, 3, int(p)) for p in positions]


def test_seed_minus_one_is_not_the_largest_seed() -> None:
    assert seeded_stream(-1, 0) != seeded_stream(2**64 - 1, 0)


def test_streams_are_told_apart_by_everything_that_names_them() -> None:
    streams = [seeded_stream(seed, choice) for seed in range(-3, 4) for choice in range(4)]
    streams += [unseeded_stream(bytes([e]), id, choice) for e in range(3) for id in range(4) for choice in range(4)]
    assert len(set(streams)) == len(streams)
    assert unseeded_stream(b"a", 1, 2) == unseeded_stream(b"a", 1, 2)


def test_uniform_along_positions_along_seeds_and_in_pairs() -> None:
    grid = numbers([seeded_stream(seed, 0) for seed in range(200)], np.arange(200))
    assert grid.min() >= 0.0 and grid.max() < 1.0
    bins = np.floor(grid * 32).astype(int)
    for pairs in (bins[:, 1:] * 32 + bins[:, :-1], bins[1:] * 32 + bins[:-1]):
        counts = np.bincount(pairs.ravel(), minlength=1024)
        assert chi_square(counts.tolist(), [counts.sum() / 1024] * 1024) < chi_square_limit(1023)
    for line in (*bins[:20], *bins[:, :20].T):
        counts = np.bincount(line // 4, minlength=8)
        assert chi_square(counts.tolist(), [25.0] * 8) < chi_square_limit(7)
