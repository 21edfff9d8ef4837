"""Load that doubles half-way and halves again, served by the real scheduler on a virtual clock: steered or fixed.

What is compared is what an objective is about: in each phase, after a short time to settle, the 99th percentile of the
inter-token latencies; and the output tokens per second while the load is more than the device can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.core.policy import Policy
from chairlift.core.types import Request
from virtual_engine import (
    CPU_LIKE,
    GPU_LIKE,
    Cost,
    VirtualEngine,
    percentile_of,
    poisson_arrivals,
    virtual_scheduler,
)

NOISE = 0.05
"""Standard deviation of the logarithm of what multiplies a step's seconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """A device and what is asked of it: phases of (seconds, requests a second), the second one an overload."""

    cost: Cost
    phases: tuple[tuple[float, float], ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    mean_prompt: float = 128
    mean_output: float = 96
    settle_s: float = 3.0

    @property
    def duration_s(self) -> float:
        return sum(seconds for seconds, _ in self.phases)

    def requests(self, seed: int) -> list[Request]:
        return poisson_arrivals(self.phases, seed=seed, mean_prompt=self.mean_prompt, mean_output=self.mean_output)


CPU_LOAD = Load(CPU_LIKE, ((40.0, 5.0), (40.0, 10.0), (40.0, 5.0)), 256, 2048)
GPU_LOAD = Load(GPU_LIKE, ((30.0, 60.0), (30.0, 120.0), (30.0, 60.0)), 1024, 8192)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in seconds; of phases, the first entry is the first phase."""

    setting: str
    p99_itl_s: tuple[float, ...]
    """In each phase, once settled."""
    p99_itl_overall_s: float
    """Of everything, transitions too."""
    p50_ttft_s: tuple[float, ...]
    tokens_per_s: float
    """Output tokens per second in the second phase, once settled."""
    tokens_per_s_overall: float
    """Output tokens per second from the first phase to the end of the last."""

    def holds(self, objective_s: float) -> bool:
        """Whether the 99th percentile is within an objective in every phase."""
        return max(self.p99_itl_s) <= objective_s


def serve(load: Load, requests: Sequence[Request], driver: VirtualEngine, setting: str) -> Outcome:
    """Run the load to the end of its last phase; what then still waits is left."""
    driver.run(requests, until=load.duration_s)
    spans, begin = [], 0.0
    for seconds, _ in load.phases:
        spans.append((begin + load.settle_s, begin + seconds))
        begin += seconds
    since, until = spans[1]
    return Outcome(
        setting,
        tuple(percentile_of(driver.inter_token_latencies(*span), 99.0) for span in spans),
        percentile_of(driver.inter_token_latencies(), 99.0),
        tuple(percentile_of(driver.ttfts(*span), 50.0) for span in spans),
        driver.num_tokens(since, until) / (until - since),
        driver.num_tokens(0.0, load.duration_s) / load.duration_s,
    )


def steered_driver(load: Load, policy: Policy, seed: int) -> VirtualEngine:
    scheduler = virtual_scheduler(load.max_num_seqs, load.max_num_batched_tokens, policy=policy)
    return VirtualEngine(scheduler, load.cost, noise=NOISE, seed=seed)


def serve_steered(load: Load, requests: Sequence[Request], objective_s: float, seed: int) -> Outcome:
    driver = steered_driver(load, Policy(itl_objective_s=objective_s, max_step_s=0.25), seed)
    return serve(load, requests, driver, f"objective {objective_s * 1e3:.0f} ms")


def sweep_fixed(
    load: Load, requests: Sequence[Request], settings: Iterable[tuple[int, int]], seed: int
) -> list[Outcome]:
    """One run for each (max_num_seqs, prompt tokens that a step can hold beside full decodes)."""
    outcomes = []
    for num_seqs, num_prompt_tokens in settings:
        driver = VirtualEngine(
            virtual_scheduler(num_seqs, num_seqs + num_prompt_tokens), load.cost, noise=NOISE, seed=seed
        )
        outcomes.append(serve(load, requests, driver, f"{num_seqs} seqs, {num_prompt_tokens} tokens"))
    return outcomes


def best_fixed(outcomes: Iterable[Outcome], objective_s: float) -> Outcome | None:
    """The fastest of those that hold an objective."""
    holding = [outcome for outcome in outcomes if outcome.holds(objective_s)]
    return max(holding, key=lambda outcome: outcome.tokens_per_s, default=None)
