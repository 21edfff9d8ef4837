"""Log-probabilities of tokens in the model's own distribution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import TokenLogprob
from chairlift.sampling.select import best_first


def token_logprob(row: NDArray[np.float32], logsumexp: float | None, token: int, num_top: int) -> TokenLogprob:
    """Log-probability, in nats, of a token, its rank, and the `num_top` best tokens of the row.

    Among equal logits the lower id ranks first. The row holds no NaN; `logsumexp=None` has it computed here, in
    float64.

    Shapes:
        row  [vocab]
    """
    if logsumexp is None:
        peak = float(row.max())
        logsumexp = peak + math.log(float(np.exp(row.astype(np.float64) - peak).sum()))
    chosen = row[token]
    better = int(np.count_nonzero(row > chosen)) + int(np.count_nonzero(row[:token] == chosen))
    top = best_first(row, min(num_top, len(row))) if num_top else ()
    return TokenLogprob(
        token=token,
        logprob=float(chosen) - logsumexp,
        rank=better + 1,
        top=tuple((int(i), float(row[i]) - logsumexp) for i in top),
    )


def score(
    logits: NDArray[np.float32],
    logsumexp: NDArray[np.float32] | None,
    targets: NDArray[np.integer] | list[int],
    num_top: int,
) -> list[TokenLogprob]:
    """What a model thought of the tokens that really followed: prompt log-probabilities.

    A row without a finite maximum (NaN, +inf, nothing but -inf) gets log-probability NaN, rank 0 and no
    alternatives: the sequence fails where it samples, and no other row is touched.

    Shapes:
        logits     [rows, vocab]
        logsumexp  [rows]
        targets    [rows]
        returns    [rows]
    """
    scores = []
    for i, target in enumerate(targets):
        row = logits[i]
        if not math.isfinite(row[row.argmax()]):
            scores.append(TokenLogprob(int(target), math.nan, 0))
            continue
        scores.append(token_logprob(row, None if logsumexp is None else float(logsumexp[i]), int(target), num_top))
    return scores
