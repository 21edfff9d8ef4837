"""Drawn workloads."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals, parse_phases, steady
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.lengths import MAX_TOKENS, Empirical, Fixed, LogNormal
from chairlift.sim.result import figures
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traffic import ClosedLoop, Kind, faster, merged, open_loop, until, without_contents
from chairlift.sim.workload import Asked, Blocks, Contents, Part
from sim.worlds import COST, UNIT

ARRIVALS = Arrivals(steady(2.0))


def drawn(kind: Kind, seed: int = 0, num: int | None = 20) -> list[Asked]:
    return list(open_loop(kind, ARRIVALS, Contents(), seed, num))


def test_a_seed_gives_the_same_and_another_another() -> None:
    assert drawn(Kind()) == drawn(Kind()) != drawn(Kind(), seed=1)
    assert drawn(Kind(name="a"))[0].arrival != drawn(Kind(name="b"))[0].arrival


def test_prompts_share_the_prefix_and_nothing_else() -> None:
    first, second = (asked.prompt.tokens() for asked in drawn(Kind(prefix=10, prompt=Fixed(5)), num=2))
    assert first[:10] == second[:10] and len(first) == 15
    assert not set(first[10:]) & set(second[10:])


def test_a_conversation_says_everything_again() -> None:
    kind = Kind(prefix=4, prompt=Fixed(3), output=Fixed(2), turns=Fixed(3), think_s=1.0)
    (turn,) = drawn(kind, num=1)
    prompts, sessions = [turn.prompt.tokens()], {turn.session}
    while turn.follow is not None:
        (later,) = turn.follow(turn.arrival + 5.0)
        assert later.arrival > turn.arrival + 5.0
        turn = later
        prompts.append(turn.prompt.tokens())
        sessions.add(turn.session)
    assert [len(prompt) for prompt in prompts] == [7, 12, 17]
    assert prompts[1][:7] == prompts[0] and prompts[2][:12] == prompts[1] and len(sessions) == 1


def test_users_wait_for_their_answers() -> None:
    loop = ClosedLoop(Kind(prompt=Fixed(4), output=Fixed(3)), 3, 0.0, Contents(), 0, 10)
    setup = EngineSetup(cost=UNIT, max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64)
    result = simulate(loop, make_fleet([setup]), RoundRobin())
    assert len(result.served) == 10
    assert figures(result)["replicas"][0]["max_queued"] == 3
    assert [served.asked.arrival for served in result.served] == [0.0] * 3 + [3.0] * 3 + [6.0] * 3 + [9.0]


def test_users_do_not_converse() -> None:
    with pytest.raises(InvalidOption, match="leave out the turns"):
        ClosedLoop(Kind(turns=Fixed(2)), 1, 0.0, Contents(), 0, 1)


def test_streams_together_are_in_order_and_leave_each_other_alone() -> None:
    a, b = Kind(name="a"), Kind(name="b", output=Fixed(9))
    both = list(merged([drawn(a), drawn(b)]))
    assert [asked.arrival for asked in both] == sorted(asked.arrival for asked in both)
    alone = [asked.arrival for asked in drawn(b)]
    assert [asked.arrival for asked in both if asked.num_output == 9] == alone


def test_what_is_done_to_a_workload() -> None:
    whole = drawn(Kind(prefix=50), num=100)
    early = list(until(iter(whole), 10.0))
    assert early == [asked for asked in whole if asked.arrival < 10.0]
    assert [asked.arrival for asked in faster(whole, 2.0)] == [asked.arrival / 2.0 for asked in whole]
    apart = [asked.prompt.tokens() for asked in islice(without_contents(whole), 2)]
    assert len(apart[0]) == whole[0].prompt.num_tokens and apart[0][0] != apart[1][0]
    with pytest.raises(InvalidOption):
        next(iter(faster(whole, 0.0)))


def test_a_prompt_ends_within_its_last_content() -> None:
    assert Blocks((Part(7, 8, 3), Part(20, 20, 3)), 8).tokens() == [7, 7, 7, 8, 8, 8, 20, 20]


def test_weights_share_an_overloaded_engine() -> None:
    kinds = [Kind(name=name, principal=name, prompt=Fixed(64), output=Fixed(32)) for name in ("a", "b")]
    contents = Contents()
    streams = [open_loop(kind, Arrivals(steady(100.0)), contents, 0, 1000) for kind in kinds]
    setup = EngineSetup(cost=COST, max_num_seqs=8, max_num_batched_tokens=128, num_blocks=1000)
    policy = replace(setup.policy, scheduling_policy="fair", weights={"a": 3.0})
    result = simulate(merged(streams), make_fleet([replace(setup, policy=policy)]), RoundRobin(), until=10.0)
    served = {row["principal"]: row["completed"] for row in figures(result)["tenants"]}
    assert served["a"] == pytest.approx(3 * served["b"], rel=0.05)


def test_what_is_done_to_a_workload_is_done_to_what_follows() -> None:
    """A later turn begins as the turn before it does, and comes when that is over."""

    def turns(first: Asked) -> list[Asked]:
        follow = first.follow
        return [first, *(one for asked in (follow(first.arrival + 1.0) if follow else ()) for one in turns(asked))]

    kind = Kind(prompt=Fixed(3), output=Fixed(2), turns=Fixed(4))
    first = drawn(kind, num=1)[0]
    whole = turns(first)
    assert [asked.prompt.num_tokens for asked in whole] == [3, 8, 13, 18]
    (cut,) = until([first], whole[2].arrival)
    assert [asked.arrival for asked in turns(cut)] == [asked.arrival for asked in whole[:2]]
    (apart,) = without_contents([first])
    prompts = [asked.prompt.tokens() for asked in turns(apart)]
    assert [len(prompt) for prompt in prompts] == [3, 8, 13, 18]
    assert len({prompt[0] for prompt in prompts}) == 4


def test_lengths_are_bounded_whatever_is_drawn() -> None:
    assert LogNormal(90, 1e30).draw(Random(1)) in (1, MAX_TOKENS)
    for counts in ([(math.inf, 1.0)], [(5.0, math.inf)], [(5.0, -1.0)]):
        with pytest.raises(InvalidOption):
            Empirical(counts)


def test_rates_that_bring_nobody_are_refused() -> None:
    """Also if somebody would come after a phase that never ends."""
    with pytest.raises(InvalidOption, match="nothing ever arrives"):
        Arrivals(parse_phases("inf:0,10:5"))
