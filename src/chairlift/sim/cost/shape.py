"""The sums of a step that its cost depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chairlift.core.types import StepPlan

Regime = Literal["decode", "prefill", "mixed"]
"""Only decodes (and fillers), only chunks, or both: devices run them in different ways."""
REGIMES: tuple[Regime, ...] = ("decode", "prefill", "mixed")


class ChunkSums(NamedTuple):
    """Sums over the chunks of a step; a chunk computes `count` tokens after `start` cached ones."""

    num_chunks: int
    num_tokens: int
    square: int
    """Of count ** 2."""
    prefix_tokens: int
    """Of start."""
    tile_pairs: int
    """Of start times count rounded up to whole tiles: what a kernel does that takes queries by the tile."""
    num_samples: int
    """Chunks that end with a sampled token."""


def chunk_sums(chunks: Iterable[tuple[int, int, bool]], tile: int) -> ChunkSums:
    """Of (start, count, samples) of each chunk."""
    num_chunks = num_tokens = square = prefix_tokens = tile_pairs = num_samples = 0
    for start, count, samples in chunks:
        num_chunks += 1
        num_tokens += count
        square += count * count
        prefix_tokens += start
        tile_pairs += -(-count // tile) * tile * start
        num_samples += samples
    return ChunkSums(num_chunks, num_tokens, square, prefix_tokens, tile_pairs, num_samples)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step decides how long it takes: rows (decodes and fillers), what they read, and the chunks.

    `num_context_tokens` is the sum over rows of what is in the cache, `num_shared_context_tokens` what of it is counted
    again, as in `StepPlan`. `chunks` are (start, count, samples).
    """

    num_rows: int = 0
    num_context_tokens: int = 0
    chunks: tuple[tuple[int, int, bool], ...] = ()
    num_shared_context_tokens: int = 0

    @property
    def regime(self) -> Regime:
        if not self.chunks:
            return "decode"
        return "mixed" if self.num_rows else "prefill"

    @property
    def num_chunk_tokens(self) -> int:
        return sum(count for _, count, _ in self.chunks)

    @property
    def num_chunk_pairs(self) -> int:
        """(query, key) pairs of the chunks, as in `StepPlan`."""
        return sum(count * start + count * (count + 1) // 2 for start, count, _ in self.chunks)

    @property
    def num_tokens(self) -> int:
        return self.num_rows + self.num_chunk_tokens

    @property
    def num_outputs(self) -> int:
        """Rows whose logits are computed: decodes, fillers, and chunks that sample."""
        return self.num_rows + sum(samples for _, _, samples in self.chunks)


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan."""
    return StepShape(
        len(plan.decodes) + len(plan.fillers),
        plan.num_context_tokens,
        tuple((chunk.start, chunk.count, chunk.samples) for chunk in plan.chunks),
        plan.num_shared_context_tokens,
    )
