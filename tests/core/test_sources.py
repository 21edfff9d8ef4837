"""Faults that other engines had in their schedulers, each as the smallest case that would show it here.

A test is named after where the fault was reported.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chairlift.core import prefix
from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidRequest, NeverFits
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from chairlift.core.types import CacheShape, Finish, FinishReason, Limits, Request, SamplingParams, StepOutput
from core import swarm
from fakes import VOCAB_SIZE, FakeExecutor, expected_answer, prompt
from forcing import preempt
from invariants import check_invariants

BLOCK_SIZE = 4


def make_engine(
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int = 100,
    policy: Policy | None = None,
    caching: bool = True,
) -> Engine:
    shape, limits = CacheShape(num_blocks, BLOCK_SIZE), Limits(max_num_seqs, budget, max_model_len)
    scheduler = Scheduler(limits, shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=caching, policy=policy)
    return Engine(scheduler, FakeExecutor(shape))


def ask(number: int, length: int = 6, max_tokens: int = 10, n: int = 1, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(number, prompt(length, first=number), params, arrival=float(number), n=n, priority=priority)


class Run:
    """An engine driven to the end, with every invariant checked after every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finishes: list[Finish] = []

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.engine.add(request)

    def take(self, output: StepOutput | None) -> StepOutput:
        output = output or StepOutput()
        for key, token in zip(output.keys, output.tokens, strict=True):
            self.tokens.setdefault(key, []).append(token)
        self.finishes += output.finishes
        check_invariants(self.scheduler)
        return output

    def step(self, now: float = 0.0) -> StepOutput:
        return self.take(self.engine.step(now))

    def drain(self, bound: int = 5000) -> None:
        for _ in range(bound):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not drain")

    def check_answers(self, *requests: Request) -> None:
        for request in requests:
            for choice in range(request.n):
                wanted = expected_answer(request, choice, self.scheduler.max_model_len)
                assert self.tokens[request.id, choice] == wanted

    def check_nothing_is_left(self) -> None:
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert not self.scheduler._live
        assert not self.scheduler.kv._coming
        assert not list(self.scheduler._waiting)


# ---------------------------------------------------------------- leaving


def test_src_llama_cpp_24496_11720_an_aborted_row_leaves_by_the_next_step() -> None:
    run = Run(make_engine())
    run.add(ask(1, max_tokens=50), ask(2, max_tokens=50))
    for _ in range(5):
        run.step()
    used = run.engine.stats().num_used_blocks
    run.engine.abort(1, 1.0)
    assert run.engine.stats().num_used_blocks == used / 2
    assert {key[0] for key in run.step().keys} == {2}


def test_src_llama_cpp_13262_whoever_leaves_the_queue_is_never_scheduled() -> None:
    run = Run(make_engine(max_num_seqs=1))
    run.add(ask(1), ask(2), ask(3))
    run.step()
    run.engine.abort(2, 1.0)
    run.drain()
    assert [f.id for f in run.finishes if f.first_scheduled is None] == [2]
    assert set(run.tokens) == {(1, 0), (3, 0)}


@pytest.mark.parametrize("num_steps", range(14))
def test_src_vllm_51629_14512_an_abort_of_several_choices_leaves_no_parent_and_no_child(num_steps: int) -> None:
    for in_flight in (False, True):
        run = Run(make_engine(budget=9))
        run.add(ask(1, length=20, n=4))
        for _ in range(num_steps):
            run.step()
        if in_flight and run.engine.begin(0.0):
            run.engine.abort(1, 1.0)
            run.take(run.engine.finish(1.0))
        else:
            run.engine.abort(1, 1.0)
            run.take(run.engine.flush(1.0))
        assert sorted(f.choice for f in run.finishes) == [0, 1, 2, 3]
        run.check_nothing_is_left()


def test_src_vllm_53936_choices_take_their_slots_together_or_not_at_all() -> None:
    run = Run(make_engine(max_num_seqs=4))
    run.add(ask(1, max_tokens=12), ask(2, max_tokens=14), ask(3, n=3))
    num_slots = []
    while not run.tokens.get((3, 0)):
        run.step()
        num_slots.append(sum(1 for s in run.scheduler._live[3] if s.slot >= 0))
    assert set(num_slots) == {0, 3}


def test_src_vllm_46502_dynamo_3730_the_last_one_frees_its_blocks_without_new_traffic() -> None:
    run = Run(make_engine())
    request = ask(1, max_tokens=3)
    run.add(request)
    for _ in range(3):
        run.step()
    run.check_nothing_is_left()
    run.check_answers(request)


