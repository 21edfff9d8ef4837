"""The form of a step's time that is fitted to measurements, and filled in from data sheets where there are none.

    body      ((weights ** p + (token * m) ** p) ** (1 / p)        m tokens in the step, padded to a size that is built
    outputs   output * n                                            rows whose logits are computed
    decode    step + row * D + context_token * S - shared * R       D rows without chunks beside them
    mixed     step + row * D + context_token * S - shared * R       D rows with chunks beside them
    chunks    sums over chunks of `count` tokens after `start`: see `ChunkCosts`
    host      step + row * (D + chunks)                             added, or hidden behind the device
    change    change                                                if the step before was padded to another size

A hard maximum in the body is wrong by 11 to 18 % around the knee, where batches live; the smooth one by 3 %. The same
cached token costs two to four times more when chunks are in the step: another kernel reads it. R are the tokens of S
that lie in blocks which another row reads as well: a processor finds these in a nearer memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chairlift.core.types import StepPlan
from chairlift.sim.cost.changing import SizeChange, padded
from chairlift.sim.cost.model import DecodeLine
from chairlift.sim.cost.shape import ChunkSums, StepShape, chunk_sums


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds: for the step, for each decode or filler, for each cached token that these read, and what a shared one of
    these costs less: `StepPlan.num_shared_context_tokens`. That is at most all that it costs."""

    step_s: float = 0.0
    row_s: float = 0.0
    context_token_s: float = 0.0
    shared_saving_s: float = 0.0

    def times(self, factor: float) -> RowCosts:
        return RowCosts(*(getattr(self, name) * factor for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Seconds of the chunks of a step: for each after the first, for each token, for each pair of tokens within a chunk
    (half of the square of its tokens), for each cached token before one, and for each pair of those with its tokens.

    Tokens of a chunk are taken by the `tile` in the last of these.
    """

    chunk_s: float = 0.0
    token_s: float = 0.0
    half_square_s: float = 0.0
    prefix_token_s: float = 0.0
    tile_pair_s: float = 0.0
    tile: int = 64

    def times(self, factor: float) -> ChunkCosts:
        return ChunkCosts(
            self.chunk_s * factor,
            self.token_s * factor,
            self.half_square_s * factor,
            self.prefix_token_s * factor,
            self.tile_pair_s * factor,
            self.tile,
        )

    def seconds(self, sums: ChunkSums) -> float:
        return (
            self.chunk_s * (sums.num_chunks - 1)
            + self.token_s * sums.num_tokens
            + self.half_square_s * (0.5 * sums.square)
            + self.prefix_token_s * sums.prefix_tokens
            + self.tile_pair_s * sums.tile_pairs
        )


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds outside the device: for each step, for each row or chunk. `overlaps`: hidden behind the device's."""

    step_s: float = 0.0
    row_s: float = 0.0
    overlaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """All in seconds, none negative. `token_sizes` are the sizes a step is padded to, ascending; none without any."""

    weights_s: float
    token_s: float
    power: float = 2.0
    token_sizes: tuple[int, ...] = ()
    output_s: float = 0.0
    decode: RowCosts = field(default_factory=RowCosts)
    mixed: RowCosts = field(default_factory=RowCosts)
    chunks: ChunkCosts = field(default_factory=ChunkCosts)
    host: HostCosts = field(default_factory=HostCosts)
    change_s: float = 0.0
    """For a step padded to another size than the one before."""

    def times(self, factor: float) -> Coefficients:
        """Of a device so many times slower, beside the same host."""
        return replace(
            self,
            weights_s=self.weights_s * factor,
            token_s=self.token_s * factor,
            output_s=self.output_s * factor,
            change_s=self.change_s * factor,
            decode=self.decode.times(factor),
            mixed=self.mixed.times(factor),
            chunks=self.chunks.times(factor),
        )


@dataclass(frozen=True, slots=True)
class SmoothCost:
    """Seconds of a step by `coefficients`, but for changes of size: see `ChangingCost`."""

    coefficients: Coefficients

    def __call__(self, plan: StepPlan) -> float:
        num_rows = len(plan.decodes) + len(plan.fillers)
        if not plan.chunks:
            return self.decode_line(num_rows, plan.num_shared_context_tokens).seconds(plan.num_context_tokens)
        tile = self.coefficients.chunks.tile
        sums = chunk_sums([(chunk.start, chunk.count, chunk.samples) for chunk in plan.chunks], tile)
        return self._with_chunks(num_rows, plan.num_context_tokens, plan.num_shared_context_tokens, sums)

    @property
    def size_change(self) -> SizeChange | None:
        c = self.coefficients
        return SizeChange(c.change_s, c.token_sizes) if c.change_s else None

    def of_shape(self, shape: StepShape, before: int | None = None) -> float:
        """Seconds of a step of that shape, after one of `before` tokens; None: of the same size."""
        c = self.coefficients
        if shape.chunks:
            sums = chunk_sums(shape.chunks, c.chunks.tile)
            num_shared = shape.num_shared_context_tokens
            seconds = self._with_chunks(shape.num_rows, shape.num_context_tokens, num_shared, sums)
        else:
            line = self.decode_line(shape.num_rows, shape.num_shared_context_tokens)
            seconds = line.seconds(shape.num_context_tokens)
        if before is None or padded(before, c.token_sizes) == padded(shape.num_tokens, c.token_sizes):
            return seconds
        return seconds + c.change_s

    def decode_line(self, num_rows: int, num_shared_tokens: int = 0) -> DecodeLine:
        c = self.coefficients
        rows, host = c.decode, c.host
        base_s = self.body_s(num_rows) + c.output_s * num_rows + rows.step_s + rows.row_s * num_rows
        base_s -= rows.shared_saving_s * num_shared_tokens
        host_s = host.step_s + host.row_s * num_rows
        if host.overlaps:
            return DecodeLine(base_s, rows.context_token_s, host_s)
        return DecodeLine(base_s + host_s, rows.context_token_s)

    def body_s(self, num_tokens: int) -> float:
        """Seconds of everything that is done to each token alike: the multiplications by the weights."""
        c = self.coefficients
        compute_s = c.token_s * padded(num_tokens, c.token_sizes)
        large, small = (compute_s, c.weights_s) if compute_s > c.weights_s else (c.weights_s, compute_s)
        return large * float((1.0 + (small / large) ** c.power) ** (1.0 / c.power)) if small > 0.0 else large

    def with_host(self, host: HostCosts) -> SmoothCost:
        """The same device, driven by another host."""
        return SmoothCost(replace(self.coefficients, host=host))

    def _with_chunks(self, num_rows: int, num_context_tokens: int, num_shared: int, sums: ChunkSums) -> float:
        c = self.coefficients
        rows, host = c.mixed, c.host
        device_s = (
            self.body_s(num_rows + sums.num_tokens)
            + c.output_s * (num_rows + sums.num_samples)
            + rows.step_s
            + rows.row_s * num_rows
            + rows.context_token_s * num_context_tokens
            - rows.shared_saving_s * num_shared
            + c.chunks.seconds(sums)
        )
        host_s = host.step_s + host.row_s * (num_rows + sums.num_chunks)
        return max(device_s, host_s) if host.overlaps else device_s + host_s
