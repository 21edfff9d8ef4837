"""The server's admission before the real engine, on a virtual clock: overload as it is, without a machine's noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from chairlift.core.admission import Admission, AdmissionLimits, RefusalReason
from chairlift.core.engine import Engine
from chairlift.core.errors import Overloaded
from chairlift.core.policy import Policy
from chairlift.core.tickets import Ticket
from chairlift.core.types import FinishReason, Request, StepOutput
from virtual_engine import (
    CPU_LIKE,
    Served,
    VirtualEngine,
    percentile_of,
    poisson_arrivals,
    virtual_request,
    virtual_scheduler,
)

SLOTS = 16
STEP_TOKENS = 256
MEAN_PROMPT, MEAN_OUTPUT, SPREAD = 60, 40, 0.3
"""Lengths vary little: what is served of ten times as much is a small sample of them, and its mean must not matter."""


class GuardedEngine(Engine):
    """An engine with a door: who arrives is admitted or refused, and the door hears of each step as a server does."""

    def __init__(self, admission: Admission, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.admission = admission
        self.most_waiting = 0
        self._tickets: dict[int, Ticket] = {}
        self._output: StepOutput | None = None

    def add(self, request: Request) -> None:
        (ticket,) = self.admission.admit(
            request.principal,
            [len(request.prompt)],
            request.arrival,
            tenant=request.tenant,
            priority=request.priority,
            ttft_deadline=request.ttft_deadline,
            e2e_deadline=request.e2e_deadline,
        )
        self._tickets[request.id] = ticket
        super().add(request)

    def begin(self, now: float) -> bool:
        begun = super().begin(now)
        if self._output is not None:  # the last step's, told while the next is computed
            self._hear(self._output, now)
            self._output = None
        return begun

    def finish(self, now: float) -> StepOutput:
        num_tokens = self.num_step_tokens
        self._output = super().finish(now)
        self._num_tokens = num_tokens
        return self._output

    def flush(self, now: float) -> StepOutput:
        output = super().flush(now)
        self._hear(output, now)
        return output

    def _hear(self, output: StepOutput, now: float) -> None:
        for request_id in output.joined:
            self.admission.started(self._tickets[request_id], now)
        for finish in output.finishes:
            self.admission.ended(self._tickets.pop(finish.id), now)
        stats = self.stats()
        self.most_waiting = max(self.most_waiting, stats.num_waiting)
        self.admission.observe(stats, now)


def guarded(policy: Policy | None = None, **caps: int | None) -> tuple[VirtualEngine, GuardedEngine]:
    scheduler = virtual_scheduler(SLOTS, STEP_TOKENS, policy=policy)
    driver = VirtualEngine(scheduler, CPU_LIKE, noise=0.05, seed=5)
    order = "fcfs" if policy is None else policy.scheduling_policy
    admission = Admission(AdmissionLimits(**caps), max_num_seqs=SLOTS, policy=order)
    engine = GuardedEngine(admission, scheduler, driver._executor)
    driver.engine = engine
    return driver, engine


def traffic(phases: Sequence[tuple[float, float]], seed: int = 1) -> list[Request]:
    return poisson_arrivals(phases, seed=seed, mean_prompt=MEAN_PROMPT, mean_output=MEAN_OUTPUT, spread=SPREAD)


@pytest.fixture(scope="module")
def capacity() -> float:
    """Requests per second of an engine that always has enough to do."""
    driver = VirtualEngine(virtual_scheduler(SLOTS, STEP_TOKENS), CPU_LIKE, noise=0.05, seed=5)
    driver.run([replace(request, arrival=0.0) for request in traffic([(10.0, 80.0)])], until=25.0)
    return driver.num_tokens(5.0, 25.0) / 20 / MEAN_OUTPUT


def good(served: Served) -> bool:
    """Served to a good end."""
    return bool(served.finishes) and served.finishes[0].reason is FinishReason.LENGTH


def output_rate(driver: VirtualEngine, begin: float, end: float) -> float:
    """Tokens per second of answers that came to a good end."""
    times = [time for served in driver.served.values() if good(served) for time in served.token_times]
    return sum(begin <= time < end for time in times) / (end - begin)


@pytest.mark.parametrize("order", ["fcfs", "fair", "deadline"])
def test_s12_ten_times_the_capacity(capacity: float, order: Any) -> None:
    cap = round(2 * capacity)
    driver, engine = guarded(Policy(scheduling_policy=order), max_num_queued_reqs=cap)
    usual = 0.3 * capacity
    driver.run(traffic([(20.0, usual), (30.0, 10 * capacity), (20.0, usual)]))
    refused = [served for served in driver.served.values() if served.refused is not None]
    assert engine.most_waiting <= cap
    assert len(refused) > 0.85 * 30 * 10 * capacity * 0.95
    assert all(20.0 <= served.request.arrival < 50.0 + 3.0 for served in refused)
    assert output_rate(driver, 25.0, 50.0) >= 0.95 * capacity * MEAN_OUTPUT
    before, after = percentile_of(driver.ttfts(5.0, 20.0), 95), percentile_of(driver.ttfts(53.0, 70.0), 95)
    assert after <= 1.5 * before
    assert (engine.admission.num_live, engine.admission.num_principals) == (0, 0)


def test_the_estimated_wait_is_about_the_wait(capacity: float) -> None:
    """Each refusal's estimate, beside the wait of the last who was let in before it."""
    driver, _ = guarded(max_num_queued_reqs=round(3 * capacity))
    driver.run(traffic([(30.0, 4 * capacity)]))
    ratios, last = [], None
    for served in sorted(driver.served.values(), key=lambda served: served.request.arrival):
        if served.refused is None:
            last = served.finishes[0]
        elif last is not None and last.first_scheduled is not None and served.request.arrival > 5.0:
            assert isinstance(served.refused, Overloaded)
            assert served.refused.wait_s is not None
            ratios.append(served.refused.wait_s / (last.first_scheduled - served.request.arrival))
    assert len(ratios) > 1000
    assert 0.8 < median(ratios) < 1.25
    ratios.sort()
    assert ratios[len(ratios) // 20] > 0.5
    assert ratios[-len(ratios) // 20] < 2.0


@pytest.mark.parametrize("order", ["fcfs", "deadline"])
def test_deadlines_under_overload_are_kept_by_refusing_early(capacity: float, order: Any) -> None:
    """Three times too much, all with a second and a half to their first token."""
    requests = [
        replace(request, ttft_deadline=request.arrival + 1.5) for request in traffic([(30.0, 3 * capacity)], seed=2)
    ]
    driver, _ = guarded(Policy(scheduling_policy=order))
    driver.run(requests)
    admitted = [served for served in driver.served.values() if served.refused is None]
    refused = [served.refused for served in driver.served.values() if served.refused is not None]
    assert {error.reason for error in refused if isinstance(error, Overloaded)} == {RefusalReason.DEADLINE}
    kept = sum(good(served) for served in admitted)
    assert kept >= 0.8 * len(admitted)
    assert output_rate(driver, 5.0, 30.0) >= 0.9 * capacity * MEAN_OUTPUT

    scheduler = virtual_scheduler(SLOTS, STEP_TOKENS, policy=Policy(scheduling_policy=order))
    open_to_all = VirtualEngine(scheduler, CPU_LIKE, noise=0.05, seed=5)
    open_to_all.run(requests)
    assert sum(good(served) for served in open_to_all.served.values()) < kept / 3


def test_a_static_batch_fills_whatever_the_cap_on_the_queue() -> None:
    """It waits until it is full: a door that kept its last rows out would keep everybody waiting for ever."""
    driver, engine = guarded(Policy(batching="static"), max_num_queued_reqs=2)
    driver.run([virtual_request(i, 0.5 * i, 20, 10) for i in range(SLOTS)])
    assert all(map(good, driver.served.values()))
    assert engine.admission.num_live == 0


def test_an_underloaded_engine_refuses_nobody_whatever_their_deadline(capacity: float) -> None:
    generator = random.Random(3)
    requests = [
        replace(request, ttft_deadline=request.arrival + generator.uniform(0.001, 2.0), priority=generator.randrange(3))
        for request in traffic([(60.0, 0.3 * capacity)], seed=4)
    ]
    driver, _ = guarded(max_num_queued_reqs=0)
    driver.run([*requests, virtual_request(10**6, 80.0, 10, 10)])
    assert [served.refused for served in driver.served.values() if served.refused is not None] == []


def named(request: Request, kind: str, name: str) -> Request:
    """As asked by a user with a key, or by a tenant of the one user there is."""
    return replace(request, principal=name) if kind == "principal" else replace(request, tenant=name)


@pytest.mark.parametrize("kind", ["principal", "tenant"])
@pytest.mark.parametrize(("order", "is_fair"), [("fair", True), ("fcfs", False)])
def test_s13_a_flood_at_the_door_takes_nothing_from_modest_users(
    capacity: float, order: Any, is_fair: bool, kind: str
) -> None:
    """Seven users ask for half of the capacity together; an eighth for a hundred times what each of them does."""
    rate = capacity / 14
    flood = [named(request, kind, "flood") for request in traffic([(30.0, 100 * rate)], seed=6)]
    modest = [replace(request, id=10**6 + request.id) for request in traffic([(30.0, 7 * rate)], seed=7)]
    modest = [named(request, kind, f"user {i % 7}") for i, request in enumerate(modest)]
    driver, engine = guarded(Policy(scheduling_policy=order), max_num_queued_reqs=round(2 * capacity))
    driver.run([*flood, *modest])
    served = [driver.served[request.id] for request in modest]
    share = sum(map(good, served)) / len(served)
    assert engine.most_waiting <= 2.5 * capacity + 1
    if is_fair:
        assert share >= 0.99
        assert percentile_of(sorted(one.ttft_s for one in served if good(one)), 95) < 0.5
        assert output_rate(driver, 5.0, 30.0) >= 0.9 * capacity * MEAN_OUTPUT
    else:
        assert share < 0.5
