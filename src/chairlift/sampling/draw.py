"""One exact draw from one row: temperature, then min-p, top-k and top-p, then the inverse of the distribution.

The kept set decides the distribution and the tokens lie on the unit interval in the order of their ids, so two sets
of parameters that keep the same tokens draw the same one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chairlift.sampling.select import keep_largest, largest, leaders

_RUN = 256
"""Tokens per partial sum of a whole-row draw."""
_BIN_SHIFT = np.uint32(19)
"""Leaves a float32's exponent and 4 bits of its fraction: bins 3 to 6 % wide."""
_NUM_LEADERS = 512
"""A nucleus is looked for among so many of the best tokens before the whole row is."""
_SAFE_PEAK = (-16.0, 64.0)
"""A peak whose exp is far enough from both ends of float32 that it need not be subtracted first."""
_SLACK = 1e-6
"""Far above the rounding of a logarithm, far below any threshold that a user could mean."""


class Draw:
    """Draws tokens from rows of one vocabulary size; holds only scratch space.

    The scratch is there because a fresh array of a row's size costs more in page faults than in arithmetic.
    Weights over a whole row are float32 with partial sums of at most 256 terms; over candidates they are float64.
    """

    def __init__(self, vocab_size: int) -> None:
        padded = -(-vocab_size // _RUN) * _RUN
        self._padded = np.zeros(padded, np.float32)
        self._weights = self._padded[:vocab_size]
        self._runs = self._padded.reshape(-1, _RUN)
        self._bins = np.empty(vocab_size, np.intp)
        self._masses = np.empty(vocab_size, np.float64)

    def __call__(
        self,
        row: NDArray[np.float32],
        peak: float,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        uniform: float,
    ) -> int:
        """The token at `uniform` in [0, 1) of the distribution that the parameters leave of a row.

        `peak` is the row's maximum and finite; the row holds no NaN. top_k < 1 means all.

        Shapes:
            row  [vocab]
        """
        scale = 1.0 / temperature
        limited = 0 < top_k < len(row)
        if limited or min_p > 0.0:
            ids = largest(row, top_k) if limited else (row >= _floor(peak, temperature, min_p)).nonzero()[0]
            weights = _weigh(row[ids], peak, scale)
            if min_p > 0.0:
                keep = weights >= min_p
                ids, weights = ids[keep], weights[keep]
            if top_p < 1.0:
                count = _nucleus_size(row[ids], peak, scale, top_p * float(weights.sum()))
                ids = keep_largest(ids, row[ids], count)
                weights = _weigh(row[ids], peak, scale)
            return int(ids[_place(np.cumsum(weights), uniform)])
        shift = 0.0 if _SAFE_PEAK[0] <= peak * scale <= _SAFE_PEAK[1] else peak
        sums = self._weigh_all(row, shift, scale)
        if top_p < 1.0:
            wanted = top_p * float(sums.sum(dtype=np.float64))
            ids = leaders(row, min(_NUM_LEADERS, len(row)))
            count = _nucleus_size(row[ids], shift, scale, wanted)
            if count <= len(ids):
                ids = keep_largest(ids, row[ids], count)
                return int(ids[_place(np.cumsum(_weigh(row[ids], shift, scale)), uniform)])
            sums = self._zero_outside_nucleus(row, shift, scale, wanted)
        return self._place_in_runs(sums, uniform)

    def _weigh_all(self, row: NDArray[np.float32], shift: float, scale: float) -> NDArray[np.float32]:
        """Set the weights of a whole row: exp((row - shift) * scale). Returns their sums by run."""
        weights, scores = self._weights, row
        if shift:
            scores = np.subtract(scores, np.float32(shift), out=weights)
        if scale != 1.0:
            scores = np.multiply(scores, np.float32(scale), out=weights)
        np.exp(scores, out=weights)
        return self._sum_runs()

    def _sum_runs(self) -> NDArray[np.float32]:
        # einsum adds a run at the speed of the cache, twice as fast as sum, and never hands it to a threaded BLAS.
        sums: NDArray[np.float32] = np.einsum("ij->i", self._runs)
        return sums

    def _place_in_runs(self, sums: NDArray[np.float32], uniform: float) -> int:
        """The token at `uniform`: first the run, then the token in it."""
        edges = np.cumsum(sums, dtype=np.float64)
        run = _place(edges, uniform)
        inside = uniform * float(edges[-1]) - (float(edges[run - 1]) if run else 0.0)
        return run * _RUN + _first_above(np.cumsum(self._runs[run], dtype=np.float64), inside)

    def _zero_outside_nucleus(
        self, row: NDArray[np.float32], shift: float, scale: float, wanted: float
    ) -> NDArray[np.float32]:
        """Keep the smallest set of tokens, best first, whose mass is `wanted`; the other weights become 0.

        The bits of a positive float order as the float does, so their top bits are bins of a histogram of mass that
        needs no sorting. The bin in which the mass reaches `wanted` is all that is sorted.

            bins, heaviest first   |#########|########|######|####|###|..
            mass wanted             --------------------->|
            sorted                                    |######|

        Shapes:
            row      [vocab]  the scores that the weights come from
            returns  [runs]   sums of what is left

        Source: ours.
        """
        weights, bins = self._weights, self._bins
        np.right_shift(weights.view(np.uint32), _BIN_SHIFT, out=bins)
        np.copyto(self._masses, weights)
        masses = np.bincount(bins, self._masses)
        above = np.cumsum(masses[::-1])
        # Rounding may leave `wanted` above all there is: then the last bin that has mass.
        rank = int(np.searchsorted(above, min(wanted, float(above[-1]))))
        ids = (bins == len(masses) - 1 - rank).nonzero()[0]
        scores = row[ids]
        count = _nucleus_size(scores, shift, scale, wanted - (float(above[rank - 1]) if rank else 0.0))
        if count < len(ids):
            kept = keep_largest(ids, scores, count)
            kept_weights = weights[kept]
            weights[ids] = 0.0
            weights[kept] = kept_weights
        np.multiply(weights, bins >= len(masses) - 1 - rank, out=weights)
        return self._sum_runs()


def _weigh(scores: NDArray[np.float32], shift: float, scale: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp((scores.astype(np.float64) - shift) * scale)
    return weights


def _nucleus_size(scores: NDArray[np.float32], shift: float, scale: float, wanted: float) -> int:
    """How many of the best scores it takes to have the mass `wanted`; one more than there are if all are too few."""
    return int(np.searchsorted(np.cumsum(_weigh(np.sort(scores)[::-1], shift, scale)), wanted)) + 1


def _floor(peak: float, temperature: float, min_p: float) -> np.float32:
    """A score just below which a token's weight is surely under `min_p`: rounding only ever lets one more in."""
    floor: np.float32 = np.nextafter(np.float32(peak + temperature * (math.log(min_p) - _SLACK)), np.float32(-np.inf))
    return floor


def _place(cumulative: NDArray[np.float64], uniform: float) -> int:
    return _first_above(cumulative, uniform * float(cumulative[-1]))


def _first_above(cumulative: NDArray[np.float64], mark: float) -> int:
    """First index whose cumulative weight exceeds the mark, never one of weight 0.

    Rounding may leave the mark at or past the end: then the last index that has weight.
    """
    index = int(cumulative.searchsorted(mark, side="right"))
    if index == len(cumulative):
        index = int(cumulative.searchsorted(cumulative[-1], side="left"))
    return index
