"""The loop: what is heard when, what is noted, and that skipping quiet steps changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy
from chairlift.core.types import FinishReason
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.result import figures, request_figures
from chairlift.sim.router import ROUTERS, LeastQueued, RoundRobin, make_router
from chairlift.sim.run import Simulation, simulate
from chairlift.sim.workload import Asked
from sim.worlds import UNIT, TokenLog, asked, fleet, random_workload

SETUP = EngineSetup(cost=UNIT, max_num_seqs=2, max_num_batched_tokens=16, num_blocks=64, block_size=4)


def test_a_token_is_there_when_its_step_ends() -> None:
    result = simulate([asked(0.25)], make_fleet([SETUP]), RoundRobin())
    (served,) = result.served
    assert served.first_token == 1.25 and served.finished == 3.25
    assert result.token_times(served) == [1.25, 2.25, 3.25]


def test_who_arrives_as_a_step_ends_is_in_the_next() -> None:
    result = simulate([asked(0.0), asked(1.0), asked(1.5)], make_fleet([SETUP]), RoundRobin())
    assert [served.first_token for served in result.served] == [1.0, 2.0, 4.0]


def test_who_arrives_together_joins_together() -> None:
    result = simulate([asked(0.5), asked(0.5)], make_fleet([SETUP]), RoundRobin())
    assert [served.first_token for served in result.served] == [1.5, 1.5]


def test_a_static_batch_opens_when_nothing_more_can_come() -> None:
    setup = replace(SETUP, max_num_seqs=4, policy=Policy(batching="static"))
    again = replace(asked(0.0), follow=lambda now: [asked(now + 10.0)])
    with pytest.raises(InvalidOption, match="waits for ever"):
        simulate([again], make_fleet([setup]), RoundRobin())  # who waits for an answer cannot fill the batch
    result = simulate([asked(0.0), asked(3.0)], make_fleet([setup]), RoundRobin())
    assert [served.first_token for served in result.served] == [4.0, 4.0]


def test_what_follows_an_answer_comes_after_it() -> None:
    def follow(now: float) -> list[Asked]:
        return [asked(now + 2.0)]

    result = simulate([replace(asked(0.0), follow=follow)], make_fleet([SETUP]), RoundRobin())
    assert [served.asked.arrival for served in result.served] == [0.0, 5.0]


def test_what_follows_a_refused_request_is_asked_all_the_same() -> None:
    too_long = replace(asked(1.0, num_prompt=1000), follow=lambda now: [asked(now)])
    result = simulate([too_long], make_fleet([SETUP]), RoundRobin())
    refused, served = result.served
    assert refused.error is not None and refused.is_over and refused.finished is None
    assert served.first_token == 2.0
    assert figures(result)["refused"] == 1 and figures(result)["completed"] == 1


def test_a_deadline_ends_a_request() -> None:
    late = replace(asked(0.0, num_output=50), e2e_within_s=5.5)
    result = simulate([late], make_fleet([SETUP]), RoundRobin())
    assert [finish.reason for finish in result.served[0].finishes] == [FinishReason.DEADLINE]
    assert figures(result)["finish_reasons"] == {"deadline": 1}


def test_the_clock_can_be_stopped_and_gone_on_with() -> None:
    simulation = Simulation([asked(0.0, num_output=30), asked(10.0)], make_fleet([SETUP]), RoundRobin())
    simulation.run(until=5.5)
    assert simulation.now <= 5.5 and len(simulation.served) == 1
    assert figures(simulation.result())["unfinished"] == 1
    simulation.run()
    whole = simulate([asked(0.0, num_output=30), asked(10.0)], make_fleet([SETUP]), RoundRobin())
    assert figures(simulation.result()) == figures(whole)


def test_a_cost_that_is_no_time_is_refused() -> None:
    setup = replace(SETUP, cost=lambda plan: float("nan"))
    with pytest.raises(ValueError, match="takes nan s"):
        simulate([asked(0.0)], make_fleet([setup]), RoundRobin())


@pytest.mark.parametrize("seed", range(40))
def test_skipping_changes_nothing_and_short_books_are_right(seed: int) -> None:
    """Once step by step with every token written down, once with quiet steps skipped."""
    log = TokenLog()
    num_engines = 1 + seed % 3
    router = sorted(ROUTERS)[seed % len(ROUTERS)]
    results = [
        simulate(random_workload(seed), fleet(Random(seed), num_engines, listener), make_router(router))
        for listener in (log, None)
    ]
    stepped, skipped = (
        [
            json.dumps(figures(result), sort_keys=True),
            *(json.dumps(request_figures(result, served, with_times=True)) for served in result.served),
        ]
        for result in results
    )
    assert stepped == skipped
    for served in results[0].served:
        for choice in range(served.asked.n):
            assert results[0].token_times(served, choice) == log.times.get((served.id, choice), [])
    assert sorted(results[0].inter_token_latencies) == sorted(log.gaps())
    assert list(results[0].inter_token_latencies) == list(results[1].inter_token_latencies)


def test_the_random_worlds_have_everything_in_them() -> None:
    seen = {"preempted": 0, "refused": 0, "deadline": 0, "hits": 0}
    for seed in range(24):
        result = simulate(random_workload(seed), fleet(Random(seed), 1 + seed % 3), LeastQueued())
        values = figures(result)
        seen["preempted"] += values["num_preemptions"]
        seen["refused"] += values["refused"]
        seen["deadline"] += values["finish_reasons"].get("deadline", 0)
        seen["hits"] += values["prefix_hit_tokens"]
    assert all(count > 5 for count in seen.values()), seen
