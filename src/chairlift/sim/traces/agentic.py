"""Recorded sessions of coding agents: closed loops, whose every request waits for the answer before it.

One session a line: `requests` with `in`, `out`, `think` (seconds from the last answer to this request) and `blocks`,
ranges [first, last] of the ids of the prompt's full blocks of `block_size` tokens; ids mean something within a session
only. An entry with `requests` of its own is a sub-agent, which begins beside the others `t` seconds into the session.

    main     [--1--]  think  [--2--]  think  [--3--]
    agent             offset [--a--] think [--b--]         offset: from the end of the request before it

Source: kv-cache-tester's traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from chairlift.sim.traces.reading import Row, json_rows
from chairlift.sim.workload import Asked, Blocks, Contents, Part


def agent_sessions(
    path: Path, starts: Iterable[float], *, num_sessions: int | None = None, max_think_s: float = float("inf")
) -> Iterator[Asked]:
    """The first request of each session, one at each of `starts`; the others follow from it.

    Raises:
        InvalidOption: no such file, or a line of another shape.
    """
    contents = Contents()
    for i, (row, start) in enumerate(zip(json_rows(path), starts, strict=False)):
        if i == num_sessions:
            return
        first = _Session(row, contents, max_think_s).begin(start)
        if first is not None:
            yield first


class _Session:
    """One line of the file."""

    def __init__(self, row: Row, contents: Contents, max_think_s: float) -> None:
        self._name = str(row.values.get("id", row.where))
        self._block_tokens = row.count("block_size", least=1)
        self._entries = row.rows("requests")
        self._contents = contents
        self._max_think_s = max_think_s
        ids = [last for _, last in _all_ranges(self._entries)]
        self._first_content = contents.take(max(ids, default=0) + 1)

    def begin(self, start: float) -> Asked | None:
        """Its first request; None if it has none."""
        asked = self._go_on(self._entries, 0, start, 0.0)
        return asked[0] if asked else None

    def _go_on(self, entries: list[Row], i: int, now: float, ended: float) -> list[Asked]:
        """What is asked `now`, from the entry at `i` on: sub-agents, and the next request of this line of them.

        `ended` is when the request before it ended in the session as it was recorded.
        """
        asked: list[Asked] = []
        while i < len(entries) and "requests" in entries[i].values:
            offset = max(0.0, entries[i].number("t") - ended)
            asked += self._go_on(entries[i].rows("requests"), 0, now + min(offset, self._max_think_s), 0.0)
            i += 1
        if i == len(entries):
            return asked
        entry = entries[i]
        think = max(0.0, entry.number("think")) if "think" in entry.values else 0.0
        recorded_end = entry.number("t") + (entry.number("api") if "api" in entry.values else 0.0)
        request = Asked(
            arrival=now + (min(think, self._max_think_s) if i else 0.0),
            prompt=self._prompt(entry),
            num_output=max(1, entry.count("out")),
            session=self._name,
            label=entry.where.rpartition(": ")[2],
            follow=lambda at: self._go_on(entries, i + 1, at, recorded_end),
        )
        return [request, *asked]

    def _prompt(self, entry: Row) -> Blocks:
        """Its full blocks, and a rest that nothing else has."""
        num_tokens = max(1, entry.count("in"))
        width = self._block_tokens
        parts = [Part(self._first_content + first, self._first_content + last, width) for first, last in _ranges(entry)]
        rest = num_tokens - sum((part.last - part.first + 1) * width for part in parts)
        if rest < 0:
            raise entry.error(f"its blocks hold {num_tokens - rest} tokens, more than the {num_tokens} of the prompt")
        if rest:
            content = self._contents.take()
            parts.append(Part(content, content, rest))
        return Blocks(tuple(parts), num_tokens)


def _all_ranges(entries: list[Row]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        if "requests" in entry.values:
            yield from _all_ranges(entry.rows("requests"))
        else:
            yield from _ranges(entry)


def _ranges(entry: Row) -> list[tuple[int, int]]:
    ranges = entry.values.get("blocks", [])
    if not isinstance(ranges, list):
        raise entry.error("blocks must be a list of ranges")
    for pair in ranges:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(i) is int for i in pair)):
            raise entry.error(f"a range of blocks is [first, last], not {pair!r}")
        if not 0 <= pair[0] <= pair[1] < 1 << 30:
            raise entry.error(f"not a range of blocks: {pair!r}")
    return [(first, last) for first, last in ranges]
