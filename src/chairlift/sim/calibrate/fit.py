"""Coefficients of the smooth form from measured steps, in stages.

    1   body, outputs, decode rows and chunks, on steps that are all decode or all chunks
    2   decode rows beside chunks, on mixed steps, with the rest as it is
    3   the host, on the gaps between steps

The body is `token_s * ((knee ** p + m ** p) ** (1 / p))`: for a given knee (in tokens) and p it is one column like the
others, and the search over these two is all that is not linear. Errors count relative to the step: a decode step of
10 ms and a chunk of 300 ms matter alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.calibrate.nnls import solve_nonnegative
from chairlift.sim.cost.changing import padded
from chairlift.sim.cost.shape import StepShape, chunk_sums
from chairlift.sim.cost.smooth import ChunkCosts, Coefficients, HostCosts, RowCosts, SmoothCost

Floats = NDArray[np.float64]

POWERS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
MAX_POWER = 8.0
TILES = (1, 16, 64)
DEFAULT_TILE = 64
FEW_STEPS = 12
"""So few steps of a regime say nothing about its coefficients."""
FEW_SHARED = 6
"""So few steps of a regime with shared tokens say nothing about what sharing saves."""
OUTLIER = 3.0
"""A step that took so many times what is predicted for it was disturbed: it says nothing about the others."""
ORDINARY = 1.5
"""Times the median error: what is further off counts by its distance, not by the square of it. On a shared machine
steps are often longer than they should be and never shorter."""
REFITS = 6
PULL = 1e-6
"""Of coefficients towards their priors, relative to what the steps say: felt where these say nothing."""
NUM_BODY, NUM_ROWS, NUM_CHUNKS = 3, 4, 6
"""Columns: body, outputs and changes; of decode steps and of mixed ones; of chunks and of steps that have some."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Measured steps as columns. Shapes: [steps] each, `chunks` [steps, 6]: 1 where there are chunks, and the sums.

    `own` are context tokens without those that are shared: as a column beside all of them it has what a shared one
    costs less, and neither that nor what is left of its cost comes out negative. 0 where too few steps have any shared.
    """

    tokens: Floats
    outputs: Floats
    changes: Floats
    rows: Floats
    contexts: Floats
    own: Floats
    chunks: Floats
    seconds: Floats

    @property
    def has_chunks(self) -> NDArray[np.bool_]:
        return self.chunks[:, 0] > 0.0

    def of(self, chosen: NDArray[np.bool_]) -> _Table:
        return _Table(
            self.tokens[chosen],
            self.outputs[chosen],
            self.changes[chosen],
            self.rows[chosen],
            self.contexts[chosen],
            self.own[chosen],
            self.chunks[chosen],
            self.seconds[chosen],
        )


def fit(
    steps: Sequence[Measured],
    *,
    token_sizes: tuple[int, ...] = (),
    prior: Coefficients | None = None,
    robust: bool = False,
) -> SmoothCost:
    """The coefficients that fit the steps best; those that no step tells anything about are the prior's.

    `robust` where steps may have been disturbed: it is then most of them that are fitted, whatever the others took.

    `token_sizes` are those that the executor pads steps to. Without a prior, what was not measured is taken to cost
    what is most like it: decodes beside chunks what decodes alone do, cached tokens before a chunk what its own do.

    Raises:
        InvalidOption: too few steps.
    """
    if len(steps) < FEW_STEPS:
        raise InvalidOption(f"{len(steps)} measured steps are too few to fit anything: {FEW_STEPS} at least")
    best: tuple[float, Coefficients] | None = None
    for tile in TILES:
        table = _table_of(steps, token_sizes, tile)
        loss, coefficients = _fit_body(table, tile, token_sizes, prior, robust)
        if best is None or loss < best[0] * (1.0 - 1e-3):
            best = loss, coefficients
        if not table.has_chunks.any():
            break
    if best is None:
        raise InvalidOption("nothing to fit")
    coefficients = best[1]
    if prior is None and not any(start for step in steps for start, _, _ in step.shape.chunks):
        coefficients = replace(coefficients, chunks=_like_their_own(coefficients))
    table = _table_of(steps, token_sizes, coefficients.chunks.tile)
    coefficients = replace(coefficients, mixed=_fit_mixed(table, coefficients, prior, robust))
    return SmoothCost(replace(coefficients, host=fit_host(steps)))


# ---------------------------------------------------------------- stage 1


def _fit_body(
    table: _Table, tile: int, sizes: tuple[int, ...], prior: Coefficients | None, robust: bool
) -> tuple[float, Coefficients]:
    """Everything but decodes beside chunks, on steps that have none, or on all where those are too few."""
    mixed = table.has_chunks & (table.rows > 0.0)
    pure_chunks = table.has_chunks & ~mixed
    chosen = ~mixed if pure_chunks.sum() >= FEW_STEPS or not mixed.any() else np.ones_like(mixed)
    some = table.of(chosen)
    # Steps with chunks and those without count alike, however many more there are of the one.
    share = float(some.has_chunks.mean())
    balance = np.where(some.has_chunks, 1.0 / max(share, 1e-9), 1.0 / max(1.0 - share, 1e-9)) ** 0.5
    weights = balance / some.seconds
    loss, knee, power = math.inf, 1.0, 2.0
    largest = float(some.tokens.max())
    knees = [k for k in (2.0**i for i in range(-1, 13)) if k <= 4 * largest]
    for trial_knee, trial_power in product(knees, POWERS):
        trial = _solve(some, weights, trial_knee, trial_power, prior)[0]
        if trial < loss * (1.0 - 1e-6):
            loss, knee, power = trial, trial_knee, trial_power
    step = 0.5
    while step > 0.02:
        moves = ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))
        trials = [(knee * 2.0 ** (step * x), min(max(power * 2.0 ** (step * y), 1.0), MAX_POWER)) for x, y in moves]
        found = min((_solve(some, weights, *trial, prior)[0], *trial) for trial in trials)
        if found[0] < loss * (1.0 - 1e-6):
            loss, knee, power = found
        else:
            step /= 2.0
    # Then relative to what is predicted: dividing by what was measured favours steps that happened to be short.
    x = _solve(some, weights, knee, power, prior)[1]
    for _ in range(REFITS):
        predicted = _columns(some, knee, power) @ x
        loss, x = _solve(some, balance * _trust(some.seconds, predicted, robust), knee, power, prior)
    values = [float(value) for value in x]
    decode = _row_costs(*values[NUM_BODY : NUM_BODY + NUM_ROWS])
    chunk_step_s, *chunk_values = values[NUM_BODY + 2 * NUM_ROWS :]
    return loss, Coefficients(
        weights_s=values[0] * knee,
        token_s=values[0],
        power=power,
        token_sizes=sizes,
        output_s=values[1],
        change_s=values[2],
        decode=decode,
        mixed=RowCosts(chunk_step_s if table.has_chunks.any() else decode.step_s),
        chunks=_chunk_costs(chunk_values, tile),
    )


def _trust(seconds: Floats, predicted: Floats, robust: bool) -> Floats:
    """By what errors are multiplied: relative to the prediction; disturbed ones by 0, and large ones by less if robust
    (Huber's loss)."""
    predicted = np.maximum(predicted, 1e-9)
    trust = np.where(seconds < OUTLIER * predicted, 1.0 / predicted, 0.0)
    if robust:
        off = np.abs(seconds / predicted - 1.0)
        ordinary = max(ORDINARY * float(np.median(off)), 1e-6)
        trust *= np.sqrt(np.minimum(1.0, ordinary / np.maximum(off, 1e-12)))
    return np.asarray(trust)


def _row_costs(step_s: float, row_s: float, shared_token_s: float, saving_s: float) -> RowCosts:
    """Of the columns of rows."""
    return RowCosts(step_s, row_s, shared_token_s + saving_s, saving_s)


def _chunk_costs(values: Sequence[float], tile: int) -> ChunkCosts:
    chunk_s, token_s, half_square_s, prefix_token_s, tile_pair_s = values
    return ChunkCosts(chunk_s, token_s, half_square_s, prefix_token_s, tile_pair_s, tile)


def _like_their_own(c: Coefficients) -> ChunkCosts:
    """Where no chunk had a cached token before it, pairs with those are taken to cost what pairs within a chunk do, and
    reading them what it costs a decode."""
    chunks = c.chunks
    return replace(chunks, prefix_token_s=c.decode.context_token_s, tile_pair_s=chunks.half_square_s, tile=DEFAULT_TILE)


def _solve(
    table: _Table, weights: Floats, knee: float, power: float, prior: Coefficients | None
) -> tuple[float, Floats]:
    """The squared relative error at its least, and the coefficients there."""
    columns = _columns(table, knee, power) * weights[:, None]
    target = table.seconds * weights
    x = solve_nonnegative(columns, target, None if prior is None else _vector(prior), PULL)
    return float(((columns @ x - target) ** 2).sum()), x


def _columns(table: _Table, knee: float, power: float) -> Floats:
    """Body, outputs, changes; decode: step, rows, contexts, own; mixed: none, the same; chunks: step and the sums."""
    chunks = table.has_chunks
    alone = np.where(chunks, 0.0, 1.0)
    beside = 1.0 - alone
    return np.column_stack(
        [
            _smooth_max(table.tokens, knee, power),
            table.outputs,
            table.changes,
            alone,
            alone * table.rows,
            alone * table.contexts,
            alone * table.own,
            np.zeros_like(alone),
            beside * table.rows,
            beside * table.contexts,
            beside * table.own,
            table.chunks,
        ]
    )


def _smooth_max(tokens: Floats, knee: float, power: float) -> Floats:
    """(knee ** p + tokens ** p) ** (1 / p), without large powers."""
    large, small = np.maximum(tokens, knee), np.minimum(tokens, knee)
    return np.asarray(large * (1.0 + (small / large) ** power) ** (1.0 / power))


def _vector(c: Coefficients) -> Floats:
    """Coefficients in the order of the columns. What a prior says of shared tokens is not asked: data sheets do not."""
    chunks = c.chunks
    return np.array(
        [
            c.token_s,
            c.output_s,
            c.change_s,
            *(c.decode.step_s, c.decode.row_s, c.decode.context_token_s, 0.0),
            *(0.0, c.mixed.row_s, c.mixed.context_token_s, 0.0),
            c.mixed.step_s,
            *(chunks.chunk_s, chunks.token_s, chunks.half_square_s, chunks.prefix_token_s, chunks.tile_pair_s),
        ]
    )


# ---------------------------------------------------------------- stages 2 and 3


def _fit_mixed(table: _Table, c: Coefficients, prior: Coefficients | None, robust: bool) -> RowCosts:
    """Rows and contexts of mixed steps, as what is left of these steps.

    Where none of them tells what sharing saves, it saves the same share as in decode steps.
    """
    mixed = table.of(table.has_chunks & (table.rows > 0.0))
    if len(mixed.seconds) < FEW_STEPS:
        from_prior = c.decode if prior is None else prior.mixed
        return replace(from_prior, step_s=c.mixed.step_s)
    body = c.token_s * _smooth_max(mixed.tokens, c.weights_s / c.token_s, c.power) if c.token_s else 0.0
    chunks = c.chunks
    values = [chunks.chunk_s, chunks.token_s, chunks.half_square_s, chunks.prefix_token_s, chunks.tile_pair_s]
    rest = (
        body
        + c.output_s * mixed.outputs
        + c.change_s * mixed.changes
        + mixed.chunks @ np.array([c.mixed.step_s, *values])
    )
    columns = np.column_stack([mixed.rows, mixed.contexts, mixed.own])
    weights = 1.0 / mixed.seconds
    x = np.zeros(3)
    for _ in range(REFITS):
        x = solve_nonnegative(columns * weights[:, None], (mixed.seconds - rest) * weights)
        weights = _trust(mixed.seconds, rest + columns @ x, robust)
    rows = _row_costs(c.mixed.step_s, *(float(value) for value in x))
    if mixed.own.any() or not c.decode.context_token_s:
        return rows
    share = c.decode.shared_saving_s / c.decode.context_token_s
    return replace(rows, shared_saving_s=share * rows.context_token_s)


def fit_host(steps: Iterable[Measured]) -> HostCosts:
    """A line through the gaps; those that are far longer than most are no gaps but pauses."""
    known = [(step.shape, step.gap_s) for step in steps if step.gap_s is not None]
    if len(known) < FEW_STEPS:
        return HostCosts()
    gaps = np.array([gap for _, gap in known])
    sizes = np.array([shape.num_rows + len(shape.chunks) for shape, _ in known], np.float64)
    columns = np.column_stack([np.ones_like(sizes), sizes])
    kept = gaps <= 10.0 * np.median(gaps) + 1e-6
    x = solve_nonnegative(columns[kept], gaps[kept])
    return HostCosts(float(x[0]), float(x[1]))


def level(cost: SmoothCost, steps: Iterable[Measured]) -> float:
    """How much longer steps took in all than predicted: what disturbs some of them, which a fit to most leaves out.

    A step that was disturbed beyond measure counts as `OUTLIER` times its prediction. 1 without steps.
    """
    measured = predicted = 0.0
    for step in steps:
        seconds = cost.of_shape(step.shape, step.before)
        measured += min(step.step_s, OUTLIER * seconds)
        predicted += seconds
    return measured / predicted if predicted else 1.0


# ---------------------------------------------------------------- columns


def _changes(step: Measured, sizes: tuple[int, ...]) -> bool:
    return step.before is not None and padded(step.before, sizes) != padded(step.shape.num_tokens, sizes)


def _own(shapes: Sequence[StepShape]) -> Floats:
    """Context tokens that are not shared, of steps of regimes in which enough steps have shared ones; else 0."""
    counts = Counter(shape.regime for shape in shapes if shape.num_shared_context_tokens)
    return np.array(
        [
            shape.num_context_tokens - shape.num_shared_context_tokens if counts[shape.regime] >= FEW_SHARED else 0
            for shape in shapes
        ],
        np.float64,
    )


def _table_of(steps: Sequence[Measured], sizes: tuple[int, ...], tile: int) -> _Table:
    shapes = [step.shape for step in steps]
    sums = [chunk_sums(shape.chunks, tile) for shape in shapes]
    return _Table(
        tokens=np.array([padded(shape.num_tokens, sizes) for shape in shapes], np.float64),
        outputs=np.array([shape.num_outputs for shape in shapes], np.float64),
        changes=np.array([_changes(step, sizes) for step in steps], np.float64),
        rows=np.array([shape.num_rows for shape in shapes], np.float64),
        contexts=np.array([shape.num_context_tokens for shape in shapes], np.float64),
        own=_own(shapes),
        chunks=np.array(
            [
                (s.num_chunks > 0, max(s.num_chunks - 1, 0), s.num_tokens, s.square / 2, s.prefix_tokens, s.tile_pairs)
                for s in sums
            ],
            np.float64,
        ).reshape(-1, NUM_CHUNKS),
        seconds=np.array([step.step_s for step in steps], np.float64),
    )
