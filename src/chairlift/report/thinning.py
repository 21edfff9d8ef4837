"""Fewer numbers for the same picture."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, groupby
from math import inf

from chairlift.metrics.counted import Counted
from chairlift.metrics.latency import percentile
from chairlift.report.data import Distribution, Series

MAX_POINTS = 2000
"""Of a series; longer ones are cut into so many equal times."""
MAX_SHARES = 300
"""Of a distribution: the middle by even shares, the ends value by value."""
TAIL = 40


def rounded(seconds: float) -> float:
    """To the microsecond."""
    return round(seconds, 6)


def series(
    changes: Iterable[tuple[float, int]], begin: float, end: float, max_points: int = MAX_POINTS
) -> tuple[Series, int]:
    """A count that starts at 0 and changes at times, from `begin` to `end`; and the most it ever was.

    What happens at one time happens at once; changes before `begin` are there from the start.
    """
    ordered = sorted((max(time, begin), change) for time, change in changes)
    times, values, total = [begin], [0], 0
    for time, group in groupby(ordered, key=lambda pair: pair[0]):
        total += sum(change for _, change in group)
        level = max(total, 0)  # a clock that went back lets some leave before they came
        if time == times[-1]:
            values[-1] = level
        elif level != values[-1]:
            times.append(time)
            values.append(level)
    most = max(values)
    if len(times) <= max_points:
        return Series([rounded(time - begin) for time in times], [float(value) for value in values]), most
    return _binned(times, values, begin, max(end, times[-1]), max_points), most


def _binned(times: list[float], values: list[int], begin: float, end: float, num: int) -> Series:
    """Means, least and most of equal pieces of time."""
    width = (end - begin) / num
    thin = Series([], [], [], [])
    place = 0
    for number in range(num):
        left = begin + number * width
        right = end if number == num - 1 else left + width
        area, low, high, now = 0.0, values[place], values[place], left
        while place + 1 < len(times) and times[place + 1] < right:
            area += values[place] * (times[place + 1] - now)
            place += 1
            now = times[place]
            low, high = min(low, values[place]), max(high, values[place])
        area += values[place] * (right - now)
        thin.time.append(rounded(left - begin))
        thin.value.append(round(area / (right - left), 3))
        thin.low.append(float(low))
        thin.high.append(float(high))
    return thin


def distribution(values: Counted) -> Distribution | None:
    """Figures and the curve of the shares; None without values."""
    num = len(values)
    if not num:
        return None
    total = sum(value * count for value, count in zip(values.values, values.counts, strict=True))
    curve = list(dict(zip(map(rounded, values.values), accumulate(values.counts), strict=True)).items())
    if len(curve) > MAX_SHARES:
        curve = _thinned(curve, num)
    return Distribution(
        count=num,
        mean=rounded(total / num),
        p50=rounded(percentile(values, 50.0)),
        p90=rounded(percentile(values, 90.0)),
        p99=rounded(percentile(values, 99.0)),
        most=rounded(values.values[-1]),
        value=[value for value, _ in curve],
        share=[round(upto / num, 5) for _, upto in curve],
    )


def _thinned(curve: list[tuple[float, int]], num: int) -> list[tuple[float, int]]:
    """Both ends as they are, and of what lies between a point for each even share of the values."""
    step = num / (MAX_SHARES - 2 * TAIL)
    kept, due = curve[:TAIL], -inf
    for value, upto in curve[TAIL:-TAIL]:
        if upto >= due:
            kept.append((value, upto))
            due = upto + step
    return kept + curve[-TAIL:]
