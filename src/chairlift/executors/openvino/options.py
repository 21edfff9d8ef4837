"""What the OpenVINO executor can be told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
AskedDtype = Literal["auto", Dtype]
"""`auto` lets a precision be chosen for each weight."""
KVCacheDtype = Literal["auto", "float32", "bfloat16", "u8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Precision, memory and limits. None means: measured at start, or as much as is sensible.

    `kv_cache_dtype="auto"` is float32 with float32 weights, else bfloat16. `max_model_len` is the tokens of one
    sequence. `num_threads` is the number of threads that compute. With `whole_context` the cache must hold a sequence
    of `max_model_len`; else what it holds is the longest. `wide_weights` are names of weights that stay in bfloat16
    whatever `dtype` says, and `head_group` numbers of a head in eight bits share a scale. `input_group` numbers that
    are multiplied with weights in groups do too; None: as many as of the weights.
    """

    max_num_seqs: int
    max_model_len: int
    dtype: Dtype = "int8"
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_memory_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    num_threads: int | None = None
    whole_context: bool = False
    wide_weights: frozenset[str] = frozenset()
    head_group: int = 64
    input_group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """The same for a model of single passes. `max_model_len` is the tokens of one text; `max_num_batched_tokens` None:
    as many as take about `target_step_s`, by the rate at start."""

    max_num_seqs: int
    max_model_len: int
    dtype: Dtype = "float32"
    max_num_batched_tokens: int | None = None
    target_step_s: float = 0.5
    num_threads: int | None = None
