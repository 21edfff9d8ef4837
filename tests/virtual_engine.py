"""The real engine on a virtual clock: a cost model says how long each step takes, and a second costs nothing.

    driver = VirtualEngine(scheduler, CPU_LIKE, noise=0.05, seed=1)
    driver.run(requests)                        # as they arrive, in seconds from 0
    driver.served[0].ttft_s, driver.inter_token_latencies()

What is scheduled is real; only the device is not: it answers every row with token 0, so outputs end by `max_tokens`
(or by an abort or a deadline). Noise is seeded: two runs of the same arrivals are equal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from chairlift.core.engine import Engine
from chairlift.core.errors import ChairliftError
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import (
    CacheShape,
    Finish,
    Limits,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
)
from chairlift.metrics.latency import percentile

VOCAB_SIZE = 1000


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds of a step on a device whose every operation costs what its size says: a CPU."""

    step_s: float
    row_s: float
    context_token_s: float
    chunk_token_s: float
    chunk_pair_s: float = 0.0

    def __call__(self, plan: StepPlan) -> float:
        return (
            self.step_s
            + self.row_s * (len(plan.decodes) + len(plan.fillers))
            + self.context_token_s * plan.num_context_tokens
            + self.chunk_token_s * plan.num_chunk_tokens
            + self.chunk_pair_s * plan.num_chunk_pairs
        )


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """Seconds of a step on a device that reads its weights while it computes: the slower of the two counts, a GPU."""

    step_s: float
    weights_s: float
    """To read all weights once."""
    token_s: float
    """To compute one token's multiplications."""
    context_token_s: float
    """To read the keys and values of one token."""
    chunk_pair_s: float = 0.0

    def __call__(self, plan: StepPlan) -> float:
        body_s = max(self.weights_s, self.token_s * plan.num_tokens)
        return (
            self.step_s
            + body_s
            + self.context_token_s * plan.num_context_tokens
            + self.chunk_pair_s * plan.num_chunk_pairs
        )


CPU_LIKE = LinearCost(0.006, 0.00035, 0.5e-6, 0.00045, 15e-9)
GPU_LIKE = RooflineCost(0.002, 0.008, 40e-6, 20e-9, 1e-9)

Cost = Callable[[StepPlan], float]


@dataclass(slots=True)
class _Ready:
    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


@dataclass(slots=True)
class VirtualExecutor:
    """Computes nothing: remembers the plan, whose cost is the step's length, and answers token 0."""

    plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> _Ready:
        self.plan = plan
        return _Ready(StepResult([0] * (len(plan.decodes) + sum(1 for chunk in plan.chunks if chunk.samples))))


