"""Frames between the HTTP server and the worker: length-prefixed msgpack over one Unix socket pair.

A frame is a 4-byte little-endian length and a msgpack body of at most `MAX_FRAME_BYTES`. Each direction has one
closed union of message types; anything else is a protocol error, never code. The types of `core` travel as they are.
"""

from __future__ import annotations

import msgspec

from chairlift.core.look import Look
from chairlift.core.types import EngineStats, Finish, LimitChange, Request, TokenLogprob

MAX_FRAME_BYTES = 64 << 20


class Add(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """Serve a request. Refusals come back as `Refused`."""

    request: Request


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Nobody waits for this request any longer. Unknown and finished ids are ignored."""

    id: int


class Close(msgspec.Struct, tag="close", array_like=True, frozen=True):
    """Little or nothing more will come: a batch that is filling need not wait for others."""


class Drain(msgspec.Struct, tag="drain", array_like=True, frozen=True):
    """Finish what is there, accept nothing more, then exit with status 0."""


class SetLimits(msgspec.Struct, tag="limits", array_like=True, frozen=True):
    """Change what may be changed while serving. The counts of every later step say what is in force."""

    change: LimitChange


class Watch(msgspec.Struct, tag="watch", array_like=True, frozen=True):
    """Somebody looks: one `Watched` is wanted. Who asks waits for it before asking again."""


class EncoderReady(msgspec.Struct, array_like=True, frozen=True):
    """A model of single passes is loaded and warm. With `labels` it classifies, else it gives embeddings."""

    model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_outputs: int
    labels: list[str] = []


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """First frame of a worker: the model is loaded and warm."""

    model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    load_s: float
    resident_bytes: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    itl_objective_s: float = 0.0
    ttft_objective_s: float = 0.0
    encoder: EncoderReady | None = None
    """What reads single passes, beside the model that generates or instead of it."""
    generates: bool = True


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The worker could not start, or cannot go on; it exits after this frame."""

    message: str


class Refused(msgspec.Struct, tag="refused", array_like=True, frozen=True):
    """A request was refused by the engine when added; `never` means it can never fit, `is_busy` that it may later."""

    id: int
    message: str
    param: str | None
    never: bool
    is_busy: bool = False


class Step(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """What one step gave: `ids`, `choices` and `tokens` are parallel. Sent also without tokens, as a heartbeat."""

    ids: list[int]
    choices: list[int]
    tokens: list[int]
    logprobs: list[tuple[int, int, TokenLogprob]]
    prompt_logprobs: list[tuple[int, int, list[TokenLogprob]]]
    joined: list[int]
    """Requests that were served for the first time in this step."""
    finishes: list[Finish]
    stats: EngineStats
    now: float
    """The worker's monotonic clock (CLOCK_MONOTONIC: the same clock in every process of a machine), in seconds."""
    vectors: list[tuple[int, bytes]] = []
    """(id, float32 numbers, little-endian) of single passes that are over."""
    engine: int = 0
    """Whose step it was: 1 is the encoder beside a model that generates."""


class Watched(msgspec.Struct, tag="watched", array_like=True, frozen=True):
    """Who runs and who waits, in the order of the engines."""

    looks: list[Look]
    now: float
    """The worker's monotonic clock, in seconds."""


ToWorker = Add | Abort | Close | Drain | SetLimits | Watch
FromWorker = Ready | Failed | Refused | Step | Watched

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """A whole frame, header included."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """Raises msgspec.MsgspecError on anything outside the schema."""
    return _to_worker.decode(body)


def decode_from_worker(body: bytes | memoryview) -> FromWorker:
    """Raises msgspec.MsgspecError on anything outside the schema."""
    return _from_worker.decode(body)
