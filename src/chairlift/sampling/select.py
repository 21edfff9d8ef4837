"""Exact selection from one row of scores without sorting it.

Everywhere: larger scores first, and among equal scores the lower id first. That makes "the k best" one definite set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]

_MIN_WIDTH = 512
"""Stripes narrower than this cost more calls than they save comparisons."""


def leaders(row: Floats, k: int) -> Ids:
    """Every id whose score reaches some bound, ascending: the k largest are among them, and often not many more.

    The maxima of disjoint stripes are themselves members of the row, so the k-th largest of them is a lower bound
    of the k-th largest score. A row holds no NaN, and k is in 1 .. len(row).

    Shapes:
        row      [vocab]
        returns  [candidates]
    """
    width = max(4 * k, _MIN_WIDTH)
    height = len(row) // width
    if height < 2:
        return np.arange(len(row))
    maxima = row[: height * width].reshape(height, width).max(axis=0)
    ids: Ids = (row >= np.partition(maxima, width - k)[width - k]).nonzero()[0]
    return ids


def largest(row: Floats, k: int) -> Ids:
    """Ids of the k largest scores of a row, ascending by id. The row holds no NaN, and k is in 1 .. len(row).

    Shapes:
        row      [vocab]
        returns  [k]
    """
    ids = leaders(row, k)
    return keep_largest(ids, row[ids], k)


def keep_largest(ids: Ids, scores: Floats, k: int) -> Ids:
    """The k of `ids` with the largest scores, in their old order. `ids` ascend.

    Shapes:
        ids, scores  [candidates]
        returns      [k]
    """
    if k >= len(ids):
        return ids
    last = np.partition(scores, len(scores) - k)[len(scores) - k]
    ids, scores = ids[scores >= last], scores[scores >= last]
    surplus = len(ids) - k
    if surplus:
        ids = np.delete(ids, (scores == last).nonzero()[0][-surplus:])
    return ids


def best_first(row: Floats, k: int) -> Ids:
    """Ids of the k largest scores of a row, best first.

    Shapes:
        row      [vocab]
        returns  [k]
    """
    ids = largest(row, k)
    return ids[np.argsort(-row[ids], kind="stable")]
