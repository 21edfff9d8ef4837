"""Workloads fitted to production by client: rates and gaps by window, lengths as they were counted.

A folder with, for each client i, `chunk-i-trace.csv` (window's begin in s, requests/s, coefficient of variation, Gamma
or Weibull, its two parameters) and `chunk-i-dataset.json` (by begin of a window: `input_tokens` and `output_tokens`,
each a text "{length: probability, ...}").

Source: Alibaba's ServeGen; gaps of a window are drawn from its distribution, scaled to the window's rate.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from chairlift.core.errors import InvalidOption
from chairlift.sim.lengths import Empirical
from chairlift.sim.traces.reading import csv_rows
from chairlift.sim.traffic import merged
from chairlift.sim.workload import Asked, Blocks, Contents, Part, Workload

_HEADER = ("begin", "rate", "cv", "kind", "p1", "p2")
_ENTRY = re.compile(r"\s*([0-9.eE+-]+)\s*:\s*([0-9.eE+-]+)\s*")
DEFAULT_WINDOW_S = 600.0
LEAST_SHAPE, MOST_SHAPE = 0.01, 1e9
MOST_RATE = 1e6


@dataclass(frozen=True, slots=True)
class _Window:
    begin: float
    rate: float
    kind: str
    shape: float

    def gap(self, random: Random) -> float:
        """Seconds to the next arrival, with mean 1 / rate."""
        match self.kind.lower():
            case "gamma":
                return random.gammavariate(self.shape, 1.0 / (self.shape * self.rate))
            case "weibull":
                return random.weibullvariate(1.0 / (math.gamma(1.0 + 1.0 / self.shape) * self.rate), self.shape)
        return random.expovariate(self.rate)


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    windows: list[_Window]
    window_s: float
    lengths: list[tuple[float, Empirical, Empirical]]
    """From when on, of prompts, of answers."""


def servegen(
    folder: Path, *, seed: int, start_s: float = 0.0, duration_s: float = math.inf, rate_factor: float = 1.0
) -> Workload:
    """All clients of a folder together, each a principal, from `start_s` into the recording for `duration_s`.

    `rate_factor` multiplies every rate.

    Raises:
        InvalidOption: no such folder, nothing in it, or a file of another shape.
    """
    paths = sorted(folder.glob("chunk-*-trace.csv"), key=_number)
    if not paths:
        raise InvalidOption(f"{folder} has no chunk-*-trace.csv")
    contents = Contents()
    streams = []
    for path in paths:
        client = _read(path, rate_factor)
        random = Random(f"{seed}/{client.name}")
        streams.append(_stream(client, random, contents, start_s, start_s + duration_s))
    return merged(streams)


def _number(path: Path) -> int:
    """Raises InvalidOption for a file that is called after no client."""
    try:
        return int(path.name.split("-")[1])
    except ValueError as error:
        raise InvalidOption(f"{path}: its name is not chunk-NUMBER-trace.csv") from error


def _stream(client: _Client, random: Random, contents: Contents, start_s: float, end_s: float) -> Iterator[Asked]:
    for window in client.windows:
        end = window.begin + client.window_s
        if end <= start_s or window.rate <= 0.0:
            continue
        now = window.begin
        while (now := now + window.gap(random)) < end:
            if now >= end_s:
                return
            if now < start_s:
                continue
            prompts, outputs = _lengths_at(client, now)
            num_tokens, content = prompts.draw(random), contents.take()
            yield Asked(
                arrival=now - start_s,
                prompt=Blocks((Part(content, content, num_tokens),), num_tokens),
                num_output=outputs.draw(random),
                principal=client.name,
            )


def _lengths_at(client: _Client, now: float) -> tuple[Empirical, Empirical]:
    found = client.lengths[0]
    for lengths in client.lengths:
        if lengths[0] <= now:
            found = lengths
    return found[1], found[2]


def _read(path: Path, rate_factor: float) -> _Client:
    windows = []
    for row in csv_rows(path, header=_HEADER):
        rate = row.number("rate") * rate_factor
        if rate > 0.0:
            shape = row.number("p1") if row.values["kind"] else 1.0
            if not LEAST_SHAPE <= shape <= MOST_SHAPE:
                raise row.error(
                    f"the shape of a distribution must be between {LEAST_SHAPE:g} and {MOST_SHAPE:g}, not {shape:g}"
                )
            if rate > MOST_RATE:
                raise row.error(f"a client asks at most {MOST_RATE:g} times a second, not {rate:g}")
            windows.append(_Window(row.number("begin"), rate, str(row.values["kind"]), shape))
    begins = sorted({window.begin for window in windows})
    window_s = min((b - a for a, b in pairwise(begins)), default=DEFAULT_WINDOW_S)
    lengths = _read_lengths(path.with_name(path.name.replace("-trace.csv", "-dataset.json")))
    if windows and not lengths:
        raise InvalidOption(f"{path} has requests, but no lengths beside it")
    return _Client("client-" + path.name.split("-")[1], windows, window_s, lengths)


def _read_lengths(path: Path) -> list[tuple[float, Empirical, Empirical]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lengths = [
            (float(begin), _counts(path, values["input_tokens"]), _counts(path, values["output_tokens"]))
            for begin, values in content.items()
            if values.get("input_tokens") not in (None, "", "{}")
            and values.get("output_tokens") not in (None, "", "{}")
        ]
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidOption(f"{path}: not lengths by window: {error!r}") from error
    if not all(math.isfinite(begin) for begin, _, _ in lengths):
        raise InvalidOption(f"{path}: a window begins at no time")
    return sorted(lengths, key=lambda entry: entry[0])


def _counts(path: Path, text: str) -> Empirical:
    """From a text "{length: probability, ...}", which is read here and run nowhere."""
    pairs = []
    for item in text.strip().strip("{}").split(","):
        match = _ENTRY.fullmatch(item)
        if match is None:
            raise InvalidOption(f"{path}: not a length and its probability: {item.strip()[:40]!r}")
        pairs.append((float(match[1]), float(match[2])))
    return Empirical(pairs)