@dataclass(slots=True)
class Served:
    """What became of one request: when each of its tokens came, all choices together, and how it ended."""

    request: Request
    token_times: list[float] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    refused: ChairliftError | None = None

    @property
    def ttft_s(self) -> float:
        """Infinite if no token came."""
        return self.token_times[0] - self.request.arrival if self.token_times else math.inf


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step as it was driven."""

    begun: float
    ended: float
    num_decodes: int
    num_chunk_tokens: int


class VirtualEngine:
    """Drives an engine from one event to the next: arrivals, ends of steps, and the times the scheduler asks for.

    `noise` is the standard deviation of the logarithm of what multiplies a step's cost.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: Cost,
        *,
        noise: float = 0.0,
        seed: int = 0,
        on_step: Callable[[StepPlan, StepOutput, float, float], None] | None = None,
    ) -> None:
        self.now = 0.0
        self.served: dict[int, Served] = {}
        self.steps: list[StepTrace] = []
        self._executor = VirtualExecutor()
        self.engine = Engine(scheduler, self._executor)
        self._cost = cost
        self._noise = noise
        self._random = random.Random(seed)
        self._on_step = on_step

    def run(self, arrivals: Iterable[Request], until: float = math.inf) -> None:
        """Serve requests as they arrive, until all are over or the clock has come to `until`. May be called again.

        Raises:
            RuntimeError: there is work, and nothing will ever be done about it.
        """
        queue = sorted(arrivals, key=lambda request: request.arrival, reverse=True)
        while self.now < until:
            self._take_arrived(queue)
            if self._step(queue):
                continue
            self._record(self.engine.flush(self.now), self.now)
            wake = self._wake_at()
            if queue and queue[-1].arrival < wake:
                wake = queue[-1].arrival
            if wake == math.inf:
                if self.engine.has_work:
                    raise RuntimeError("there is work, and nothing will ever be done about it")
                return
            if wake <= self.now:
                raise RuntimeError("the scheduler wants to be woken now, and then does nothing")
            self.now = min(wake, until)

    def _wake_at(self) -> float:
        when = self.engine.wake_at()
        return math.inf if when is None else when

    def _take_arrived(self, queue: list[Request]) -> None:
        while queue and queue[-1].arrival <= self.now:
            request = queue.pop()
            served = self.served[request.id] = Served(request)
            try:
                self.engine.add(request)
            except ChairliftError as error:
                served.refused = error

    def _step(self, queue: list[Request]) -> bool:
        """One step, with what arrives while it is computed. False if there is nothing to compute."""
        begun = self.now
        if not self.engine.begin(begun):
            return False
        plan = self._executor.plan
        if plan is None:
            raise RuntimeError("a step was begun without a plan")
        factor = math.exp(self._random.gauss(0.0, self._noise)) if self._noise else 1.0
        self.now = begun + self._cost(plan) * factor
        self._take_arrived(queue)
        output = self.engine.finish(self.now)
        self.steps.append(StepTrace(begun, self.now, len(plan.decodes), plan.num_chunk_tokens))
        self._record(output, self.now)
        if self._on_step is not None:
            self._on_step(plan, output, begun, self.now)
        return True

    def _record(self, output: StepOutput, now: float) -> None:
        for request_id, _ in output.keys:
            self.served[request_id].token_times.append(now)
        for finish in output.finishes:
            self.served[finish.id].finishes.append(finish)

    # ------------------------------------------------------------ what came of it

    def inter_token_latencies(self, since: float = 0.0, until: float = math.inf) -> list[float]:
        """Gaps between tokens of requests with one choice, ascending, in seconds, by when the later one came."""
        gaps = [
            later - earlier
            for served in self.served.values()
            if served.request.n == 1
            for earlier, later in pairwise(served.token_times)
            if since <= later < until
        ]
        return sorted(gaps)

    def ttfts(self, since: float = 0.0, until: float = math.inf) -> list[float]:
        """Times to first token, ascending, in seconds, of the requests that arrived in that time and got one."""
        return sorted(
            served.ttft_s
            for served in self.served.values()
            if served.token_times and since <= served.request.arrival < until
        )

    def num_tokens(self, since: float = 0.0, until: float = math.inf) -> int:
        """Output tokens that came in that time."""
        return sum(since <= time < until for served in self.served.values() for time in served.token_times)


def virtual_scheduler(
    max_num_seqs: int, max_num_batched_tokens: int, num_blocks: int = 65536, policy: Policy | None = None
) -> Scheduler:
    """A scheduler for this driver, with a cache that does not run out."""
    return Scheduler(
        Limits(max_num_seqs, max_num_batched_tokens, max_model_len=8192),
        CacheShape(num_blocks, 16),
        vocab_size=VOCAB_SIZE,
        enable_prefix_caching=False,
        policy=Policy() if policy is None else policy,
    )


def virtual_request(request_id: int, arrival: float, num_prompt: int, num_output: int) -> Request:
    """Asks for exactly `num_output` tokens."""
    return Request(request_id, [1] * num_prompt, SamplingParams(max_tokens=num_output, ignore_eos=True), arrival)


def poisson_arrivals(
    phases: Iterable[tuple[float, float]],
    *,
    seed: int,
    mean_prompt: float,
    mean_output: float,
    spread: float = 0.6,
) -> list[Request]:
    """Requests at random times, the rate changing from phase to phase of (seconds, requests a second).

    Lengths are log-normal with the given means; `spread` is the standard deviation of their logarithms.
    """
    rng = random.Random(seed)
    requests: list[Request] = []
    begin = 0.0
    for duration, rate in phases:
        now = begin
        while (now := now + rng.expovariate(rate)) < begin + duration:
            sizes = (
                max(1, round(mean * rng.lognormvariate(-spread * spread / 2, spread)))
                for mean in (mean_prompt, mean_output)
            )
            num_prompt, num_output = (min(size, 4000) for size in sizes)
            requests.append(virtual_request(len(requests), now, num_prompt, num_output))
        begin += duration
    return requests


def percentile_of(values: list[float], percent: float) -> float:
    """Of ascending values; 0 if there are none."""
    return percentile(values, percent) if values else 0.0
