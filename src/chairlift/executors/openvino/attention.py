"""OpenVINO's PagedAttention operation: the one place that knows its inputs.

The operation is private and its list of inputs grows with releases; a wrong "off" value can crash the process or give
empty outputs without a word. So it is built here and nowhere else, for one release of OpenVINO, and checked against
NumPy at every start: see `self_test`.

Source: input order from the 2026.4.1 package (`PagedAttentionExtension`), verified by running it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Node, Output, PartialShape, Type
from openvino import opset13 as op
from openvino.op import Parameter, _PagedAttentionExtension

from chairlift.core.errors import InvalidOption

OPENVINO_RELEASE = "2026.4"
BLOCK_SIZE = 32
"""Tokens in a cache block: fixed by the CPU plugin. Another size corrupts the cache silently."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one attention layer. `sliding_window` counts the current token; 0 means all tokens.

    Scores are multiplied by `scale`, or by `head_size ** -0.5`. With sinks each head has one more score. With a
    `softcap` a score s is `softcap * tanh(s / softcap)` then: only `capped.CappedAttention` computes that.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int = 0
    scale: float | None = None
    has_sinks: bool = False
    softcap: float | None = None

    @property
    def score_scale(self) -> float:
        return self.head_size**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class Ragged:
    """What all layers of a graph share: where sequences begin and where their blocks are (see `inputs.StepInputs`), and
    constants that say what is off."""

    past_lens: Parameter
    starts: Parameter
    block_ids: Parameter
    block_starts: Parameter
    max_context_len: Parameter
    zero: Node
    no_ints: Node
    no_floats: Node
    no_bytes: Node
    no_sinks: Node

    def parameters(self) -> list[Parameter]:
        return [self.past_lens, self.starts, self.block_ids, self.block_starts, self.max_context_len]


def parameter(name: str, kind: Type, shape: list[int]) -> Parameter:
    """A named graph input; -1 stands for a size that varies."""
    node = op.parameter(PartialShape(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def ragged() -> Ragged:
    """Fresh inputs and constants for a graph."""
    return Ragged(
        past_lens=parameter("past_lens", Type.i32, [-1]),
        starts=parameter("starts", Type.i32, [-1]),
        block_ids=parameter("block_ids", Type.i32, [-1]),
        block_starts=parameter("block_starts", Type.i32, [-1]),
        max_context_len=parameter("max_context_len", Type.i32, []),
        zero=op.constant(np.int32(0)),
        no_ints=op.constant(np.zeros(0, np.int32)),
        no_floats=op.constant(np.zeros(0, np.float32)),
        no_bytes=op.constant(np.zeros(0, np.uint8)),
        no_sinks=op.constant(np.zeros((0, 0, 0, 0), np.float32)),
    )


def cache_parameters(layer: int) -> tuple[Parameter, Parameter]:
    """Inputs for the key and value cache of a layer; the plugin decides their type and shape when it compiles."""
    anything = [-1, -1, -1, -1]
    return (
        parameter(f"key_cache.{layer}", Type.dynamic, anything),
        parameter(f"value_cache.{layer}", Type.dynamic, anything),
    )


def paged_attention(
    query: Output,
    key: Output,
    value: Output,
    caches: tuple[Parameter, Parameter],
    rows: Ragged,
    shape: AttentionShape,
    sinks: NDArray[np.float32] | None = None,
) -> Output:
    """Causal attention of all sequences of a step; also writes the new keys and values into the caches.

    Shapes:
        query    [tokens, heads * head_size]      rotated
        key      [tokens, kv_heads * head_size]   rotated
        value    [tokens, kv_heads * head_size]
        sinks    [heads]
        returns  [tokens, heads * head_size]
    """
    zero, no_ints, no_floats = rows.zero, rows.no_ints, rows.no_floats
    inputs: list[Node | Output] = [
        query,
        key,
        value,
        *caches,
        rows.past_lens,
        rows.starts,
        rows.block_ids,
        rows.block_starts,
        op.constant(np.float32(shape.score_scale)),
        op.constant(np.int32(shape.sliding_window)),
        no_floats,  # ALiBi slopes
        rows.max_context_len,
        no_ints,  # score aggregation window: a scalar here crashes the process
        *(no_ints, no_ints, no_floats),  # cache rotation: blocks, deltas, table
        *(no_floats, zero, zero),  # block-sparse attention: threshold, block size, stride
        rows.no_sinks if sinks is None else op.constant(sinks.reshape(1, -1, 1, 1)),
        *(zero, no_ints, no_ints, no_ints),  # adaptive eviction: start size, evictable sizes, diversity blocks, begins
        no_ints,  # token types
        *(rows.no_bytes, no_ints),  # tree mask: bias, begins
    ]
    node = _PagedAttentionExtension([i if isinstance(i, Output) else i.output(0) for i in inputs])
    info = node.get_rt_info()
    info["num_k_heads"], info["k_head_size"] = shape.num_kv_heads, shape.head_size
    info["num_v_heads"], info["v_head_size"] = shape.num_kv_heads, shape.head_size
    return node.output(0)


class PagedAttention:
    """That operation, for all layers of a graph."""

    def __init__(self) -> None:
        self._rows = ragged()

    def parameters(self) -> list[Parameter]:
        return self._rows.parameters()

    def __call__(
        self,
        query: Output,
        key: Output,
        value: Output,
        caches: tuple[Parameter, Parameter],
        shape: AttentionShape,
        sinks: NDArray[np.float32] | None = None,
    ) -> Output:
        return paged_attention(query, key, value, caches, self._rows, shape, sinks)


def check_release() -> None:
    """Refuse an OpenVINO whose operation may look different.

    Raises:
        InvalidOption: not the release that this module was written for.
    """
    if not ov.__version__.startswith(OPENVINO_RELEASE + "."):
        raise InvalidOption(
            f"OpenVINO {OPENVINO_RELEASE} is needed, found {ov.__version__}: "
            f"install it with `pip install 'openvino=={OPENVINO_RELEASE}.*'`"
        )
