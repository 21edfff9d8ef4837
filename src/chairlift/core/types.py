"""The nouns of the engine: what is asked, what a step does, and what comes back.

A request is what somebody asked; a sequence (`core/sequence.py`) is one answer in flight. A `StepPlan` says what
changes in a step and who decodes; a `StepResult` says what was sampled; a `StepOutput` says what each caller gets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs, structured_outputs

BACKGROUND_PRIORITY = 1 << 31
"""From here on a request gives way to whoever is better (`core/background.py`). No client can ask for such a one."""

MAX_LOGPROBS = 20
"""Most alternatives per token that a request may ask for."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    `max_tokens=None` means as many as the context allows. `top_k=0` (or -1) means all. `logprobs=k` returns the
    chosen token's log-probability and the k best. Log-probabilities are those of the model's own distribution:
    before penalties, bias and temperature.

    `structured_outputs` is the form that the answer must have: each token is chosen among those that lead to such a
    text, and the answer may end only where it is one.

    Callers may give any list for a tuple, one text for `stop`, a mapping for `logit_bias` and `structured_outputs`, and
    numbers of any kind: they are kept as declared here.

    Raises:
        InvalidRequest: a number out of range or not finite, or a value of another type.
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
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        self._integer("max_tokens", 1, none=True)
        self._integer("min_tokens", 0)
        self._integer("top_k", -1)
        self._integer("seed", -(2**63), 2**64 - 1, none=True)
        self._integer("logprobs", 0, MAX_LOGPROBS, none=True)
        self._integer("prompt_logprobs", 0, MAX_LOGPROBS, none=True)
        self._number("temperature", 0.0, 100.0)
        self._number("top_p", 0.0, 1.0, open_low=True)
        self._number("min_p", 0.0, 1.0)
        self._number("repetition_penalty", 0.01, 100.0)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens must not exceed max_tokens", "min_tokens")
        for name in ("include_stop_str_in_output", "ignore_eos"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false", name)
        self._set("logit_bias", _bias(self.logit_bias))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidRequest("allowed_token_ids must not be empty", "allowed_token_ids")
        self._set("stop", _stops(self.stop))
        self._set("structured_outputs", structured_outputs(self.structured_outputs))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _integer(self, name: str, low: int, high: int | None = None, *, none: bool = False) -> None:
        value = getattr(self, name)
        if value is None and none:
            return
        if not _is_integer(value):
            raise InvalidRequest(f"{name} must be an integer", name)
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise InvalidRequest(f"{name} must be {bounds}", name)
        if type(value) is not int:
            self._set(name, int(value))

    def _number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        if not _is_number(value) or not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number", name)
        if value > high or value < low or (open_low and value == low):
            raise InvalidRequest(f"{name} must be {'above' if open_low else 'at least'} {low} and at most {high}", name)
        if type(value) is not float:
            self._set(name, float(value))


def _is_integer(value: object) -> TypeGuard[int]:
    """Of Python's or of NumPy's kinds; True and False are none."""
    return type(value) is int or (type(value) is not bool and isinstance(value, Integral))


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) is float or (type(value) is not bool and isinstance(value, Real))


