"""Random engines under random load and faults, against the fake executor's model, with every invariant checked.

One seed is one world: its limits, cache, requests and faults. A failing seed replays alone, in any process:

    python [-O] tests/core/swarm.py --first 123 --seeds 1 --steps 150
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from chairlift.core.types import (
    CacheShape,
    Finish,
    FinishReason,
    Limits,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    TokenLogprob,
)
from fakes import VOCAB_SIZE, FakeExecutor, check, expected_answer
from invariants import check_invariants

EOS_TOKEN_IDS = tuple(range(10))
"""One token in a hundred ends a sequence."""
STOP_TOKEN_IDS = tuple(range(10, 15))


class StopAtSome:
    """Stands for stop strings: some tokens complete one."""

    def push(self, token: int) -> str | None:
        return "stop" if token % 40 == 17 else None


def stop_matcher(request: Request) -> StopAtSome | None:
    return StopAtSome() if request.params.stop else None


def answer(request: Request, choice: int, max_model_len: int) -> list[int]:
    """What a sequence must generate."""
    tokens = expected_answer(request, choice, max_model_len)
    matcher = stop_matcher(request)
    for i, token in enumerate(tokens):
        if matcher is not None and matcher.push(token) and i + 1 >= request.params.min_tokens:
            return tokens[: i + 1]
    return tokens


@dataclass(slots=True)
class Faults:
    """What goes wrong in the next step: rows of these requests, or the step as a whole."""

    rows: set[int] = field(default_factory=set)
    phase: str | None = None

    def submit(self, plan: StepPlan) -> None:
        if self.phase == "submit":
            raise MemoryError

    def step(self, plan: StepPlan) -> None:
        if self.phase == "step":
            raise RuntimeError("the device is gone")

    def row(self, request: Request) -> str | None:
        return "not a number" if request.id in self.rows else None

    def clear(self) -> None:
        self.rows.clear()
        self.phase = None


FAULT_TEXTS = {"not a number", *(f"the step failed in the executor ({e})" for e in ("MemoryError", "RuntimeError"))}


class World:
    """One engine and what its callers have seen."""

    def __init__(self, limits: Limits, shape: CacheShape, *, enable_prefix_caching: bool) -> None:
        scheduler = Scheduler(limits, shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=enable_prefix_caching)
        self.faults = Faults()
        self.executor = FakeExecutor(
            shape, fail_submit=self.faults.submit, fail_step=self.faults.step, fail_row=self.faults.row
        )
        self.engine = Engine(scheduler, self.executor, stop_matcher, observer=self)
        self.requests: dict[int, Request] = {}
        self.output: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.scored: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.finishes: dict[tuple[int, int], Finish] = {}
        self._log = hashlib.sha256()
        self._make_room = scheduler._make_room
        scheduler._make_room = self._watch_victims  # type: ignore[method-assign]

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def digest(self) -> str:
        """Of every plan and everything that came out."""
        return self._log.hexdigest()

    @property
    def is_live(self) -> bool:
        return bool(self.scheduler._live)

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        joins = [(j.slot, j.request.id, j.choice, j.tokens) for j in plan.joins]
        self._log.update(repr((joins, plan.leaves, plan.block_slots, plan.block_ids, plan.chunks)).encode())
        self._log.update(repr((plan.decodes, plan.num_context_tokens, begun, finished)).encode())

    def _watch_victims(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Nobody is preempted in vain: a victim that frees nothing goes only after all that free something."""
        holders = [s for s in running if s.blocks]
        frees = {s.key: self.scheduler.kv.frees_some(s) for s in holders}
        made = self._make_room(sequence, running)
        victims = [s for s in holders if s.state is State.WAITING]
        spared = [s for s in holders if s.order > sequence.order and s.state is not State.WAITING]
        check(all(s.order > sequence.order for s in victims), "a victim stands before the one it made room for")
        vain = any(not frees[s.key] for s in victims) and any(frees[s.key] for s in spared)
        check(not vain, "a victim freed nothing while another would have")
        return made

    def take(self, output: StepOutput) -> None:
        """What came out of the engine, and what must hold now."""
        check(len(output.keys) == len(output.tokens), "keys and tokens are not parallel")
        for key, token in zip(output.keys, output.tokens, strict=True):
            check(key not in self.finishes, "a token after the end")
            self.output[key].append(token)
        for key, logprob in output.logprobs.items():
            self.logprobs[key].append(logprob.token)
        for key, scores in output.prompt_logprobs.items():
            self.scored[key] += scores
        for finish in output.finishes:
            key = (finish.id, finish.choice)
            check(key not in self.finishes, "two endings of one sequence")
            self.finishes[key] = finish
        self._log.update(repr(output).encode())
        check(not self.executor.violations, "; ".join(self.executor.violations))
        check_invariants(self.scheduler)

    def step(self, now: float) -> None:
        """One step, or what ended outside one."""
        if self.engine.begin(now):
            self.finish(now)
        else:
            check(not self.is_live, "nothing to do although a request is live")
            self.take(self.engine.flush(now))

    def finish(self, now: float) -> None:
        """The step that was begun ends; what went wrong in it does not go wrong again."""
        budget = self.scheduler.limits.max_num_batched_tokens
        check(0 < self.engine.num_step_tokens <= budget, "a step computes nothing, or more than its budget")
        self.take(self.engine.finish(now))
        self.faults.clear()

    def drain(self, now: float) -> None:
        """No new work and no faults: everything that is live must end, within a bound."""
        self.faults.clear()
        bound = 20 + 4 * sum(len(s.tokens) + s.end for ss in self.scheduler._live.values() for s in ss)
        while self.engine.has_work:
            bound -= 1
            check(bound > 0, "the engine does not drain")
            self.step(now)
        check(self.scheduler.kv.pool.num_held == 0, "blocks are held by nobody")
        keys = {(r.id, choice) for r in self.requests.values() for choice in range(r.n)}
        check(set(self.finishes) == keys, "not every choice ended exactly once")
        for key in sorted(keys):
            self._check_answer(key)

    def _check_answer(self, key: tuple[int, int]) -> None:
        """A sequence that ended by itself has exactly the model's tokens; any other has the first of them."""
        request, finish = self.requests[key[0]], self.finishes[key]
        params = request.params
        wanted, got = answer(request, key[1], self.scheduler.max_model_len), self.output[key]
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            check(got == wanted, f"{key}: {got} instead of {wanted}")
            ends = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
            stopped = wanted[-1] in ends or (bool(params.stop) and wanted[-1] % 40 == 17)
            check(stopped or finish.reason is FinishReason.LENGTH, "the end of a sequence has the wrong reason")
            if params.prompt_logprobs is not None and key[1] == 0:
                scores = [(s.token, s.logprob) for s in self.scored[key]]
                check(scores == [(t, -float(i)) for i, t in enumerate(request.prompt) if i], "prompt scores are wrong")
        else:
            check(got == wanted[: len(got)], f"{key}: {got} is no prefix of {wanted}")
        check(finish.error is None or finish.error in FAULT_TEXTS, f"an error nobody caused: {finish.error}")
        check((finish.error is None) == (finish.reason is not FinishReason.ERROR), "an error without its text")
        check(self.logprobs[key] == (got if params.logprobs is not None else []), "log-probabilities lost or doubled")
        check(finish.num_output_tokens == len(got), "the count of output tokens is wrong")
        check(finish.num_cached_tokens < finish.num_prompt_tokens, "a cached prompt leaves no token to compute")


