"""Tenants that share an engine on the virtual clock, and what each of them got."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from chairlift.core.policy import OrderName, Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, StepOutput, StepPlan
from virtual_engine import VOCAB_SIZE, Cost, VirtualEngine, percentile_of, virtual_request

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0

Sizes = Callable[[random.Random], tuple[int, int]]
"""Prompt and output tokens of a request."""


def fixed_sizes(rng: random.Random) -> tuple[int, int]:
    """Of the experiment in figure 3 of Sheng et al. 2024."""
    return 256, 256


def chat_sizes(rng: random.Random) -> tuple[int, int]:
    return _log_normal(rng, 55, 0.7), _log_normal(rng, 30, 0.8)


def uneven_sizes(rng: random.Random) -> tuple[int, int]:
    return _log_normal(rng, 90, 1.0), _log_normal(rng, 30, 1.0)


def _log_normal(rng: random.Random, median: float, sigma: float) -> int:
    return max(1, min(500, int(median * rng.lognormvariate(0.0, sigma))))


def arrivals(
    rates: Mapping[str, float], duration_s: float, sizes: Sizes, *, seed: int, num_at_once: int = 0
) -> list[Request]:
    """Each principal asks at its rate, at random; the first `num_at_once` of each come together at the start."""
    rng = random.Random(seed)
    asked: list[tuple[float, str, int, int]] = []
    for name, rate in rates.items():
        asked += [(0.0, name, *sizes(rng)) for _ in range(num_at_once)]
        now = 0.0
        while (now := now + rng.expovariate(rate)) < duration_s:
            asked.append((now, name, *sizes(rng)))
    asked.sort()
    return [
        replace(virtual_request(number, now, num_prompt, num_output), principal=name)
        for number, (now, name, num_prompt, num_output) in enumerate(asked)
    ]


@dataclass(slots=True)
class Shares:
    """What each principal got, weighted as fairness weighs it, and how long they waited."""

    service: dict[str, float]
    asked: dict[str, float]
    ttfts: dict[str, list[float]]
    """Ascending, in seconds; infinite for those whose first token did not come."""
    max_gap: float = 0.0
    """Largest difference of service between two principals since both had requests waiting."""
    _since: tuple[float, ...] | None = field(default=None, repr=False)

    @property
    def jain(self) -> float:
        """Jain's index of what they got: 1 if all got the same."""
        values = list(self.service.values())
        return sum(values) ** 2 / len(values) / sum(value * value for value in values)

    def least_share(self, names: list[str]) -> float:
        """Least of what one of `names` got, relative to its fair share or to what it asked for if that was less."""
        fair = sum(self.service.values()) / len(self.service)
        return min(self.service[name] / min(fair, self.asked[name]) for name in names)

    def ttft_s(self, names: list[str], percent: float) -> float:
        """Infinite if that many never got their first token."""
        ttft_s = percentile_of(sorted(ttft for name in names for ttft in self.ttfts[name]), percent)
        return math.inf if math.isnan(ttft_s) else ttft_s


def serve(
    requests: list[Request],
    order: OrderName,
    cost: Cost,
    *,
    until_s: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> Shares:
    """Serve requests until the clock has come to `until_s`."""
    scheduler = Scheduler(
        Limits(max_num_seqs, max_num_batched_tokens, max_model_len=8192),
        CacheShape(num_blocks=65536, block_size=16),
        vocab_size=VOCAB_SIZE,
        enable_prefix_caching=False,
        policy=Policy(scheduling_policy=order, input_token_weight=INPUT_WEIGHT, output_token_weight=OUTPUT_WEIGHT),
    )
    names = sorted({request.principal for request in requests})
    by_id = {request.id: request for request in requests}
    shares = Shares(dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), {name: [] for name in names})

    def on_step(plan: StepPlan, output: StepOutput, begun: float, ended: float) -> None:
        for joined in output.joined:
            shares.service[by_id[joined].principal] += INPUT_WEIGHT * len(by_id[joined].prompt)
        for request_id, _ in output.keys:
            shares.service[by_id[request_id].principal] += OUTPUT_WEIGHT
        waiting = {sequence.owner[0] for sequence in scheduler._waiting}
        if len(waiting) < len(names):
            shares._since = None
            return
        now = tuple(shares.service.values())
        since = shares._since = shares._since or now
        grown = [after - before for before, after in zip(since, now, strict=True)]
        shares.max_gap = max(shares.max_gap, max(grown) - min(grown))

    driver = VirtualEngine(scheduler, cost, on_step=on_step)
    driver.run(requests, until=until_s)
    for request in requests:
        if request.arrival < 0.9 * until_s:  # the last ones are still being served
            num_output = request.params.max_tokens or 0
            shares.asked[request.principal] += INPUT_WEIGHT * len(request.prompt) + OUTPUT_WEIGHT * num_output
            shares.ttfts[request.principal].append(driver.served[request.id].ttft_s)
    return shares


def largest_request(requests: list[Request]) -> float:
    """Service of the largest request."""
    return max(INPUT_WEIGHT * len(r.prompt) + OUTPUT_WEIGHT * (r.params.max_tokens or 0) for r in requests)
