"""Shows how far a model is loaded: a bar for who sits before it, lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NoReturn, TextIO

from tqdm import tqdm

BAR_DELAY_S = 0.5
"""What is loaded sooner shows no bar."""
LINE_INTERVAL_S = 2.0


class LoadingBar:
    """A bar on standard error, if that is a terminal; gone when the weights are there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = _bar(f"loading {self._name}", total_bytes)
        self._bar.update(done_bytes - self._bar.n)
        if done_bytes == total_bytes:
            self._bar.close()


def _bar(what: str, total_bytes: int) -> tqdm[NoReturn]:
    return tqdm(desc=what, total=total_bytes, unit="B", unit_scale=True, disable=None, delay=BAR_DELAY_S, leave=False)


class LoadingLines:
    """A line every few seconds, and one at the end, for a log that nobody watches."""

    def __init__(self, name: str, stream: TextIO | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._clock_s = clock_s
        self._begun_s = self._said_s = clock_s()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock_s()
        if done_bytes < total_bytes and now_s < self._said_s + LINE_INTERVAL_S:
            return
        self._said_s = now_s
        share = 100 * done_bytes // total_bytes
        size = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB of weights ({share} %)"
        line = f"chairlift worker: loading {self._name}: {size} after {now_s - self._begun_s:.1f} s"
        print(line, file=self._stream, flush=True)
