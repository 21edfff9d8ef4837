"""What an endless cache would find, and that a large real one finds as much."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from chairlift.sim.cost.seed import LESSON
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.result import figures
from chairlift.sim.reuse import EndlessCache, everything
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.traces.agentic import agent_sessions
from chairlift.sim.traces.mooncake import mooncake
from chairlift.sim.workload import Blocks, Literal, Part, Workload
from measured_runs import shared_traces

TRACES = shared_traces()
needs_traces = pytest.mark.skipif(TRACES is None, reason="../shared/traces is not there")


def by_hand(seen: list[list[int]], tokens: list[int], block_size: int) -> int:
    """The longest beginning that one of those before had."""
    most = 0
    for other in seen:
        same = 0
        while same < min(len(tokens), len(other)) and tokens[same] == other[same]:
            same += 1
        most = max(most, same)
    return min(most, len(tokens) - 1) // block_size * block_size


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_longest_beginning(seed: int) -> None:
    rng = Random(seed)
    cache = EndlessCache(block_size := rng.choice([1, 3, 4]))
    seen: list[list[int]] = []
    for _ in range(30):
        ids = [rng.choice([1, 2]) + 2 * place for place in range(rng.randint(1, 5))]
        num_tokens = 4 * len(ids) - rng.randint(0, 3)
        prompt = Blocks(tuple(Part(i, i, 4) for i in ids), num_tokens)
        assert cache.ask(prompt) == by_hand(seen, prompt.tokens(), block_size)
        seen.append(prompt.tokens())
    assert cache.queried_tokens == sum(map(len, seen)) and 0.0 < cache.hit_rate < 1.0


def test_prompts_given_token_by_token() -> None:
    cache = EndlessCache(1)
    assert [cache.ask(Literal(tokens)) for tokens in ((1, 2, 3), (1, 2, 4), (1, 2, 3))] == [0, 2, 2]


def check(asked: Workload, again: Workload, block_size: int, num_blocks: int = 1 << 16) -> float:
    cache = EndlessCache(block_size)
    for each in everything(asked):
        cache.ask(each.prompt)
    setup = EngineSetup(
        cost=LESSON, max_num_seqs=64, max_num_batched_tokens=8192, num_blocks=num_blocks, block_size=block_size
    )
    values = figures(simulate(again, make_fleet([setup]), RoundRobin()))
    assert values["prefix_queried_tokens"] == cache.queried_tokens
    assert values["prefix_hit_tokens"] == cache.hit_tokens
    return cache.hit_rate


@needs_traces
def test_mooncake_reuse_is_that_of_an_endless_cache() -> None:
    """As long as nothing is evicted: whoever shares a prefix that is being computed waits for it."""
    assert TRACES is not None
    path = TRACES / "mooncake" / "conversation_first_30min.jsonl.gz"
    assert check(islice(mooncake(path), 300), islice(mooncake(path), 300), 512) == pytest.approx(0.0809, abs=0.0001)


@needs_traces
def test_session_reuse_is_that_of_an_endless_cache() -> None:
    assert TRACES is not None
    path = TRACES / "agentic" / "sessions_1-355.jsonl.gz"
    first, second = (agent_sessions(path, [0.0, 1.0], num_sessions=2) for _ in range(2))
    assert check(first, second, 64) > 0.9


@needs_traces
@pytest.mark.long
def test_thirty_minutes_to_their_end() -> None:
    """5,719 requests of 74 million prompt tokens, on one engine that is slow and forgets nothing."""
    assert TRACES is not None
    path = TRACES / "mooncake" / "conversation_first_30min.jsonl.gz"
    assert check(mooncake(path), mooncake(path), 512, num_blocks=1 << 18) == pytest.approx(0.347, abs=0.0005)


@needs_traces
def test_the_whole_trace_shares_a_third() -> None:
    """34.1 % of the ids of these 30 minutes came before; in tokens it is a little more, as last blocks are short."""
    assert TRACES is not None
    cache = EndlessCache(512)
    for asked in mooncake(TRACES / "mooncake" / "conversation_first_30min.jsonl.gz"):
        cache.ask(asked.prompt)
    assert cache.hit_rate == pytest.approx(0.347, abs=0.0005)
