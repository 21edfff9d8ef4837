from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.metrics.latency import e2e, itls, percentile, summarize, tpot, ttft


def test_one_answer() -> None:
    """Asked at 10, text at 12, 13 and 17, over at 18; four tokens in three deliveries."""
    deliveries = [12.0, 13.0, 17.0]
    assert ttft(10.0, deliveries[0]) == 2.0
    assert itls(deliveries) == [1.0, 4.0]
    assert tpot(deliveries[0], 18.0, 4) == 2.0
    assert e2e(10.0, 18.0) == 8.0


def test_answers_too_short_to_have_a_gap() -> None:
    assert itls([]) == itls([5.0]) == []
    assert tpot(1.0, 2.0, 1) is None and tpot(1.0, 2.0, 0) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-6)


def test_percentiles_of_nothing_and_beyond_the_ends() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50.0)
    for percent in (-0.1, 100.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 100"):
            percentile([1.0], percent)


def test_summary() -> None:
    summary = summarize([4.0, 1.0, 2.0, 3.0, 10.0], [0.0, 25.0, 90.0, 100.0])
    assert summary is not None
    assert (summary.mean, summary.median) == (4.0, 3.0)
    assert summary.std == pytest.approx(np.std([4.0, 1.0, 2.0, 3.0, 10.0]))
    assert summary.percentiles == {0.0: 1.0, 25.0: 2.0, 90.0: pytest.approx(7.6), 100.0: 10.0}
    assert summarize([], [50.0]) is None
