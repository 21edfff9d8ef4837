"""The histogram against the plain definition."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from chairlift.metrics.buckets import token_edges
from chairlift.metrics.histogram import Histogram

EDGES = (0.1, 1.0, 10.0)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5))))
def test_counts_are_those_of_the_definition(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(EDGES)
    for value, count in values:
        histogram.observe(value, count)
    expected = [(repr(edge), float(sum(count for value, count in values if value <= edge))) for edge in EDGES]
    total = sum(count for _, count in values)
    assert histogram.cumulative() == [*expected, ("+Inf", float(total))]
    assert histogram.count == total
    assert math.isclose(histogram.sum, sum(value * count for value, count in values), abs_tol=1e-9)


def test_a_value_on_an_edge_belongs_below_it() -> None:
    histogram = Histogram(EDGES)
    histogram.observe(1.0)
    assert histogram.cumulative()[1] == ("1.0", 1.0)


def test_token_edges_end_at_the_limit() -> None:
    assert token_edges(100) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    assert token_edges(1999)[-1] == 1000.0
    assert token_edges(0) == (1.0,)
