"""What an engine can be told when it starts, and the command line that starts a worker process with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from chairlift.core.errors import ChairliftError, InvalidOption

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
KVCacheDtype = Literal["auto", "float32", "bfloat16", "u8"]

DEFAULT_MAX_NUM_SEQS = 128
"""Where a small model's arithmetic on a CPU is saturated by decoding: more rows make a step longer in proportion."""
MAX_NUM_SEQS = 1 << 16
"""Every row has a block table and sampling state from the start, whether it is used or not."""
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything about an engine that is decided before it starts. None means: measured, or read from the model.

    Raises:
        InvalidOption: a value that makes no sense, whatever the model.
    """

    model: str
    dtype: Dtype = "int8"
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    num_threads: int | None = None
    seed: int | None = None
    """Makes requests without a seed of their own repeatable, if they come in the same order. None: fresh randomness."""

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, get_args(Dtype))
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, get_args(KVCacheDtype))
        _check_at_least("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        _check_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        _check_at_least("max_model_len", self.max_model_len, 2)  # a token of prompt and one of output
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_at_least("num_threads", self.num_threads, 1)
        _check_at_least("seed", self.seed, 0, MAX_SEED)
        if not self.model:
            raise InvalidOption("model must not be empty")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_at_least(name: str, value: int | None, low: int, high: int | None = None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise InvalidOption(f"{name} must be an integer of at least {low}{most}, not {value!r}")


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
