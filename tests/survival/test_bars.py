"""The bars of survival in small; `python -m survival` says what to run for the figures that count."""

from __future__ import annotations

import pytest

from survival.__main__ import BARS


@pytest.mark.parametrize("bar", BARS)
def test_in_small(bar: str) -> None:
    report = BARS[bar]["short"]()
    assert report["met"], report


@pytest.mark.long
@pytest.mark.parametrize("bar", BARS)
def test_as_it_is_meant(bar: str) -> None:
    report = BARS[bar]["smoke"]()
    assert report["met"], report
