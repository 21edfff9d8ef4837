"""Tokens to the vectors that the first layer takes, read where they lie in the file.

A step needs a row for each of its tokens, out of a table that may be most of a small model: the table is not kept in
memory a second time for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.executors.openvino.graph import weight_kinds
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.models import Model, Tensor, to_bfloat16, to_float32, to_int8
from chairlift.models.quantize import is_kept_by_int8, rows_at

CHECKED_NUMBERS = 1 << 22
"""Numbers that are rounded at a time only to see that they can be."""


class Embeddings:
    """Rows of the embedding in the precision that was asked for: as if the whole table was rounded and kept.

    Raises:
        InvalidModel: a row cannot be rounded.
    """

    def __init__(self, model: Model, options: ExecutorOptions) -> None:
        kinds = weight_kinds(model, options.dtype, options.wide_weights, options.head_group)
        self._table = model.weights.tensor("embed")
        self._dtype, self._group = kinds["embed"]
        self._is_exact = self._dtype == "float32" or (
            self._dtype == "int8" and is_kept_by_int8(self._table, self._group)
        )
        is_checked = model.config.tie_embeddings and kinds["head"][0] == "int8"
        if self._dtype == "int8" and not is_checked:
            self._check()

    def rows(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """The vectors of some tokens, `[tokens, hidden]`."""
        some = rows_at(self._table, token_ids)
        if self._is_exact:
            return to_float32(some)
        if self._dtype == "bfloat16":
            return np.left_shift(to_bfloat16(some), 16, dtype=np.uint32).view(np.float32)
        return to_int8(some, group=self._group).to_float32()

    def _check(self) -> None:
        """Meet now what would end a step."""
        table: Tensor = self._table
        count = max(CHECKED_NUMBERS // table.cols, 1)
        for first in range(0, table.rows, count):
            to_int8(table.rows_between(first, min(count, table.rows - first)), group=self._group)
