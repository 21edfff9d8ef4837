"""Steps cut so that what attention over tiles keeps at a time stays bounded, however long the contexts are.

Every piece reads all weights again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chairlift.executors.openvino.attention import BLOCK_SIZE, AttentionShape
from chairlift.executors.openvino.buckets import round_up
from chairlift.executors.openvino.capped import has_cap
from chairlift.executors.openvino.inputs import SCRATCH_BLOCK, StepInputs
from chairlift.executors.openvino.tiles import RUN_BLOCKS, TILE_TOKENS
from chairlift.models import ModelConfig

LEAST_BYTES = 64 << 20
BUFFER_FACTOR = 4
"""What the plugin keeps for a byte of `max_piece_bytes`, measured: single tokens and chunks have buffers of their own,
and these are there twice."""


def max_piece_bytes(config: ModelConfig) -> int:
    """Most that the pairs of tiles and runs of a piece take: as much as a layer's weights in eight bits.

    That keeps the time for reading weights again to a third of what attention takes where a step is cut.
    """
    attention = 2 * config.hidden_size * (config.q_size + config.kv_size)
    return max(LEAST_BYTES, attention + 3 * config.hidden_size * config.intermediate_size)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a step that is computed by itself. Its outputs, but for the last, are these of the step."""

    inputs: StepInputs
    outputs: NDArray[np.int64]


WHOLE = np.zeros(0, np.int64)
"""Of a step that is a single piece: nothing has to be put together."""


def pieces_of(inputs: StepInputs, shapes: Collection[AttentionShape], token_bytes: float, most: int) -> list[Piece]:
    """A step, or pieces of it in order whose pairs take at most `most` bytes, or are those of one tile.

    A token's keys and values take `token_bytes` in a layer. Windows are not looked at: these are bounds.
    """
    if not has_cap(shapes):
        return [Piece(inputs, WHOLE)]
    shape = next(iter(shapes))
    counts = np.diff(inputs.starts)
    single, chunk = (_pair_bytes(part, shape, token_bytes) for part in ("single", "chunk"))
    contexts = -(-(inputs.past_lens + counts) // BLOCK_SIZE)
    tile_bytes = np.where(
        counts > 1, -(-contexts // RUN_BLOCKS["chunk"]) * chunk, -(-contexts // RUN_BLOCKS["single"]) * single
    )
    if (-(-counts // TILE_TOKENS) * tile_bytes).sum() <= most:
        return [Piece(inputs, WHOLE)]
    cuts, taken = [0], 0.0
    for first, count, num_bytes in zip(inputs.starts.tolist(), counts.tolist(), tile_bytes.tolist(), strict=False):
        for tile in range(first, first + count, TILE_TOKENS):
            if taken and taken + num_bytes > most:
                cuts.append(tile)
                taken = 0.0
            taken += num_bytes
    return [_cut(inputs, first, end) for first, end in pairwise([*cuts, len(inputs.token_ids)])]


def uncut_inputs(
    num_tokens: int, shapes: Collection[AttentionShape], token_bytes: float, most: int
) -> StepInputs | None:
    """Inputs of so many tokens, padded as pieces are, that are computed at once; None where no such piece is.

    Of all pieces of as many tokens tiles without a past take least. They are in the scratch block.
    """
    first = np.arange(0, num_tokens, TILE_TOKENS, dtype=np.int32)
    counts = np.minimum(num_tokens - first, TILE_TOKENS)
    block_starts = np.cumsum([0, *(-(-counts // BLOCK_SIZE))], dtype=np.int32)
    inputs = StepInputs(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.arange(num_tokens, dtype=np.int32) % TILE_TOKENS,
        past_lens=np.zeros(len(first), np.int32),
        starts=np.append(first, np.int32(num_tokens)),
        block_ids=np.full(block_starts[-1], SCRATCH_BLOCK, np.int32),
        block_starts=block_starts,
        max_context_len=int(counts.max()),
        output_rows=np.zeros(1, np.int32),
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=0,
    )
    is_cut = len(pieces_of(inputs, shapes, token_bytes, most)) > 1
    return None if is_cut else _cut(inputs, 0, num_tokens).inputs


def _pair_bytes(part: str, shape: AttentionShape, token_bytes: float) -> float:
    """What a pair takes at most: keys and values; queries, scores, and what it gives, in float32."""
    width = TILE_TOKENS if part == "chunk" else 1
    num_keys = RUN_BLOCKS[part] * BLOCK_SIZE
    return num_keys * token_bytes + 4 * width * shape.num_heads * (3 * num_keys + 3 * shape.head_size)


def _cut(inputs: StepInputs, first: int, end: int) -> Piece:
    """The tokens from `first` to `end` of a step, padded as steps are: other sizes were never run."""
    starts, num_padding = inputs.starts, round_up(end - first) - (end - first)
    sequences = np.flatnonzero((starts[:-1] < end) & (starts[1:] > first))
    begins = np.maximum(starts[sequences], first)
    tables = [inputs.block_ids[inputs.block_starts[s] : inputs.block_starts[s + 1]] for s in sequences]
    padding = np.zeros(num_padding, np.int32)
    outputs = np.flatnonzero((inputs.output_rows >= first) & (inputs.output_rows < end))
    piece = StepInputs(
        token_ids=np.concatenate((inputs.token_ids[first:end], padding)),
        positions=np.concatenate((inputs.positions[first:end], padding)),
        past_lens=np.concatenate((inputs.past_lens[sequences] + begins - starts[sequences], padding)),
        starts=np.concatenate((begins - first, np.arange(end - first, end - first + num_padding + 1, dtype=np.int32))),
        block_ids=np.concatenate((*tables, padding + np.int32(SCRATCH_BLOCK))),
        block_starts=np.cumsum([0, *(len(table) for table in tables), *(1 for _ in padding)], dtype=np.int32),
        max_context_len=inputs.max_context_len,
        output_rows=np.append(inputs.output_rows[outputs] - np.int32(first), np.int32(0)),
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=0,
    )
    return Piece(piece, outputs)
