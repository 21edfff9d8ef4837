"""How long a step will take, learned from the steps so far.

    seconds = a + b * rows + c * context_tokens + d * chunk_tokens + e * chunk_pairs

A device is not linear, but near where it works it is nearly so, and old steps are forgotten: the coefficients are those
of the neighbourhood. None is negative, so that a longer step is never predicted to be a shorter one.

The fit minimises the squares of (1 - predicted / actual). Of a step that took far too long (a page fault, a neighbour's
burst) the quotient is near 0 whatever the coefficients are: it pulls at nothing. What matters are relative errors,
since noise grows with the step.

When several steps in a row are far off, older ones are forgotten; if all are longer by about the same factor, the whole
device has become slower, and everything learned is scaled by it.

A direction that recent steps do not vary in (only decodes, always the same rows) is not seen in them. There the
coefficients stay what they were: each refit is pulled towards the one before, in proportion to the size of each term.
"""

from __future__ import annotations

import math

KEEP = 1.0 - 1.0 / 256.0
"""Weight of a step, relative to that of the step after it."""
PULL = 1e-3
"""Weight of the last coefficients in a refit."""
REFIT_STEPS = 8
NUM_FIRST = 16
NUM_TERMS = 5
STRANGE = 1.6
"""A step so many times longer or shorter than predicted tells of another regime, if `NUM_STRANGE` in a row do."""
NUM_STRANGE = 8
SAME_FACTOR = 0.5
"""Spread of the logarithms of actual / predicted, in strange steps, up to which the whole device changed its pace."""
_PAIRS = [(i, j) for i in range(NUM_TERMS) for j in range(i, NUM_TERMS)]


