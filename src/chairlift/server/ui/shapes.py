"""What is told to those who watch, in the types that become its JSON. Nothing in it was said by anybody."""

from __future__ import annotations

from msgspec import Struct

PAGE_PATH = "/ui"
LIVE_PATH = "/ui/live"
STORY_PATH = "/ui/requests/"


class Row(Struct, kw_only=True):
    """A sequence that runs or waits."""

    id: str | None
    """Of its request; None if that is known to nobody any longer."""
    choice: int
    """Its number among all answers of the request."""
    principal: str
    tenant: str
    slot: int | None
    phase: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_output_tokens: int
    blocks: int
    preemptions: int
    age_s: float
    """Since it arrived."""
    running_s: float | None
    """Since it was served first."""


class Blocks(Struct, kw_only=True):
    """The cache of keys and values, in blocks of `size` tokens."""

    size: int
    total: int
    used: int
    cached: int
    """Held by nobody, and their content may be found again; the rest is free."""


class Counts(Struct, kw_only=True):
    """Everybody's sequences together, and what is in force."""

    running: int
    waiting: int
    waiting_by_reason: dict[str, int]
    max_num_seqs: int
    max_num_batched_tokens: int
    preemptions: int
    """Since the start, as the tokens of prompts that were looked up in the prefix cache and found there."""
    prefix_queries: int
    prefix_hits: int
    step_tokens: int
    step_s: float
    blocks: Blocks


class Latency(Struct, kw_only=True):
    """Of the last minute, in seconds."""

    count: int
    p50: float | None
    p99: float | None


class Lately(Struct, kw_only=True):
    """Tokens and steps per second over the last five, latencies of a minute, and two minutes second by second."""

    rates: dict[str, float]
    ttft_s: Latency
    itl_s: Latency
    series: dict[str, list[int]]


class EngineSeen(Struct, kw_only=True):
    """One engine: that of the model, or of the encoder beside it."""

    model: str
    generates: bool
    counts: Counts | None
    """None for who may not see sums, as everything of everybody's is."""
    running: list[Row]
    waiting: list[Row]


class Group(Struct, kw_only=True):
    """The requests of one principal's tenant: those in flight, and of the last ones those that ended."""

    principal: str
    tenant: str
    running: int
    waiting: int
    ended: int
    failed: int
    output_tokens: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None


class Ended(Struct, kw_only=True):
    """A request that ended."""

    id: str
    principal: str
    tenant: str
    choices: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float | None
    ttft_s: float | None
    total_s: float
    ended_by: str
    ago_s: float


class Live(Struct, kw_only=True):
    """A server at this moment."""

    state: str
    """serving, draining, engine_dead or engine_stalled."""
    sees: str
    """Whose requests are told: all, own or none."""
    version: str
    models: list[str]
    """Names that chats may use."""
    max_model_len: int
    up_s: float
    looked_s: float | None
    """How long ago the engine said who runs and who waits; None if it did not."""
    engines: list[EngineSeen]
    lately: Lately | None
    groups: list[Group]
    ended: list[Ended]
