"""What is drawn has the frequencies that the parameters promise."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampler
from sampling.reference import kept
from sampling.statistics import chi_square, chi_square_limit

ROWS, STEPS = 2000, 10
SHORT = [2.0, 1.5, 1.5, 0.0, -1.0, 0.5, 3.0, -30.0]


def long_row() -> list[float]:
    """A row long enough for runs, stripes and the histogram, whose mass is spread over hundreds of tokens."""
    rng = np.random.default_rng(5)
    return [float(x) for x in (rng.normal(size=6000) * 1.5).astype(np.float32)]


@pytest.mark.parametrize("row", [SHORT, long_row()], ids=["short", "long"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=3),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.5, min_p=0.05, top_k=5, top_p=0.9),
    ],
    ids=str,
)
def test_frequencies(row: list[float], params: SamplingParams) -> None:
    sampler = Sampler(ROWS, len(row), entropy=b"fixed")
    for slot in range(ROWS):
        sampler.join(slot, Request(slot, [0], params), 0, [0])
    logits = np.tile(np.array(row, np.float32), (ROWS, 1))
    counts = np.zeros(len(row))
    steps = STEPS if row is SHORT else 3
    for _ in range(steps):
        tokens = sampler.sample(np.arange(ROWS), logits, None).tokens
        counts += np.bincount(tokens, minlength=len(row))
    weights = kept(row, Request(0, [0], params))
    total = sum(weights.values())
    assert set(np.flatnonzero(counts).tolist()) <= set(weights)
    # Neighbours are pooled until each pool is expected at least ten times: the statistic needs that.
    have, want = [0.0], [0.0]
    for token, weight in weights.items():
        if want[-1] >= 10.0:
            have.append(0.0)
            want.append(0.0)
        have[-1] += counts[token]
        want[-1] += weight / total * ROWS * steps
    if len(want) > 1:
        have[-2:], want[-2:] = [sum(have[-2:])], [sum(want[-2:])]
    assert len(want) == 1 or chi_square(have, want) < chi_square_limit(len(want) - 1)
