"""Random engines under random load and faults, against the oracle, with every invariant checked after every step.

A failing seed replays alone:  pytest tests/core/test_swarm.py -k "seed and 123" --swarm-seeds 124
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Finish, FinishReason, Limits, Request, SamplingParams, StepOutput
from invariants import check_invariants
from oracle import EOS, VOCAB, OracleExecutor, check, expected_output


@dataclass
class World:
    """One engine and what its callers have seen."""

    engine: Engine
    executor: OracleExecutor
    requests: dict[int, Request] = field(default_factory=dict)
    output: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    scored: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    finishes: dict[tuple[int, int], Finish] = field(default_factory=dict)
    digest: int = 0

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    def take(self, step: StepOutput) -> None:
        check(len(step.keys) == len(step.tokens), "parallel lists")
        for key, token in zip(step.keys, step.tokens, strict=True):
            check(key not in self.finishes, "a token after the end")
            self.output[key].append(token)
        for key, scores in step.prompt_logprobs.items():
            self.scored[key] += [s.token for s in scores]
        for finish in step.finishes:
            key = (finish.id, finish.choice)
            check(key not in self.finishes, "two endings of one sequence")
            self.finishes[key] = finish
        self.digest = hash((self.digest, tuple(step.keys), tuple(step.tokens), len(step.finishes)))

    def check_text(self, key: tuple[int, int]) -> None:
        """A sequence that ended by itself has exactly the oracle's text; any other has a prefix of it."""
        request, finish = self.requests[key[0]], self.finishes[key]
        expected = expected_output(request, key[1], self.scheduler.max_model_len)
        got = self.output[key]
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            check(got == expected, f"{key}: {got} instead of {expected}")
            last = expected[-1]
            ends = set(request.params.stop_token_ids) | (set() if request.params.ignore_eos else {EOS})
            check((finish.reason is FinishReason.STOP) == (last in ends), "the reason of the ending")
            if request.params.prompt_logprobs is not None and key[1] == 0:
                check(self.scored[key] == list(request.prompt[1:]), "prompt scores lost or doubled")
        else:
            check(got == expected[: len(got)], f"{key}: {got} is no prefix of {expected}")
        check(finish.num_output_tokens == len(got), "the count of output tokens")
        check(finish.num_cached_tokens < finish.num_prompt_tokens, "a cached prompt leaves a token to compute")


def random_world(rng: random.Random) -> World:
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    num_blocks = rng.choice([4, 6, 10, 20, 64, 200])
    max_num_seqs = rng.choice([1, 2, 4, 8, 32])
    budget = max_num_seqs + rng.choice([0, 1, 3, 10, 100, 1000])
    limits = Limits(max_num_seqs, budget, max_model_len=rng.choice([8, 30, 100]))
    shape = CacheShape(num_blocks, block_size)
    scheduler = Scheduler(limits, shape, vocab_size=VOCAB, enable_prefix_caching=rng.random() < 0.7)
    executor = OracleExecutor(shape)
    return World(Engine(scheduler, executor), executor)


def random_request(rng: random.Random, number: int, now: float, world: World, stems: list[list[int]]) -> Request:
    top = world.scheduler.max_model_len
    length = rng.randint(1, max(1, top - 1))
    prompt = (rng.choice(stems) + [rng.randrange(VOCAB) for _ in range(length)])[:length]
    params = SamplingParams(
        max_tokens=rng.choice([None, 1, 2, rng.randint(1, 40)]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=(5,) if rng.random() < 0.2 else (),
        logprobs=1 if rng.random() < 0.2 else None,
        prompt_logprobs=0 if rng.random() < 0.2 else None,
    )
    return Request(
        id=number,
        prompt=prompt,
        params=params,
        arrival=now,
        n=rng.choice([1, 1, 1, 2, 3]),
        eos_token_ids=(EOS,),
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice([b"", b"a", b"b"]),
    )


def run(seed: int, num_steps: int, faults: bool = True) -> World:
    """A safety phase with load and faults, then a liveness phase: no new work, and everything must drain."""
    rng = random.Random(seed)
    world = random_world(rng)
    stems = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(3)]
    load, fault_rate = rng.choice([0.05, 0.2, 0.6]), rng.choice([0.0, 0.02, 0.1]) if faults else 0.0
    now, number = 0.0, 0

    def meddle() -> None:
        nonlocal number
        if rng.random() < load and len(world.scheduler._live) < 60:
            request = random_request(rng, number, now, world, stems)
            number += 1
            try:
                world.engine.add(request)
            except InvalidRequest:
                check(request.n > world.scheduler.limits.max_num_seqs, "refused without a reason")
            else:
                world.requests[request.id] = request
        if number and rng.random() < fault_rate:
            world.engine.abort(rng.randrange(number), now)

    for _ in range(num_steps):
        now += rng.choice([0.0, 0.01, 30.0])
        meddle()
        if rng.random() < fault_rate / 2:
            world.executor.row_errors.add(rng.randrange(world.scheduler.limits.max_num_seqs))
        if rng.random() < fault_rate / 4:
            world.executor.failure = rng.choice(["submit", "result"])
        if world.engine.begin(now):
            meddle()
            world.take(world.engine.finish(now))
        else:
            check(not live(world), "nothing to do although a request is live")
            world.take(world.engine.flush(now))
        check_invariants(world.scheduler)

    world.executor.failure = None
    world.executor.row_errors.clear()
    bound = 20 + 4 * sum(len(s.tokens) + s.end for ss in world.scheduler._live.values() for s in ss)
    while world.engine.has_work:
        bound -= 1
        check(bound > 0, "the engine does not drain")
        output = world.engine.step(now)
        if output is not None:
            world.take(output)
        check_invariants(world.scheduler)

    keys = {(r.id, choice) for r in world.requests.values() for choice in range(r.n)}
    check(set(world.finishes) == keys, "every choice ends exactly once")
    check(world.scheduler.kv.pool.num_held == 0, "blocks are held by nobody")
    for key in sorted(keys):
        world.check_text(key)
    return world


def live(world: World) -> bool:
    return bool(world.scheduler._live)


@pytest.mark.parametrize("tenth", range(10))
def test_swarm(tenth: int, swarm_seeds: int) -> None:
    for seed in range(tenth, swarm_seeds, 10):
        try:
            run(seed, 150)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.long
def test_swarm_long() -> None:
    for seed in range(1000, 3000):
        try:
            run(seed, 1000)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_same_seed_same_outputs() -> None:
    assert [run(seed, 200).digest for seed in range(5)] == [run(seed, 200).digest for seed in range(5)]


def test_the_swarm_reaches_what_it_is_for() -> None:
    """Preemptions, prefix hits, forks and errors do happen, or the swarm proves nothing."""
    worlds = [run(seed, 150) for seed in range(60)]
    stats = [w.scheduler.stats() for w in worlds]
    assert sum(s.num_preemptions for s in stats) > 100
    assert sum(s.prefix_hits for s in stats) > 1000
    reasons = [f.reason for w in worlds for f in w.finishes.values()]
    assert all(reasons.count(reason) > 20 for reason in FinishReason)
    assert sum(1 for w in worlds for f in w.finishes.values() if f.choice and f.reason is FinishReason.STOP) > 20
