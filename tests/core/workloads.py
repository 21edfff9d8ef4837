"""Small workloads, and what comes out of them in an engine that is set up in one way or another.

    python [-O] tests/core/workloads.py --first 0 --seeds 10

prints, for each seed, a digest of all tokens under all variants.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, FinishReason, LimitChange, Limits, Request, SamplingParams, StepOutput
from fakes import VOCAB_SIZE, FakeExecutor, check, expected_answer
from forcing import preempt

MAX_MODEL_LEN = 80
Key = tuple[int, int]


def workload(seed: int) -> list[Request]:
    """Requests that share beginnings, in the order in which they come; `arrival` is the step at which they do."""
    rng = random.Random(seed)
    stems = [[rng.randrange(VOCAB_SIZE) for _ in range(60)] for _ in range(2)]
    requests = []
    for number in range(rng.randint(6, 14)):
        length = rng.choice([rng.randint(1, 8), rng.randint(8, 64)])
        kept = rng.choice([0, length // 2, length - 1, length])
        prompt = rng.choice(stems)[:kept] + [rng.randrange(VOCAB_SIZE) for _ in range(length - kept)]
        params = SamplingParams(
            max_tokens=rng.choice([1, rng.randint(1, 16), 16]),
            ignore_eos=rng.random() < 0.5,
            prompt_logprobs=0 if rng.random() < 0.1 else None,
        )
        requests.append(
            Request(
                number,
                prompt,
                params,
                arrival=float(rng.randrange(8)),
                n=rng.choice([1, 1, 1, 2, 3]),
                eos_token_ids=tuple(range(20)),
                priority=rng.choice([0, 0, 1]),
                salt=rng.choice([b"", b"", b"", b"a"]),
                principal=rng.choice(["a", "b"]),
                tenant=rng.choice(["", "t"]),
                e2e_deadline=rng.choice([None, 1e6]),
            )
        )
    return sorted(requests, key=lambda r: r.arrival)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to set an engine up. Whatever it is, the tokens are the same."""

    name: str
    policy: Policy = field(default_factory=Policy)
    max_num_seqs: int = 8
    budget: int = 96
    block_size: int = 4
    num_cells: int = 144
    """Tokens that the cache holds."""
    caching: bool = True
    preempt_every: int = 0
    cap: int | None = None
    """Slots that may be taken, less than there are: choices of one request still take theirs together."""
    is_permuted: bool = False
    """Whether the requests come all at once, in another order."""


PLAIN = Variant("plain")
VARIANTS = (
    replace(PLAIN, name="no prefix cache", caching=False),
    replace(PLAIN, name="chunks of one", policy=Policy(long_prefill_token_threshold=1)),
    replace(PLAIN, name="least budget", budget=8),
    replace(PLAIN, name="budget of 64", budget=64),
    replace(PLAIN, name="unbounded budget", budget=100_000),
    replace(PLAIN, name="batch of one", cap=1),
    replace(PLAIN, name="batch of all", max_num_seqs=64, num_cells=4096),
    replace(PLAIN, name="preempted every 2 steps", preempt_every=2),
    replace(PLAIN, name="preempted every 5 steps without a cache", preempt_every=5, caching=False),
    replace(PLAIN, name="blocks of one", block_size=1),
    replace(PLAIN, name="blocks of 16", block_size=16),
    replace(PLAIN, name="room for one request", num_cells=MAX_MODEL_LEN + 4),
    replace(PLAIN, name="in another order", is_permuted=True),
    replace(PLAIN, name="by priority", policy=Policy(scheduling_policy="priority", priority_ageing_s=3.0)),
    replace(PLAIN, name="fair", policy=Policy(scheduling_policy="fair"), num_cells=96),
    replace(PLAIN, name="by deadline", policy=Policy(scheduling_policy="deadline"), num_cells=96),
    replace(PLAIN, name="static", policy=Policy(batching="static")),
    replace(PLAIN, name="dynamic", policy=Policy(batching="dynamic", max_batch_wait_s=4.0)),
    replace(PLAIN, name="reserved", policy=Policy(kv_reservation="max")),
    replace(PLAIN, name="prefill first", policy=Policy(prefill_first=True), num_cells=96),
    replace(PLAIN, name="whole prompts", policy=Policy(enable_chunked_prefill=False)),
    replace(PLAIN, name="steered", policy=Policy(itl_objective_s=0.5, max_step_s=2.0)),
)


def outcome(requests: list[Request], variant: Variant) -> dict[Key, list[int]]:
    """Tokens by (id, choice) when all is over.

    Raises:
        AssertionError: not everything ended by itself, exactly once.
    """
    shape = CacheShape(-(-variant.num_cells // variant.block_size), variant.block_size)
    limits = Limits(variant.max_num_seqs, variant.budget, MAX_MODEL_LEN)
    scheduler = Scheduler(
        limits, shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=variant.caching, policy=variant.policy
    )
    executor = FakeExecutor(shape)
    engine = Engine(scheduler, executor)
    engine.set_limits(LimitChange(max_num_seqs=variant.cap))
    tokens: dict[Key, list[int]] = {}
    ended: list[Key] = []
    for now, output in steps(engine, arranged(requests, variant)):
        for key, token in zip(output.keys, output.tokens, strict=True):
            tokens.setdefault(key, []).append(token)
        natural = (FinishReason.STOP, FinishReason.LENGTH)
        check(all(f.reason in natural for f in output.finishes), f"{variant.name}: an ending nobody asked for")
        ended += [(f.id, f.choice) for f in output.finishes]
        live = scheduler._running.live()
        if variant.preempt_every and int(now) % variant.preempt_every == 0 and live:
            preempt(scheduler, live[int(now) // variant.preempt_every % len(live)], now)
    check(not executor.violations, f"{variant.name}: {executor.violations}")
    check(sorted(ended) == sorted((r.id, choice) for r in requests for choice in range(r.n)), "not all ended once")
    return tokens


def arranged(requests: list[Request], variant: Variant) -> list[Request]:
    if not variant.is_permuted:
        return requests
    together = [replace(request, arrival=0.0) for request in requests]
    random.Random(len(together)).shuffle(together)
    return together


def steps(engine: Engine, requests: list[Request], bound: int = 20_000) -> Iterator[tuple[float, StepOutput]]:
    """One step a second, with what arrived until then, to the end."""
    left = list(requests)
    for step in range(bound):
        now = float(step)
        while left and left[0].arrival <= now:
            engine.add(left.pop(0))
        if not left:
            if not engine.has_work:
                return
            engine.close()
        yield now, engine.step(now) or StepOutput()
    raise AssertionError("the engine does not drain")


def check_seed(seed: int) -> str:
    """A digest of one workload's tokens, which are the same under every variant and what the model alone would say.

    Raises:
        AssertionError: they differ; the text says where.
    """
    requests = workload(seed)
    wanted = {(r.id, choice): expected_answer(r, choice, MAX_MODEL_LEN) for r in requests for choice in range(r.n)}
    for variant in (PLAIN, *VARIANTS):
        got = outcome(requests, variant)
        different = [key for key in wanted if got.get(key) != wanted[key]]
        check(not different, f"workload {seed}, {variant.name}: {different} differ")
    return hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="run workloads under every variant; prints a digest of each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.seeds):
        print(seed, check_seed(seed), flush=True)


if __name__ == "__main__":
    main()
