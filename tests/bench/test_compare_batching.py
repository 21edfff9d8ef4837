"""One traffic under three batchings: what is served, what is counted, and what is estimated before."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from chairlift.bench import compare_batching as bench
from chairlift.bench.compare_batching import Traffic, estimate_capacity
from chairlift.bench.in_process import Listener, Recording, serve
from chairlift.core.errors import ChairliftError, InvalidOption
from chairlift.core.policy import Policy
from chairlift.core.types import Decisions, Finish, FinishReason, Request, SamplingParams, StepOutput, StepPlan

NUM_SLOTS = 4


def traffic(num_prompts: int = 1000, **changes: float) -> Traffic:
    values = {"prompt_tokens": 5, "output_median": 30.0, "output_sigma": 1.0, "output_max": 512} | changes
    return Traffic(num_prompts=num_prompts, **values)  # type: ignore[arg-type]


# ---------------------------------------------------------------- traffic


def test_lengths_are_log_normal_and_the_same_for_the_same_seed() -> None:
    lens = traffic().output_lens()
    assert 27 <= statistics.median(lens) <= 33
    assert 45 <= statistics.fmean(lens) <= 55
    assert min(lens) >= 1 and 300 < max(lens) <= 512
    assert traffic().output_lens() == lens
    assert traffic(seed=1).output_lens() != lens
    assert traffic(output_max=40, output_sigma=3.0).output_lens().count(40) > 300
    assert set(traffic(output_sigma=0.0).output_lens()) == {30}


def test_requests_go_on_to_their_length_and_share_no_prompt() -> None:
    requests = traffic(20).requests(vocab_size=50)
    assert [request.params.max_tokens for request in requests] == traffic(20).output_lens()
    assert all(request.params.ignore_eos and request.params.temperature == 0.0 for request in requests)
    assert all(
        len(request.prompt) == 5 and 0 <= min(request.prompt) <= max(request.prompt) < 50 for request in requests
    )
    assert len({tuple(request.prompt) for request in requests}) == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": 0}, "num_prompts"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"output_max": 0}, "output_max"),
        ({"output_median": 0.5}, "output_median"),
        ({"output_median": 600.0}, "output_median"),
        ({"output_sigma": -1.0}, "output_sigma"),
        ({"output_sigma": float("nan")}, "output_sigma"),
    ],
)
def test_what_makes_no_traffic(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        traffic(**changes)  # type: ignore[arg-type]


# ---------------------------------------------------------------- one run, in virtual time


@dataclass
class World:
    """A clock, and an engine that gives each request its tokens at once, `step_s` apart, one request at a time."""

    step_s: float = 0.25
    error: str | None = None
    refuse: bool = False
    now: float = 100.0
    started: list[Policy] = field(default_factory=list)
    asked: list[tuple[float, Request]] = field(default_factory=list)
    closed: bool = False
    stopped: bool = False
    listener: Listener | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def start(self, policy: Policy, listener: Listener) -> World:
        self.started.append(policy)
        self.listener = listener
        return self

    def add(self, request: Request) -> None:
        assert self.listener is not None and not self.closed
        self.asked.append((self.now, request))
        for i in range(request.params.max_tokens or 0):
            plan = StepPlan(0, decodes=[] if i == 0 else [0])
            begun, self.now = self.now, self.now + self.step_s
            self.listener.on_step(plan, StepOutput(), begun, self.now)
            is_last = i + 1 == request.params.max_tokens
            self.listener.on_tokens([request.id], [self._finish(request)] if is_last else [], self.now)

    def _finish(self, request: Request) -> Finish:
        num = request.params.max_tokens or 0
        reason = FinishReason.LENGTH if self.error is None else FinishReason.ERROR
        counts = (len(request.prompt), num, 0, 0)
        times = (request.arrival, request.arrival, request.arrival, self.now)
        return Finish(request.id, 0, reason, None, self.error, *counts, *times, Decisions())

    def close(self) -> None:
        self.closed = True

    def stop(self) -> None:
        self.stopped = True

    def wait(self, timeout_s: float) -> bool:
        if self.refuse:
            raise ChairliftError("refused")
        return True


def run(world: World, num_tokens: Sequence[int], arrivals: Sequence[float]) -> Recording:
    requests = [Request(i, [1, 2, 3], SamplingParams(max_tokens=num)) for i, num in enumerate(num_tokens)]
    return serve(world.start, Policy(), requests, arrivals, clock=world.clock, sleep=world.sleep)


def test_latencies_count_from_when_a_request_was_due() -> None:
    world = World()
    recording = run(world, [4, 2, 1], [1.5, 1.75, 10.0])
    assert [when for when, _ in world.asked] == [101.5, 102.5, 110.0]
    assert [request.arrival for _, request in world.asked] == [101.5, 101.75, 110.0]
    exchanges = recording.load.exchanges
    assert [exchange.ttft_s for exchange in exchanges] == [0.25, 1.0, 0.25]
    assert [exchange.itls_s for exchange in exchanges] == [[0.25] * 3, [0.25], []]
    assert [exchange.e2el_s for exchange in exchanges] == [1.0, 1.25, 0.25]
    assert [exchange.num_output_tokens for exchange in exchanges] == [4, 2, 1]
    assert recording.load.duration_s == 10.25
    assert (recording.load.num_started, recording.load.num_done, recording.load.num_failed) == (3, 3, 0)
    assert recording.num_steps == 7 and recording.num_tokens == 7
    assert world.closed and not world.stopped


def test_a_refusal_ends_the_run() -> None:
    world = World(refuse=True)
    with pytest.raises(ChairliftError, match="refused"):
        run(world, [2], [0.0])
    assert world.stopped


# ---------------------------------------------------------------- estimates


def test_capacity_is_that_of_whole_batches_held_to_their_ends() -> None:
    lens = [1, 9, 3, 5, 1, 1, 1, 4, 100]
    capacity = estimate_capacity(lens, NUM_SLOTS, prompt_s=0.5, step_s=2.0)
    # 8 and 3 steps, and 8 prompts
    assert capacity.static == pytest.approx(8 / (16 + 6 + 4))
    assert capacity.continuous == pytest.approx(9 / (9 * 0.5 + (125 - 9) / 4 * 2.0))
    assert estimate_capacity([4, 2], NUM_SLOTS, 0.5, 2.0).static == pytest.approx(2 / (1 + 6))


def test_the_rate_is_between_the_capacities_where_there_is_room() -> None:
    assert bench.Capacity(1.0, 5.0).rate == pytest.approx(5.0 * bench.AUTO_SHARE)
    assert bench.Capacity(1.0, 1.0).rate == bench.MIN_OVERLOAD


def test_capacity_is_measured_with_a_full_static_batch() -> None:
    world = World(step_s=0.5)
    capacity = bench.measure_capacity(
        world.start,
        Policy(batching="dynamic", max_batch_wait_s=3.0),
        traffic(8),
        9,
        2,
        clock=world.clock,
        sleep=world.sleep,
    )
    assert world.started == [Policy(batching="static")]
    assert [request.params.max_tokens for _, request in world.asked] == [bench.PROBE_TOKENS] * 2
    assert capacity == estimate_capacity(traffic(8).output_lens(), 2, 0.0, 0.5)


# ---------------------------------------------------------------- all three


def compare(world: World, policy: Policy) -> list[bench.Row]:
    return bench.compare(
        world.start,
        policy,
        traffic(6, output_median=8.0, output_max=20),
        2.0,
        9,
        NUM_SLOTS,
        clock=world.clock,
        sleep=world.sleep,
        show=lambda batching: lambda load, num_tokens: None,
    )


class Worlds(World):
    """The same, again and again: it can be closed and started anew."""

    def start(self, policy: Policy, listener: Listener) -> World:
        self.closed = False
        return super().start(policy, listener)


def test_all_three_get_the_same_and_are_told_apart_by_nothing_but_batching() -> None:
    world = Worlds()
    rows = compare(world, Policy(batching="dynamic", max_batch_wait_s=0.125, max_bypass=3))
    assert world.started == [
        Policy(batching="static", max_bypass=3),
        Policy(batching="dynamic", max_batch_wait_s=0.125, max_bypass=3),
        Policy(batching="continuous", max_bypass=3),
    ]
    assert [row.batching for row in rows] == ["static", "dynamic", "continuous"]
    asked = [[(r.id, r.prompt, r.params) for _, r in world.asked[i : i + 6]] for i in (0, 6, 12)]
    assert asked[0] == asked[1] == asked[2]
    num_tokens = sum(traffic(6, output_median=8.0, output_max=20).output_lens())
    for row in rows:
        assert row.num_steps == num_tokens
        assert row.slot_use == pytest.approx((num_tokens - 6) / num_tokens / NUM_SLOTS)
        assert row.report.num_output_tokens == num_tokens


def test_a_failed_answer_makes_no_figures() -> None:
    with pytest.raises(ChairliftError, match="out of luck"):
        compare(Worlds(error="out of luck"), Policy())


def test_the_table_and_the_figures() -> None:
    rows = compare(Worlds(), Policy())
    head, *lines = bench.to_table(rows).splitlines()
    assert head.split("  ")[-1] == "E2E p99" and " ".join(head.split()).startswith("policy tok/s slot use TTFT p50")
    assert [line.split()[0] for line in lines] == ["static", "dynamic", "continuous"]
    assert len({len(line) for line in (head, *lines)}) == 1
    assert all(" 250 ms" in line and "%" in line for line in lines)
    assert bench.to_verdict(rows) == (
        "continuous over static: 1.0 times the tokens per second, 1.0 times the TTFT in the median"
    )
    assert bench.to_json(traffic(6), math.inf, None, NUM_SLOTS, rows)["request_rate"] == "inf", "JSON has no infinity"
    figures = bench.to_json(traffic(6), 2.0, bench.Capacity(1.0, 3.0), NUM_SLOTS, rows)
    assert figures["traffic"]["output_max"] == 512
    assert figures["estimated_capacity"] == {"static": 1.0, "continuous": 3.0}
    assert [policy["completed"] for policy in figures["policies"]] == [6, 6, 6]
    assert all(policy["p99_itl_ms"] == pytest.approx(250.0) for policy in figures["policies"])
    headline = bench.to_headline(traffic(6), 2.0, NUM_SLOTS)
    assert headline.startswith("6 requests at 2.00/s (demand") and headline.endswith("at most; 4 slots")
