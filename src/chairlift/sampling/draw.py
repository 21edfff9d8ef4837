"""One exact draw from one row: temperature, then min-p, top-k and top-p, then the inverse of the distribution.

The kept set decides the distribution and the tokens lie on the unit interval in the order of their ids, so two sets
of parameters that keep the same tokens draw the same one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chairlift.sampling.select import Ids, keep_largest, largest, true_ids

_RUN = 256
"""Tokens per partial sum of a whole-row draw."""
_FEW = 1024
"""So few candidates are sorted without further thought."""
_SLACK = 1e-6
"""Share of the mass kept back from pruning, far above the rounding of its sums in float32."""


class Draw:
    """Draws tokens from rows of one vocabulary size; holds only scratch space.

    Weights over a whole row are float32 with partial sums of at most 256 terms; over candidates they are float64.
    """

    def __init__(self, vocab_size: int) -> None:
        self._weights = np.empty(vocab_size, np.float32)
        self._runs = np.arange(0, vocab_size, _RUN)

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
            ids = largest(row, top_k) if limited else true_ids(row >= _floor(peak, temperature, min_p))
            weights = _weigh(row[ids], peak, scale)
            if min_p > 0.0:
                keep = weights >= min_p
                ids, weights = ids[keep], weights[keep]
            if top_p >= 1.0:
                return int(ids[_place(np.cumsum(weights), uniform)])
            total = float(weights.sum())
        else:
            all_weights, sums = self._whole(row, peak, scale)
            if top_p >= 1.0:
                return _place_in_runs(all_weights, sums, uniform)
            total = float(sums.sum(dtype=np.float64))
            ids = _prune(all_weights, total, top_p)
        scores = row[ids]
        mass = np.cumsum(_weigh(np.sort(scores)[::-1], peak, scale))
        ids = keep_largest(ids, scores, int(np.searchsorted(mass, top_p * total)) + 1)
        return int(ids[_place(np.cumsum(_weigh(row[ids], peak, scale)), uniform)])

    def _whole(
        self, row: NDArray[np.float32], peak: float, scale: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        weights = self._weights
        np.subtract(row, np.float32(peak), out=weights)
        np.multiply(weights, np.float32(scale), out=weights)
        np.exp(weights, out=weights)
        return weights, np.add.reduceat(weights, self._runs)


def _weigh(scores: NDArray[np.float32], peak: float, scale: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp((scores.astype(np.float64) - peak) * scale)
    return weights


def _floor(peak: float, temperature: float, min_p: float) -> np.float32:
    """A score just below which a token's weight is surely under `min_p`: rounding only ever lets one more in."""
    floor: np.float32 = np.nextafter(np.float32(peak + temperature * (math.log(min_p) - _SLACK)), np.float32(-np.inf))
    return floor


def _place_in_runs(weights: NDArray[np.float32], sums: NDArray[np.float32], uniform: float) -> int:
    """Index of the token at `uniform`: first the run, then the token in it."""
    edges = np.cumsum(sums, dtype=np.float64)
    run = _place(edges, uniform)
    inside = uniform * float(edges[-1]) - (float(edges[run - 1]) if run else 0.0)
    cumulative = np.cumsum(weights[run * _RUN : (run + 1) * _RUN], dtype=np.float64)
    return run * _RUN + _first_above(cumulative, inside)


def _place(cumulative: NDArray[np.float64], uniform: float) -> int:
    return _first_above(cumulative, uniform * float(cumulative[-1]))


def _first_above(cumulative: NDArray[np.float64], mark: float) -> int:
    """First index whose cumulative weight exceeds the mark, never one of weight 0.

    Rounding may leave the mark at or past the end: then the last index that has weight.
    """
    index = int(np.searchsorted(cumulative, mark, side="right"))
    if index == len(cumulative):
        index = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return index


def _prune(weights: NDArray[np.float32], total: float, top_p: float) -> Ids:
    """Candidates for the smallest set of mass `top_p * total`: a superset of it, found without sorting.

    Tokens below (what may be left out) / (how many there are) weigh less than that together, so all of them can
    go; with them gone the same holds for the rest.

    Shapes:
        weights  [vocab]
        returns  [candidates]  ascending

    Source: ours.
    """
    spare = total * (1.0 - top_p - _SLACK)
    if spare <= 0.0:
        return np.arange(len(weights))
    ids = true_ids(weights >= np.float32(spare / len(weights)))
    kept = weights[ids]
    while len(ids) > _FEW:
        left = spare - (total - float(kept.sum(dtype=np.float64)))
        mask = kept >= left / len(ids)
        if 4 * int(np.count_nonzero(mask)) > 3 * len(ids):
            break
        ids, kept = ids[mask], kept[mask]
    return ids
