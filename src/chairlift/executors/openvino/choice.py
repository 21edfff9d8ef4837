"""Which precision each weight gets where the user leaves it open.

The aim is a perplexity within 1 % of what the file's own values give. What was measured is in docs/precision.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.executors.openvino.graph import GROUPS, product_names, weight_kinds
from chairlift.executors.openvino.options import AskedDtype, Dtype
from chairlift.models import Encoding, Model, Tensor, to_float32, to_int8
from chairlift.models.files import shown
from chairlift.models.prepared import MARK, Prepared
from chairlift.models.quantize import grid_shape
from chairlift.models.rounding import fitting_group

MAX_ROUNDING_ERROR = 0.016
"""Relative rms error by int8 rounding above which a weight stays in bfloat16: twice that of heavy-tailed numbers. With
all weights at this bound perplexity would rise by 0.7 %, for it goes with the square."""
HEAD_GROUP: Literal[32] = 32
"""Half of what other weights have: by itself the head costs as much as all of them."""
INPUT_GROUP: Literal[32] = 32
"""The same of what is multiplied with weights: its rounding costs more than theirs."""
INTEGERS: tuple[Dtype, ...] = ("int8", "int4")
SAMPLED_NUMBERS = 1 << 15
"""Numbers of a weight that are rounded to see its error."""


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """Precision of a model's weights: `dtype`, but bfloat16 for those named in `wide`.

    `head_group` numbers of a head in eight bits share a scale, and `input_group` of what is multiplied with weights
    (None: as many as of the weights). `reason` is empty if nothing was chosen.
    """

    dtype: Dtype
    wide: frozenset[str] = frozenset()
    head_group: Literal[32, 64] = 64
    input_group: Literal[32] | None = None
    reason: str = ""


def default_dtype(model: Model) -> Dtype:
    """What a model is computed in where nothing is asked for: what `chairlift quantize` wrote it in, else int8."""
    return "int8" if model.prepared is None else model.prepared.dtype


def choose_weights(model: Model, asked: AskedDtype | None) -> WeightChoice:
    """What was asked for: None is `default_dtype`.

    For `auto` the same, or int8 but for the weights that lose too much by it.

    Only a sample of each weight is read.

    Raises:
        InvalidModel: a weight holds a number that is not finite, or is not in what its folder is marked as.
        InvalidOption: what was written in integers would be rounded to others.
    """
    if model.prepared is not None:
        return _as_written(model, model.prepared, asked)
    if asked != "auto":
        return WeightChoice(asked or default_dtype(model))
    products = [*product_names(model), ("head",)]
    kinds = weight_kinds(model, "int8")
    errors = {
        parts: max(rounding_error(model.weights.tensor(name), kinds[name][1]) for name in parts[:: -(-len(parts) // 8)])
        for parts in products  # of many experts eight
        if kinds[parts[0]][0] == "int8"
    }
    wide = {parts: error for parts, error in errors.items() if error > MAX_ROUNDING_ERROR}
    reason = (
        f"int8: {GROUPS['int8']} numbers of a weight share a scale, {HEAD_GROUP} of the head, and {INPUT_GROUP} of "
        "what weights are multiplied with"
    )
    if wide:
        worst = max(wide, key=lambda parts: wide[parts])
        reason += (
            f", but {len(wide)} of {len(products)} products in bfloat16: int8 would change these weights by more than "
            f"{100 * MAX_ROUNDING_ERROR:.1f} % (most {worst[0]}, {100 * wide[worst]:.1f} %)"
        )
    return WeightChoice("int8", frozenset(name for parts in wide for name in parts), HEAD_GROUP, INPUT_GROUP, reason)


def _as_written(model: Model, prepared: Prepared, asked: AskedDtype | None) -> WeightChoice:
    """What a folder was written in, or a precision that holds its numbers."""
    own = prepared.dtype
    written = WeightChoice(own, frozenset(prepared.wide_weights), prepared.head_group, prepared.input_group)
    _check_written(model, written)
    if asked is None or asked == "auto" or asked == own:
        return written
    if asked in INTEGERS and own in INTEGERS:
        raise InvalidOption(
            f"{model.name} was written in {own} by chairlift quantize, and {asked} would round it a second time: "
            "take the model that it was made of"
        )
    return WeightChoice(asked, reason=f"{asked}, the values of the {own} that it was written in")


def _check_written(model: Model, written: WeightChoice) -> None:
    """Refuse a folder whose weights are not in what it is marked as: they would be rounded a second time, unseen."""
    where = shown(model.files.path / MARK)
    for name in sorted(written.wide):
        if name not in model.weights:
            raise InvalidModel(f"{where}: wide_weights names {shown(name)}, which the model has not")
    for name, (dtype, group) in weight_kinds(model, written.dtype, written.wide, written.head_group).items():
        tensor = model.weights.tensor(name)
        grid = grid_shape(tensor)
        own_group, group = grid.group if grid else 0, fitting_group(tensor.cols, group) if group else 0
        if tensor.encoding not in _STORED[dtype] or own_group != group:
            said, stored = _in_groups(dtype, group), _in_groups(tensor.encoding.label, own_group)
            raise InvalidModel(f"{where}: it says {said} for {name}, which is stored as {stored}")


def _in_groups(kind: str, group: int) -> str:
    return f"{kind} in groups of {group}" if group else kind


_STORED: dict[Dtype, tuple[Encoding, ...]] = {
    "float32": (Encoding.F32,),
    "bfloat16": (Encoding.BF16,),
    "int8": (Encoding.I8,),
    "int4": (Encoding.PACKED4, Encoding.I8),
}
"""How `chairlift quantize` stores each precision; what four bits are too few for is in eight."""


def rounding_error(tensor: Tensor, group: int = GROUPS["int8"]) -> float:
    """Root mean square of what int8 in groups changes, relative to that of the numbers less the largest of each group.

    The largest one sets the step of its group and hardly changes itself; where it is far larger than the others, they
    are what is lost. Of rows from all over a weight, in a few runs: a file's blocks and scales are read as they lie.
    """
    num_rows = max(1, min(tensor.rows, SAMPLED_NUMBERS // tensor.cols))
    num_runs = min(num_rows, 4)
    count = num_rows // num_runs
    starts = np.linspace(0, tensor.rows - count, num_runs).astype(int)
    changed, others = 0.0, 0.0
    for first in dict.fromkeys(starts.tolist()):
        rows = replace(tensor.rows_between(first, count), interleaved_heads=0)
        rounded, exact = to_int8(rows, group=group), to_float32(rows)
        squares = np.square(exact, dtype=np.float64).reshape(rounded.values.shape)
        changed += float(np.square(rounded.to_float32() - exact, dtype=np.float64).sum())
        others += float(squares.sum() - squares.max(axis=2).sum())
    return (changed / others) ** 0.5 if others else 0.0
