"""The background: uses what others leave, and is felt by nobody, counted in steps."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chairlift.core.background import LINGER_S, MAX_HELD_BACK_SEQS, MAX_HELD_BACK_TOKENS
from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import (
    BACKGROUND_PRIORITY,
    CacheShape,
    FinishReason,
    Limits,
    Request,
    SamplingParams,
    StepOutput,
)
from fakes import VOCAB_SIZE, FakeExecutor, prompt
from invariants import check_invariants

POLICIES = ("fcfs", "priority", "fair", "deadline")
Steps = dict[tuple[int, int], list[int]]
"""By answer: the steps that gave it a token."""


def make(policy: Policy, limits: Limits, num_blocks: int = 64, caching: bool = True) -> Engine:
    shape = CacheShape(num_blocks, 4)
    scheduler = Scheduler(limits, shape, vocab_size=VOCAB_SIZE, policy=policy, enable_prefix_caching=caching)
    return Engine(scheduler, FakeExecutor(shape))


def ask(number: int, length: int, max_tokens: int, *, waits: bool = False, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    priority = BACKGROUND_PRIORITY if waits else 0
    return Request(number, prompt(length, first=number), params, 0.0, n, priority=priority)


def rows(engine: Engine, *, waits: bool) -> set[int]:
    live = engine.scheduler._running.live()
    return {s.request.id for s in live if (s.request.priority == BACKGROUND_PRIORITY) is waits}


def test_alone_it_may_use_everything() -> None:
    engine = make(Policy(), Limits(8, 256, 64))
    for number in range(12):
        engine.add(ask(number, 20, 9, waits=True))
    executor = engine._executor
    assert isinstance(executor, FakeExecutor)
    engine.step(0.0)
    assert executor.num_computed <= 256 // 4, "whoever comes now waits for a short step"
    for _ in range(3):
        engine.step(0.0)
    assert len(rows(engine, waits=True)) == 8


def test_with_others_a_few_go_on_and_who_comes_has_a_slot_at_once() -> None:
    for policy in POLICIES:
        check_that_a_few_go_on(policy)


def check_that_a_few_go_on(policy: str) -> None:
    engine = make(Policy(scheduling_policy=policy), Limits(4, 256, 64))  # type: ignore[arg-type]
    for number in range(6):
        engine.add(ask(number, 4, 30, waits=True))
    for _ in range(5):
        engine.step(0.0)
    assert rows(engine, waits=True) == {0, 1, 2, 3}
    for number in (10, 11, 12, 13):
        engine.add(ask(number, 4, 3))
        engine.step(0.0)
        assert number in rows(engine, waits=False)
        assert len(rows(engine, waits=True)) <= MAX_HELD_BACK_SEQS
    stats = engine.stats()
    assert stats.num_background_running + stats.num_background_waiting == 6
    for _ in range(4):
        engine.step(LINGER_S / 2)
    assert not rows(engine, waits=False)
    assert len(rows(engine, waits=True)) == MAX_HELD_BACK_SEQS, "the others may be back at once"
    for _ in range(4):
        engine.step(2 * LINGER_S)
    assert rows(engine, waits=True) == {0, 1, 2, 3}, "they are back where they were"


def test_its_prompts_are_small_pieces_of_steps_that_others_take_part_in() -> None:
    engine = make(Policy(), Limits(4, 256, 512), num_blocks=256)
    engine.add(ask(0, 3, 40))
    engine.step(0.0)
    engine.add(ask(1, 200, 2, waits=True))
    engine.add(ask(2, 200, 2, waits=True))
    executor = engine._executor
    assert isinstance(executor, FakeExecutor)
    for _ in range(6):
        before = executor.num_computed
        engine.step(0.0)
        assert executor.num_computed - before <= 1 + MAX_HELD_BACK_TOKENS
    assert executor.num_computed > 100, "and it goes on"


def test_it_gives_way_in_the_step_after_its_prompt_too() -> None:
    """One that has just begun to decode was in no count of those who do."""
    engine = make(Policy(), Limits(4, 64, 64), num_blocks=8)
    engine.add(ask(0, 10, 16, waits=True))
    engine.step(0.0)
    engine.add(ask(1, 28, 3))
    engine.step(0.0)
    assert rows(engine, waits=False) == {1}
    assert not rows(engine, waits=True), "it has the blocks that the other needs"


def test_who_lacks_blocks_has_them_although_its_tokens_are_taken_too() -> None:
    engine = make(Policy(), Limits(2, 2, 64), num_blocks=6)
    engine.add(ask(0, 16, 4, waits=True))
    for _ in range(4):
        engine.step(0.0)
    engine.add(ask(1, 20, 3))
    for _ in range(3):
        engine.step(0.0)
    assert rows(engine, waits=False) == {1}


def test_it_takes_no_slots_that_it_has_no_tokens_for() -> None:
    engine = make(Policy(), Limits(8, 256, 256), num_blocks=512)
    for number in range(8):
        engine.add(ask(number, 100, 2, waits=True))
    engine.step(0.0)
    assert rows(engine, waits=True) == {0}
    engine.add(ask(9, 4, 9))
    engine.step(0.0)
    assert rows(engine, waits=True) == {0}
    engine.step(0.0)
    assert rows(engine, waits=True) == {0, 1}, "the first needs few, the second has the rest"
    assert all(len(one.blocks) for one in engine.scheduler._running.live())


def test_it_does_not_age() -> None:
    engine = make(Policy(priority_ageing_s=1.0), Limits(1, 64, 64))
    engine.add(ask(1, 4, 30))
    engine.add(ask(2, 4, 2, waits=True))
    for now in range(20):
        engine.step(float(now * 10))
    engine.add(ask(3, 4, 2))
    while engine.scheduler.has_work:
        for finish in (engine.step(1000.0) or StepOutput()).finishes:
            assert finish.id != 2 or not engine.scheduler.has_work


def test_who_needs_every_block_gets_them() -> None:
    """Alone it would join at once; beside a few of the background that leave room for others it never could."""
    engine = make(Policy(), Limits(4, 64, 64), num_blocks=16)
    for number in range(2):
        engine.add(ask(number, 4, 30, waits=True))
    for _ in range(3):
        engine.step(0.0)
    engine.add(ask(9, 60, 3))
    for _ in range(2):
        engine.step(0.0)
    assert rows(engine, waits=False) == {9}


def arrivals(rng: random.Random) -> list[tuple[int, Request]]:
    """Requests of both kinds with the steps before which they come; the background comes first."""
    worlds = []
    for number in range(rng.randrange(4, 24)):
        waits = rng.random() < 0.5
        request = ask(number, rng.randrange(1, 40), rng.randrange(1, 20), waits=waits, n=rng.choice([1, 1, 1, 2]))
        worlds.append((rng.randrange(0 if waits else 3, 30), request))
    return sorted(worlds, key=lambda one: one[0])


def serve(engine: Engine, world: list[tuple[int, Request]]) -> Iterator[StepOutput]:
    coming = list(world)
    for step in range(5000):
        while coming and coming[0][0] <= step:
            engine.add(coming.pop(0)[1])
        if not coming and not engine.scheduler.has_work:
            return
        yield engine.step(float(step)) or StepOutput()
        check_invariants(engine.scheduler)
    raise AssertionError("it never ends")


def steps(engine: Engine, world: list[tuple[int, Request]]) -> tuple[Steps, dict[tuple[int, int], list[int]]]:
    when: Steps = {}
    tokens: dict[tuple[int, int], list[int]] = {}
    for number, output in enumerate(serve(engine, world)):
        for key, token in zip(output.keys, output.tokens, strict=True):
            when.setdefault(key, []).append(number)
            tokens.setdefault(key, []).append(token)
        assert all(finish.reason is FinishReason.LENGTH for finish in output.finishes)
    return when, tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_else_has_each_token_about_when_they_would_have_it_alone(policy: str) -> None:
    """In steps: mostly the very same; one later where a choice or a full budget needs a slot that was in use. And all
    have the tokens that they would have alone, whoever was preempted how often."""
    num_preemptions, lates = 0, []
    for seed in range(12):
        rng = random.Random(f"{policy}/{seed}")
        limits = Limits(rng.choice([2, 4, 8]), rng.choice([16, 64, 256]), 64)
        num_blocks = rng.choice([40, 64, 200])
        chosen = Policy(scheduling_policy=policy, watermark=0.0)  # type: ignore[arg-type]
        world = arrivals(rng)
        shared = make(chosen, limits, num_blocks, caching=False)
        both, tokens = steps(shared, world)
        num_preemptions += shared.stats().num_preemptions
        others = [one for one in world if one[1].priority == 0]
        alone, expected = steps(make(chosen, limits, num_blocks, caching=False), others)
        late = [b - a for key in alone for a, b in zip(alone[key], both[key], strict=True)]
        lates += late
        assert sum(late) <= 2 * len(late), seed
        assert tokens | expected == tokens, seed
        for _, request in world:
            _, own = steps(make(chosen, limits, num_blocks), [(0, request)])
            assert tokens | own == tokens, seed
    assert num_preemptions > 20
    assert sum(lates) < 0.2 * len(lates)
    assert sum(one > 0 for one in lates) < 0.15 * len(lates)


def test_with_a_cache_of_prefixes_too_all_tokens_are_the_same() -> None:
    for seed in range(8):
        world = arrivals(random.Random(seed))
        _, tokens = steps(make(Policy(), Limits(4, 32, 64), 48), world)
        for _, request in world:
            _, own = steps(make(Policy(), Limits(4, 32, 64), 48), [(0, request)])
            assert tokens | own == tokens, seed
