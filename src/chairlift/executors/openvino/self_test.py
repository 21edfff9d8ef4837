"""The test at every start that attention still computes what NumPy does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Type
from openvino import opset13 as op

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino.attention import BLOCK_SIZE, AttentionShape, cache_parameters, parameter
from chairlift.executors.openvino.cache import allocate, cache_ports
from chairlift.executors.openvino.capped import attention_feed, attention_of
from chairlift.executors.openvino.inputs import StepInputs


def self_test(core: ov.Core, properties: Mapping[str, object], shape: AttentionShape, tolerance: float) -> None:
    """Run the operation on a small mixed batch over scattered blocks and compare with NumPy; takes milliseconds.

    Three steps: three prompts of different lengths; then two of them decode, one gets a chunk, and a fourth joins; then
    one decodes alone, followed by an empty sequence. `properties` are those that the model is compiled with. Scores
    are of usual size; where they have a soft cap, it is one that such scores reach.

    Raises:
        InvalidOption: the operation is refused, or gives values further than `tolerance` from NumPy's.
    """
    if shape.softcap is not None:
        shape = replace(shape, softcap=min(shape.softcap, 1.0))
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
    attention = attention_of([shape])
    caches = cache_parameters(0)
    data = [parameter(name, Type.f32, [-1, n * shape.head_size]) for name, n in zip("qkv", sizes, strict=True)]
    rng = np.random.default_rng(0)
    # Around the largest of some scores, so that they take a part of the weight and not all of it.
    sinks = rng.uniform(0, 4, shape.num_heads).astype(np.float32) if shape.has_sinks else None
    attended = attention(data[0].output(0), data[1].output(0), data[2].output(0), caches, shape, sinks)
    model = ov.Model([op.result(attended)], [*data, *caches, *attention.parameters()], "self_test")
    compiled = core.compile_model(model, "CPU", dict(properties))
    request = compiled.create_infer_request()

    tables = rng.permutation(12).reshape(4, 3).astype(np.int32)
    cache = allocate(cache_ports(compiled), tables.size)
    for name, tensor in cache.items():
        request.set_tensor(name, tensor)
    history = [[np.zeros((0, n, shape.head_size), np.float32) for n in sizes[1:]] for _ in tables]
    worst = 0.0
    for counts in ((45, 5, 33, 0), (1, 1, 20, 3), (0, 0, 1, 0)):
        live = [i for i, count in enumerate(counts) if count]
        past = [len(history[i][0]) for i in live]
        new = [[rng.standard_normal((counts[i], n, shape.head_size), np.float32) for n in sizes] for i in live]
        for q, _, _ in new:  # whatever the scale of scores: the tolerance is for those of usual size
            q *= np.float32(shape.head_size**-0.5 / shape.score_scale)
        num_blocks = [-(-(p + counts[i]) // BLOCK_SIZE) for p, i in zip(past, live, strict=True)]
        blocks = [tables[i, :n] for i, n in zip(live, num_blocks, strict=True)]
        empty = [0] if len(live) == sum(counts) else []
        none = np.zeros(sum(counts), np.int32)
        step = StepInputs(
            token_ids=none,
            positions=none,
            past_lens=np.array([*past, *empty], np.int32),
            starts=np.cumsum([0, *(counts[i] for i in live), *empty], dtype=np.int32),
            block_ids=np.concatenate([*blocks, tables[0, : len(empty)]]),
            block_starts=np.cumsum([0, *num_blocks, *(1 for _ in empty)], dtype=np.int32),
            max_context_len=max(p + counts[i] for p, i in zip(past, live, strict=True)),
            output_rows=none,
            slots=np.zeros(0, np.int64),
            num_fillers=0,
            num_scored=0,
        )
        feed = attention_feed(step, [shape])
        for j, name in enumerate("qkv"):
            feed[name] = np.concatenate([x[j] for x in new]).reshape(-1, sizes[j] * shape.head_size)
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
    scores = np.einsum("nhs,chs->hnc", q, k) * shape.score_scale
    if shape.softcap is not None:
        scores = np.tanh(scores / shape.softcap) * shape.softcap
    scores = np.where(seen, scores, -np.inf)
    column = np.full((shape.num_heads, len(q), 1), -np.inf) if sinks is None else np.repeat(sinks, len(q))
    scores = np.concatenate((scores, column.reshape(-1, len(q), 1)), axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., :-1]
    attended: NDArray[np.float32] = np.einsum("hnc,chs->nhs", weights, v).reshape(len(q), -1).astype(np.float32)
    return attended
