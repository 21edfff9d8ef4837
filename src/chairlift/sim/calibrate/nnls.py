"""Least squares with coefficients that are not negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOLERANCE = 1e-10


def solve_nonnegative(columns: Floats, target: Floats, prior: Floats | None = None, pull: float = 0.0) -> Floats:
    """x >= 0 with the least |columns @ x - target|, `[columns]`.

    With a `prior`, each coefficient is pulled towards it in proportion to the size of its column: a direction that the
    rows do not vary in stays there. A column of zeros keeps its prior.

    Source: the active-set algorithm of Lawson and Hanson 1974, on the normal equations of scaled columns.

    Shapes:
        columns  [rows, columns]
        target   [rows]
    """
    num_columns = columns.shape[1]
    start = np.zeros(num_columns) if prior is None else np.asarray(prior, np.float64)
    scale = np.sqrt((columns**2).sum(axis=0))
    used = scale > 0.0
    result = np.where(used, 0.0, start)
    if not used.any():
        return result
    scaled = columns[:, used] / scale[used]
    gram = scaled.T @ scaled + pull * np.eye(int(used.sum()))
    right = scaled.T @ target + pull * start[used] * scale[used]
    result[used] = _active_set(gram, right) / scale[used]
    return result


def _active_set(gram: Floats, right: Floats) -> Floats:
    """x >= 0 with the least x' gram x / 2 - right' x."""
    size = len(right)
    free = np.zeros(size, np.bool_)
    x = np.zeros(size)
    tolerance = TOLERANCE * max(float(np.abs(right).max()), 1e-300)
    for _ in range(10 * size):
        gradient = right - gram @ x
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(size)
            trial[free] = np.linalg.lstsq(gram[np.ix_(free, free)], right[free], rcond=None)[0]
            if not (trial[free] <= 0.0).any():
                x = trial
                break
            # Go towards it as far as no coefficient turns negative, and leave out what is 0 then.
            falling = free & (trial <= 0.0)
            step = float(np.min(x[falling] / (x[falling] - trial[falling]))) if (x[falling] > 0.0).any() else 0.0
            x = np.where(free, x + step * (trial - x), 0.0)
            dropped = falling & (x <= 1e-15 * max(1.0, float(x.max())))
            if not dropped.any():
                dropped = falling
            x[dropped] = 0.0
            free &= ~dropped
            if not free.any():
                break
    return x
