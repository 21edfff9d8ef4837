"""Attention whose scores have a soft cap, of ordinary operations: the plugin's PagedAttention has none.

That operation still writes the cache. Its result is not used, but what reads the cache waits for it.

Because scores are capped, their exponentials can be added up as they are: no maximum has to be known before. So parts
of a context are computed apart and simply added (see `tiles`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from openvino import Output, Type
from openvino import opset13 as op
from openvino.op import Parameter

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino.attention import BLOCK_SIZE, AttentionShape, PagedAttention, parameter
from chairlift.executors.openvino.inputs import StepInputs
from chairlift.executors.openvino.layers import ints, number
from chairlift.executors.openvino.options import KVCacheDtype
from chairlift.executors.openvino.tiles import PARTS, tiled_feed

LARGE = 1e30
"""No key, value or score is larger. What is not a number in one sequence must not get into others: that a query sees
nothing of a cell means that it is multiplied by zero."""
TINY = 1e-30
"""Less than the exponential of any score."""


class CappedAttention:
    """Reads `tiles.tiled_feed` of a step. For all layers of a graph: `shapes` may differ in their windows only."""

    def __init__(self, shapes: Iterable[AttentionShape]) -> None:
        self._write = PagedAttention()
        windows = {shape.sliding_window: shape for shape in shapes}
        num_kv_heads = next(iter(windows.values())).num_kv_heads
        self._result_rows = parameter("result_rows", Type.i32, [-1, num_kv_heads])
        self._parts = [_Part(name, windows) for name in PARTS]

    def parameters(self) -> list[Parameter]:
        return [*self._write.parameters(), self._result_rows, *(one for part in self._parts for one in part.parameters)]

    def __call__(
        self,
        query: Output,
        key: Output,
        value: Output,
        caches: tuple[Parameter, Parameter],
        shape: AttentionShape,
        sinks: NDArray[np.float32] | None = None,
    ) -> Output:
        """As `attention.paged_attention`.

        Raises:
            ValueError: there are sinks. No family has both.
        """
        if sinks is not None:
            raise ValueError("capped scores with sinks are not computed")
        key, value = (op.clamp(x, -LARGE, LARGE).output(0) for x in (key, value))
        # Whoever asks, and however few, keys are written. So keys ask for themselves.
        alone = AttentionShape(shape.num_kv_heads, shape.num_kv_heads, shape.head_size)
        wrote = self._write(key, key, value, caches, alone)
        some = _rows_of(wrote, op.constant(np.int32(0)).output(0), 1)
        written = op.convert(op.less(some, number(-np.inf)), Type.i32).output(0)  # 0, but known only then
        results = [part.attend(query, caches, written, shape) for part in self._parts]
        width = shape.num_heads // shape.num_kv_heads * shape.head_size
        attended = _rows_of(op.concat(results, 0).output(0), self._result_rows.output(0), width)
        return op.reshape(attended, ints(-1, shape.num_heads * shape.head_size), False).output(0)


class Attention(Protocol):
    """Causal attention for all layers of a graph, which also writes keys and values into the caches."""

    def parameters(self) -> list[Parameter]: ...

    def __call__(
        self,
        query: Output,
        key: Output,
        value: Output,
        caches: tuple[Parameter, Parameter],
        shape: AttentionShape,
        sinks: NDArray[np.float32] | None = None,
    ) -> Output: ...


def attention_of(shapes: Collection[AttentionShape]) -> Attention:
    """What computes layers of these shapes; `attention_feed` is what its parameters get in a step."""
    return CappedAttention(shapes) if has_cap(shapes) else PagedAttention()


def attention_feed(inputs: StepInputs, shapes: Collection[AttentionShape]) -> dict[str, NDArray[Any]]:
    """The parameters of `attention_of` in a step."""
    if not has_cap(shapes):
        return inputs.ragged()
    windows = dict.fromkeys(shape.sliding_window for shape in shapes)
    return tiled_feed(inputs, windows, next(iter(shapes)).num_kv_heads)


def check_cache(shapes: Collection[AttentionShape], kind: KVCacheDtype) -> None:
    """Refuse a cache that ordinary operations cannot read.

    Raises:
        InvalidOption: it is in eight bits, and scores have a soft cap.
    """
    if has_cap(shapes) and kind == "u8":
        raise InvalidOption(
            "a u8 key/value cache is not possible where attention scores have a soft cap: choose auto, float32 with "
            "float32 weights, or bfloat16 with others"
        )


def has_cap(shapes: Collection[AttentionShape]) -> bool:
    """Whether any layer has a soft cap: then all take this path."""
    return any(shape.softcap is not None for shape in shapes)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of tiles and runs of keys.

    Shapes:
        queries  [pairs, kv_heads, width]           rows of `[tokens * kv_heads, heads of one kv head * head_size]`
        blocks   [pairs, kv_heads, run]             rows of `[blocks * kv_heads, tokens of a block * head_size]`
        is_seen  [pairs, 1, queries, keys]          queries of all heads of a kv head, those of a token side by side
    """

    owners: Output
    each: Output
    queries: Output
    blocks: Output
    is_seen: Output


