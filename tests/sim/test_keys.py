"""Prompts that come with keys of their blocks are served as those that are spelled with tokens, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from chairlift.journal.options import JournalOptions
from chairlift.journal.replay import replay
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.writer import Journal
from chairlift.sim.cost.seed import LESSON
from chairlift.sim.disaggregated import DisaggregatedSimulation, Link
from chairlift.sim.fleet import EngineSetup, make_fleet
from chairlift.sim.keys import KeyMaker
from chairlift.sim.requests import RequestMaker
from chairlift.sim.result import Result, figures, request_figures
from chairlift.sim.router import ROUTERS, RoundRobin, make_router
from chairlift.sim.run import Simulation, simulate
from chairlift.sim.traces.agentic import agent_sessions
from chairlift.sim.traces.mooncake import mooncake
from chairlift.sim.workload import Asked, Blocks, Literal, Part, Workload
from measured_runs import shared_traces
from sim.worlds import COST, random_setup, random_workload

TRACES = shared_traces()
needs_traces = pytest.mark.skipif(TRACES is None, reason="../shared/traces is not there")

WIDTHS = (8, 8, 8, 16, 20)
"""Of contents, by their number modulo 5: every content has one width, and not all are whole blocks."""


def random_prompt(rng: Random, first: int = 1) -> Blocks:
    """A few stretches of few contents, so that beginnings are shared, cut somewhere."""
    parts = []
    for _ in range(rng.randint(1, 5)):
        start = first + rng.randrange(12)
        parts += [Part(i, i, WIDTHS[i % 5]) for i in range(start, start + rng.randint(1, 5))]
    return Blocks(tuple(parts), sum(part.width for part in parts) - rng.randint(0, parts[-1].width - 1))


def joined(prompt: Blocks, rng: Random) -> Blocks:
    """The same prompt, with some neighbours in one part."""
    parts: list[Part] = []
    for part in prompt.parts:
        if parts and (parts[-1].last + 1, parts[-1].width) == (part.first, part.width) and rng.random() < 0.6:
            parts[-1] = Part(parts[-1].first, part.last, part.width)
        else:
            parts.append(part)
    return Blocks(tuple(parts), prompt.num_tokens)


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_equal_exactly_where_all_tokens_so_far_are(seed: int) -> None:
    rng = Random(seed)
    maker = KeyMaker(size := rng.choice([1, 4, 8, 16]))
    beginnings: dict[int, list[int]] = {}
    counts: dict[tuple[int, ...], set[bool]] = {}
    for _ in range(60):
        prompt = random_prompt(rng)
        keys, tokens = maker.keys(joined(prompt, rng)), prompt.tokens()
        assert keys == maker.keys(joined(prompt, rng)) and len(keys) * size <= len(tokens)
        for i in range(len(tokens) // size):
            beginning = tokens[: (i + 1) * size]
            if i < len(keys):
                assert beginnings.setdefault(keys[i], beginning) == beginning
            counts.setdefault(tuple(beginning), set()).add(i < len(keys))
    assert len({tuple(beginning) for beginning in beginnings.values()}) == len(beginnings)
    assert all(len(count) == 1 for count in counts.values()), "the same blocks have keys here and none there"


def test_a_prompt_is_spelled_from_any_token_on() -> None:
    rng = Random(1)
    for _ in range(50):
        prompt = joined(random_prompt(rng), rng)
        tokens = prompt.tokens()
        for start in range(len(tokens) + 1):
            assert prompt.tokens(start) == tokens[start:]


def test_a_prompt_with_keys_has_all_its_tokens_for_whoever_reads_them() -> None:
    maker = RequestMaker(KeyMaker(4))
    asked = Asked(arrival=0.0, prompt=Blocks((Part(7, 8, 8), Part(30, 30, 7)), 21), num_output=1)
    request = maker.make(0, asked)
    assert request.block_keys is not None and request.block_keys.num_tokens == 20
    tokens = asked.prompt.tokens()
    assert list(request.prompt) == tokens == request.prompt[:] and len(request.prompt) == 21
    assert (request.prompt[20:], request.prompt[3:9], request.prompt[0]) == (tokens[20:], tokens[3:9], 7)
    assert maker.make(1, replace(asked, prompt=Literal((1, 2, 3, 4)))).block_keys is None
    assert RequestMaker().make(2, asked).block_keys is None


# ---------------------------------------------------------------- runs


def lines(result: Result) -> list[str]:
    """All that can be said of a run."""
    return [
        json.dumps(figures(result), sort_keys=True),
        *(json.dumps(request_figures(result, served, with_times=True)) for served in result.served),
        *(json.dumps([r.scheduler.kv.pool.num_kept, repr(r.tally)]) for r in result.replicas),
    ]


def both(workload: Callable[[], Workload], setups: list[EngineSetup], router: str = "round-robin") -> Result:
    """The run with keys, after it was held against the one with tokens."""
    keyed, spelled = (
        simulate(workload(), make_fleet([replace(s, takes_block_keys=takes) for s in setups]), make_router(router))
        for takes in (True, False)
    )
    assert lines(keyed) == lines(spelled)
    return keyed


def num_keyed(result: Result) -> int:
    """Blocks that can be found by a key that was given."""
    return sum(1 for r in result.replicas for key in r.scheduler.kv.index._blocks if isinstance(key, int))


@pytest.mark.parametrize("seed", range(24))
def test_drawn_traffic_is_served_alike(seed: int) -> None:
    both(partial(random_workload, seed), [random_setup(Random(seed))] * (1 + seed % 3), sorted(ROUTERS)[seed % 5])


def traced(seed: int) -> Iterator[Asked]:
    """Prompts of contents that recur, several answers for some, follow-ups, and deadlines."""
    rng = Random(f"traced {seed}")
    rate = rng.choice([5.0, 50.0])
    now = 0.0
    for _ in range(60):
        now += rng.expovariate(rate)
        prompt = joined(random_prompt(rng), rng)
        asked = Asked(
            arrival=now,
            prompt=prompt,
            num_output=rng.randint(1, 40),
            n=rng.choice([1, 1, 1, 2, 3]),
            priority=rng.choice([0, 0, 1]),
            principal=rng.choice("ab"),
            session=rng.choice([None, "s", "t"]),
            e2e_within_s=rng.choice([None, None, 1.0]),
        )
        if rng.random() < 0.3:
            longer = Blocks((*prompt.parts, Part(50, 50, 8)), sum(map(width_of, prompt.parts)) + 5)
            asked.follow = partial(later, replace(asked, prompt=longer, n=1))
        yield asked


def width_of(part: Part) -> int:
    return (part.last - part.first + 1) * part.width


def later(asked: Asked, now: float) -> list[Asked]:
    return [replace(asked, arrival=now + 0.1)]


def traced_setups(seed: int) -> list[EngineSetup]:
    rng = Random(seed)
    setup = random_setup(rng)
    setup = replace(setup, enable_prefix_caching=seed % 6 > 0, block_size=rng.choice([4, 8]), num_blocks=60)
    setup = replace(setup, policy=replace(setup.policy, batching="continuous", max_batch_wait_s=None))
    return [setup] * (1 + seed % 2)


@pytest.mark.parametrize("seed", range(30))
def test_traces_are_served_alike(seed: int) -> None:
    both(partial(traced, seed), traced_setups(seed), sorted(ROUTERS)[seed % 5])


def test_the_traces_have_everything_in_them() -> None:
    seen = {"hits": 0, "preempted": 0, "evicted": 0, "keyed": 0, "forked": 0}
    for seed in range(10):
        result = both(partial(traced, seed), traced_setups(seed))
        values = figures(result)
        seen["hits"] += values["prefix_hit_tokens"]
        seen["preempted"] += values["num_preemptions"]
        seen["keyed"] += num_keyed(result)
        seen["forked"] += sum(1 for served in result.served if served.asked.n > 1 and not served.error)
        seen["evicted"] += values["prefix_queried_tokens"] > 8 * 60 * len(result.replicas)
    assert min(seen.values()) > 0, seen


def test_engines_with_blocks_of_two_sizes_get_tokens() -> None:
    setups = [EngineSetup(cost=COST, block_size=size, max_num_seqs=4) for size in (4, 8)]
    assert num_keyed(both(partial(traced, 3), setups, "prefix-aware")) == 0


def test_pools_are_served_alike() -> None:
    setup = EngineSetup(cost=COST, block_size=8, max_num_seqs=8, num_blocks=100)
    results = []
    for takes in (True, False):
        fleet = make_fleet([replace(setup, takes_block_keys=takes)] * 3)
        run = DisaggregatedSimulation(
            (replace(each, n=1) for each in traced(5)), fleet[:1], fleet[1:], Link(token_bytes=1), _routers()
        )
        run.run()
        results.append((lines(run.result()), run.num_lost_tokens))
        assert (num_keyed(run.result()) > 0) == takes
    assert results[0] == results[1]


def _routers() -> tuple[RoundRobin, RoundRobin]:
    return RoundRobin(), RoundRobin()


def test_a_run_with_a_journal_is_spelled_and_replays(tmp_path: Path) -> None:
    setup = traced_setups(2)[0]
    path = tmp_path / "run.jsonl"
    scheduler = setup.scheduler()
    journal = Journal(JournalOptions(False, 1 << 26, 2), SegmentFiles(path, 2), clock=lambda: 0.0, capacity=1 << 30)
    journal.attach(scheduler)
    simulation = Simulation(traced(2), [setup.replica("engine-0", recorder=journal, scheduler=scheduler)], RoundRobin())
    simulation.run()
    journal.close()
    result = simulation.result()
    assert lines(result) == lines(both(partial(traced, 2), [setup])) and num_keyed(result) == 0
    with path.open("rb") as file:
        replayed = replay(file)
    assert replayed.difference is None and replayed.num_steps > 0


# ---------------------------------------------------------------- the traces themselves


def setup_for(block_size: int, num_blocks: int = 1 << 16) -> EngineSetup:
    return EngineSetup(
        cost=LESSON, max_num_seqs=64, max_num_batched_tokens=8192, num_blocks=num_blocks, block_size=block_size
    )


@needs_traces
@pytest.mark.parametrize(("block_size", "num_blocks"), [(512, 1 << 16), (512, 400), (64, 3000)])
def test_mooncake_is_served_alike(block_size: int, num_blocks: int) -> None:
    assert TRACES is not None
    path = TRACES / "mooncake" / "conversation_first_30min.jsonl.gz"
    result = both(lambda: islice(mooncake(path), 120), [setup_for(block_size, num_blocks)])
    assert num_keyed(result) > len(result.replicas[0].scheduler.kv.index) // 2


@needs_traces
@pytest.mark.parametrize("num_blocks", [1 << 16, 4000])
def test_sessions_are_served_alike(num_blocks: int) -> None:
    assert TRACES is not None
    path = TRACES / "agentic" / "sessions_1-355.jsonl.gz"

    def some() -> Iterator[Asked]:
        return agent_sessions(path, [0.0, 1.0], num_sessions=2, max_think_s=5.0)

    result = both(some, [setup_for(64, num_blocks)] * 2, "prefix-aware")
    assert num_keyed(result) > 0 and figures(result)["prefix_hit_tokens"] > 0


def test_a_fleet_that_goes_on_with_another_workload_keeps_its_keys() -> None:
    """Or a number would stand for one thing in the cache, and for another in the prompt."""
    fleets = [make_fleet([replace(traced_setups(1)[0], takes_block_keys=takes)] * 2) for takes in (True, False)]
    for seed in (1, 2, 1):
        keyed, spelled = (lines(simulate(traced(seed), fleet, RoundRobin())) for fleet in fleets)
        assert keyed == spelled
    apart = [setup_for(4).replica("a"), setup_for(4).replica("b")]
    assert num_keyed(simulate(traced(1), apart, RoundRobin())) == 0
