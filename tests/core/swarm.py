"""Random engines under random load and faults, against the fake executor's model, with every invariant checked.

One seed is one world: its limits, cache, requests and faults. A failing seed replays alone, in any process:

    python [-O] tests/core/swarm.py --first 123 --seeds 1 --steps 1000
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chairlift.core.background import is_background
from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidRequest
from chairlift.core.policy import BatchingName, OrderName, Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import (
    BACKGROUND_PRIORITY,
    BlockKeys,
    CacheShape,
    Finish,
    FinishReason,
    LimitChange,
    Limits,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
    TokenLogprob,
    WaitReason,
)
from core.oracles import Door, Ledger, ideal_steps, tasks
from fakes import VOCAB_SIZE, FakeExecutor, FakePending, check, expected_answer
from invariants import check_index, check_invariants, check_plan

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
    result: str | None = None

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
        self.phase = self.result = None


FAULT_TEXTS = {
    "not a number",
    "the sampled token is outside the vocabulary",
    *(f"the step failed in the executor ({e})" for e in ("MemoryError", "RuntimeError")),
}


class FaultyExecutor:
    """The fake executor, whose results may be spoiled on their way."""

    def __init__(self, inner: FakeExecutor, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def submit(self, plan: StepPlan) -> SpoiledPending:
        return SpoiledPending(self._inner.submit(plan), self._faults)


@dataclass(slots=True)
class SpoiledPending:
    pending: FakePending
    faults: Faults

    def result(self) -> StepResult:
        result = self.pending.result()
        if self.faults.result == "short" and result.tokens:
            result.tokens.pop()
        elif self.faults.result == "long":
            result.tokens.append(0)
        elif self.faults.result == "range" and result.tokens:
            result.tokens[0] = VOCAB_SIZE + 7
        return result


class World:
    """One engine and what its callers have seen."""

    def __init__(self, limits: Limits, shape: CacheShape, *, enable_prefix_caching: bool, policy: Policy) -> None:
        scheduler = Scheduler(
            limits,
            shape,
            vocab_size=VOCAB_SIZE,
            enable_prefix_caching=enable_prefix_caching,
            policy=policy,
            takes_block_keys=True,
        )
        self.faults = Faults()
        self.executor = FakeExecutor(
            shape, fail_submit=self.faults.submit, fail_step=self.faults.step, fail_row=self.faults.row
        )
        self.engine = Engine(scheduler, FaultyExecutor(self.executor, self.faults), stop_matcher, observer=self)
        self.requests: dict[int, Request] = {}
        self.output: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.scored: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.finishes: dict[tuple[int, int], Finish] = {}
        self.joined: set[int] = set()
        self.budget_begun = 0
        """The budget when the step in progress was planned."""
        self.num_filler_rows = 0
        self.drained = 0, 0
        """Steps that draining took, and the fewest that it could have."""
        self.reasons: Counter[WaitReason] = Counter()
        """Times that somebody was seen waiting, by why."""
        self._log = hashlib.sha256()
        self.ledger = Ledger(scheduler)
        self.door = Door(scheduler, self.ledger)
        self._keys: dict[tuple[int, ...], int] = {}
        """Of blocks, by all tokens so far: the same under every salt."""
        self._unwanted: set[int] = set()
        """Aborted: gone when the step in progress is over, if not before."""

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
        self._log.update(repr((plan.decodes, plan.fillers, plan.num_context_tokens, begun, finished)).encode())
        self.num_filler_rows += len(plan.fillers)
        for key in output.keys:
            check(key[0] in self.joined or key[0] in output.joined, "a token of a request that never joined")
        check(self.joined.isdisjoint(output.joined), "a request joined for the first time twice")
        self.joined.update(output.joined)
        self.ledger.on_step(plan, output)

    def add(self, request: Request) -> None:
        """Queue a request, or find that it is refused.

        Raises:
            InvalidRequest: as the engine does.
        """
        if request.id % 3 == 0:
            request = self._keyed(request)
        if request.id - 1 in self.scheduler._live:
            self._check_refused(replace(request, id=request.id - 1))
        self.engine.add(request)
        self.requests[request.id] = request
        self.door.on_add(request)

    def _keyed(self, request: Request) -> Request:
        """The same, with keys for the first of its full blocks or for all of them."""
        size, prompt = self.scheduler.kv.block_size, request.prompt
        num_blocks = len(prompt) // size
        count = num_blocks if request.id % 2 else num_blocks // 2
        beginnings = [tuple(prompt[: (i + 1) * size]) for i in range(count)]
        keys = [self._keys.setdefault(beginning, len(self._keys)) for beginning in beginnings]
        return replace(request, block_keys=BlockKeys(size, keys))

    def _check_refused(self, request: Request) -> None:
        """An id in use is refused, and nothing comes of it."""
        before = self.scheduler.stats()
        try:
            self.engine.add(request)
        except InvalidRequest:
            check(self.scheduler.stats() == before, "a refused request left something behind")
        else:
            check(False, "two live requests with one id")

    def abort(self, request_id: int, now: float) -> None:
        self.engine.abort(request_id, now)
        if request_id % 2:
            self.engine.abort(request_id, now)  # twice does no harm
        self._unwanted.add(request_id)

    def take(self, output: StepOutput, now: float) -> None:
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
            self.ledger.on_finish(finish, clock_is_steady=self.door.clock_is_steady)
        check(self._unwanted.isdisjoint(self.scheduler._live), "an aborted request lives on")
        self._unwanted.clear()
        self._log.update(repr(output).encode())
        check(not self.executor.violations, "; ".join(self.executor.violations))
        check_invariants(self.scheduler)
        self.reasons.update(self.scheduler.stats().waiting_by_reason)
        for sequences in self.scheduler._live.values():
            request = sequences[0].request
            check(request.e2e_deadline is None or request.e2e_deadline > now, "one lives past its deadline")
            late = request.ttft_deadline is not None and request.ttft_deadline <= now
            check(not late or (request.id, 0) in self.output or request.n > 1, "one waits past its deadline")

    def begin(self, now: float) -> bool:
        """Begin a step, or take what ended outside one."""
        self.budget_begun = self.scheduler.limits.max_num_batched_tokens
        has_begun = self.engine.begin(now)
        plan = self.scheduler._planned if has_begun else None
        self.door.on_plan(plan or StepPlan(-1), now)
        if plan is not None:
            self.ledger.on_plan(plan)
            check_plan(self.scheduler, plan)
            return True
        forming = self.scheduler._planner.batching.holds and not self.scheduler._planner.closed
        check(not self.is_live or forming, "nothing to do although a request is live")
        wake_at = self.engine.wake_at()
        check(wake_at is None or wake_at > now or not self.is_live, "to wake when there was nothing to do")
        self.take(self.engine.flush(now), now)
        return False

    def finish(self, now: float) -> None:
        """The step that was begun ends; what went wrong in it does not go wrong again."""
        scheduler = self.scheduler
        # Limits that were lowered take nothing from those who run already.
        budget = max(scheduler.limits.max_num_batched_tokens, self.budget_begun, scheduler._running.num_taken)
        check(0 < self.engine.num_step_tokens <= budget, "a step computes nothing, or more than its budget")
        self.take(self.engine.finish(now), now)
        self.faults.clear()

    def drain(self, now: float) -> None:
        """No new work and no faults: everything that is live must end, in few steps more than it would take alone."""
        self.faults.clear()
        self.engine.close()
        scheduler, todo = self.scheduler, tasks(self.scheduler)
        everybody = [s for sequences in scheduler._live.values() for s in sequences]
        bound = 20 + 4 * sum(len(s.tokens) + s.end for s in everybody)
        num_steps, num_preemptions = 0, scheduler.stats().num_preemptions
        while self.engine.has_work:
            bound -= 1
            check(bound > 0, "the engine does not drain")
            if self.begin(now):
                num_steps += 1
                self.finish(now)
        lengths = {key: f.num_prompt_tokens + f.num_output_tokens for key, f in self.finishes.items()}
        self.drained = num_steps, ideal_steps(scheduler, todo, lengths)
        # Where chunks are small, one that is preempted takes a step for each of them once more; and where blocks let in
        # one at a time, nobody's go into the same step.
        chunk = scheduler._planner.threshold or scheduler.limits.max_num_batched_tokens
        again = (scheduler.stats().num_preemptions - num_preemptions) * (scheduler.max_model_len // chunk)
        alone = sum(task.num_lacking for task in todo) // chunk if scheduler._planner.threshold else 0
        most = 8 + 4 * self.drained[1] + again + alone
        # A controller spreads prompts over the time that an objective leaves them, which here stands still, and so does
        # the second in which the background still gives way to those who left.
        spreads = scheduler.controller.is_active or any(map(is_background, everybody))
        check(
            num_steps <= most or spreads,
            f"drained in {num_steps} steps where {self.drained[1]} might do",
        )
        stall = self.ledger.longest_stall
        check(stall <= 64 + scheduler.max_model_len, f"nobody came further in {stall} steps")
        check(scheduler.kv.pool.num_held == 0, "blocks are held by nobody")
        check(not scheduler.kv._coming, "blocks are awaited from nobody")
        check(len(scheduler._waiting) == 0 == scheduler.stats().num_running, "somebody is left")
        check_index(scheduler)
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
        if finish.reason is FinishReason.DEADLINE:
            self._check_deadline(finish, request)
        elif finish.reason is FinishReason.ERROR:
            check(finish.error in FAULT_TEXTS or "rows" in str(finish.error), f"an error nobody caused: {finish.error}")
        else:
            check(finish.error is None, "an error without a reason")
        check(self.logprobs[key] == (got if params.logprobs is not None else []), "log-probabilities lost or doubled")
        check(finish.num_output_tokens == len(got), "the count of output tokens is wrong")
        check(finish.num_cached_tokens < finish.num_prompt_tokens, "a cached prompt leaves no token to compute")

    def _check_deadline(self, finish: Finish, request: Request) -> None:
        kind = str(finish.error).split()[0]
        check(kind in ("ttft", "e2e"), f"a deadline of no kind: {finish.error}")
        deadline = request.ttft_deadline if kind == "ttft" else request.e2e_deadline
        check(deadline is not None and deadline <= finish.finished, "a deadline fired before it came")
        check(kind == "e2e" or finish.first_token is None, "a first token came in time, and its deadline fired")


def random_world(rng: random.Random) -> World:
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    num_blocks = rng.choice([4, 6, 10, 20, 64, 200])
    max_num_seqs = rng.choice([1, 2, 4, 8, 32])
    budget = max_num_seqs + rng.choice([0, 1, 3, 10, 100, 1000])
    max_model_len = rng.choice([8, 30, 100])
    policy = random_policy(rng)
    if not policy.enable_chunked_prefill and rng.random() < 0.5:
        budget = max(max_num_seqs, max_model_len)  # any prompt fits, and not always beside others
    limits = Limits(max_num_seqs, budget, max_model_len)
    shape = CacheShape(num_blocks, block_size)
    return World(limits, shape, enable_prefix_caching=rng.random() < 0.7, policy=policy)


def random_policy(rng: random.Random) -> Policy:
    batching: BatchingName = rng.choice(("continuous", "continuous", "continuous", "continuous", "static", "dynamic"))
    steered = rng.random() < 0.2
    return Policy(
        batching=batching,
        max_batch_wait_s=None if batching == "continuous" else rng.choice([None, 0.0, 0.02]),
        kv_reservation="max" if rng.random() < 0.2 else "on-demand",
        enable_chunked_prefill=rng.random() < 0.75,
        prefill_first=batching == "continuous" and rng.random() < 0.15,
        scheduling_policy=rng.choice(get_args(OrderName)),
        weights=rng.choice([{}, {"p0": 3.0}]),
        priority_ageing_s=rng.choice([0.0, 0.05, 60.0]),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5]),
        watermark=rng.choice([0.0, 0.01, 0.2]),
        max_bypass=rng.choice([0, 1, 16]),
        itl_objective_s=rng.choice([0.0, 0.005, 1.0]) if steered else 0.0,
        ttft_objective_s=rng.choice([0.0, 0.05]) if steered else 0.0,
        max_step_s=rng.choice([0.0, 0.02]) if steered else 0.0,
    )


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
        principal=rng.choice(["", "p0", "p1"]),
        tenant=rng.choice(["", "", "t0", "t1", f"t{number}"]),
        ttft_deadline=now + rng.choice([0.0, 0.05, 40.0]) if rng.random() < 0.1 else None,
        e2e_deadline=now + rng.choice([0.0, 0.1, 40.0]) if rng.random() < 0.1 else None,
    )


def run(seed: int, num_steps: int) -> World:
    """One world to its end.

    Raises:
        AssertionError: something that must hold does not; the text has the command that shows it again.
    """
    try:
        return live(seed, num_steps)
    except Exception as error:
        command = f"python tests/core/swarm.py --first {seed} --seeds 1 --steps {num_steps}"
        raise AssertionError(f"{type(error).__name__}: {error}; again: {command}") from error


def live(seed: int, num_steps: int) -> World:
    """A safety phase with load and faults, then a liveness phase: no new work, and everything must drain."""
    rng = random.Random(seed)
    world = random_world(rng)
    stems = [[rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    load, fault_rate = rng.choice([0.05, 0.2, 0.6]), rng.choice([0.0, 0.02, 0.1])
    chance = random.Random(f"{seed}/background")
    background_rate = chance.choice([0.0, 0.0, 0.3, 0.7])
    now, number = 0.0, 0

    def meddle() -> None:
        nonlocal number
        if rng.random() < load and len(world.scheduler._live) < 25:
            request = random_request(rng, number, now, world.scheduler.max_model_len, stems)
            if chance.random() < background_rate:
                request = replace(request, priority=BACKGROUND_PRIORITY)
            number += 1
            try:
                world.add(request)
            except InvalidRequest as error:
                check(may_be_refused(world.scheduler, request), f"refused without a reason: {error}")
        if number and rng.random() < fault_rate:
            world.abort(rng.randrange(number), now)
        if rng.random() < fault_rate / 4:
            change_limits(rng, world)

    for _ in range(num_steps):
        now += rng.choice([0.0, 0.0, 0.01, 0.01, 30.0 if rng.random() < 0.1 else 0.03])
        if rng.random() < fault_rate / 10:
            now -= 1.0  # a clock that jumps back
            world.door.clock_is_steady = False
        meddle()
        if rng.random() < fault_rate / 100:
            world.engine.close()
        if world.is_live and rng.random() < fault_rate / 2:
            world.faults.rows.add(rng.choice(sorted(world.scheduler._live)))
        if rng.random() < fault_rate / 4:
            world.faults.phase = rng.choice(["submit", "step"])
        if rng.random() < fault_rate / 4:
            world.faults.result = rng.choice(["short", "long", "range"])
        if world.begin(now):
            if rng.random() < 0.5:
                meddle()
            now += rng.choice([0.0, 0.0, 0.01, 0.01, 30.0 if rng.random() < fault_rate else 0.02])
            world.finish(now)
    world.drain(now)
    return world


def may_be_refused(scheduler: Scheduler, request: Request) -> bool:
    """Whether these policies and sizes can never serve a request."""
    policy, limits = scheduler.policy, scheduler.limits
    too_long = not policy.enable_chunked_prefill and len(request.prompt) > limits.max_num_batched_tokens
    return request.n > scheduler.started_with.max_num_seqs or too_long or scheduler._planner.reserves_max


def change_limits(rng: random.Random, world: World) -> None:
    """An operator changes what may be changed, to anything that is allowed."""
    first = world.scheduler.started_with
    chunked = world.scheduler.policy.enable_chunked_prefill
    max_num_seqs = rng.randint(1, first.max_num_seqs)
    change = LimitChange(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, first.max_num_batched_tokens) if chunked else None,
        long_prefill_token_threshold=rng.choice([None, 0, 2]),
        itl_objective_s=rng.choice([None, 0.0, 0.02]),
    )
    world.engine.set_limits(change)
    limits, planner = world.scheduler.limits, world.scheduler._planner
    check(limits.max_num_seqs == max_num_seqs, "a change of limits is lost")
    check(change.max_num_batched_tokens in (None, limits.max_num_batched_tokens), "a change of limits is lost")
    check(change.long_prefill_token_threshold in (None, planner.threshold), "a change of limits is lost")


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