def test_src_vllm_52969_an_abort_of_one_that_was_looked_past_is_quiet() -> None:
    run = Run(make_engine(max_num_seqs=3))
    run.add(ask(1, max_tokens=30), ask(2, n=3), ask(3))
    run.step()
    assert [s.request.id for s, _ in run.scheduler._planner.set_aside] == [2]
    run.engine.abort(2, 1.0)
    run.take(run.engine.flush(1.0))
    assert run.engine.stats().num_waiting == 0
    run.drain()
    assert sorted((f.id, f.reason) for f in run.finishes if f.id != 2) == [(1, "length"), (3, "length")]


def test_src_sglang_21173_omlx_1031_aborts_in_any_order_and_number_are_quiet() -> None:
    rng = random.Random(1)
    for _ in range(300):
        run = Run(make_engine(max_num_seqs=3, budget=8))
        run.add(*(ask(number, max_tokens=rng.randint(1, 4), n=rng.choice([1, 2])) for number in range(4)))
        for number in rng.choices(range(6), k=8):
            run.engine.abort(number, 1.0)
            if rng.random() < 0.5:
                run.step()
        run.drain()
        run.check_nothing_is_left()
        assert len({(f.id, f.choice) for f in run.finishes}) == len(run.finishes)


def test_src_dynamo_6681_an_abort_in_the_step_that_ends_it_gives_one_ending() -> None:
    for max_tokens in (1, 2):
        run = Run(make_engine())
        run.add(ask(1, max_tokens=max_tokens))
        for _ in range(max_tokens - 1):
            run.step()
        assert run.engine.begin(0.0)
        run.engine.abort(1, 0.0)
        run.take(run.engine.finish(0.0))
        run.take(run.engine.flush(0.0))
        assert [f.reason for f in run.finishes] == [FinishReason.ABORT]
        run.check_nothing_is_left()


def test_src_vllm_22545_29928_gauges_are_zero_after_all_left_at_once() -> None:
    run = Run(make_engine(max_num_seqs=4))
    run.add(*(ask(number) for number in range(20)))
    for _ in range(3):
        run.step()
    for number in range(20):
        run.engine.abort(number, 1.0)
    run.check_nothing_is_left()
    assert not run.engine.stats().waiting_by_reason


def test_src_vllm_55634_what_was_generated_is_counted_once_be_it_aborted_or_not() -> None:
    run = Run(make_engine())
    run.add(*(ask(number, max_tokens=3 + number, n=1 + number % 2) for number in range(6)))
    for step in range(20):
        if step in (4, 6):
            run.engine.abort(step, 0.0)
        run.step()
    assert sum(f.num_output_tokens for f in run.finishes) == sum(map(len, run.tokens.values()))
    assert FinishReason.ABORT in {f.reason for f in run.finishes}


def test_src_dingocache_76_blocks_of_one_that_left_in_flight_are_used_by_nobody_before_the_step_is_over() -> None:
    run = Run(make_engine(num_blocks=8))
    run.add(ask(1, length=28, max_tokens=4))
    assert run.engine.begin(0.0)
    held = run.engine.stats().num_used_blocks
    run.engine.abort(1, 0.0)
    assert run.engine.stats().num_used_blocks == held
    run.take(run.engine.finish(0.0))
    run.check_nothing_is_left()


# ---------------------------------------------------------------- blocks


def test_src_imp_1115_two_thousand_requests_leave_no_block_behind() -> None:
    run = Run(make_engine(num_blocks=30, max_num_seqs=6))
    rng = random.Random(2)
    for number in range(2000):
        run.engine.add(ask(number, length=rng.randint(1, 12), max_tokens=rng.randint(1, 3)))
        while run.engine.stats().num_waiting > 4:
            run.engine.step(0.0)
    run.drain()
    run.check_nothing_is_left()


def test_src_sglang_11970_6888_20010_105_a_leak_is_found_in_the_step_that_makes_it() -> None:
    run = Run(make_engine())
    run.add(ask(1))
    run.step()
    run.scheduler.kv.pool.take()
    with pytest.raises(AssertionError, match="held by nobody"):
        run.step()


def test_src_tei_725_levanter_1178_a_prompt_beyond_the_budget_is_cut_or_refused() -> None:
    run = Run(make_engine(budget=8))
    request = ask(1, length=50, max_tokens=3)
    run.add(request)
    run.drain()
    run.check_answers(request)
    with pytest.raises(NeverFits, match="without chunked prefill"):
        make_engine(budget=8, policy=Policy(enable_chunked_prefill=False)).add(request)


