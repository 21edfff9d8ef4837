"""Steps as a scheduler makes them: requests kept going on an engine, more at a time from phase to phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from chairlift.core.engine import Engine
from chairlift.core.types import Limits, Request, SamplingParams, StepOutput, StepPlan
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost.shape import StepShape, shape_of

GROUP_STEPS = 16
SHARED_TOKENS = (64, 256)
"""Beginnings of two prompts in eight, one each, so that the prefix cache has something to find, and rows to share."""
MAX_PROMPT, MAX_OUTPUT = 1024, 256


class StepTimes:
    """An observer of an engine: how long each step took, and how long the next one let wait."""

    def __init__(self) -> None:
        self._steps: list[tuple[StepShape, float, float]] = []

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        self._steps.append((shape_of(plan), begun, finished))

    def measured(self, first_group: int) -> Iterator[Measured]:
        """The steps so far. Groups are some steps in a row."""
        following = [begun for _, begun, _ in self._steps[1:]]
        before: int | None = None
        for number, (shape, begun, finished) in enumerate(self._steps):
            gap_s = following[number] - finished if number < len(following) else None
            yield Measured(shape, finished - begun, gap_s, first_group + number // GROUP_STEPS, before)
            before = shape.num_tokens


def run_traffic(
    engine: Engine,
    limits: Limits,
    params: Callable[[int], SamplingParams],
    vocab_size: int,
    clock: Callable[[], float],
    seconds: float,
    *,
    seed: int = 0,
) -> None:
    """Keep the engine busy for so long: with one request at a time, then with more, then as many as fit.

    `params(n)` samples exactly n tokens.
    """
    random = Random(seed)
    ids = count()
    shared = random.choices(range(vocab_size), k=max(SHARED_TOKENS))
    begun = clock()
    live: set[int] = set()
    phases = [1, max(1, limits.max_num_seqs // 16), max(1, limits.max_num_seqs // 4), limits.max_num_seqs]
    longest = max(1, limits.max_model_len // 2 - 1)
    while (spent := clock() - begun) < seconds:
        wanted = phases[min(int(spent / seconds * len(phases)), len(phases) - 1)]
        while len(live) < wanted:
            number = next(ids)
            prompt = shared[: SHARED_TOKENS[number // 4 % 2]] if number % 4 == 3 else []
            prompt += random.choices(range(vocab_size), k=_draw(random, 8, MAX_PROMPT))
            engine.add(Request(number, prompt[:longest], params(min(_draw(random, 4, MAX_OUTPUT), longest)), clock()))
            live.add(number)
        _step(engine, clock, live)
    for number in live:
        engine.abort(number, clock())
    engine.flush(clock())


def _step(engine: Engine, clock: Callable[[], float], live: set[int]) -> None:
    if engine.begin(clock()):
        engine.wait()
        output = engine.finish(clock())
    else:
        output = engine.flush(clock())
    live.difference_update(finish.id for finish in output.finishes)


def _draw(random: Random, low: int, high: int) -> int:
    return int(low * (high / low) ** random.random())
