"""The loop: commands from any thread, output in order, and nothing that ends it but a drain."""

from __future__ import annotations

import threading
from random import Random

import pytest

from chairlift.core.policy import Policy
from chairlift.core.types import CacheShape, FinishReason, Request, SamplingParams, StepPlan
from chairlift.wire import Close, Drain
from fakes import VOCAB_SIZE, FakeExecutor, expected, prompt
from worker.running import Running, request


def test_every_request_gets_the_tokens_it_would_get_alone() -> None:
    requests = [request(i, length=3 + 5 * i, max_tokens=4 + i) for i in range(12)]
    with Running() as running:
        running.add(*requests)
        running.wait_finished(*range(12))
    for each in requests:
        length = each.params.max_tokens or 0
        assert running.emitted.tokens(each.id) == expected(each, length)
        finish = running.emitted.finishes[each.id, 0]
        assert (finish.reason, finish.num_output_tokens) == (FinishReason.LENGTH, length)


def test_requests_from_many_threads() -> None:
    with Running() as running:
        threads = [
            threading.Thread(target=lambda k=k: running.add(*(request(100 * k + i) for i in range(20))))
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        ids = [100 * k + i for k in range(8) for i in range(20)]
        running.wait_finished(*ids)
    assert all(running.emitted.tokens(i) == expected(request(i), 5) for i in ids)


def test_choices_are_answered_apart() -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5, ignore_eos=True)
    asked = Request(1, prompt(11), params, n=3)
    with Running() as running:
        running.add(asked)
        running.emitted.wait_for(lambda: len(running.emitted.finishes) == 3)
    answers = [running.emitted.tokens(1, choice) for choice in range(3)]
    assert answers == [expected(asked, 6, choice) for choice in range(3)]
    assert len({tuple(answer) for answer in answers}) == 3


def test_refusals_name_the_field_and_harm_nobody() -> None:
    with Running(max_model_len=50) as running:
        running.add(
            request(1),
            request(2, length=50),
            request(3, length=0),
            Request(4, [VOCAB_SIZE], SamplingParams()),
            request(5, n=100),
            request(1),
        )
        running.wait_finished(1)
        running.emitted.wait_for(lambda: len(running.emitted.refusals) == 5)
    told = {refused.id: (refused.param, refused.never) for refused in running.emitted.refusals}
    assert told == {2: ("prompt", True), 3: ("prompt", False), 4: ("prompt", False), 5: ("n", True), 1: (None, False)}
    assert running.emitted.tokens(1) == expected(request(1), 5)


class TestAbort:
    def test_before_the_first_step(self) -> None:
        gate = threading.Semaphore(0)
        with Running(FakeExecutor(CacheShape(64, 4), gate=gate), max_num_seqs=1) as running:
            running.add(request(1, max_tokens=3))
            running.executor.submitted.acquire()
            running.add(request(2))
            running.abort(2)
            gate.release(100)
            running.wait_finished(1, 2)
        assert running.emitted.finishes[2, 0].reason is FinishReason.ABORT
        assert running.emitted.finishes[2, 0].first_scheduled is None
        assert running.emitted.tokens(1) == expected(request(1), 3)

    def test_while_its_prompt_is_computed(self) -> None:
        gate = threading.Semaphore(0)
        with Running(FakeExecutor(CacheShape(64, 4), gate=gate), max_num_batched_tokens=16) as running:
            running.add(request(1, length=60))
            running.executor.submitted.acquire()
            running.abort(1)
            gate.release(100)
            running.wait_finished(1)
        assert running.emitted.tokens(1) == []
        assert running.executor.num_steps == 1

    def test_while_it_decodes(self) -> None:
        gate = threading.Semaphore(3)
        with Running(FakeExecutor(CacheShape(64, 4), gate=gate)) as running:
            running.add(request(1, max_tokens=50), request(2, max_tokens=6))
            running.emitted.wait_for(lambda: len(running.emitted.tokens(1)) == 3)
            running.abort(1)
            gate.release(100)
            running.wait_finished(1, 2)
        assert running.emitted.finishes[1, 0].reason is FinishReason.ABORT
        assert len(running.emitted.tokens(1)) < 10
        assert running.emitted.tokens(2) == expected(request(2), 6)

    def test_after_it_ended_and_of_nobody(self) -> None:
        with Running() as running:
            running.add(request(1))
            running.wait_finished(1)
            running.abort(1)
            running.abort(1)
            running.abort(777)
            running.add(request(2))
            running.wait_finished(2)
        assert running.emitted.finishes[1, 0].reason is FinishReason.LENGTH

    def test_at_random_times_leaves_no_block_behind(self) -> None:
        random = Random(3)
        with Running(FakeExecutor(CacheShape(24, 4)), max_num_batched_tokens=16) as running:
            for i in range(400):
                running.add(request(i, length=random.randint(1, 40), max_tokens=random.randint(1, 20), n=1 + i % 2))
                if random.random() < 0.6:
                    running.abort(random.randint(max(0, i - 12), i))
            running.emitted.wait_for(lambda: len(running.emitted.finishes) == 600)
        assert {key[0] for key in running.emitted.finishes} == set(range(400))


