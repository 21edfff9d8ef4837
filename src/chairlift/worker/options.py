"""What an engine can be told when it starts, and the command line that starts a worker process with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Literal, get_args

import msgspec

from chairlift.core.errors import ChairliftError, InvalidOption
from chairlift.core.policy import SETTINGS, BatchingName, OrderName, Policy, ReservationName, policy_of
from chairlift.journal.options import DEFAULT_MAX_BYTES, DEFAULT_MAX_SEGMENTS, JournalOptions

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
AskedDtype = Literal["auto", Dtype]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "u8"]

DEFAULT_MAX_NUM_SEQS = 128
"""Where a small model's arithmetic on a CPU is saturated by decoding: more rows make a step longer in proportion."""
MAX_NUM_SEQS = 1 << 16
"""Every row has a block table and sampling state from the start, whether it is used or not."""
MAX_SEED = 2**64 - 1
DEFAULT_EMBEDDING_MAX_NUM_SEQS = 64
DEFAULT_EMBEDDING_WAIT_MS = 4.0
"""How long the first text of a batch waits for others, where the device is free."""
LENGTH_WINDOW_S = 0.1
"""Texts that come within such a time are read in the order of their lengths."""
MAX_STEP_S = 0.25
"""Longest step to plan for: aborts, deadlines and heartbeats act between steps."""

