"""Exact selection from one row of scores without sorting it.

Everywhere: larger scores first, and among equal scores the lower id first. That makes "the k best" one definite set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]

_STRIPES = 64
_EIGHT = np.arange(8, dtype=np.int64)


def true_ids(mask: NDArray[np.bool_]) -> Ids:
    """Where a mask is true, ascending. Fast where few are: it looks at eight at a time.

    Shapes:
        mask     [vocab]  contiguous
        returns  [hits]
    """
    whole = len(mask) & ~7
    words = mask[:whole].view(np.uint64).nonzero()[0]
    ids: Ids
    if 2 * len(words) > whole // 8:
        (ids,) = mask.nonzero()
        return ids
    ids = (words[:, None] * 8 + _EIGHT).ravel()
    ids = ids[mask[ids]]
    if whole == len(mask):
        return ids
    return np.concatenate([ids, mask[whole:].nonzero()[0] + whole])


def largest(row: Floats, k: int) -> Ids:
    """Ids of the k largest scores of a row, ascending by id. `row` holds no NaN and k is in 1 .. len(row).

    The maxima of disjoint stripes are themselves members of the row, so the k-th largest of them is a lower bound
    of the k-th largest score: what lies below it needs no second look.

    Shapes:
        row      [vocab]
        returns  [k]
    """
    width = len(row) // _STRIPES
    if 2 * k <= width:
        maxima = row[: _STRIPES * width].reshape(_STRIPES, width).max(axis=0)
        bound = np.partition(maxima, width - k)[width - k]
        ids = true_ids(row >= bound)
        return keep_largest(ids, row[ids], k)
    return keep_largest(np.arange(len(row)), row, k)


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
