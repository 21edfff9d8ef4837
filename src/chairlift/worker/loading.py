"""Shows how far a model is loaded, or got from a hub: a bar for who sits before it, lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NoReturn, TextIO

from tqdm import tqdm

from chairlift.executors.loading import Report

BAR_DELAY_S = 0.5
"""What is loaded sooner shows no bar."""
LINE_INTERVAL_S = 2.0


class LoadingBar:
    """A bar on standard error, if that is a terminal; gone when everything is there."""

    def __init__(self, name: str, doing: str = "loading") -> None:
        self._what = f"{doing} {name}"
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = _bar(self._what, total_bytes)
        self._bar.update(done_bytes - self._bar.n)
        if done_bytes == total_bytes:
            self._bar.close()


def _bar(what: str, total_bytes: int) -> tqdm[NoReturn]:
    return tqdm(desc=what, total=total_bytes, unit="B", unit_scale=True, disable=None, delay=BAR_DELAY_S, leave=False)


class LoadingLines:
    """A line every few seconds, and one at the end, for a log that nobody watches."""

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        doing: str = "chairlift worker: loading",
    ) -> None:
        self._what = f"{doing} {name}"
        self._stream = sys.stderr if stream is None else stream
        self._clock_s = clock_s
        self._begun_s = self._said_s = clock_s()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock_s()
        if done_bytes < total_bytes and now_s < self._said_s + LINE_INTERVAL_S:
            return
        self._said_s = now_s
        share = 100 * done_bytes // total_bytes
        size = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB ({share} %)"
        line = f"{self._what}: {size} after {now_s - self._begun_s:.1f} s"
        print(line, file=self._stream, flush=True)


def getting(name: str) -> Report:
    """Shows how much of a model has come from a hub; that may take hours, so a log hears of it too."""
    if sys.stderr.isatty():
        return LoadingBar(name, "getting")
    return LoadingLines(name, doing="chairlift: getting")
