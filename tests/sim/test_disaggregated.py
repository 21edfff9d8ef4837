"""Prefill and decode pools: the same tokens as without, and later by what the transfer takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.prefix import block_content, chain_key, root_key
from chairlift.core.types import FinishReason, Request, SamplingParams
from chairlift.metrics.latency import itls
from chairlift.sim.arrivals import Arrivals, steady
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.disaggregated import DisaggregatedSimulation, Link, land
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.lengths import Fixed, Uniform
from chairlift.sim.plan.objectives import Objectives
from chairlift.sim.plan.offered import Offered
from chairlift.sim.plan.search import Search
from chairlift.sim.plan.setting import Fleet, Space
from chairlift.sim.plan.trial import Stage
from chairlift.sim.result import Result, e2e_s, figures, is_completed, request_figures, ttft_s
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traffic import Kind, open_loop
from chairlift.sim.workload import Asked, Contents, Part, Workload, blocks

STEP_S = 0.01
SETUP = EngineSetup(cost=PlainCost(STEP_S), max_num_seqs=16, max_num_batched_tokens=512, num_blocks=4096)
INSTANT = Link(token_bytes=1000)


def asked(arrival: float, num_prompt: int, num_output: int, content: int = 1) -> Asked:
    return Asked(arrival=arrival, prompt=blocks(Part(content, content, num_prompt)), num_output=num_output)


def load(number: int = 60, rate: float = 10.0, num_turns: int = 1) -> Workload:
    kind = Kind(prompt=Uniform(1, 200), output=Uniform(1, 30), turns=Fixed(num_turns), think_s=0.5)
    return open_loop(kind, Arrivals(steady(rate)), Contents(), 0, number)


def run(
    workload: Workload, link: Link = INSTANT, pools: tuple[int, int] = (1, 1), setup: EngineSetup = SETUP
) -> tuple[Result, DisaggregatedSimulation]:
    simulation = DisaggregatedSimulation(
        workload, make_fleet([setup] * pools[0]), make_fleet([setup] * pools[1]), link, (RoundRobin(), RoundRobin())
    )
    simulation.run()
    return simulation.result(), simulation


def alone(workload: Workload) -> Result:
    return simulate(workload, make_fleet([SETUP]), RoundRobin())


def times(result: Result, place: int = 0) -> list[float]:
    return result.token_times(result.served[place])


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 100, 160])
def test_with_an_instant_link_one_request_gets_its_tokens_when_it_would_without(num_prompt: int) -> None:
    work = [asked(1.0, num_prompt, 8)]
    result, _ = run(work)
    assert times(result) == pytest.approx(times(alone(work)))
    assert figures(result)["mean_itl_ms"] == pytest.approx(figures(alone(work))["mean_itl_ms"])


@pytest.mark.parametrize("pools", [(1, 1), (2, 1), (1, 3)])
def test_every_request_gets_as_many_tokens_as_without_pools(pools: tuple[int, int]) -> None:
    result, simulation = run(load(), Link(token_bytes=1000, bandwidth=1e6, latency_s=0.02), pools)
    expected = alone(load())
    assert [served.num_output_tokens for served in result.served] == [
        served.num_output_tokens for served in expected.served
    ]
    for served, other in zip(result.served, expected.served, strict=True):
        assert is_completed(served)
        finish, wanted = served.finishes[0], other.finishes[0]
        assert (finish.id, finish.reason, finish.arrival) == (served.id, wanted.reason, wanted.arrival)
        assert finish.num_prompt_tokens == wanted.num_prompt_tokens
        assert len(times(result, served.id)) == served.num_output_tokens
        assert times(result, served.id)[0] == served.first_token == finish.first_token
        assert times(result, served.id)[-1] == served.finished
    assert simulation.num_lost_tokens == 0


def test_the_second_token_is_later_by_exactly_the_transfer_and_the_first_is_not() -> None:
    link = Link(token_bytes=2000, bandwidth=1e7, latency_s=0.003)
    for num_prompt in (7, 100, 321):
        work = [asked(0.0, num_prompt, 5)]
        instant, real = times(run(work)[0]), times(run(work, link)[0])
        assert real[0] == instant[0]
        delay = num_prompt * 2000 / 1e7 + 0.003
        assert [later - sooner for sooner, later in zip(instant[1:], real[1:], strict=True)] == pytest.approx(
            [delay] * 4
        )


def test_the_gap_before_the_second_token_is_counted_once() -> None:
    result, simulation = run(load(), Link(token_bytes=1000, bandwidth=1e6, latency_s=0.02))
    gaps = [gap for served in result.served for gap in itls(times(result, served.id))]
    counted = result.inter_token_latencies
    assert len(counted) == len(gaps)
    assert sum(counted) == pytest.approx(sum(gaps))
    assert len(simulation.result().inter_token_latencies) == len(gaps)


def test_a_decode_engine_computes_less_than_a_block_of_each_prompt() -> None:
    work = [asked(0.0, 100, 5, content=1), asked(0.0, 96, 5, content=2)]
    _, simulation = run(work)
    decode = simulation.simulation.replicas[1]
    assert decode.tally.num_chunk_tokens == (100 % 16 + 1) + (96 % 16 + 1)
    assert simulation.simulation.replicas[0].tally.num_chunk_tokens == 196


def test_steps_that_are_skipped_change_nothing() -> None:
    link = Link(token_bytes=1000, bandwidth=1e6, latency_s=0.02)
    setup = replace(SETUP, cost=PlainCost(STEP_S, 1e-4, 1e-7, 2e-5))

    def served(skips: bool) -> list[list[float]]:
        heard: list[float] = []
        listener = None if skips else lambda plan, output, begun, ended: heard.append(ended)
        engines = [setup.replica(f"{i}", on_step=listener) for i in range(3)]
        simulation = DisaggregatedSimulation(
            load(80, 6.0), engines[:1], engines[1:], link, (RoundRobin(), RoundRobin())
        )
        simulation.run()
        assert skips or len(heard) == sum(engine.tally.num_steps for engine in engines)
        result = simulation.result()
        return [times(result, served.id) for served in result.served]

    assert served(skips=True) == served(skips=False)


def test_pools_of_several_engines_share_the_work() -> None:
    _, simulation = run(load(), pools=(2, 3))
    assert all(replica.tally.num_steps for replica in simulation.simulation.replicas)
    assert all(r.tally.num_chunk_tokens for r in simulation.simulation.replicas[:2])


# ---------------------------------------------------------------- what else may happen


def test_an_answer_of_one_token_stays_on_the_prefill_engine() -> None:
    result, simulation = run([asked(0.0, 50, 1)])
    assert is_completed(result.served[0]) and result.served[0].replica == 0
    assert simulation.simulation.replicas[1].tally.num_steps == 0
    assert times(result) == [STEP_S]


def test_a_first_token_that_comes_too_late_is_not_handed_over() -> None:
    slow = replace(SETUP, max_num_batched_tokens=16)
    result, simulation = run([replace(asked(0.0, 160, 5), ttft_within_s=0.055)], setup=slow)
    assert result.served[0].finishes[0].reason is FinishReason.DEADLINE
    assert simulation.simulation.replicas[1].tally.num_steps == 0


def test_a_deadline_of_the_end_holds_on_the_decode_engine() -> None:
    result, _ = run([replace(asked(1.0, 16, 50), e2e_within_s=0.105)])
    finish = result.served[0].finishes[0]
    assert finish.reason is FinishReason.DEADLINE
    assert finish.finished == pytest.approx(1.11, abs=2 * STEP_S)
    assert 1 < finish.num_output_tokens < 50


def test_a_request_that_fits_nowhere_is_refused_and_named_so() -> None:
    small = replace(SETUP, max_model_len=64)
    result, _ = run([asked(0.0, 100, 5, 1), asked(0.0, 50, 30, 2), asked(0.0, 20, 5, 3)], setup=small)
    too_long, grows_too_long, fits = result.served
    assert too_long.error is not None and not is_completed(too_long)
    assert not is_completed(grows_too_long) or grows_too_long.num_output_tokens <= 14
    assert is_completed(fits)


def test_conversations_go_on_after_the_answer() -> None:
    result, _ = run(load(20, num_turns=3))
    assert len(result.served) == 60 and all(map(is_completed, result.served))
    assert sum(served.finishes[0].num_cached_tokens for served in result.served) > 0


def test_a_run_that_is_stopped_has_open_requests() -> None:
    work = [asked(0.0, 100, 50)]
    simulation = DisaggregatedSimulation(
        work, make_fleet([SETUP]), make_fleet([SETUP]), Link(token_bytes=1, latency_s=1.0), (RoundRobin(), RoundRobin())
    )
    for until, num_tokens in ((0.005, 0), (0.5, 1), (1.1, 1)):
        simulation.run(until)
        (served,) = simulation.result().served
        assert not served.is_over and not is_completed(served)
        assert (served.first_token is not None) == (num_tokens > 0)
        assert request_figures(simulation.result(), served)["finished"] is None
    simulation.run()
    (served,) = simulation.result().served
    assert is_completed(served) and served.num_output_tokens == 50
    assert ttft_s(served) == STEP_S and e2e_s(served) == pytest.approx(1.0 + 50 * STEP_S)


def test_what_is_lost_of_transfers_into_a_full_cache_is_counted_and_computed_again() -> None:
    tight = replace(SETUP, max_num_seqs=2, num_blocks=20)
    link = Link(token_bytes=1)
    prefill = make_fleet([replace(SETUP, num_blocks=4096)])
    simulation = DisaggregatedSimulation(
        [asked(0.0, 128, 40, content) for content in range(1, 9)],
        prefill,
        make_fleet([tight]),
        link,
        (RoundRobin(), RoundRobin()),
    )
    simulation.run()
    assert all(map(is_completed, simulation.result().served))
    assert simulation.num_lost_tokens > 0
    decode = simulation.simulation.replicas[1]
    assert decode.tally.num_chunk_tokens >= simulation.num_lost_tokens


def test_several_answers_and_empty_pools_are_refused() -> None:
    with pytest.raises(InvalidOption, match="one answer"):
        run([replace(asked(0.0, 5, 5), n=2)])
    with pytest.raises(InvalidOption, match="both pools"):
        run([], pools=(0, 1))
    for wrong in ({"token_bytes": 0}, {"bandwidth": 0.0}, {"latency_s": -1.0}, {"latency_s": math.inf}):
        with pytest.raises(InvalidOption, match="link"):
            Link(**{"token_bytes": 1, **wrong})  # type: ignore[arg-type]


# ---------------------------------------------------------------- landing


def spelled(cache_size: int, prompt: Sequence[int]) -> list[tuple[bytes, bytes, bytes]]:
    parent, found = root_key(b""), []
    for start in range(0, len(prompt) // cache_size * cache_size, cache_size):
        content = block_content(prompt[start : start + cache_size])
        found.append((chain_key(parent, content), parent, content))
        parent = found[-1][0]
    return found


def spelled_out(prompt: Sequence[int]) -> Request:
    return Request(0, prompt, SamplingParams())


def test_landing_leaves_the_cache_as_a_request_that_ended_there_does() -> None:
    landed, served = SETUP.scheduler().kv, make_fleet([replace(SETUP, takes_block_keys=False)])[0]
    simulate([asked(0.0, 100, 1)], [served], RoundRobin())
    assert land(landed, spelled_out([1] * 100), 100) == 6
    cache = served.scheduler.kv
    assert landed.pool.num_kept == cache.pool.num_kept == 6
    assert landed.pool.num_held == cache.pool.num_held == 0
    for key, parent, content in spelled(16, [1] * 100):
        assert landed.index.find(key, parent, content) is not None
        assert cache.index.find(key, parent, content) is not None
    assert land(landed, spelled_out([1] * 100), 100) == 6 and landed.pool.num_kept == 6


def test_landing_takes_no_block_that_somebody_holds() -> None:
    cache = replace(SETUP, num_blocks=5).scheduler().kv
    held = [cache.pool.take()[0] for _ in range(2)]
    assert land(cache, spelled_out(range(1, 101)), 100) == 3
    assert [cache.pool.refs(block) for block in held] == [1, 1]
    assert land(cache, spelled_out(range(201, 233)), 32) == 2
    assert len(cache.index) == cache.pool.num_kept == 3


# ---------------------------------------------------------------- plans


def test_a_plan_finds_the_pool_that_is_too_small() -> None:
    """A step of the prefill engine computes 4 prompts; a decode engine of 16 rows needs 9 steps for each answer."""
    setup = replace(SETUP, cost=PlainCost(STEP_S), num_blocks=1 << 14)
    kind = Kind(prompt=Fixed(128), output=Fixed(10))
    offered = Offered(lambda: open_loop(kind, Arrivals(steady(1.0), "constant"), Contents(), 0, 240))
    stage = Stage(offered, setup, Objectives(ttft_s=0.1, e2e_s=0.14), INSTANT)
    space = Space((16,), (512,), fleets=(Fleet(1, "round-robin", (1, 1)), Fleet(1, "round-robin", (1, 2))))
    plan = Search(stage, space, tolerance=0.02).plan()
    rates = {found.setting.fleet.split: found.rate for found in plan.found}
    assert rates[1, 1] == pytest.approx(16 / (9 * STEP_S), rel=0.07)
    assert rates[1, 2] == pytest.approx(32 / (9 * STEP_S), rel=0.07)
