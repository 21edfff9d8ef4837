"""Who serves whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.requests import RequestMaker
from chairlift.sim.result import Result, figures
from chairlift.sim.router import ROUTERS, LeastKV, LeastQueued, PrefixAware, RoundRobin, SessionSticky, make_router
from chairlift.sim.run import simulate
from sim.worlds import UNIT, asked

SETUP = EngineSetup(cost=UNIT, max_num_seqs=4, max_num_batched_tokens=256, num_blocks=200, block_size=4)


def places(result: Result) -> list[int]:
    return [served.replica for served in result.served]


def test_round_robin_goes_round() -> None:
    result = simulate([asked(0.1 * i) for i in range(5)], make_fleet([SETUP] * 3), RoundRobin())
    assert places(result) == [0, 1, 2, 0, 1]


def test_least_queued_fills_by_slots() -> None:
    fleet = make_fleet([SETUP, replace(SETUP, max_num_seqs=12)])
    result = simulate([asked(0.01 * i, num_output=50) for i in range(16)], fleet, LeastQueued())
    assert places(result).count(0) == 4 and places(result).count(1) == 12


def test_least_kv_goes_where_the_cache_is_emptiest() -> None:
    large, small = asked(0.0, num_prompt=100, num_output=9), [asked(0.1 * i, num_output=9) for i in range(1, 4)]
    result = simulate([large, *small], make_fleet([SETUP] * 2), LeastKV())
    assert places(result) == [0, 1, 1, 1]


def test_prefix_aware_goes_where_the_prefix_is() -> None:
    first = [asked(0.0, num_prompt=41, content=1), asked(0.0, num_prompt=41, content=2)]
    later = [asked(20.0 + 10 * i, num_prompt=41, content=1 + i % 2) for i in range(4)]
    result = simulate([*first, *later], make_fleet([SETUP] * 2), PrefixAware())
    assert places(result) == [0, 1, 0, 1, 0, 1]
    assert figures(result)["prefix_hit_tokens"] == 4 * 40


def test_prefix_aware_finds_prefixes_in_blocks_of_any_size() -> None:
    setup = replace(SETUP, takes_block_keys=False)
    fleet = make_fleet([replace(setup, block_size=16), setup])
    question = asked(0.0, num_prompt=31, content=1)
    for engine in fleet:
        simulate([question], [engine], RoundRobin())
    request = RequestMaker().make(1, question)
    assert PrefixAware(0.0).route(question, request, fleet) == 1  # 28 tokens in blocks of 4, 16 in blocks of 16
    assert PrefixAware(0.0).route(question, request, fleet[::-1]) == 0


def test_load_turns_the_prefix_down() -> None:
    """Four long answers run where the prefix is; the other engine is idle and knows nothing."""
    fleet = make_fleet([SETUP] * 2)
    long = [asked(0.0, num_prompt=9, num_output=150, content=1) for _ in range(4)]
    simulate(long, fleet[:1], RoundRobin(), until=30.0)
    request = RequestMaker().make(9, long[0])
    assert PrefixAware(0.0).route(long[0], request, fleet) == 0
    assert PrefixAware(1.0).route(long[0], request, fleet) == 1


def test_sessions_stick() -> None:
    turns = [replace(asked(float(i)), session=f"s{i % 3}") for i in range(9)]
    result = simulate(turns, make_fleet([SETUP] * 3), SessionSticky(RoundRobin()))
    assert places(result) == [0, 1, 2] * 3
    loose = simulate([asked(float(i)) for i in range(3)], make_fleet([SETUP] * 3), SessionSticky(RoundRobin()))
    assert places(loose) == [0, 1, 2]


def test_routers_by_name() -> None:
    for name in ROUTERS:
        result = simulate([asked(0.1 * i) for i in range(6)], make_fleet([SETUP] * 2), make_router(name))
        assert len(figures(result)["replicas"]) == 2 and figures(result)["completed"] == 6
    with pytest.raises(InvalidOption, match="no router 'random'"):
        make_router("random")