class StepTimes:
    """The model. `coefficients` are in seconds per unit of each term; all 0 before the first step."""

    def __init__(self) -> None:
        self.coefficients = [0.0] * NUM_TERMS
        self._squares = [0.0] * len(_PAIRS)
        """Sums of products of the terms, upper triangle by rows, each term divided by the step's seconds."""
        self._sums = [0.0] * NUM_TERMS
        self._num_steps = 0
        self._strange_logs: list[float] = []
        """Of the last steps, as far back as they were strange: the logarithms of actual / predicted."""

    @property
    def is_settled(self) -> bool:
        """Whether there were enough steps to go by."""
        return self._num_steps > NUM_FIRST

    @property
    def num_strange(self) -> int:
        """Steps in a row that were far from what was predicted."""
        return len(self._strange_logs)

    def predict(self, rows: int, context_tokens: int, chunk_tokens: int, chunk_pairs: float) -> float:
        """Seconds of a step; 0 before anything was observed."""
        a, b, c, d, e = self.coefficients
        return a + b * rows + c * context_tokens + d * chunk_tokens + e * chunk_pairs

    def observe(self, rows: int, context_tokens: int, chunk_tokens: int, chunk_pairs: int, step_s: float) -> float:
        """Learn from one step. Returns what was predicted for it, in seconds."""
        predicted = self.predict(rows, context_tokens, chunk_tokens, chunk_pairs)
        # A step far too short would weigh more than all others together.
        weight = 1.0 / max(step_s, predicted / 3.0, 1e-6)
        x0, x1, x2, x3, x4 = (
            weight,
            weight * rows,
            weight * context_tokens,
            weight * chunk_tokens,
            weight * chunk_pairs,
        )
        s, k = self._squares, KEEP
        self._squares = [
            k * s[0] + x0 * x0,
            k * s[1] + x0 * x1,
            k * s[2] + x0 * x2,
            k * s[3] + x0 * x3,
            k * s[4] + x0 * x4,
            k * s[5] + x1 * x1,
            k * s[6] + x1 * x2,
            k * s[7] + x1 * x3,
            k * s[8] + x1 * x4,
            k * s[9] + x2 * x2,
            k * s[10] + x2 * x3,
            k * s[11] + x2 * x4,
            k * s[12] + x3 * x3,
            k * s[13] + x3 * x4,
            k * s[14] + x4 * x4,
        ]
        t = self._sums
        self._sums = [k * t[0] + x0, k * t[1] + x1, k * t[2] + x2, k * t[3] + x3, k * t[4] + x4]
        self._num_steps += 1
        if predicted > 1e-9 and not predicted / STRANGE <= step_s <= predicted * STRANGE:
            self._strange_logs.append(math.log(max(step_s, 1e-6) / predicted))
            if len(self._strange_logs) == NUM_STRANGE:
                self._change_regime()
        else:
            self._strange_logs.clear()
        # A strange step may be the first of its kind: the next one shall be known better.
        if self._num_steps % REFIT_STEPS == 0 or not self.is_settled or self._strange_logs:
            self._refit()
        return predicted

    def _change_regime(self) -> None:
        """What was learned is of another time: leave it the weight of a few steps.

        Where all is slower by one factor, it is still of use. That all is faster is not concluded from some steps: the
        kinds of step that were not among them would be taken too lightly.
        """
        logs = self._strange_logs
        factor = math.exp(sum(logs) / len(logs)) if min(logs) > 0.0 and max(logs) - min(logs) < SAME_FACTOR else 1.0
        self.coefficients = [factor * value for value in self.coefficients]
        self._squares = [0.03 * value / (factor * factor) for value in self._squares]
        self._sums = [0.03 * value / factor for value in self._sums]
        logs.clear()

    def _refit(self) -> None:
        """Least squares under coefficients >= 0, by leaving out the most negative one until none is."""
        matrix = [[0.0] * NUM_TERMS for _ in range(NUM_TERMS)]
        for (i, j), value in zip(_PAIRS, self._squares, strict=True):
            matrix[i][j] = matrix[j][i] = value
        diagonal = [matrix[i][i] for i in range(NUM_TERMS)]
        # What no step of the last hundred thousand had is too small to reckon with; it keeps its coefficient.
        seen = [i for i in range(NUM_TERMS) if diagonal[i] > 1e-200]
        # What cannot be told apart goes to the fixed part first: the others are then found out by having more of them.
        pulls = [(0.1 if i == 0 else 1.0) * PULL * diagonal[i] for i in range(NUM_TERMS)]
        # The first coefficients are of too few steps to be worth keeping.
        kept = self.coefficients if self.is_settled else [0.0] * NUM_TERMS
        unseen = [i for i in range(NUM_TERMS) if i not in seen]
        sums = [
            self._sums[i] + pulls[i] * kept[i] - sum(matrix[i][j] * self.coefficients[j] for j in unseen)
            for i in range(NUM_TERMS)
        ]
        result = [0.0 if i in seen else value for i, value in enumerate(self.coefficients)]
        while seen:
            rows = [[matrix[i][j] + (pulls[i] if i == j else 0.0) for j in seen] + [sums[i]] for i in seen]
            solution = solve(rows)
            worst = min(range(len(seen)), key=lambda k: solution[k] * diagonal[seen[k]] ** 0.5)
            if solution[worst] >= 0.0:
                for i, value in zip(seen, solution, strict=True):
                    result[i] = value
                break
            del seen[worst]
        self.coefficients = result


def solve(rows: list[list[float]]) -> list[float]:
    """The solution of linear equations with a symmetric positive definite matrix; each row ends with its right side."""
    size = len(rows)
    for i, pivot_row in enumerate(rows):
        pivot = pivot_row[i]
        for row in rows[i + 1 :]:
            factor = row[i] / pivot
            if factor:
                for j in range(i, size + 1):
                    row[j] -= factor * pivot_row[j]
    solution = [0.0] * size
    for i in range(size - 1, -1, -1):
        row = rows[i]
        solution[i] = (row[size] - sum(row[j] * solution[j] for j in range(i + 1, size))) / row[i]
    return solution
