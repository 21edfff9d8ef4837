"""Mixtures of experts, written so that the CPU plugin computes only what tokens are routed to.

The graph says that every expert computes every token and that all but the chosen are multiplied by nothing. The plugin
recognises two forms, and no others, and replaces their products by ones that gather each expert's tokens: a step reads
the experts that it needs and no more. A test holds it to that.

Source: the forms were found by trying OpenVINO 2026.4.1. In both: a scatter of the chosen weights into zeros, the
transposed result reshaped, and products whose shapes are not all known. One has an activation without parameters
and no biases. The other has biases everywhere, gate and up in one product, and an activation that cuts; its halves
must be interleaved, for halves one behind the other become a split before they are recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from openvino import Output, Type
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from chairlift.executors.openvino.layers import ints, number, scaled_groups, share
from chairlift.executors.openvino.weights import BFloat16, Packed
from chairlift.models import Int4Groups, Int8Groups

Shape3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Router:
    """How tokens get their experts: `weight` is `[experts, hidden]`, `bias` `[experts]`."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    num_chosen: int
    normalised: bool

    def scores(self, h: Output) -> Output:
        """`[tokens, experts]`."""
        scores = op.matmul(h, op.constant(self.weight), False, True).output(0)
        return scores if self.bias is None else op.add(scores, op.constant(self.bias.reshape(1, -1))).output(0)


@dataclass(frozen=True, slots=True)
class Clamped:
    """Where experts are cut, the factor in their gate, and their biases.

    `inner_bias` is `[experts, 2 * inner]`, gate and up interleaved, `down_bias` `[experts, hidden]`.
    """

    limit: float
    alpha: float
    inner_bias: NDArray[np.float32]
    down_bias: NDArray[np.float32]


def mixture(h: Output, router: Router, gate: Packed, up: Packed, down: Packed) -> Output:
    """What the best experts of each token add, `[tokens, hidden]`.

    Shapes:
        h         [tokens, hidden]
        gate, up  [experts * inner, hidden]
        down      [experts * hidden, inner]
    """
    num_experts, hidden = router.weight.shape
    tiled = _tiled(h, num_experts, hidden)
    inner = _num_rows(gate) // num_experts
    wide = (num_experts, inner, hidden)
    activated = NodeFactory("opset13").create("Swish", [_product(tiled, gate, wide)], {})
    gated = op.multiply(activated, _product(tiled, up, wide))
    return _chosen_of(_product(gated.output(0), down, (num_experts, hidden, inner)), h, router)


def clamped_mixture(h: Output, router: Router, gate_up: Packed, down: Packed, clamped: Clamped) -> Output:
    """The same for experts with biases that are cut.

    Shapes:
        h         [tokens, hidden]
        gate_up   [experts * 2 * inner, hidden]  rows of gate and up interleaved
        down      [experts * hidden, inner]
    """
    num_experts, hidden = router.weight.shape
    inner = _num_rows(gate_up) // num_experts // 2
    both = _product(_tiled(h, num_experts, hidden), gate_up, (num_experts, 2 * inner, hidden))
    both = op.add(both, _bias(clamped.inner_bias)).output(0)
    gate, up = (op.slice(both, ints(turn), ints(2 * inner), ints(2), ints(2)) for turn in (0, 1))
    raised = op.add(op.clamp(up, -clamped.limit, clamped.limit), number(1.0))
    activated = op.swish(op.minimum(gate, number(clamped.limit)), number(clamped.alpha))
    each = _product(op.multiply(raised, activated).output(0), down, (num_experts, hidden, inner))
    return _chosen_of(op.add(each, _bias(clamped.down_bias)).output(0), h, router)


def _tiled(h: Output, num_experts: int, hidden: int) -> Output:
    """All tokens for every expert, `[experts, tokens, hidden]`."""
    tokens = op.reshape(h, ints(1, -1, hidden), False)
    flat = op.reshape(tokens, ints(-1, hidden), False)
    return op.reshape(op.tile(flat, ints(num_experts, 1)), ints(num_experts, -1, hidden), False).output(0)


def _chosen_of(each: Output, h: Output, router: Router) -> Output:
    """The weighted sum over each token's experts, of `[experts, tokens, hidden]`."""
    num_experts, hidden = router.weight.shape
    scores = router.scores(h)
    chosen, weights = _route(scores, router.num_chosen, router.normalised)
    zeros = op.broadcast(number(0.0), op.shape_of(scores, Type.i32))
    spread = op.transpose(op.scatter_elements_update(zeros, chosen, weights, op.constant(np.int32(1))), ints(1, 0))
    factors = op.unsqueeze(op.reshape(spread, ints(num_experts, 1, -1), False), op.constant(np.int32(3)))
    weighted = op.multiply(op.reshape(each, ints(num_experts, 1, -1, hidden), False), factors)
    return op.reshape(op.reduce_sum(weighted, ints(0), False), ints(-1, hidden), False).output(0)


def _bias(values: NDArray[np.float32]) -> Output:
    return op.constant(values[:, None]).output(0)


def _route(scores: Output, num_chosen: int, normalised: bool) -> tuple[Output, Output]:
    """The chosen experts of each token and their weights, `[tokens, chosen]`."""
    best = op.topk(op.softmax(scores, 1), op.constant(np.int32(num_chosen)), 1, "max", "value")
    weights, chosen = best.outputs()
    if normalised:
        weights = op.divide(weights, op.reduce_sum(weights, ints(1), True)).output(0)
    return chosen, weights


def _num_rows(weight: Packed) -> int:
    match weight:
        case np.ndarray():
            return len(weight)
        case BFloat16(bits):
            return len(bits)
        case Int8Groups(values) | [Int4Groups(values)]:
            return len(values)
        case _:
            raise TypeError("experts lie in one piece")


def _product(x: Output, weight: Packed, shape: Shape3) -> Output:
    return op.matmul(x, _constant(weight, shape), False, True).output(0)


def _constant(weight: Packed, shape: Shape3) -> Output:
    """All experts' weights `[experts, rows, cols]`, in the form that the plugin keeps compressed."""
    num_experts, rows, cols = shape
    match weight:
        case np.ndarray():
            return share(weight, Type.f32, shape)
        case BFloat16(bits):
            # Without the mark the plugin would store them as float32.
            node = op.convert(share(bits, Type.bf16, shape), Type.f32)
            node.get_rt_info()["decompression_0"] = True
            return node.output(0)
        case Int8Groups(values, scales) | [Int4Groups(values, scales)]:
            kind = Type.i8 if isinstance(weight, Int8Groups) else Type.i4
            num_groups = values.shape[1]
            groups = share(values, kind, (num_experts, rows, num_groups, cols // num_groups))
            return scaled_groups(groups, scales.reshape(num_experts, rows, num_groups, 1), shape)
        case _:
            raise TypeError("experts lie in one piece")
