"""The nouns of the engine: what is asked, what a step does, and what comes back.

A request is what somebody asked; a sequence (`core/sequence.py`) is one answer in flight. A `StepPlan` says what
changes in a step and who decodes; a `StepResult` says what was sampled; a `StepOutput` says what each caller gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum

from chairlift.core.errors import InvalidRequest

MAX_LOGPROBS = 20
"""Most alternatives per token that a request may ask for."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    `max_tokens=None` means as many as the context allows. `top_k=0` (or -1) means all. `logprobs=k` returns the
    chosen token's log-probability and the k best. Log-probabilities are those of the model's own distribution:
    before penalties, bias and temperature.

    Raises:
        InvalidRequest: a number out of range or not finite.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, none=True)
        _check_int("min_tokens", self.min_tokens, 0)
        _check_int("top_k", self.top_k, -1)
        _check_int("seed", self.seed, -(2**63), 2**64 - 1, none=True)
        _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS, none=True)
        _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS, none=True)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens must not exceed max_tokens", "min_tokens")
        for _, bias in self.logit_bias:
            _check_float("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids must not be empty", "allowed_token_ids")
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string must not be empty", "stop")


def _check_int(name: str, value: object, low: int, high: int | None = None, *, none: bool = False) -> None:
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be an integer", name)
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(f"{name} must be {bounds}", name)


def _check_float(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number", name)
    if value > high or value < low or (open_low and value == low):
        raise InvalidRequest(f"{name} must be {'above' if open_low else 'at least'} {low} and at most {high}", name)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; never changes.

    `id` is unique among live requests and chosen by the engine's owner, never by a client. Answers are keyed
    (id, choice) with 0 <= choice < n. `arrival` is in the driver's seconds. `eos_token_ids` end a sequence unless
    `params.ignore_eos`. `salt` separates prefix caches: blocks are shared only between equal salts.
    Lower `priority` goes first.
    """

    id: int
    prompt: Seq[int]
    params: SamplingParams
    arrival: float = 0.0
    n: int = 1
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    salt: bytes = b""


@dataclass(slots=True)
class Limits:
    """What a step and the running set may hold; may be changed while the engine runs."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """Most tokens of a sequence, prompt and output together."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The paged key/value cache: `num_blocks` blocks of `block_size` tokens, ids 0 .. num_blocks - 1."""

    num_blocks: int
    block_size: int


# ---------------------------------------------------------------- what a step does


@dataclass(slots=True)
class Join:
    """A sequence takes a slot. `tokens` are all its known tokens: the prompt, then what it generated before a
    preemption. The list stays the scheduler's: an executor copies what it keeps."""

    slot: int
    request: Request
    choice: int
    tokens: list[int]


@dataclass(slots=True)
class Chunk:
    """Compute `count` tokens of a sequence from position `start`: of its prompt, or of what it generated before a
    preemption, never of both.

    `samples`: the chunk reaches the last known token, so a token is sampled after it. `scores`: the
    log-probabilities of the prompt tokens at positions start + 1 .. start + count are wanted as well.

        known tokens    |----------------------------|
        computed        |--------|
        chunk                    [start .. start + count)
    """

    slot: int
    start: int
    count: int
    samples: bool
    scores: bool = False


@dataclass(slots=True)
class StepPlan:
    """What changes in one step, and who decodes. Applied in the order leaves, joins, blocks; then computed.

    Rows persist in the executor: a slot keeps its tokens, its block table and its sampling state from `joins` to
    `leaves`. `block_slots` and `block_ids` are parallel: block `block_ids[i]` is appended to the table of
    `block_slots[i]`. A decode row feeds the token sampled last for its slot. The rows that sample are `decodes` in
    order, then the chunks with `samples` in order: results are parallel to that.
    """

    step: int
    joins: list[Join] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    block_slots: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    num_chunk_tokens: int = 0
    num_context_tokens: int = 0
    """Tokens already in the cache that the decode rows read, summed over rows: cost models and metrics read it."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.decodes) + self.num_chunk_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token, its rank (1 = most likely), and the best alternatives, best first."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class StepResult:
    """What a step sampled. `tokens` is parallel to the plan's sampling rows; -1 stands where `errors` has the slot."""

    tokens: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """By slot, for rows that asked."""
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    """By slot, for chunks with `scores`: one entry per scored position, in order."""
    errors: dict[int, str] = field(default_factory=dict)
    """By slot: why this row, and only this row, failed."""


# ---------------------------------------------------------------- what comes back


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one sequence; every (id, choice) gets exactly one. Times are in the driver's seconds.

    `stop_reason` is the stop string or the id of the stop token that ended it, None for end-of-sequence.
    `first_token` is None if there was none. `num_cached_tokens` prompt tokens came from the prefix cache.
    """

    id: int
    choice: int
    reason: FinishReason
    stop_reason: int | str | None
    error: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    arrival: float
    first_scheduled: float | None
    first_token: float | None
    finished: float


@dataclass(slots=True)
class StepOutput:
    """What the callers get from one step. `keys` and `tokens` are parallel: one new token for each (id, choice).

    A sequence in `finishes` is over; its last token, if the step gave it one, is in `tokens` too.
    """

    keys: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[tuple[int, int], TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: dict[tuple[int, int], list[TokenLogprob]] = field(default_factory=dict)
    finishes: list[Finish] = field(default_factory=list)
