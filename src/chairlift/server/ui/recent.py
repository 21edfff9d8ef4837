"""What the last two minutes were like: one call a step, a bounded memory, and figures when somebody looks.

Histograms count since the start and in buckets; who watches wants to know how it is now, and exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import accumulate

from chairlift.core.types import EngineStats
from chairlift.server.ui.shapes import Latency

SERIES_S = 120
"""How many seconds the curves have."""
WINDOW_S = 60.0
"""Latencies and rates are of so many seconds."""
RATE_S = 5
"""What is said to be going on now is the mean of so many whole seconds."""
MAX_GAPS = 4096
MAX_FIRSTS = 1024
"""Most values that latencies are taken from; older ones go first."""


class Second:
    """What happened in one second of the engine's clock, and how it was at its end."""

    __slots__ = ("at", "output_tokens", "prompt_tokens", "running", "steps", "waiting")

    def __init__(self, at: int) -> None:
        self.at = at
        self.output_tokens = self.prompt_tokens = self.steps = 0
        self.running = self.waiting = 0


class Recent:
    """Of one engine; fed by its client. Times are those of the engine's clock."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=SERIES_S + 1)
        self._gaps: deque[tuple[float, float, int]] = deque(maxlen=MAX_GAPS)
        """(when, gap, how many tokens had it)."""
        self._firsts: deque[tuple[float, float]] = deque(maxlen=MAX_FIRSTS)
        """(when, time to first token)."""

    # ------------------------------------------------------------ hearing

    def on_step(self, now: float, num_output: int, last_times: Mapping[float, int], stats: EngineStats) -> None:
        """A step gave `num_output` tokens, of which `last_times[t]` follow one that came at `t`."""
        at = int(now)
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(Second(at))
        second = self._seconds[-1]
        num_decoded = 0
        for last_time, count in last_times.items():
            self._gaps.append((now, now - last_time, count))
            num_decoded += count
        second.output_tokens += num_output
        second.prompt_tokens += max(0, stats.num_step_tokens - num_decoded)
        second.steps += stats.num_step_tokens > 0
        second.running, second.waiting = stats.num_running, stats.num_waiting

    def on_first_token(self, now: float, ttft_s: float) -> None:
        """The first token of a choice came."""
        self._firsts.append((now, ttft_s))

    # ------------------------------------------------------------ telling

    def rates(self, now: float) -> dict[str, float]:
        """Per second, over the last whole seconds."""
        until = int(now)
        seconds = [second for second in self._seconds if until - RATE_S <= second.at < until]
        names = ("output_tokens", "prompt_tokens", "steps")
        return {name: sum(getattr(second, name) for second in seconds) / RATE_S for name in names}

    def ttft(self, now: float) -> Latency:
        """Of the last minute; nulls where nothing happened."""
        return _latency([(ttft_s, 1) for when, ttft_s in self._firsts if when >= now - WINDOW_S])

    def itl(self, now: float) -> Latency:
        """Of the last minute; nulls where nothing happened."""
        return _latency([(gap, count) for when, gap, count in self._gaps if when >= now - WINDOW_S])

    def series(self, now: float) -> dict[str, list[int]]:
        """A value for each of the last whole seconds, the oldest first; 0 where nothing was heard."""
        known = {second.at: second for second in self._seconds}
        seconds = [known.get(at) for at in range(int(now) - SERIES_S, int(now))]
        names = ("output_tokens", "prompt_tokens", "running", "waiting")
        return {name: [0 if second is None else getattr(second, name) for second in seconds] for name in names}


def _latency(weighted: list[tuple[float, int]]) -> Latency:
    """How many values there are, and below which half and 99 % of them lie; `weighted` has (value, how often)."""
    if not weighted:
        return Latency(count=0, p50=None, p99=None)
    weighted.sort()
    ends = list(accumulate(count for _, count in weighted))

    def at(percent: float) -> float:
        place = (ends[-1] - 1) * percent / 100.0
        low = weighted[bisect_right(ends, int(place))][0]
        high = weighted[bisect_right(ends, min(int(place) + 1, ends[-1] - 1))][0]
        return round(max(0.0, low + (high - low) * (place - int(place))), 6)

    return Latency(count=ends[-1], p50=at(50.0), p99=at(99.0))