class TestFaults:
    def test_a_step_that_fails_costs_its_rows_only(self) -> None:
        def fail(plan: StepPlan) -> None:
            if plan.step == 2:
                raise MemoryError("no room")

        with Running(FakeExecutor(CacheShape(64, 4), fail_step=fail)) as running:
            running.add(request(1, max_tokens=20))
            running.wait_finished(1)
            running.add(request(2))
            running.wait_finished(2)
        finish = running.emitted.finishes[1, 0]
        assert finish.reason is FinishReason.ERROR
        assert finish.error is not None
        assert running.emitted.tokens(2) == expected(request(2), 5)

    def test_a_device_that_fails_always_fails_every_request(self) -> None:
        def fail(plan: StepPlan) -> None:
            raise OSError("gone")

        with Running(FakeExecutor(CacheShape(64, 4), fail_step=fail), max_num_seqs=2) as running:
            running.add(*(request(i) for i in range(20)))
            running.wait_finished(*range(20))
        assert {finish.reason for finish in running.emitted.finishes.values()} == {FinishReason.ERROR}

    def test_a_row_that_fails_costs_no_neighbour(self) -> None:
        executor = FakeExecutor(CacheShape(64, 4), fail_row=lambda request: "nan" if request.id == 1 else None)
        with Running(executor) as running:
            running.add(request(1), request(2))
            running.wait_finished(1, 2)
        assert running.emitted.finishes[1, 0].error == "nan"
        assert running.emitted.tokens(2) == expected(request(2), 5)

    def test_a_broken_engine_is_not_run_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        running = Running()

        def broken(now: float) -> bool:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(running.engine, "begin", broken)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            running.loop.run()


class TestEnd:
    def test_a_drain_finishes_what_is_there_and_refuses_the_rest(self) -> None:
        gate = threading.Semaphore(0)
        with Running(FakeExecutor(CacheShape(64, 4), gate=gate)) as running:
            running.add(request(1, max_tokens=9))
            running.executor.submitted.acquire()
            running.loop.submit(Drain())
            running.add(request(2))
            gate.release(100)
        assert running.emitted.tokens(1) == expected(request(1), 9)
        assert [(refused.id, refused.never) for refused in running.emitted.refusals] == [(2, False)]

    def test_a_batch_that_is_filling_starts_when_little_more_will_come(self) -> None:
        """Before a server drains: those who wait for others to fill their batch would wait in vain."""
        with Running(policy=Policy(batching="static")) as running:
            running.add(request(1))
            running.loop.submit(Close())
            running.wait_finished(1)
            running.add(request(2))  # on its way when the server closed
            running.wait_finished(2)

    def test_a_stop_does_not_wait_for_requests(self) -> None:
        gate = threading.Semaphore(0)
        running = Running(FakeExecutor(CacheShape(64, 4), gate=gate))
        running.thread.start()
        running.add(request(1, max_tokens=100))
        running.executor.submitted.acquire()
        running.loop.stop()
        gate.release()
        running.thread.join(20)
        assert not running.thread.is_alive()
        assert running.executor.num_steps == 1
        assert running.emitted.tokens(1) == expected(request(1), 1)


def test_output_goes_out_while_the_next_step_computes() -> None:
    gate = threading.Semaphore(1)
    with Running(FakeExecutor(CacheShape(64, 4), gate=gate)) as running:
        running.add(request(1, max_tokens=3))
        running.emitted.wait_for(lambda: len(running.emitted.tokens(1)) == 1)
        assert running.executor.num_steps == 2  # the second step is at the gate
        gate.release(10)
        running.wait_finished(1)


def test_an_idle_loop_sends_heartbeats() -> None:
    with Running(heartbeat_s=0.01) as running:
        running.emitted.wait_for(lambda: len(running.emitted.steps) >= 3)
    times = [step.now for step in running.emitted.steps]
    assert times == sorted(times)
    assert not any(step.tokens for step in running.emitted.steps)


def test_steps_carry_counts() -> None:
    with Running(max_num_batched_tokens=16) as running:
        running.add(request(1, length=20, max_tokens=2))
        running.wait_finished(1)
    sizes = [step.stats.num_step_tokens for step in running.emitted.steps if step.stats.step_s > 0]
    assert sizes[:3] == [16, 4, 1]
    assert running.emitted.steps[-1].stats.num_used_blocks == 0
