"""What rendering a chat template may cost, counted while it renders.

A template comes with a model, so it is as trusted as a downloaded file: it may loop, double a string fifty times or
compare lists nested into themselves. Every loop iteration, call, operator and filter is charged by the size of what it
touches; nothing larger than the output may become exists even for a moment.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from dataclasses import dataclass

from jinja2.utils import Namespace

MAX_DEPTH = 64
"""Deepest nesting of a value that is written out or compared: both recurse."""


class RenderLimit(Exception):
    """A template went past its bounds; the text says which."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one rendering. Time is the CPU time of the rendering thread, so that a busy machine does not count."""

    min_cpu_s: float = 0.1
    cpu_s_per_message: float = 0.0005
    """Some templates look back from every message: GPT-OSS takes 0.2 s for 750 with calls of tools."""
    max_cpu_s: float = 0.5
    max_chars: int = 1 << 20
    """Of the output, and of any single string, list or dictionary on the way."""

    def cpu_s(self, num_messages: int) -> float:
        """What the rendering of a conversation may take."""
        return min(self.min_cpu_s + self.cpu_s_per_message * num_messages, self.max_cpu_s)


class Meter:
    """Counts one rendering. `spend` raises once the time is up."""

    __slots__ = ("_cpu_s", "_deadline", "_left", "bounds", "num_chars", "originals")

    _INTERVAL = 64
    """Units between two looks at the clock: each costs about a microsecond."""

    def __init__(self, bounds: Bounds, originals: Mapping[int, int] | None = None, num_messages: int = 1) -> None:
        self.bounds = bounds
        self.originals = originals
        """What stand-ins stand for, if this rendering has any (see `guard`): comparisons see the originals."""
        self.num_chars = 0
        """Output so far."""
        self._left = self._INTERVAL
        self._cpu_s = bounds.cpu_s(num_messages)
        self._deadline = time.thread_time() + self._cpu_s

    def spend(self, units: int = 1) -> None:
        """Count work of about a microsecond per unit.

        Raises:
            RenderLimit: the time is up.
        """
        self._left -= units
        if self._left <= 0:
            self._left = self._INTERVAL
            if time.thread_time() > self._deadline:
                raise RenderLimit(f"it takes more than {self._cpu_s:.2g} s")

    def grow(self, size: int) -> None:
        """Count the making of something of `size` characters or elements, before it is made.

        Raises:
            RenderLimit: it would be too large, or the time is up.
        """
        if size > self.bounds.max_chars:
            raise RenderLimit(f"it makes a value larger than {self.bounds.max_chars}")
        self.spend(1 + (size >> 7))

    def write(self, text: str) -> None:
        """Count output.

        Raises:
            RenderLimit: there is too much of it, or the time is up.
        """
        self.num_chars += len(text)
        self.grow(self.num_chars if self.num_chars > self.bounds.max_chars else len(text))

    def weigh(self, value: object) -> int:
        """Characters and elements in a value, everything inside it counted as often as it would be visited.

        Called before a value is written out, compared or hashed as a whole: a value of a few nested references can be
        exponentially long.

        Raises:
            RenderLimit: it is too large or too deep, or the time is up.
        """
        if value is None or isinstance(value, int | float):
            return 20
        if isinstance(value, str):
            self.grow(len(value))
            return len(value)
        total = 0
        level = [value]
        for _ in range(MAX_DEPTH):
            inner: list[object] = []
            for item in level:
                if isinstance(item, str):
                    total += len(item)
                elif isinstance(item, dict):
                    total += 16 * len(item)
                    inner.extend(item)
                    inner.extend(item.values())
                elif isinstance(item, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
                    total += 8 * len(item)
                    inner.extend(item)
                elif isinstance(item, Namespace):
                    raise RenderLimit("it writes out a namespace")
                else:
                    total += 20
                if total + len(inner) > self.bounds.max_chars:
                    raise RenderLimit(f"it makes a value larger than {self.bounds.max_chars}")
            self.spend(1 + (len(level) >> 3))
            if not inner:
                self.grow(total)
                return total
            level = inner
        raise RenderLimit(f"it makes a value nested more than {MAX_DEPTH} deep")