class _Part:
    """Tiles of equal width, and their pairs for each window."""

    def __init__(self, name: str, windows: dict[int, AttentionShape]) -> None:
        tokens, positions = (parameter(f"{name}_{one}", Type.i32, [-1, -1]) for one in ("tokens", "positions"))
        self._count = parameter(f"{name}_count", Type.i32, [])
        self.parameters = [tokens, positions, self._count]
        self._pairs: dict[int, _Pairs] = {}
        for window, shape in windows.items():
            owners = parameter(f"{name}_owners.{window}", Type.i32, [-1])
            blocks, firsts = (parameter(f"{name}_{one}.{window}", Type.i32, [-1, -1]) for one in ("blocks", "firsts"))
            self.parameters += [owners, blocks, firsts]
            first = op.constant(np.int32(0))
            self._pairs[window] = _Pairs(
                owners.output(0),
                op.range(
                    first, op.squeeze(op.shape_of(owners, Type.i32), first), op.constant(np.int32(1)), "i32"
                ).output(0),
                _by_head(op.gather(tokens, owners, first).output(0), shape),
                _by_head(blocks.output(0), shape),
                _is_seen(op.gather(positions, owners, first).output(0), firsts.output(0), shape),
            )

    def attend(
        self, query: Output, caches: tuple[Parameter, Parameter], written: Output, shape: AttentionShape
    ) -> Output:
        """`[tiles * kv_heads * width, heads of one kv head * head_size]`."""
        pairs, cap = self._pairs[shape.sliding_window], shape.softcap or 1.0
        size, group = shape.head_size, shape.num_heads // shape.num_kv_heads
        blocks = op.add(pairs.blocks, written).output(0)
        key, value = (_heads(_rows_of(cache.output(0), blocks, BLOCK_SIZE * size), size) for cache in caches)
        some = _heads(_rows_of(query, pairs.queries, group * size), size)
        # A factor right behind the product would be moved into the keys, which are many.
        scores = op.clamp(op.matmul(some, key, False, True), -LARGE, LARGE)
        scores = op.multiply(op.tanh(op.multiply(scores, number(shape.score_scale / cap))), number(cap))
        weights = op.select(pairs.is_seen, op.exp(scores), number(0))
        sums = (op.matmul(weights, value, False, False), op.reduce_sum(weights, ints(3), True))
        above, below = (op.embedding_segments_sum(one, pairs.each, pairs.owners, self._count) for one in sums)
        return op.reshape(op.divide(above, op.maximum(below, number(TINY))), ints(-1, group * size), False).output(0)


def _rows_of(x: Output, rows: Output, width: int) -> Output:
    """Rows of an array read as `[rows, width]`."""
    return op.gather(op.reshape(x, ints(-1, width), False), rows, op.constant(np.int32(0))).output(0)


def _heads(x: Output, size: int) -> Output:
    """`[pairs, kv_heads, rows, several heads or tokens]` as `[pairs, kv_heads, more rows, size]`, in float32."""
    return op.convert(op.reshape(x, ints(0, 0, -1, size), True), Type.f32).output(0)


def _by_head(places: Output, shape: AttentionShape) -> Output:
    """Tokens or blocks `[pairs, n]` as rows `[pairs, kv_heads, n]`, of which each has one for each kv head."""
    heads = op.constant(np.arange(shape.num_kv_heads, dtype=np.int32).reshape(1, -1, 1))
    wide = op.multiply(op.reshape(places, ints(0, 1, -1), True), ints(shape.num_kv_heads))
    return op.add(wide, heads).output(0)


def _is_seen(positions: Output, firsts: Output, shape: AttentionShape) -> Output:
    """Which keys the queries at `positions`, `[pairs, width]`, see of blocks that begin at `firsts`, `[pairs, run]`."""
    within = op.constant(np.arange(BLOCK_SIZE, dtype=np.int32).reshape(1, 1, -1))
    keys = op.reshape(op.add(op.unsqueeze(firsts, ints(2)), within), ints(0, 1, 1, -1), True)
    heads = op.constant(np.ones((1, 1, 1, shape.num_heads // shape.num_kv_heads), np.int32))
    queries = op.reshape(op.multiply(op.reshape(positions, ints(0, 1, -1, 1), True), heads), ints(0, 1, -1, 1), True)
    is_seen = op.less_equal(keys, queries)
    if shape.sliding_window:
        is_seen = op.logical_and(is_seen, op.greater(keys, op.subtract(queries, ints(shape.sliding_window))))
    return is_seen.output(0)
