"""A fitted cost model as a file: coefficients, what they were fitted to, and how far off they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from chairlift.core.errors import InvalidOption
from chairlift.metrics.latency import percentile
from chairlift.sim.calibrate.fit import OUTLIER, fit, fit_host, level
from chairlift.sim.calibrate.measured import Measured, RegimeError, error_of
from chairlift.sim.cost.model import CostModel
from chairlift.sim.cost.noise import NoisyCost
from chairlift.sim.cost.ranges import Span, WatchedCost, spans_of
from chairlift.sim.cost.shape import REGIMES, Regime
from chairlift.sim.cost.smooth import Coefficients, HostCosts, SmoothCost

MAX_FILE_BYTES = 1 << 20
MAX_COEFFICIENT_S = 1e4
"""Hours for a step, a row or a token are a mistake, and times so large that a clock stands still beside them."""
MAX_CACHE_TOKENS = 1 << 40
HELD_OUT_EVERY = 4
"""One group of steps in so many is kept from the fit, to say how far off it is."""
NUM_DEVIATIONS = 201
NORMAL_P84_P16 = 2.0
"""Standard deviations between the 16th and the 84th percentile of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What `chairlift calibrate` finds out. `errors` are of steps that were kept from the fit.

    `noise` is how much steps of equal shape differ: the standard deviation of the logarithm of their time.
    """

    format: Literal[1] = 1
    coefficients: Coefficients
    spans: Mapping[Regime, Span]
    errors: Mapping[Regime, RegimeError]
    noise: float = 0.0
    deviations: tuple[float, ...] = ()
    """By what steps of traffic were longer than predicted, at even shares from the least to the most; of mean 1. Longer
    tails than a normal distribution has, and what the model does not describe."""
    num_steps: int = 0
    """Measured, those held out included."""
    source: Literal["sweep", "journal", "profile"] = "sweep"
    machine: Mapping[str, str] = field(default_factory=dict)
    """What the steps ran on, in words."""
    engine: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """Options of the engine that was measured, by name."""

    @property
    def num_cache_tokens(self) -> int | None:
        """Tokens that the cache of the measured engine held; None if the file does not tell."""
        num_blocks, block_size = self.engine.get("num_blocks"), self.engine.get("block_size")
        if type(num_blocks) is int and type(block_size) is int:
            return num_blocks * block_size
        return None

    def cost(self, warn: Callable[[str], None], *, noise_seed: int | None = None) -> CostModel:
        """The model, which warns outside of what was measured; with a seed, steps vary as they did."""
        watched = WatchedCost(SmoothCost(self.coefficients), self.spans, warn)
        return watched if noise_seed is None else NoisyCost(watched, self.noise, noise_seed, self.deviations)


def calibrate(
    steps: Sequence[Measured],
    *,
    traffic: Sequence[Measured] = (),
    token_sizes: tuple[int, ...] = (),
    prior: Coefficients | None = None,
    noise: float | None = None,
    source: Literal["sweep", "journal", "profile"] = "sweep",
    machine: Mapping[str, str] | None = None,
    engine: Mapping[str, str | int | float | bool | None] | None = None,
) -> Calibration:
    """Fit three quarters of the steps and check with the rest. Without a `noise` it is taken from the steps too.

    Where steps were made on purpose, `traffic` are others as a scheduler makes them, one right after the other: what
    lies between them is fitted to these. Steps of a machine (not of a profile) may have been disturbed: most of them
    are fitted, and then everything is made longer by as much as all together were.

    Raises:
        InvalidOption: too few steps.
    """
    used, held = _divided(steps)
    known, unknown = _divided(traffic)
    deviations: tuple[float, ...] = ()
    cost = fit(used, token_sizes=token_sizes, prior=prior, robust=source != "profile")
    if noise is None:
        noise = noise_of(used, cost)
    used, held = used + known, held + unknown
    if source != "profile":
        slower = cost.coefficients.times(level(_without_host(cost), used))
        cost = SmoothCost(replace(slower, host=fit_host(used)))
        deviations = deviations_of(known or used, cost)
    return Calibration(
        coefficients=cost.coefficients,
        spans=spans_of(step.shape for step in used),
        errors=held_out_errors(held, cost),
        noise=noise,
        deviations=deviations,
        num_steps=len(steps) + len(traffic),
        source=source,
        machine=machine or {},
        engine=engine or {},
    )


def _divided(steps: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Steps for the fit, and those that are kept from it."""
    used = [step for step in steps if step.group % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    held = [step for step in steps if step.group % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    return used, held


def held_out_errors(steps: Iterable[Measured], cost: SmoothCost) -> dict[Regime, RegimeError]:
    """Of steps whose gap is known, together with it; of the others, without the host."""
    device = _without_host(cost)
    pairs: dict[Regime, list[tuple[float, float]]] = {}
    for step in steps:
        model = device if step.gap_s is None else cost
        pairs.setdefault(step.shape.regime, []).append((model.of_shape(step.shape, step.before), step.period_s))
    return {regime: error_of(pairs[regime]) for regime in REGIMES if regime in pairs}


def _without_host(cost: SmoothCost) -> SmoothCost:
    return cost.with_host(HostCosts())


def noise_of(steps: Sequence[Measured], cost: SmoothCost) -> float:
    """The standard deviation of the logarithm of a step's time at one shape.

    From repeats, if there are some: the rest of the error is the model's. It is read off between percentiles, as
    disturbed steps would be most of it otherwise.
    """
    device = _without_host(cost)
    logs: dict[tuple[int, object], list[float]] = {}
    for step in steps:
        predicted = device.of_shape(step.shape, step.before)
        if predicted > 0.0 and step.step_s < OUTLIER * predicted:
            logs.setdefault((step.group, step.shape.regime), []).append(math.log(step.step_s / predicted))
    deviations: list[float] = []
    for values in logs.values():
        if len(values) > 2:
            middle = percentile(sorted(values), 50.0)
            deviations += [value - middle for value in values]
    if not deviations:
        return 0.0
    deviations.sort()
    return (percentile(deviations, 84.13) - percentile(deviations, 15.87)) / NORMAL_P84_P16


def deviations_of(steps: Iterable[Measured], cost: SmoothCost) -> tuple[float, ...]:
    """What steps took as a multiple of what is predicted for them, at `NUM_DEVIATIONS` even shares; of mean 1."""
    device = _without_host(cost)
    factors = sorted(
        min(step.step_s / seconds, OUTLIER)
        for step in steps
        if (seconds := device.of_shape(step.shape, step.before)) > 0.0
    )
    if not factors:
        return ()
    at = [percentile(factors, 100.0 * i / (NUM_DEVIATIONS - 1)) for i in range(NUM_DEVIATIONS)]
    # Drawn evenly between neighbours, so that the mean is that of the trapezoids.
    mean = (sum(at) - (at[0] + at[-1]) / 2.0) / (NUM_DEVIATIONS - 1)
    return tuple(value / mean for value in at)


# ---------------------------------------------------------------- the file


def encode(calibration: Calibration) -> bytes:
    """As JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n"


def decode(data: bytes, where: str) -> Calibration:
    """Raises InvalidOption on anything that is no calibration of this format."""
    try:
        calibration = msgspec.json.decode(data, type=Calibration)
        _check(calibration.coefficients, calibration.deviations)
        if calibration.num_cache_tokens is not None and not 0 < calibration.num_cache_tokens <= MAX_CACHE_TOKENS:
            raise ValueError("an engine has no such num_blocks and block_size")
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not a calibration: {error}") from error
    return calibration


def load_calibration(path: Path) -> Calibration:
    """A file that `chairlift calibrate` wrote.

    Raises:
        InvalidOption: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidOption(f"{path} is not a calibration: it is too large")
    return decode(data, str(path))


def _check(c: Coefficients, deviations: Sequence[float]) -> None:
    """Raises ValueError on what no fit gives."""
    parts = (c.decode, c.mixed, c.chunks, c.host)
    numbers = [
        c.weights_s,
        c.token_s,
        c.output_s,
        c.change_s,
        *(getattr(p, name) for p in parts for name in p.__slots__),
    ]
    if not all(0.0 <= number <= MAX_COEFFICIENT_S for number in numbers):
        raise ValueError(f"coefficients must be numbers of at least 0 and at most {MAX_COEFFICIENT_S:g}")
    if any(rows.shared_saving_s > rows.context_token_s for rows in (c.decode, c.mixed)):
        raise ValueError("a shared token cannot cost less than nothing")
    if not 1.0 <= c.power <= 64.0 or c.chunks.tile < 1:
        raise ValueError("power and tile must be at least 1")
    if list(c.token_sizes) != sorted(set(c.token_sizes)):
        raise ValueError("token_sizes must ascend")
    if not all(0.0 <= factor <= MAX_COEFFICIENT_S for factor in deviations) or len(deviations) == 1:
        raise ValueError("deviations must be numbers of at least 0, not too large, and two or more if there are some")
    if not c.weights_s + c.token_s + c.decode.step_s > 0.0:
        raise ValueError("a step would take no time")
