"""Small simulated worlds, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

from chairlift.core.policy import Policy
from chairlift.core.types import StepOutput, StepPlan
from chairlift.sim.arrivals import Arrivals, steady
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.lengths import LogNormal, Uniform
from chairlift.sim.replica import Replica
from chairlift.sim.traffic import Kind, merged, open_loop
from chairlift.sim.workload import Asked, Contents, Part, Workload, blocks

COST = PlainCost(0.005, 0.0001, 1e-7, 0.00002)
UNIT = PlainCost(1.0)


def asked(arrival: float, num_prompt: int = 4, num_output: int = 3, content: int = 1) -> Asked:
    return Asked(arrival=arrival, prompt=blocks(Part(content, content, num_prompt)), num_output=num_output)


def random_setup(rng: Random) -> EngineSetup:
    """Any policy, in a cache that may be too small for all who run."""
    batching = rng.choice(("continuous", "continuous", "continuous", "static", "dynamic"))
    held = batching != "continuous"
    max_num_seqs = rng.choice([1, 4, 16])
    return EngineSetup(
        cost=COST,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.choice([max_num_seqs, 64, 512]),
        num_blocks=rng.choice([24, 40, 400]),
        block_size=rng.choice([4, 16]),
        enable_prefix_caching=rng.random() < 0.7,
        policy=Policy(
            batching="static" if batching == "static" else "dynamic" if held else "continuous",
            max_batch_wait_s=rng.choice([0.02, 0.1]) if held else None,
            prefill_first=not held and rng.random() < 0.3,
            scheduling_policy=rng.choice(("fcfs", "fair", "priority", "deadline")),
            long_prefill_token_threshold=rng.choice([0, 16]),
            priority_ageing_s=rng.choice([0.0, 0.5, 60.0]),
        ),
    )


def random_workload(seed: int) -> Workload:
    """Two tenants, one of them of conversations; some requests have deadlines, some are too large."""
    rng = Random(f"workload {seed}")
    contents = Contents()
    rate = rng.choice([2.0, 20.0, 200.0])
    talks = Kind(name="a", principal="a", prompt=Uniform(1, 20), output=Uniform(1, 30), turns=Uniform(1, 3), prefix=8)
    asks = Kind(
        name="b",
        principal="b",
        prompt=LogNormal(16, 1.2, 120),
        output=LogNormal(10, 1, 80),
        priority=rng.choice([0, 1]),
        ttft_within_s=rng.choice([None, 0.2]),
        e2e_within_s=rng.choice([None, 0.5]),
    )
    arrivals = Arrivals(steady(rate))
    only: list[Workload] = [
        [replace(each, n=rng.choice([1, 1, 1, 2])) for each in open_loop(asks, arrivals, contents, seed, 40)]
    ]
    if rng.random() < 0.5:
        only.append(open_loop(talks, arrivals, contents, seed, 15))
    return merged(only)


class TokenLog:
    """Writes down when each token came, one by one: the long way, to hold the short one against."""

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], list[float]] = {}

    def __call__(self, plan: StepPlan, output: StepOutput, begun: float, ended: float) -> None:
        for key in output.keys:
            self.times.setdefault(key, []).append(ended)

    def gaps(self) -> Iterator[float]:
        for times in self.times.values():
            for earlier, later in pairwise(times):
                yield later - earlier


def fleet(rng: Random, num: int, log: TokenLog | None = None) -> list[Replica]:
    return [random_setup(rng).replica(f"engine-{i}", on_step=log) for i in range(num)]