def random_world(rng: random.Random) -> World:
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    num_blocks = rng.choice([4, 6, 10, 20, 64, 200])
    max_num_seqs = rng.choice([1, 2, 4, 8, 32])
    budget = max_num_seqs + rng.choice([0, 1, 3, 10, 100, 1000])
    limits = Limits(max_num_seqs, budget, max_model_len=rng.choice([8, 30, 100]))
    return World(limits, CacheShape(num_blocks, block_size), enable_prefix_caching=rng.random() < 0.7)


def random_request(rng: random.Random, number: int, now: float, max_model_len: int, stems: list[list[int]]) -> Request:
    length = rng.randint(1, max(1, max_model_len - 1))
    prompt = (rng.choice(stems) + [rng.randrange(VOCAB_SIZE) for _ in range(length)])[:length]
    params = SamplingParams(
        max_tokens=rng.choice([None, 1, 2, rng.randint(1, 40)]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=STOP_TOKEN_IDS if rng.random() < 0.2 else (),
        stop=("stop",) if rng.random() < 0.1 else (),
        logprobs=1 if rng.random() < 0.2 else None,
        prompt_logprobs=0 if rng.random() < 0.2 else None,
    )
    return Request(
        id=number,
        prompt=prompt,
        params=params,
        arrival=now,
        n=rng.choice([1, 1, 1, 2, 3]),
        eos_token_ids=EOS_TOKEN_IDS,
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice([b"", b"a", b"b"]),
    )


def run(seed: int, num_steps: int) -> World:
    """A safety phase with load and faults, then a liveness phase: no new work, and everything must drain.

    Raises:
        AssertionError: something that must hold does not.
    """
    rng = random.Random(seed)
    world = random_world(rng)
    stems = [[rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    load, fault_rate = rng.choice([0.05, 0.2, 0.6]), rng.choice([0.0, 0.02, 0.1])
    now, number = 0.0, 0

    def meddle() -> None:
        nonlocal number
        if rng.random() < load and len(world.scheduler._live) < 25:
            request = random_request(rng, number, now, world.scheduler.max_model_len, stems)
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
        if world.is_live and rng.random() < fault_rate / 2:
            world.faults.rows.add(rng.choice(sorted(world.scheduler._live)))
        if rng.random() < fault_rate / 4:
            world.faults.phase = rng.choice(["submit", "step"])
        if rng.random() < 0.5:
            world.step(now)
        elif world.engine.begin(now):
            meddle()
            world.finish(now)
    world.drain(now)
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description="run random worlds; prints a digest of what happened in each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.seeds):
        print(seed, run(seed, args.steps).digest, flush=True)


if __name__ == "__main__":
    main()
