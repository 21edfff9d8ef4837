"""Whether a load can be served for ever, judged by the queue of those who have not joined.

    queue                       /          OVERLOADED   grows over the last half of the arrivals
             __/\\__            /            BACKLOGGED   was long once, and does not grow at the end
       _/\\__/      \\__/\\__ ___/             STABLE       neither

Where somebody waited all through the last half of the arrivals, what was done there is all that can be done, and growth
is what arrives on the whole beyond that. Else it is that of a line fitted to the queue in that half, and counts only
if it is more than what chance does to a queue: about the square root of the number of arrivals. So a longer run tells
smaller overloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

GROWTH = 0.01
"""Share of arrivals that may stay in the queue."""
LONG = 2.0
"""A queue is long from so many times the square root of the number of arrivals on."""


class Verdict(StrEnum):
    STABLE = "STABLE"
    """The backlog is bounded."""
    BACKLOGGED = "BACKLOGGED"
    """The backlog grew, and was or is going to be worked off."""
    OVERLOADED = "OVERLOADED"
    """The backlog grows without bound if arrivals go on like this."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The queue in figures. `growth` is in requests for each that arrives, over the last half of the arrivals."""

    verdict: Verdict
    growth: float
    longest: int


def judge(waits: Iterable[tuple[float, float]], grace_s: float = 0.0, late_share: float | None = None) -> Backlog:
    """The verdict on waits from arriving to joining, in seconds; infinite where nobody joined.

    Nobody is in the queue for the first `grace_s` seconds: who comes during a step waits for its end on any engine.
    `late_share` is the part of all work that was done in the last half of the arrivals; without, joins there count.
    """
    pairs = sorted(waits)
    if not pairs:
        return Backlog(Verdict.STABLE, 0.0, 0)
    first, last = pairs[0][0], pairs[-1][0]
    middle = (first + last) / 2.0
    num_late = sum(1 for begin, _ in pairs if begin >= middle)
    points = _queue([(begin + grace_s, end) for begin, end in pairs if end > begin + grace_s])
    late = _between(points, middle, last)
    rise = _slope(late) * (last - middle)
    growth, chance = rise, math.sqrt(num_late)
    bound = max(GROWTH * num_late, chance)
    if last > first and min(length for _, length in late) > 0 and rise > -chance:
        num_joined = sum(1 for _, end in pairs if middle < end <= last)
        num_served = num_joined if late_share is None else late_share * len(pairs)
        growth = (len(pairs) - 1) / 2.0 - num_served
        bound = GROWTH * num_late
    longest = max(length for _, length in points)
    if growth > bound:
        verdict = Verdict.OVERLOADED
    elif longest > LONG * math.sqrt(len(pairs)):
        verdict = Verdict.BACKLOGGED
    else:
        verdict = Verdict.STABLE
    return Backlog(verdict, growth / num_late, longest)


def _queue(waits: list[tuple[float, float]]) -> list[tuple[float, int]]:
    """How many wait from when on; of what happens at one time, joins come first."""
    changes = sorted([(begin, 1) for begin, _ in waits] + [(end, -1) for _, end in waits])
    points, length = [(-math.inf, 0)], 0
    for time, change in changes:
        length += change
        points.append((time, length))
    return points


def _between(points: list[tuple[float, int]], begin: float, end: float) -> list[tuple[float, int]]:
    """The queue from `begin` to `end`, with its length at both."""
    found = [(begin, 0)]
    for time, length in points:
        if time <= begin:
            found[0] = begin, length
        elif time <= end:
            found.append((time, length))
    return [*found, (end, found[-1][1])]


def _slope(points: list[tuple[float, int]]) -> float:
    """Of the line with the least squared distances."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square > 0.0 else 0.0
