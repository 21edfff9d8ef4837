"""Traces that are tables of lengths, with or without the times at which requests came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from random import Random

from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals
from chairlift.sim.traces.reading import Recorded, Row, csv_rows, rows, shortened
from chairlift.sim.workload import Asked, Blocks, Contents, Part

INPUT_NAMES = ("num_prefill_tokens", "ContextTokens", "input_length", "prompt_len", "input_toks", "input_tokens")
OUTPUT_NAMES = ("num_decode_tokens", "GeneratedTokens", "output_length", "output_len", "output_toks", "output_tokens")
"""What the columns of lengths are called by those who publish such files."""
SHARED_BLOCK_TOKENS = 16
FIRST_OWN_CONTENT = 1 << 30
"""Contents that no other prompt has are numbered from here: those of named blocks are below."""


def azure(path: Path) -> Iterator[Asked]:
    """TIMESTAMP, ContextTokens, GeneratedTokens; times from the first.

    Source: AzurePublicDataset, LLM inference traces of 2023.

    Raises:
        InvalidOption: no such file, or a line of another shape.
    """
    contents, recorded, begun = Contents(), Recorded(), None
    for row in csv_rows(path):
        text = row.values.get("TIMESTAMP")
        try:
            time = datetime.fromisoformat(str(text))
        except ValueError as error:
            raise row.error(f"TIMESTAMP must be a date and time, not {shortened(text)}") from error
        begun = time if begun is None else begun
        if (time.tzinfo is None) != (begun.tzinfo is None):
            raise row.error("TIMESTAMP must have a time zone in all lines, or in none")
        yield _asked(row, recorded.at(row, (time - begun).total_seconds()), contents)


def timed(path: Path) -> Iterator[Asked]:
    """Lengths, and an arrival in seconds: `arrived_at`, `req_time`, `arrival`, or `arrival_time_ns`.

    `client`, `principal` and `tenant` say who asks, where they are; `blocks16` what prompts have in common: ranges of
    ids of blocks of 16 tokens, each first and last, from 0. A request that was refused (its `first_token_latency` is
    negative) is left out. JSON lines or CSV. Dates (seconds since 1970) count from the first.

    Raises:
        InvalidOption: as for `azure`.
    """
    contents, recorded = Contents(FIRST_OWN_CONTENT), Recorded(from_first=False)
    for row in rows(path):
        if "first_token_latency" in row.values and row.number("first_token_latency") < 0.0:
            continue
        if "arrival_time_ns" in row.values:
            time = row.number("arrival_time_ns") / 1e9
        else:
            time = row.number("arrived_at", "req_time", "arrival")
        asked = _asked(row, recorded.at(row, time), contents)
        if "blocks16" in row.values:
            asked = replace(asked, prompt=_shared(row, asked.prompt.num_tokens, contents))
        yield asked


def _shared(row: Row, num_tokens: int, contents: Contents) -> Blocks:
    """A prompt of blocks by their ids, and a rest that no other has."""
    ranges = row.values["blocks16"]
    if not isinstance(ranges, list) or not all(
        isinstance(ids, list) and len(ids) == 2 and all(type(i) is int for i in ids) and 0 <= ids[0] <= ids[1]
        for ids in ranges
    ):
        raise row.error("blocks16 must be a list of pairs of ids: the first and the last of a range")
    parts = [Part(first + 1, last + 1, SHARED_BLOCK_TOKENS) for first, last in ranges]
    rest = num_tokens - sum(SHARED_BLOCK_TOKENS * (part.last - part.first + 1) for part in parts)
    if rest < 0 or any(part.last >= FIRST_OWN_CONTENT for part in parts):
        raise row.error("blocks16 has an id that is too large, or more blocks than the prompt has tokens for")
    if rest:
        content = contents.take()
        parts.append(Part(content, content, rest))
    return Blocks(tuple(parts), num_tokens)


def length_pairs(path: Path) -> Iterator[tuple[int, int]]:
    """Prompt and output lengths of each row, at least 1.

    Raises:
        InvalidOption: as for `azure`.
    """
    for row in rows(path):
        yield max(1, row.count(*INPUT_NAMES)), max(1, row.count(*OUTPUT_NAMES))


def drawn(path: Path, arrivals: Arrivals, num_requests: int | None, seed: int) -> Iterator[Asked]:
    """Pairs of lengths from a table, drawn with replacement, at drawn times; endless without a number.

    Raises:
        InvalidOption: as for `azure`, or an empty file.
    """
    pairs = list(length_pairs(path))
    if not pairs:
        raise InvalidOption(f"{path} has no lengths")
    contents, random = Contents(), Random(f"{seed}/lengths")
    times = arrivals.times(Random(f"{seed}/arrivals"))
    for time in times if num_requests is None else islice(times, num_requests):
        num_prompt, num_output = random.choice(pairs)
        content = contents.take()
        yield Asked(
            arrival=time, prompt=Blocks((Part(content, content, num_prompt),), num_prompt), num_output=num_output
        )


def column_counts(text: str) -> Iterator[tuple[float, float]]:
    """How often each length stands in a column, for `PATH` of a file with one column, or `PATH:COLUMN`.

    Raises:
        InvalidOption: as for `azure`.
    """
    name, _, column = text.rpartition(":")
    path, column = (Path(name), column) if name else (Path(text), "")
    for row in rows(path):
        wanted = column or next(iter(row.values))
        yield row.number(wanted), 1.0


def _asked(row: Row, arrival: float, contents: Contents) -> Asked:
    content = contents.take()
    num_prompt = max(1, row.count(*INPUT_NAMES))
    principal = row.values.get("principal", row.values.get("client", ""))
    return Asked(
        arrival=arrival,
        prompt=Blocks((Part(content, content, num_prompt),), num_prompt),
        num_output=max(1, row.count(*OUTPUT_NAMES)),
        principal=str(principal),
        tenant=str(row.values.get("tenant", "")),
    )