def _stops(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else _items("stop", value)
    if not all(isinstance(text, str) for text in stops):
        raise InvalidRequest("stop must be a text or a list of texts", "stop")
    if not all(stops):
        raise InvalidRequest("a stop string must not be empty", "stop")
    return stops


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    ids = _items(name, value)
    if not all(map(_is_integer, ids)):
        raise InvalidRequest(f"{name} must be a list of token ids", name)
    return tuple(map(int, ids))


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    pairs = _items("logit_bias", value.items() if isinstance(value, Mapping) else value)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InvalidRequest("logit_bias must map token ids to numbers", "logit_bias")
    for _, bias in pairs:
        if not _is_number(bias) or not -100.0 <= bias <= 100.0:
            raise InvalidRequest("logit_bias must be at least -100.0 and at most 100.0", "logit_bias")
    ids = _token_ids("logit_bias", [token for token, _ in pairs])
    return tuple(zip(ids, (float(bias) for _, bias in pairs), strict=True))


def _items(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InvalidRequest(f"{name} must be a list", name)
    return tuple(value)


NO_SAMPLING = SamplingParams(max_tokens=1)
"""Of requests that are pooled: nothing is sampled."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What one pass over a sequence is to give, where no token is sampled: a vector, made of its tokens' states.

    `task` is what the vector is: an embedding, or what a classifier says of each of its labels, before and after what
    makes probabilities of them (`activate`). `normalize` scales an embedding to length 1, `dimensions` keeps its first
    numbers; None is what the model does. `num_first` leading tokens are a first text, the others a second one; 0: there
    is no second one.
    """

    task: Literal["embed", "classify"] = "embed"
    normalize: bool | None = None
    dimensions: int | None = None
    activate: bool = True
    num_first: int = 0


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """Numbers that stand for the leading blocks of a prompt, from a source that knows which prompts begin alike.

    `keys[i]`, from 0 to below 2^64, stands for all tokens up to the end of block i, of `block_size` tokens each: two
    requests have the same key there exactly if they begin with the same i + 1 blocks. That is the source's word.
    """

    block_size: int
    keys: Seq[int]

    @property
    def num_tokens(self) -> int:
        """Leading prompt tokens that the keys stand for."""
        return len(self.keys) * self.block_size


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; never changes.

    `id` is unique among live requests and chosen by the engine's owner, never by a client. Answers are keyed
    (id, choice) with 0 <= choice < n. `arrival` is in the driver's seconds. `eos_token_ids` end a sequence unless
    `params.ignore_eos`. `salt` separates prefix caches: blocks are shared only between equal salts.
    Lower `priority` goes first, under every policy.

    `principal` is who asks, known from how they proved it; `tenant` is a name that the principal gives to a part of its
    own traffic. Fair scheduling shares between principals first and between the tenants of each second, so that names
    made up by a client gain it nothing.

    `ttft_deadline` and `e2e_deadline` are points in time, in the driver's seconds, by which the first token and the end
    must have come; a request that misses one ends with `FinishReason.DEADLINE`.

    `block_keys` spare a scheduler that computes nothing the tokens: it finds those blocks by their keys and never reads
    what they stand for. One that was not made for them refuses them, as every engine with a device does. Between equal
    salts only are keys equal, and never are they taken for a block that came as tokens.

    With `pooling` it ends when all its tokens are computed, in one step: it gives a vector and no token.
    """

    id: int
    prompt: Seq[int]
    params: SamplingParams
    arrival: float = 0.0
    n: int = 1
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    salt: bytes = b""
    principal: str = ""
    tenant: str = ""
    ttft_deadline: float | None = None
    e2e_deadline: float | None = None
    block_keys: BlockKeys | None = None
    pooling: PoolingParams | None = None


@dataclass(slots=True)
class Limits:
    """What a step and the running set may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """Most tokens of a sequence, prompt and output together."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """New values for what may be changed while the engine runs; None leaves a value as it is.

    `max_num_seqs` and `max_num_batched_tokens` may not exceed what the engine was started with, which is what its
    executor prepared. An objective or threshold of 0 turns it off.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    itl_objective_s: float | None = None
    ttft_objective_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The paged key/value cache: `num_blocks` blocks of `block_size` tokens, ids 0 .. num_blocks - 1."""

    num_blocks: int
    block_size: int


# ---------------------------------------------------------------- what a step does


@dataclass(slots=True)
class Join:
    """A sequence takes a slot. `tokens` are all its known tokens: the prompt, then what it generated before a
    preemption. The list stays the scheduler's: an executor copies what it keeps. Where a request came with keys, 0
    stands for every token that they stand for."""

    slot: int
    request: Request
    choice: int
    tokens: list[int]


@dataclass(slots=True)
class Chunk:
    """Compute `count` tokens of a sequence from position `start`: of its prompt, or of what it generated before a
    preemption, never of both.

    `samples`: the chunk reaches the last known token, so a token is sampled after it. `scores`: the
    log-probabilities of the prompt tokens at positions start + 1 .. start + count are wanted as well. `pools`: these
    are all tokens of a single pass, which ends with them and gives a vector.

        known tokens    |----------------------------|
        computed        |--------|
        chunk                    [start .. start + count)
    """

    slot: int
    start: int
    count: int
    samples: bool
    scores: bool = False
    pools: bool = False


@dataclass(slots=True)
class StepPlan:
    """What changes in one step, and who decodes. Applied in the order leaves, joins, blocks; then computed.

    Rows persist in the executor: a slot keeps its tokens, its block table and its sampling state from `joins` to
    `leaves`. `block_slots` and `block_ids` are parallel: block `block_ids[i]` is appended to the table of
    `block_slots[i]`. A decode row feeds the token sampled last for its slot. The rows that sample are `decodes` in
    order, then the chunks with `samples` in order: results are parallel to that.

    `fillers` are rows of a static batch whose sequences are over: the executor computes each as a decode row, from the
    token sampled last, always at the same position, and nothing comes of it. They are what holding a batch to its end
    costs.
    """

    step: int
    joins: list[Join] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    block_slots: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    fillers: list[int] = field(default_factory=list)
    num_chunk_tokens: int = 0
    num_chunk_pairs: int = 0
    """(query, key) pairs of the chunks: each token of a chunk reads every token up to itself."""
    num_context_tokens: int = 0
    """Tokens already in the cache that decode rows and fillers read, summed over rows. Cost models and metrics read
    these sums."""
    num_shared_context_tokens: int = 0
    """Of those, the tokens of blocks that several sequences hold, prompts under way included, counted for each holder
    but one: they are read again, and may be near by then."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.decodes) + len(self.fillers) + self.num_chunk_tokens

    @property
    def num_samples(self) -> int:
        """Rows that sample: what a result has tokens for."""
        return len(self.decodes) + sum(1 for chunk in self.chunks if chunk.samples)


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
    vectors: dict[int, bytes] = field(default_factory=dict)
    """By slot, for chunks with `pools`: float32 numbers, little-endian."""


# ---------------------------------------------------------------- what comes back


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"
    """The first token or the end did not come by when it was wanted; `Finish.error` says which."""


class WaitReason(StrEnum):
    """What keeps the head of the queue from joining."""

    STEP = "step"
    """Nothing but the step in progress: joins happen between steps."""
    BATCH = "batch"
    """A static or dynamic batch is filling, or runs to its end."""
    SLOTS = "slots"
    """`max_num_seqs` sequences run."""
    BLOCKS = "blocks"
    """The cache has not enough free blocks."""
    TOKENS = "tokens"
    """The step's token budget is used up."""
    PREFIX = "prefix"
    """Another sequence is computing the beginning that both share."""


class PreemptReason(StrEnum):
    BLOCKS = "blocks"
    """A sequence before it in the order needed its blocks."""
    PRIORITY = "priority"
    """A request of strictly higher priority took its slot or its blocks."""


MAX_ABSENCES = 32
"""Most stays out of a slot whose times are kept, of one sequence."""


@dataclass(slots=True)
class Decisions:
    """What was decided about one sequence, compactly; `core/explain.py` says it as a sentence.

    `waited` holds (reason, seconds) of the time before it first joined, reasons with time only. `preemptions` holds
    (id of the request it made room for, reason). `chunks` counts the pieces in which its tokens were computed,
    `recomputed_tokens` those computed again after preemptions, `passed` how often a later one joined before it.
    """

    queued_behind: int = 0
    waited: tuple[tuple[WaitReason, float], ...] = ()
    preemptions: tuple[tuple[int, PreemptReason], ...] = ()
    preempted_s: float = 0.0
    """Seconds between preemptions and the joins after them."""
    chunks: int = 0
    recomputed_tokens: int = 0
    passed: int = 0
    absences: tuple[tuple[float, float], ...] = ()
    """When it was out of its slot after preemptions: (from, until), the first `MAX_ABSENCES` of them."""


@dataclass(slots=True)
class Finish:
    """The end of one sequence; every (id, choice) gets exactly one. Times are in the driver's seconds.

    Nobody changes one, nor its decisions: they are not frozen since that makes a constructor three times as long.

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
    decisions: Decisions = field(default_factory=Decisions)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of this moment, and since the start where it says so; metrics and admission read these."""

    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_cached_blocks: int
    """Blocks that nobody holds but whose content may be found again."""
    num_preemptions: int
    """Since the start."""
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache, since the start."""
    prefix_hits: int
    """Prompt tokens found there, since the start."""
    waiting_by_reason: dict[WaitReason, int] = field(default_factory=dict)
    """Waiting sequences by what keeps them; reasons with somebody only."""
    waited_s: dict[WaitReason, float] = field(default_factory=dict)
    """Seconds in which somebody waited, by what kept the head of the queue, since the start."""
    max_num_seqs: int = 0
    """As in force now: what is configured, or what the controller allows."""
    max_num_batched_tokens: int = 0
    """As in force now."""
    max_prefill_tokens: int = 0
    """Most prompt tokens that the last step could hold, as steered by the controller."""
    num_step_tokens: int = 0
    """Tokens of the last step; 0 if none ran since the last report."""
    num_step_rows: int = 0
    """Rows that sampled in the last step."""
    step_s: float = 0.0
    num_background_running: int = 0
    num_background_waiting: int = 0
    """Of those above, the ones that give way to everybody else."""


@dataclass(slots=True)
class StepOutput:
    """What the callers get from one step. `keys` and `tokens` are parallel: one new token for each (id, choice).

    A sequence in `finishes` is over; its last token, if the step gave it one, is in `tokens` too.
    """

    keys: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[tuple[int, int], TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: dict[tuple[int, int], list[TokenLogprob]] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    """Requests whose first sequence joined for the first time in this step."""
    finishes: list[Finish] = field(default_factory=list)
    vectors: dict[int, bytes] = field(default_factory=dict)
    """By request, what single passes gave: float32 numbers, little-endian."""