_DEFAULT = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything about an engine that is decided before it starts. None means: measured, or read from the model.

    Raises:
        InvalidOption: a value that makes no sense, whatever the model.
    """

    model: str
    dtype: AskedDtype | None = None
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    num_threads: int | None = None
    seed: int | None = None
    """Makes requests without a seed of their own repeatable, if they come in the same order. None: fresh randomness."""

    batching: BatchingName = _DEFAULT.batching
    max_batch_wait_ms: float | None = None
    kv_reservation: ReservationName = _DEFAULT.kv_reservation
    enable_chunked_prefill: bool = _DEFAULT.enable_chunked_prefill
    prefill_first: bool = _DEFAULT.prefill_first
    scheduling_policy: OrderName = _DEFAULT.scheduling_policy
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Shares under `fair`, by the name of a principal, or of a tenant within its principal's share; 1 for others."""
    priority_ageing_s: float = _DEFAULT.priority_ageing_s
    max_bypass: int = _DEFAULT.max_bypass
    watermark: float = _DEFAULT.watermark
    long_prefill_token_threshold: int = _DEFAULT.long_prefill_token_threshold
    itl_objective_ms: float = 0.0
    ttft_objective_ms: float = 0.0

    embedding_model: str | None = None
    """An encoder beside the model that generates. The other `embedding_` options also hold where `model` is one."""
    embedding_dtype: Dtype = "float32"
    embedding_max_num_seqs: int = DEFAULT_EMBEDDING_MAX_NUM_SEQS
    embedding_max_num_batched_tokens: int | None = None
    embedding_max_batch_wait_ms: float = DEFAULT_EMBEDDING_WAIT_MS

    journal: str | None = None
    """File that every input of the scheduler is written to; none without a name."""
    journal_digest: bool = False
    journal_max_bytes: int = DEFAULT_MAX_BYTES
    journal_segments: int = DEFAULT_MAX_SEGMENTS

    def __post_init__(self) -> None:
        if self.dtype is not None:
            _check_choice("dtype", self.dtype, get_args(AskedDtype))
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, get_args(KVCacheDtype))
        _check_at_least("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        _check_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        _check_at_least("max_model_len", self.max_model_len, 2)  # a token of prompt and one of output
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_at_least("num_threads", self.num_threads, 1)
        _check_at_least("seed", self.seed, 0, MAX_SEED)
        if not self.model or self.embedding_model == "":
            raise InvalidOption("model must not be empty")
        self._check_embedding()
        self._check_journal()
        self._check_policy()

    def _check_embedding(self) -> None:
        _check_choice("embedding_dtype", self.embedding_dtype, get_args(Dtype))
        _check_at_least("embedding_max_num_seqs", self.embedding_max_num_seqs, 1, MAX_NUM_SEQS)
        _check_at_least("embedding_max_num_batched_tokens", self.embedding_max_num_batched_tokens, 1)
        _check_number("embedding_max_batch_wait_ms", self.embedding_max_batch_wait_ms)

    def _check_policy(self) -> None:
        _check_choice("batching", self.batching, get_args(BatchingName))
        _check_choice("kv_reservation", self.kv_reservation, get_args(ReservationName))
        _check_choice("scheduling_policy", self.scheduling_policy, get_args(OrderName))
        _check_at_least("max_bypass", self.max_bypass, 0)
        _check_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in ("max_batch_wait_ms", "priority_ageing_s", "watermark", "itl_objective_ms", "ttft_objective_ms"):
            _check_number(name, getattr(self, name))
        if self.watermark >= 1:
            raise InvalidOption(f"watermark is a share of the cache, below 1, not {self.watermark!r}")
        if not isinstance(self.tenant_weights, Mapping):
            raise InvalidOption("tenant_weights must map names to weights")
        for name, weight in self.tenant_weights.items():
            if not isinstance(name, str):
                raise InvalidOption(f"tenant_weights has names that are text, not {name!r}")
            _check_number(f"tenant_weights of {name!r}", weight)
            if not weight:
                raise InvalidOption(f"tenant_weights of {name!r} must be above 0: it would never be served")
        if self.tenant_weights and self.scheduling_policy != "fair":
            raise InvalidOption(
                f"tenant_weights goes with scheduling_policy fair: {self.scheduling_policy} has no shares"
            )
        if self.long_prefill_token_threshold and not self.enable_chunked_prefill:
            raise InvalidOption("long_prefill_token_threshold goes with chunked prefill: without, no prompt is cut")
        if self.batching == "continuous" and self.max_batch_wait_ms is not None:
            raise InvalidOption("max_batch_wait_ms goes with batching static or dynamic: continuous never waits")
        if self.batching == "static" and self.max_batch_wait_ms is None:
            raise InvalidOption("batching static needs max_batch_wait_ms: a batch that never fills would never start")
        if self.batching != "continuous" and self.prefill_first:
            raise InvalidOption("prefill_first goes with batching continuous: a held batch computes its prompts first")

    def _check_journal(self) -> None:
        if self.journal is not None and (not isinstance(self.journal, str | PathLike) or not fspath(self.journal)):
            raise InvalidOption("journal must name a file")
        if self.journal_digest and self.journal is None:
            raise InvalidOption("journal_digest goes with journal, which names the file")
        _check_at_least("journal_max_bytes", self.journal_max_bytes, 1)
        _check_at_least("journal_segments", self.journal_segments, 1, 1000)

    def journal_options(self) -> JournalOptions:
        """How the journal is written, if there is one."""
        return JournalOptions(self.journal_digest, self.journal_max_bytes, self.journal_segments)

    def policy(self) -> Policy:
        """What the scheduler is told of all this."""
        return policy_of({name: getattr(self, name) for name in SETTINGS}, max_step_s=MAX_STEP_S)

    def context_len(self, model_name: str, most: int) -> int:
        """Tokens of the longest sequence, of a model that was made for `most`.

        Raises:
            InvalidOption: more were asked for.
        """
        if self.max_model_len is None:
            return most
        if self.max_model_len > most:
            raise InvalidOption(f"max_model_len is {self.max_model_len}, but {model_name} was made for {most} tokens")
        return self.max_model_len

    def encoder_policy(self) -> Policy:
        """What the scheduler of single passes is told."""
        return Policy(
            batching="dynamic",
            max_batch_wait_s=self.embedding_max_batch_wait_ms / 1e3,
            enable_chunked_prefill=False,
            scheduling_policy=self.scheduling_policy,
            weights=dict(self.tenant_weights),
            priority_ageing_s=self.priority_ageing_s,
            single_pass=True,
            length_window_s=LENGTH_WINDOW_S,
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_at_least(name: str, value: int | None, low: int, high: int | None = None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise InvalidOption(f"{name} must be an integer of at least {low}{most}, not {value!r}")


def _check_number(name: str, value: float | None) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
        raise InvalidOption(f"{name} must be a number of at least 0, not {value!r}")


def worker_command(options: EngineOptions, fd: int) -> list[str]:
    """The command of a worker process that speaks frames on the inherited descriptor `fd`.

    `-P` keeps the working directory off the module path: a file that happens to lie there must not be imported.
    """
    encoded = msgspec.json.encode(options).decode()
    return [sys.executable, "-P", "-m", "chairlift.worker", "--fd", str(fd), "--options", encoded]


def decode_options(encoded: str) -> EngineOptions:
    """The inverse of what `worker_command` writes.

    Raises:
        InvalidOption: not such options.
    """
    try:
        return msgspec.json.decode(encoded, type=EngineOptions)
    except ChairliftError:
        raise
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidOption(f"not engine options: {error}") from error
