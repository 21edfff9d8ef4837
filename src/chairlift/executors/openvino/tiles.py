"""A step cut into tiles of queries and runs of keys, for attention that is made of ordinary operations.

Those want arrays without ragged edges. Padding every sequence to the longest would cost what the longest costs, so a
sequence is cut: its queries into tiles of equal width, the blocks that a tile sees into runs of equal length. Each pair
of a tile and a run is computed by itself, and what the pairs of a tile give is added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.executors.openvino.attention import BLOCK_SIZE
from chairlift.executors.openvino.buckets import round_up
from chairlift.executors.openvino.inputs import SCRATCH_BLOCK, Ints, StepInputs

TILE_TOKENS = 64
"""Most queries of a tile. Wider ones read keys less often, and compute more that nobody sees."""
PARTS = ("single", "chunk")
"""Sequences of one token, and those of several: a tile of the first has one query."""
RUN_BLOCKS = {"single": 4, "chunk": 8}
"""Blocks of a run, by part."""
NOWHERE = 1 << 30
"""Position of keys that no query sees."""


def tiled_feed(inputs: StepInputs, windows: Iterable[int], num_kv_heads: int) -> dict[str, NDArray[Any]]:
    """What a graph with `CappedAttention` reads of a step beside its tokens; 0 among `windows` stands for none.

    Ragged inputs, by their usual names, become those of fragments: tokens of one sequence in one block. Each is told to
    the operation that writes the cache as a sequence of its own, so that it has next to nothing to attend to.

    Shapes, by part:
        tokens     [tiles, width]        row of each query in the step
        positions  [tiles, width]        its position; -1 where there is none
        count      []                    tiles
        owners     [pairs]               the tile of each pair, ascending; these three for each window
        blocks     [pairs, run]          the blocks of each pair
        firsts     [pairs, run]          position of the first key of each
    and `result_rows`, [tokens, kv_heads]: where each token's are among the results of all tiles, those of single tokens
    first
    """
    counts = np.diff(inputs.starts)
    feed: dict[str, NDArray[Any]] = _fragments(inputs, counts)
    result_rows = np.zeros((len(inputs.token_ids), num_kv_heads), np.int32)
    heads = np.arange(num_kv_heads, dtype=np.int32)
    num_results = 0
    for part, sequences in zip(PARTS, (np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)), strict=True):
        width = min(round_up(int(counts[sequences].max(initial=1))), TILE_TOKENS)
        owners, nth = _counted(-(-counts[sequences] // width))
        sequences, done = sequences[owners], nth * width
        first = inputs.past_lens[sequences] + done
        count = np.minimum(counts[sequences] - done, width)
        num_tiles = round_up(max(len(first), 1))

        tokens, positions = np.zeros((num_tiles, width), np.int32), np.full((num_tiles, width), -1, np.int32)
        columns = np.arange(width, dtype=np.int32)
        is_query = columns < count[:, None]
        tokens[: len(first)] = np.where(is_query, (inputs.starts[sequences] + done)[:, None] + columns, 0)
        positions[: len(first)] = np.where(is_query, first[:, None] + columns, -1)
        tiles, at = np.nonzero(is_query)
        rows = tokens[tiles, at]
        result_rows[rows] = num_results + (tiles[:, None] * num_kv_heads + heads) * width + at[:, None]
        num_results += num_tiles * num_kv_heads * width
        feed |= {
            f"{part}_tokens": tokens,
            f"{part}_positions": positions,
            f"{part}_count": np.array(num_tiles, np.int32),
        }
        for window in windows:
            begin = np.maximum(first - window + 1, 0) // BLOCK_SIZE if window else np.zeros_like(first)
            pairs = _pairs(inputs, sequences, begin, (first + count - 1) // BLOCK_SIZE, RUN_BLOCKS[part], num_tiles)
            feed |= {f"{part}_{name}.{window}": value for name, value in pairs.items()}
    feed["result_rows"] = result_rows
    return feed


def _fragments(inputs: StepInputs, counts: Ints) -> dict[str, NDArray[Any]]:
    """Ragged inputs in which every sequence lies within one block."""
    begin, end = inputs.past_lens, inputs.past_lens + counts
    first = begin // BLOCK_SIZE
    sequences, nth = _counted(np.where(counts > 0, (end - 1) // BLOCK_SIZE - first + 1, 0))
    column = first[sequences] + nth
    past_lens = np.maximum(begin[sequences] - column * BLOCK_SIZE, 0)
    ends = np.minimum(end[sequences] - column * BLOCK_SIZE, BLOCK_SIZE)
    return {
        "past_lens": past_lens.astype(np.int32),
        "starts": np.concatenate(([0], np.cumsum(ends - past_lens))).astype(np.int32),
        "block_ids": inputs.block_ids[inputs.block_starts[sequences] + column],
        "block_starts": np.arange(len(sequences) + 1, dtype=np.int32),
        "max_context_len": np.array(ends.max(), np.int32),
    }


def _pairs(
    inputs: StepInputs, sequences: NDArray[np.int64], begin: Ints, last: Ints, run: int, num_tiles: int
) -> dict[str, Ints]:
    """The pairs of tiles that see the blocks `begin` to `last` of their sequences."""
    owners, nth = _counted(-(-(last - begin + 1) // run))
    num_pairs = round_up(max(len(owners), 1))
    owner = np.full(num_pairs, num_tiles - 1, np.int32)
    blocks, firsts = np.full((num_pairs, run), SCRATCH_BLOCK, np.int32), np.full((num_pairs, run), NOWHERE, np.int32)
    owner[: len(owners)] = owners
    columns = (begin[owners] + nth * run)[:, None] + np.arange(run, dtype=np.int32)
    is_seen = columns <= last[owners, None]
    known = np.minimum(columns, last[owners, None]) + inputs.block_starts[sequences[owners], None]
    blocks[: len(owners)] = np.where(is_seen, inputs.block_ids[known], SCRATCH_BLOCK)
    firsts[: len(owners)] = np.where(is_seen, columns * BLOCK_SIZE, NOWHERE)
    return {"owners": owner, "blocks": blocks, "firsts": firsts}


def _counted(counts: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each of so many pieces of each thing: which thing it belongs to, and how many of its pieces come before."""
    things = np.repeat(np.arange(len(counts)), counts)
    return things, np.arange(len(things)) - np.repeat(np.cumsum(counts) - counts, counts)
