"""Who may join by the peak of what all hold at one time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy
from chairlift.core.types import StepOutput, StepPlan
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.result import Result
from chairlift.sim.router import RoundRobin
from chairlift.sim.rules.peak import PeakTokens, peak_tokens
from chairlift.sim.run import simulate
from sim.worlds import TokenLog, asked, random_setup, random_workload

POOL = 100
COST = PlainCost(1.0)


def step_by_step(sequences: list[tuple[int, int]]) -> int:
    """Every sequence gets a token a step, and is gone after its last."""
    peak, live = 0, [list(one) for one in sequences]
    while live:
        peak = max(peak, sum(now for now, _ in live))
        live = [[now + 1, most] for now, most in live if now < most]
    return peak


@pytest.mark.parametrize("seed", range(50))
def test_the_peak_is_what_stepping_finds(seed: int) -> None:
    rng = Random(seed)
    sequences = []
    for _ in range(rng.randint(1, 8)):
        now = rng.randint(1, 30)
        sequences.append((now, now + rng.randint(0, 30)))
    assert peak_tokens(sequences) == step_by_step(sequences)
    assert peak_tokens(reversed(sequences)) == peak_tokens(sequences)


def test_nobody_holds_nothing() -> None:
    assert peak_tokens([]) == 0


@pytest.mark.parametrize("values", [(0, 0), (-1, 0), (10, -1), (10, 0, -1)])
def test_what_makes_no_sense_is_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOption):
        PeakTokens(*values)


class Pool:
    """Watches what all hold, and who joins when."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}
        self.most = 0
        self.joins: list[int] = []
        """For each step how many joined in it."""
        self.decodes: list[int] = []

    @property
    def join_steps(self) -> list[int]:
        return [step for step, number in enumerate(self.joins) if number]

    def __call__(self, plan: StepPlan, output: StepOutput, begun: float, ended: float) -> None:
        self.joins.append(len(plan.joins))
        self.decodes.append(len(plan.decodes))
        for join in plan.joins:
            self.held[join.request.id, join.choice] = len(join.tokens)
        for key in output.keys:
            self.held[key] += 1
        # Who got a token has it in the cache after the next step.
        self.most = max(self.most, sum(self.held.values()) - len(self.held))
        for finish in output.finishes:
            del self.held[finish.id, finish.choice]


def run(rule: PeakTokens | None, pool: Pool, *, reserves_max: bool = False, apart_s: float = 0.0) -> Result:
    """60 requests of 10 and 10 tokens, in a cache of 100 tokens, on an engine whose steps take a second."""
    policy = Policy(
        prefill_first=True,
        enable_chunked_prefill=False,
        kv_reservation="max" if reserves_max else "on-demand",
        watermark=0.0,
        max_bypass=0,
    )
    setup = EngineSetup(
        cost=COST, num_blocks=POOL, block_size=1, enable_prefix_caching=False, policy=policy, join_rule=rule
    )
    starts = [0.0, 5.0, *(10.0 + apart_s * number for number in range(58))]
    workload = [asked(arrival, 10, 10, content) for content, arrival in enumerate(starts, 1)]
    return simulate(workload, [setup.replica("engine", on_step=pool)], RoundRobin())


def test_more_run_than_with_the_longest_kept_and_nobody_is_preempted() -> None:
    pool, kept, free = Pool(), Pool(), Pool()
    result = run(PeakTokens(POOL), pool)
    run(None, kept, reserves_max=True)
    grown = run(None, free)
    assert max(kept.decodes) == 5 < max(pool.decodes)
    assert 80 < pool.most <= POOL
    assert len(result.completed) == 60
    assert result.replicas[0].scheduler.stats().num_preemptions == 0
    assert grown.replicas[0].scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize(("owners", "fit"), [("aaaaa", 4), ("ababa", 4), ("abcde", 3)])
def test_each_principal_takes_room_besides(owners: str, fit: int) -> None:
    """Of 100 tokens each takes 10: three of 19 fit beside three principals, a fourth beside two."""
    pool, rule = Pool(), PeakTokens(POOL, owner_tokens=10)
    policy = Policy(prefill_first=True, watermark=0.0, max_bypass=0)
    setup = EngineSetup(cost=COST, num_blocks=200, block_size=1, policy=policy, join_rule=rule)
    workload = [replace(asked(0.0, 10, 10, content), principal=owner) for content, owner in enumerate(owners, 1)]
    simulate(workload, [setup.replica("engine", on_step=pool)], RoundRobin())
    assert pool.joins[0] == fit


def test_joins_are_so_many_decodes_apart() -> None:
    """Of requests that come one by one, those who came meanwhile join together."""
    patient, eager = Pool(), Pool()
    run(PeakTokens(POOL, 4), patient, apart_s=1.0)
    run(PeakTokens(POOL), eager, apart_s=1.0)
    assert min(later - earlier for earlier, later in pairwise(patient.join_steps)) == 5
    assert min(later - earlier for earlier, later in pairwise(eager.join_steps)) == 1
    assert max(patient.joins) > 2


def test_the_first_of_the_line_is_waited_for() -> None:
    """One that does not fit yet keeps those behind it out, however small, where nobody may be passed."""
    policy = Policy(prefill_first=True, watermark=0.0, max_bypass=0)
    setup = EngineSetup(cost=COST, num_blocks=200, block_size=1, policy=policy, join_rule=PeakTokens(POOL))
    workload = [asked(0.0, 60, 20, 1), asked(1.0, 60, 20, 2), asked(2.0, 1, 1, 3)]
    first, large, small = simulate(workload, [setup.replica("engine")], RoundRobin()).served
    assert first.finished is not None and large.first_token is not None and small.first_token is not None
    assert first.finished < large.first_token <= small.first_token


@pytest.mark.parametrize("seed", range(12))
def test_skipping_quiet_steps_changes_nothing_under_a_rule(seed: int) -> None:
    """A rule may change its mind at any step: those in which somebody waits for it are taken one by one."""
    setup = random_setup(Random(seed))
    results = []
    for log in (None, TokenLog()):
        # The engine with a listener steps through everything.
        ruled = EngineSetup(
            cost=setup.cost,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            enable_prefix_caching=setup.enable_prefix_caching,
            policy=setup.policy,
            join_rule=PeakTokens(setup.num_blocks * setup.block_size // 2, seed % 3),
        )
        results.append(simulate(random_workload(seed), [ruled.replica("engine", on_step=log)], RoundRobin()))
    quick, slow = results
    assert [served.finishes for served in quick.served] == [served.finishes for served in slow.served]
    assert quick.replicas[0].tally == slow.replicas[0].tally
