"""Engines for a run, made from what they are told: every run, and every point of a search, gets fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.core.engine import Observer, Recorder
from chairlift.core.planner import JoinRule
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits
from chairlift.sim.cost.changing import for_one_engine
from chairlift.sim.cost.model import CostModel
from chairlift.sim.cost.noise import NoisyCost
from chairlift.sim.keys import KeyMaker
from chairlift.sim.replica import Replica, StepListener
from chairlift.sim.workload import VOCAB_SIZE

MAX_ENGINES = 4096

Follow = Callable[[str, Scheduler], Observer]
"""Makes who hears of every step of an engine, given its name and scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """One kind of engine: what its scheduler may do, the cache it has, and what its steps cost.

    `noise` is the standard deviation of the logarithm of what multiplies each step's cost, or `deviations` are what
    that is drawn from (see `NoisyCost`).
    """

    cost: CostModel
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1 << 20
    num_blocks: int = 1 << 16
    block_size: int = 16
    enable_prefix_caching: bool = True
    policy: Policy = field(default_factory=Policy)
    noise: float = 0.0
    deviations: tuple[float, ...] = ()
    join_rule: JoinRule | None = None
    """Of an engine that lets others join than ours does: see `sim/rules`."""
    takes_block_keys: bool = True
    """Whether prompts of numbered contents need not be spelled with tokens, which changes nothing but the time."""

    def scheduler(self) -> Scheduler:
        """Raises InvalidOption for limits that go with nothing."""
        return Scheduler(
            Limits(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len),
            CacheShape(self.num_blocks, self.block_size),
            vocab_size=VOCAB_SIZE,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=self.policy,
            join_rule=self.join_rule,
            takes_block_keys=self.takes_block_keys,
        )

    def replica(
        self,
        name: str,
        *,
        noise_seed: int = 0,
        recorder: Recorder | None = None,
        on_step: StepListener | None = None,
        scheduler: Scheduler | None = None,
        keys: KeyMaker | None = None,
    ) -> Replica:
        """An engine that has served nothing yet, on `scheduler` if somebody else must know it too. Only engines that
        have their `keys` from one maker can serve together what comes with keys."""
        cost = for_one_engine(self.cost)
        if self.noise or self.deviations:
            cost = NoisyCost(cost, self.noise, noise_seed, self.deviations)
        return Replica(
            name,
            self.scheduler() if scheduler is None else scheduler,
            cost,
            recorder=recorder,
            on_step=on_step,
            keys=KeyMaker(self.block_size) if keys is None else keys,
        )


def make_fleet(
    setups: Sequence[EngineSetup], seed: int = 0, follow: Follow | None = None, names: Sequence[str] = ()
) -> list[Replica]:
    """One engine of each setup, each with noise of its own; `follow` makes who hears of it. Without names they have
    that of their place."""
    fleet = []
    keys = {setup.block_size: KeyMaker(setup.block_size) for setup in setups}
    for i, setup in enumerate(setups):
        name, scheduler = names[i] if names else f"engine-{i}", setup.scheduler()
        on_step = None if follow is None else follow(name, scheduler).on_step
        fleet.append(
            setup.replica(
                name, noise_seed=(seed << 16) + i, on_step=on_step, scheduler=scheduler, keys=keys[setup.block_size]
            )
        )
    return fleet


def pool_names(num_prefill: int, num_decode: int) -> list[str]:
    """Of the engines of two pools."""
    return [*(f"prefill-{i}" for i in range(num_prefill)), *(f"decode-{i}" for i in range(num_decode))]
