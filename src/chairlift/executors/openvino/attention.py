"""OpenVINO's PagedAttention operation: the one place that knows its inputs, and the test that it still computes them.

The operation is private and its list of inputs grows with releases; a wrong "off" value can crash the process or give
empty outputs without a word. So it is built here and nowhere else, for one release of OpenVINO, and checked against
NumPy at every start.

Source: input order from the 2026.4.1 package (`PagedAttentionExtension`), verified by running it.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    Scores are multiplied by `scale`, or by `head_size ** -0.5`. With sinks each head has one more score.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int = 0
    scale: float | None = None
    has_sinks: bool = False

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


# ---------------------------------------------------------------- start-up test


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


def self_test(core: ov.Core, properties: Mapping[str, object], shape: AttentionShape, tolerance: float) -> None:
    """Run the operation on a small mixed batch over scattered blocks and compare with NumPy; takes milliseconds.

    Three steps: three prompts of different lengths; then two of them decode, one gets a chunk, and a fourth joins; then
    one decodes alone, followed by an empty sequence. `properties` are those that the model is compiled with.

    Raises:
        InvalidOption: the operation is refused, or gives values further than `tolerance` from NumPy's.
    """
    try:
        error = _worst_error(core, properties, shape)
    except (RuntimeError, TypeError) as fault:
        reason = str(fault).strip().splitlines()[-1]
        raise InvalidOption(
            f"OpenVINO {ov.__version__} cannot run paged attention on this machine: {reason}"
        ) from fault
    if not error <= tolerance:
        raise InvalidOption(
            f"OpenVINO {ov.__version__} computes paged attention wrongly on this machine: "
            f"off by {error:.2g}, allowed {tolerance:.2g}"
        )


def _worst_error(core: ov.Core, properties: Mapping[str, object], shape: AttentionShape) -> float:
    sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    rows = ragged()
    caches = cache_parameters(0)
    data = [parameter(name, Type.f32, [-1, n * shape.head_size]) for name, n in zip("qkv", sizes, strict=True)]
    rng = np.random.default_rng(0)
    # Around the largest of some scores, so that they take a part of the weight and not all of it.
    sinks = rng.uniform(0, 4, shape.num_heads).astype(np.float32) if shape.has_sinks else None
    attended = paged_attention(data[0].output(0), data[1].output(0), data[2].output(0), caches, rows, shape, sinks)
    model = ov.Model([op.result(attended)], [*data, *caches, *rows.parameters()], "self_test")
    compiled = core.compile_model(model, "CPU", dict(properties))
    request = compiled.create_infer_request()

    tables = rng.permutation(12).reshape(4, 3).astype(np.int32)
    for port in compiled.inputs:
        if "cache" in port.any_name:
            dims = [12, *(port.partial_shape[i].get_length() for i in (1, 2, 3))]
            request.set_tensor(port.any_name, ov.Tensor(port.element_type, ov.Shape(dims)))
    history = [[np.zeros((0, n, shape.head_size), np.float32) for n in sizes[1:]] for _ in tables]
    worst = 0.0
    for counts in ((45, 5, 33, 0), (1, 1, 20, 3), (0, 0, 1, 0)):
        live = [i for i, count in enumerate(counts) if count]
        past = [len(history[i][0]) for i in live]
        new = [[rng.standard_normal((counts[i], n, shape.head_size), np.float32) for n in sizes] for i in live]
        for q, _, _ in new:  # scores of usual size, whatever their scale: the tolerance is for those
            q *= np.float32(shape.head_size**-0.5 / shape.score_scale)
        num_blocks = [-(-(p + counts[i]) // BLOCK_SIZE) for p, i in zip(past, live, strict=True)]
        blocks = [tables[i, :n] for i, n in zip(live, num_blocks, strict=True)]
        empty = [0] if len(live) == sum(counts) else []
        feed = {
            **{
                name: np.concatenate([x[j] for x in new]).reshape(-1, sizes[j] * shape.head_size)
                for j, name in enumerate("qkv")
            },
            "past_lens": np.array([*past, *empty], np.int32),
            "starts": np.cumsum([0, *(counts[i] for i in live), *empty], dtype=np.int32),
            "block_ids": np.concatenate([*blocks, tables[0, : len(empty)]]),
            "block_starts": np.cumsum([0, *num_blocks, *(1 for _ in empty)], dtype=np.int32),
            "max_context_len": np.array(max(p + counts[i] for p, i in zip(past, live, strict=True)), np.int32),
        }
        got = request.infer(feed, share_inputs=True)[0]
        expected = []
        for i, (q, k, v) in zip(live, new, strict=True):
            history[i] = [np.concatenate(pair) for pair in zip(history[i], (k, v), strict=True)]
            expected.append(_attention(q, history[i][0], history[i][1], shape, sinks))
        worst = max(worst, float(np.abs(got - np.concatenate(expected)).max()))
    return worst


def _attention(
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    shape: AttentionShape,
    sinks: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Attention of the last len(q) positions of one sequence, `[new, heads * head_size]`."""
    group = shape.num_heads // shape.num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    distance = np.arange(len(k) - len(q), len(k))[:, None] - np.arange(len(k))
    seen = (distance >= 0) & (distance < (shape.sliding_window or len(k)))
    scores = np.where(seen, np.einsum("nhs,chs->hnc", q, k) * shape.score_scale, -np.inf)
    column = np.full((shape.num_heads, len(q), 1), -np.inf) if sinks is None else np.repeat(sinks, len(q))
    scores = np.concatenate((scores, column.reshape(-1, len(q), 1)), axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., :-1]
    attended: NDArray[np.float32] = np.einsum("hnc,chs->nhs", weights, v).reshape(len(q), -1).astype(np.float32)
    return attended
