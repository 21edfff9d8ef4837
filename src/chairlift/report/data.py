"""What a page shows, as plain data: the page carries it as JSON, and it can be read back from there.

Times are in seconds from the start of the run. Lists inside one object are columns: parallel, an entry for each row.
"""

from __future__ import annotations

import msgspec

FORMAT = 1


class Series(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A quantity that keeps each value until the next time. If it was thinned, `value` is the mean from one time to the
    next, and `low` and `high` are the least and the most."""

    time: list[float]
    value: list[float]
    low: list[float] = []
    high: list[float] = []


class Steps(msgspec.Struct, forbid_unknown_fields=True):
    """Steps, or spans of `width` neighbouring ones; rows are means over the time in which steps ran."""

    width: int
    begin: list[float]
    end: list[float]
    busy: list[float]
    """Share of the time between begin and end in which steps ran."""
    decodes: list[float]
    chunks: list[float]
    fillers: list[float]
    max_rows: list[int]
    tokens: list[int]
    chunk_tokens: list[int]
    held: list[int]
    """Blocks that sequences hold when the last of the steps is over."""
    max_held: list[int]
    kept: list[int]
    """Blocks that nobody holds, but whose content may be found again."""


class Stays(msgspec.Struct, forbid_unknown_fields=True):
    """Who sat in which slot, in order of joining; -1 where a time is none."""

    slot: list[int]
    answer: list[int]
    """Row of `Answers`."""
    joined: list[float]
    decodes_from: list[float]
    left: list[float]
    held_until: list[float]
    """As a filler."""
    why: list[str]
    again: list[bool]
    """Whether it was preempted before."""


class Chunks(msgspec.Struct, forbid_unknown_fields=True):
    """Pieces of prompts, in order of their stays."""

    stay: list[int]
    begin: list[float]
    seconds: list[float]
    start: list[int]
    count: list[int]


class Answers(msgspec.Struct, forbid_unknown_fields=True):
    """Who is in the stays."""

    id: list[int]
    choice: list[int]
    label: list[str]
    owner: list[int]
    """Index into the names of the run."""
    priority: list[int]
    arrival: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    """-1 if it was not over."""
    sentence: list[str]


class Curves(msgspec.Struct, forbid_unknown_fields=True):
    """Service of every owner up to each time."""

    input_weight: float
    output_weight: float
    time: list[float]
    service: list[list[float]]
    """By owner, then by time."""


class Engine(msgspec.Struct, forbid_unknown_fields=True):
    """One engine of a run."""

    name: str
    num_slots: int
    num_blocks: int
    block_size: int
    num_steps: int
    busy_s: float
    slot_use: float
    """Share of the slots that decodes and chunks used, over steps."""
    num_filler_rows: int
    max_waiting: int
    max_held_blocks: int
    steps: Steps
    waiting: Series
    stays: Stays
    chunks: Chunks
    answers: Answers
    curves: Curves
    stays_from: float
    stays_until: float
    """All stays between these times are there, and of stays that began before the first only those that reach it."""


class Distribution(msgspec.Struct, forbid_unknown_fields=True):
    """Values in seconds. `share` of them are at most `value`."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float
    value: list[float]
    share: list[float]


class Group(msgspec.Struct, forbid_unknown_fields=True):
    """Requests of one who asks; tokens of those that were completed."""

    name: str
    requests: int
    completed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Distribution | None
    e2e: Distribution | None


class Run(msgspec.Struct, forbid_unknown_fields=True):
    """A run as the page shows it."""

    name: str
    source: str
    """What it was made from."""
    duration_s: float
    """To the last end of an answer or of a step."""
    requests: int
    completed: int
    refused: int
    unfinished: int
    reasons: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    """Of the prompts of all that joined and are over."""
    output_tokens: int
    """Of completed requests."""
    preemptions: int
    latencies: dict[str, Distribution]
    """By `ttft`, `itl`, `e2e`, `queue`: those that have a value."""
    groups: list[Group]
    engines: list[Engine]
    notes: list[str]


class Page(msgspec.Struct, forbid_unknown_fields=True):
    """One run, or two to compare."""

    format: int
    runs: list[Run]