@pytest.mark.parametrize("offset", range(BLOCK_SIZE))
def test_src_sglang_4977_9989_a_preemption_frees_exactly_what_was_held(offset: int) -> None:
    run = Run(make_engine(caching=False))
    request = ask(1, length=9, max_tokens=20)
    run.add(request)
    for _ in range(3 + offset):
        run.step()
    sequence = run.scheduler._running.decoding[0]
    assert run.engine.stats().num_used_blocks == len(sequence.blocks) == -(-(len(sequence.tokens) - 1) // BLOCK_SIZE)
    preempt(run.scheduler, sequence)
    assert run.engine.stats().num_used_blocks == 0
    run.drain()
    run.check_answers(request)


def test_src_vllm_27073_a_thousand_refusals_hold_nothing() -> None:
    run = Run(make_engine(num_blocks=8))
    for number in range(1000):
        with pytest.raises(NeverFits):
            run.engine.add(ask(number, length=40))
    run.check_nothing_is_left()


def test_src_vllm_39734_35570_what_can_never_fit_is_refused_and_a_hundred_followers_end() -> None:
    run = Run(make_engine(num_blocks=8))
    with pytest.raises(NeverFits):
        run.add(ask(1000, length=33))
    followers = [ask(number, max_tokens=3) for number in range(100)]
    run.add(*followers)
    run.drain()
    run.check_answers(*followers)


def test_src_sglang_15626_19881_14948_the_last_one_that_runs_out_of_room_ends_for_its_length() -> None:
    run = Run(make_engine(num_blocks=5))
    run.add(replace(ask(1), params=SamplingParams(max_tokens=None, ignore_eos=True)))
    run.drain()
    assert [(f.reason, f.num_output_tokens) for f in run.finishes] == [(FinishReason.LENGTH, 20 - 6)]


def test_src_vllm_1206_1607_with_every_block_taken_somebody_advances_in_every_step() -> None:
    run = Run(make_engine(num_blocks=10, max_num_seqs=8, max_model_len=40))
    requests = [ask(number, length=7, max_tokens=30) for number in range(8)]
    run.add(*requests)
    full = 0
    while run.engine.has_work:
        full += run.engine.stats().num_used_blocks == 10
        assert run.step().keys or run.engine.stats().num_running
    assert full > 10
    run.check_answers(*requests)


def test_src_vllm_49674_whoever_is_preempted_for_blocks_gives_some() -> None:
    """Be it that most of what it holds is shared."""
    run = Run(make_engine(num_blocks=12, max_num_seqs=8, max_model_len=40))
    planner, pool = run.scheduler._planner, run.scheduler.kv.pool
    make_room, freed = planner._make_room, []

    def watch(sequence: Sequence, running: list[Sequence], now: float) -> bool:
        before = pool.num_free, planner.num_preemptions
        made = make_room(sequence, running, now)
        if planner.num_preemptions > before[1]:
            freed.append(pool.num_free - before[0])
        return made

    planner._make_room = watch  # type: ignore[method-assign]
    requests = [replace(ask(number, n=2, max_tokens=12), prompt=[*prompt(12), number]) for number in range(4)]
    run.add(*requests)
    run.drain()
    assert freed
    assert min(freed) > 0
    run.check_answers(*requests)


def under_pressure(num_requests: int, num_blocks: int, max_num_seqs: int, seed: int) -> None:
    """More than the cache holds: all end, with at most twice the work again, and few preemptions of each."""
    rng = random.Random(seed)
    engine = make_engine(num_blocks, max_num_seqs, max(64, max_num_seqs), max_model_len=48)
    requests = [ask(i, length=rng.randint(1, 8), max_tokens=rng.randint(1, 40)) for i in range(num_requests)]
    for request in requests:
        engine.add(request)
    num_outputs = 0
    while engine.has_work:
        num_outputs += len((engine.step(0.0) or StepOutput()).tokens)
    assert num_outputs == sum(len(expected_answer(request, 0, 48)) for request in requests)
    useful = sum(len(r.prompt) + len(expected_answer(r, 0, 48)) for r in requests)
    computed = engine._executor.num_computed  # type: ignore[attr-defined]
    print(f"{engine.stats().num_preemptions} preemptions, {computed / useful:.2f} of the useful tokens computed")
    assert computed <= 3 * useful
    assert engine.stats().num_preemptions <= 3 * num_requests
    assert engine.stats().num_used_blocks == 0


def test_src_inference_sim_963_five_hundred_share_a_quarter_of_what_they_want() -> None:
    num_wanted = 128 * (48 // BLOCK_SIZE)
    under_pressure(500, num_wanted // 4, 128, seed=1)


@pytest.mark.long
def test_src_inference_sim_963_five_thousand_pass_through_room_for_one() -> None:
    under_pressure(5000, 48 // BLOCK_SIZE + 1, 64, seed=2)


# ---------------------------------------------------------------- the queue


def test_src_vllm_45387_45388_somebody_comes_further_while_anybody_lives() -> None:
    """In random worlds under faults: never more than 64 steps in a row, but where chunks of one recompute a prompt."""
    worlds = [swarm.run(seed, 200) for seed in range(500, 515)]
    assert max(world.ledger.longest_stall for world in worlds) <= 64


def test_src_vllm_33499_10774_1026_a_head_that_does_not_fit_is_passed_so_often_and_no_more() -> None:
    run = Run(make_engine(num_blocks=20, max_num_seqs=8, policy=Policy(max_bypass=3)))
    run.add(ask(0, length=40, max_tokens=30), ask(1, length=60, max_tokens=5))
    run.add(*(ask(number, length=2, max_tokens=4) for number in range(2, 12)))
    run.drain()
    starts = {f.id: f.first_scheduled for f in run.finishes}
    assert starts.keys() == set(range(12))
    passed = next(f.decisions.passed for f in run.finishes if f.id == 1)
    assert passed == 3
    order = [f.id for f in run.finishes]
    assert set(order[:3]) == {2, 3, 4}
    assert all(order.index(number) > order.index(0) for number in range(5, 12))


def test_src_vllm_10583_15041_transformers_48918_an_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    run = Run(make_engine())
    request = ask(1)
    run.add(request)
    run.step()
    with pytest.raises(InvalidRequest):
        run.add(replace(ask(1), prompt=[9, 9]))
    run.drain()
    run.check_answers(request)


# ---------------------------------------------------------------- the prefix cache


def test_src_vllm_37152_32_of_one_prompt_in_one_step_get_what_one_alone_gets() -> None:
    """A block is found only after the step that computed it."""
    run = Run(make_engine(num_blocks=400, max_num_seqs=32, budget=2000))
    requests = [replace(ask(number), prompt=prompt(17)) for number in range(32)]
    run.add(*requests)
    run.step()
    run.add(replace(ask(40), prompt=prompt(17)))
    run.drain()
    run.check_answers(*requests)


def test_src_openvino_genai_3722_a_collision_of_keys_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.core.kv.key_after", lambda parent, content: b"the same for all")
    run = Run(make_engine())
    requests = [ask(number, length=9) for number in range(3)]
    for request in requests:
        run.engine.add(request)
        while run.engine.has_work:
            output = run.engine.step(0.0) or StepOutput()
            for key, token in zip(output.keys, output.tokens, strict=True):
                run.tokens.setdefault(key, []).append(token)
    run.check_answers(*requests)


def test_src_kvcached_362_minivllm_87_an_old_prompt_misses_once_its_blocks_hold_others() -> None:
    run = Run(make_engine(num_blocks=6))
    old, new = ask(1, length=16, max_tokens=2), ask(2, length=20, max_tokens=2)
    for request in (old, new):
        run.add(request)
        run.drain()
    hits = run.engine.stats().prefix_hits
    again = replace(old, id=3)
    run.add(again)
    run.drain()
    assert run.engine.stats().prefix_hits - hits < 16 - BLOCK_SIZE
    run.check_answers(old, new, again)


def test_src_local_inference_lab_vllm_480_after_ten_times_the_pool_an_old_prompt_is_answered_alike() -> None:
    run = Run(make_engine(num_blocks=12))
    requests = [ask(number, length=12, max_tokens=4) for number in range(30)]
    for request in requests:
        run.add(request)
        run.drain()
    replay = [replace(request, id=100 + request.id) for request in requests]
    run.add(*replay)
    run.drain()
    run.check_answers(*requests, *replay)


def test_src_atlas_373_references_are_on_the_blocks_of_the_table() -> None:
    """Recounted after every step, while choices and prompts share blocks and are preempted."""
    run = Run(make_engine(num_blocks=20, max_model_len=40))
    stem = list(prompt(12))
    requests = [replace(ask(number, n=2, max_tokens=8), prompt=[*stem, number]) for number in range(6)]
    run.add(*requests)
    while run.engine.has_work:
        run.step()
        running = [s for s in run.scheduler._running.decoding if s.state is State.DECODING]
        if len(running) > 2:
            preempt(run.scheduler, running[-1])
            check_invariants(run.scheduler)
    run.check_answers(*requests)


def test_src_llm_d_inference_sim_705_a_hit_goes_no_further_than_the_first_hole() -> None:
    run = Run(make_engine())
    request = ask(1, length=17, max_tokens=1)
    run.add(request)
    run.drain()
    kv = run.scheduler.kv
    second = kv.index._blocks[
        prefix.chain_key(prefix.chain_key(prefix.root_key(b""), content(request, 0)), content(request, 1))
    ]
    kv.index.forget(second[0])
    kv.pool._kept.pop(second[0])
    kv.pool._blank.append(second[0])
    again = replace(request, id=2)
    run.add(again)
    run.drain()
    assert run.engine.stats().prefix_hits == BLOCK_SIZE
    run.check_answers(again)


def content(request: Request, block: int) -> bytes:
    return prefix.block_content(request.prompt[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE])
