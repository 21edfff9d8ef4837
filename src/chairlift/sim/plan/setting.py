"""What the planner may choose: limits and order of each engine, and the fleet they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from chairlift.core.errors import InvalidOption
from chairlift.core.policy import OrderName
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.disaggregated import DisaggregatedSimulation, Link
from chairlift.sim.fleet import MAX_ENGINES, EngineSetup, make_fleet, pool_names
from chairlift.sim.router import make_router
from chairlift.sim.run import Simulation
from chairlift.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines of one kind behind a router. With a `split` so many compute prompts and so many decode, each pool behind
    a router of its own."""

    num_replicas: int = 1
    router: str = "least-queued"
    split: tuple[int, int] | None = None

    @property
    def num_engines(self) -> int:
        return self.num_replicas if self.split is None else sum(self.split)


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the search."""

    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling_policy: OrderName = "fcfs"
    fleet: Fleet = Fleet()

    @property
    def resources(self) -> tuple[int, int, int]:
        """What costs memory or money."""
        return self.fleet.num_engines, self.max_num_seqs, self.max_num_batched_tokens

    def needs_no_more_than(self, other: Setting) -> bool:
        """Of any resource."""
        return all(mine <= theirs for mine, theirs in zip(self.resources, other.resources, strict=True))

    def setup(self, base: EngineSetup, step_factor: float = 1.0) -> EngineSetup:
        """Each of its engines, otherwise like `base`, with steps `step_factor` times as long."""
        return replace(
            base,
            cost=scaled(base.cost, step_factor),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            policy=replace(base.policy, scheduling_policy=self.scheduling_policy),
        )

    def simulation(
        self, workload: Workload, base: EngineSetup, link: Link | None, seed: int, step_factor: float = 1.0
    ) -> Simulation | DisaggregatedSimulation:
        """A run of a workload that has not begun.

        Raises:
            InvalidOption: pools without a link between them.
        """
        setup, fleet = self.setup(base, step_factor), self.fleet
        if fleet.split is None:
            return Simulation(workload, make_fleet([setup] * fleet.num_replicas, seed), make_router(fleet.router))
        if link is None:
            raise InvalidOption("prefill and decode pools need a link between them")
        num_prefill, num_decode = fleet.split
        decode = replace(setup, enable_prefix_caching=True)
        engines = make_fleet([setup] * num_prefill + [decode] * num_decode, seed, names=pool_names(*fleet.split))
        routers = make_router(fleet.router), make_router(fleet.router)
        return DisaggregatedSimulation(workload, engines[:num_prefill], engines[num_prefill:], link, routers)


@dataclass(frozen=True, slots=True)
class Space:
    """What is tried. Every combination that a scheduler takes, though not each with every fleet; see `plan/search.py`.

    Raises:
        InvalidOption: nothing to try, or a number out of range.
    """

    max_num_seqs: tuple[int, ...]
    max_num_batched_tokens: tuple[int, ...]
    policies: tuple[OrderName, ...] = ("fcfs",)
    fleets: tuple[Fleet, ...] = (Fleet(),)

    def __post_init__(self) -> None:
        if not self.policies or not self.fleets or not self.limits:
            raise InvalidOption("no settings to try: max_num_batched_tokens must be at least max_num_seqs")
        if min(*self.max_num_seqs, *self.max_num_batched_tokens) < 1:
            raise InvalidOption("max_num_seqs and max_num_batched_tokens must be at least 1")
        for fleet in self.fleets:
            sizes = fleet.split or (fleet.num_replicas,)
            if min(sizes) < 1 or fleet.num_engines > MAX_ENGINES:
                raise InvalidOption(f"a fleet has at least 1 engine in each pool, and at most {MAX_ENGINES}")

    @property
    def limits(self) -> list[tuple[int, int]]:
        """Pairs of max_num_seqs and max_num_batched_tokens, each after all that need no more of both."""
        pairs = product(sorted(set(self.max_num_seqs)), sorted(set(self.max_num_batched_tokens)))
        return [(num_seqs, num_tokens) for num_seqs, num_tokens in pairs if num_seqs <= num_tokens]


def fleets(replicas: Sequence[int], routers: Sequence[str], splits: Sequence[tuple[int, int]]) -> tuple[Fleet, ...]:
    """Every number of engines with every router, the smallest first. One engine needs none."""
    found: dict[Fleet, None] = {}
    for num in sorted(set(replicas)):
        for router in routers if num > 1 else routers[:1]:
            found[Fleet(num, router)] = None
    for split in sorted(set(splits), key=lambda pools: (sum(pools), pools)):
        for router in routers if max(split) > 1 else routers[:1]:
            found[Fleet(1, router, split)] = None
    return tuple(sorted(found, key=lambda fleet: fleet.num_engines))
