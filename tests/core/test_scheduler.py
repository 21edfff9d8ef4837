"""Single rules of the scheduler, each on the smallest case that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidOption, InvalidRequest, NeverFits
from chairlift.core.planner import MAX_SCORED_TOKENS
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import State
from chairlift.core.types import (
    MAX_ABSENCES,
    CacheShape,
    FinishReason,
    LimitChange,
    Limits,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
)
from fakes import VOCAB_SIZE, FakeExecutor, FakePending, expected_answer
from forcing import preempt
from invariants import check_invariants

EOS = 0


def make_engine(
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int = 100,
    caching: bool = True,
) -> tuple[Engine, FakeExecutor]:
    shape = CacheShape(num_blocks, block_size)
    limits = Limits(max_num_seqs, budget, max_model_len)
    executor = FakeExecutor(shape)
    return Engine(Scheduler(limits, shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=caching), executor), executor


def ask(number: int, prompt: list[int], max_tokens: int | None = 5, n: int = 1, salt: bytes = b"") -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(id=number, prompt=prompt, params=params, n=n, eos_token_ids=(EOS,), salt=salt)


def drain(engine: Engine, bound: int = 2000) -> dict[tuple[int, int], list[int]]:
    """Run to the end; tokens by key. Every invariant is checked after every step."""
    tokens: dict[tuple[int, int], list[int]] = {}
    for _ in range(bound):
        if not engine.has_work:
            return tokens
        output = engine.step(0.0) or StepOutput()
        check_invariants(engine.scheduler)
        for key, token in zip(output.keys, output.tokens, strict=True):
            tokens.setdefault(key, []).append(token)
    raise AssertionError("the engine does not drain")


class Recorder:
    """Passes plans on and keeps them."""

    def __init__(self, executor: FakeExecutor) -> None:
        self.executor = executor
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> FakePending:
        self.plans.append(plan)
        return self.executor.submit(plan)


def test_a_step_mixes_decodes_with_chunks_under_the_budget() -> None:
    engine, executor = make_engine(budget=16)
    recorder = Recorder(executor)
    engine._executor = recorder
    engine.add(ask(1, [1, 2, 3], max_tokens=20))
    engine.step(0.0)
    engine.add(ask(2, list(range(40))))
    drain(engine)
    mixed = [p for p in recorder.plans if p.decodes and p.chunks]
    assert [(p.chunks[0].start, p.chunks[0].count, p.chunks[0].samples) for p in mixed] == [
        (0, 15, False),
        (15, 15, False),
        (30, 10, True),
    ]
    assert all(p.num_tokens <= 16 for p in recorder.plans)


def test_several_prompts_share_a_step() -> None:
    engine, executor = make_engine(budget=16)
    recorder = Recorder(executor)
    engine._executor = recorder
    for number in range(3):
        engine.add(ask(number, [number] * 5))
    engine.step(0.0)
    assert [(c.start, c.count) for c in recorder.plans[0].chunks] == [(0, 5), (0, 5), (0, 5)]


def test_a_second_prompt_with_the_same_prefix_starts_where_the_first_one_got_to() -> None:
    engine, executor = make_engine(block_size=4)
    prompt = list(range(1, 18))
    engine.add(ask(1, prompt, max_tokens=2))
    first = drain(engine)
    computed = executor.num_computed
    engine.add(ask(2, prompt, max_tokens=2))
    second = drain(engine)
    assert second[(2, 0)] == first[(1, 0)]
    assert (
        executor.num_computed - computed == 1 + 1
    )  # four of five blocks are found, one token of prompt, one of output
    assert engine.stats().prefix_hits == 16


@pytest.mark.parametrize("length", [7, 8, 9])
def test_src_vllm_11186_minivllm_87_a_hit_leaves_at_least_one_token_to_compute(length: int) -> None:
    """Prompts of an exact multiple of the block."""
    engine, executor = make_engine(block_size=4)
    for number in range(2):
        engine.add(ask(number, list(range(length))))
        assert drain(engine)[(number, 0)] == expected_answer(ask(number, list(range(length))), 0, 100)
    assert engine.stats().prefix_hits == (length - 1) // 4 * 4
    assert executor.num_computed > length


def test_other_salts_share_nothing() -> None:
    engine, _ = make_engine()
    prompt = list(range(20))
    engine.add(ask(1, prompt, salt=b"a"))
    drain(engine)
    engine.add(ask(2, prompt, salt=b"b"))
    drain(engine)
    assert engine.stats().prefix_hits == 0
    engine.add(ask(3, prompt, salt=b"a"))
    drain(engine)
    assert engine.stats().prefix_hits > 0


def test_choices_of_a_request_share_the_blocks_of_their_prompt() -> None:
    """Also without a prefix cache."""
    engine, executor = make_engine(caching=False, block_size=4)
    request = ask(1, list(range(13)), n=3, max_tokens=2)
    engine.add(request)
    assert engine.begin(0.0)
    engine.finish(0.0)
    assert executor.num_computed == 13
    assert engine.begin(0.0)  # choice 0 decodes, the others compute token 12 alone
    assert engine.stats().num_used_blocks == 3 + 3
    engine.finish(0.0)
    assert executor.num_computed == 13 + 1 + 2
    assert drain(engine).keys() == {(1, 1), (1, 2)}
    assert engine.stats().num_used_blocks == 0


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_src_inference_sim_297_529_963_a_pool_of_one_request_and_one_block_serves_everybody(block_size: int) -> None:
    """No evict-requeue-evict livelock."""
    engine, executor = make_engine(num_blocks=24 // block_size + 1, block_size=block_size, max_model_len=24, budget=30)
    requests = [ask(number, [number, 1, 2, 3], max_tokens=20) for number in range(12)]
    for request in requests:
        engine.add(request)
    tokens = drain(engine)
    assert all(tokens[(r.id, 0)] == expected_answer(r, 0, 24) for r in requests)
    assert executor.num_computed <= 2 * sum(4 + 20 for _ in requests)
    assert engine.stats().num_preemptions <= 3 * len(requests)


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("caching", [False, True])
def test_src_vllm_16832_fastdeploy_3071_a_preempted_sequence_resumes_with_equal_tokens(
    offset: int, caching: bool
) -> None:
    """Output lost or doubled after recompute. Preempted after each number of tokens, at every offset."""
    engine, executor = make_engine(caching=caching, block_size=4)
    request = ask(1, list(range(6)), max_tokens=20)
    engine.add(request)
    tokens: list[int] = []
    for step in range(200):
        if not engine.has_work:
            break
        output = engine.step(0.0) or StepOutput()
        tokens += output.tokens
        running = [*engine.scheduler._running.decoding]
        if running and step % 9 == offset and engine.has_work:
            preempt(engine.scheduler, running[0])
        check_invariants(engine.scheduler)
    assert tokens == expected_answer(request, 0, 100)
    assert engine.stats().num_preemptions >= 2
    if caching:
        assert executor.num_computed < 26 + 5 * engine.stats().num_preemptions


def test_the_times_out_of_a_slot_are_told_for_so_many_preemptions_and_also_for_one_that_ends_there() -> None:
    engine, _ = make_engine(block_size=4)
    engine.add(ask(1, [1, 2], max_tokens=3 * MAX_ABSENCES))
    (sequence,) = engine.scheduler._live[1]
    now = 0.0
    for number in range(MAX_ABSENCES + 4):
        while sequence.state is not State.DECODING:
            now += 1.0
            engine.step(now)
        preempt(engine.scheduler, sequence, now)
        if number == 1:
            absences = sequence.finish(now + 9.0, FinishReason.ABORT).decisions.absences
            assert len(absences) == 2 and absences[1] == (now, now + 9.0)
    (finish,) = [f for _ in range(200) if engine.has_work for f in (engine.step(now) or StepOutput()).finishes]
    assert finish.num_preemptions == MAX_ABSENCES + 4
    assert len(finish.decisions.absences) == MAX_ABSENCES
    assert all(start < end for start, end in finish.decisions.absences)


def test_the_first_in_the_order_is_never_the_victim() -> None:
    engine, _ = make_engine(num_blocks=8, block_size=2, max_model_len=16, caching=False)
    first = ask(0, [1, 2], max_tokens=14)
    engine.add(first)
    for number in range(1, 4):
        engine.add(ask(number, [number, 2], max_tokens=14))
    finishes = []
    while engine.has_work:
        output = engine.step(0.0) or StepOutput()
        finishes += output.finishes
    by_id = {f.id: f for f in finishes}
    assert by_id[0].num_preemptions == 0
    assert sum(f.num_preemptions for f in finishes) > 0
    assert finishes[0].id == 0


def test_slots_of_waiting_choices_return_when_their_lead_is_preempted() -> None:
    """Two choices held slots for a preempted lead, and a head of three choices found no room: all stood still."""
    engine, _ = make_engine(max_num_seqs=4, budget=5, num_blocks=20, block_size=1)
    engine.add(ask(1, list(range(12)), n=3))
    assert engine.begin(0.0)
    engine.finish(0.0)
    preempt(engine.scheduler, engine.scheduler._running.prefilling[0])
    engine.add(Request(id=2, prompt=[1, 2], params=SamplingParams(), n=3, priority=-1))
    tokens = drain(engine)
    assert len(tokens) == 6


def test_priority_comes_before_arrival() -> None:
    engine, _ = make_engine(max_num_seqs=1, budget=10)
    for number, priority in enumerate([5, 1, 3]):
        engine.add(Request(id=number, prompt=[1], params=SamplingParams(max_tokens=1), priority=priority))
    order = []
    while engine.has_work:
        order += [f.id for f in (engine.step(0.0) or StepOutput()).finishes]
    assert order == [1, 2, 0]


@pytest.mark.parametrize("when", ["waiting", "planned", "prefilling", "decoding", "twice", "after"])
@pytest.mark.parametrize("n", [1, 3])
def test_src_vllm_9428_7671_abort_at_every_phase_gives_everything_back(when: str, n: int) -> None:
    """Abort is idempotent and leaves nothing behind."""
    engine, _ = make_engine(budget=8)
    engine.add(ask(1, list(range(20)), n=n, max_tokens=30))
    finishes = []
    if when == "prefilling":
        engine.step(0.0)
    if when == "decoding":
        for _ in range(8):
            engine.step(0.0)
    if when == "after":
        drain(engine)
        engine.abort(1, 0.0)
        assert not engine.has_work
        return
    if when == "planned":
        assert engine.begin(0.0)
    engine.abort(1, 1.0)
    engine.abort(99, 1.0)
    if when == "twice":
        engine.abort(1, 1.0)
    if when == "planned":
        finishes += engine.finish(1.0).finishes
    finishes += engine.flush(1.0).finishes
    assert sorted((f.choice, f.reason) for f in finishes) == [(choice, FinishReason.ABORT) for choice in range(n)]
    check_invariants(engine.scheduler)
    assert not engine.has_work
    assert engine.stats().num_used_blocks == 0
    assert not engine.begin(2.0)


def test_a_row_that_fails_fails_alone() -> None:
    engine, executor = make_engine()
    for number in range(3):
        engine.add(ask(number, [number, 7], max_tokens=6))
    engine.step(0.0)
    executor.fail_row = lambda request: "not a number" if request.id == 1 else None
    failed = engine.step(0.0)
    assert failed is not None
    assert [(f.id, f.reason, f.error) for f in failed.finishes] == [(1, FinishReason.ERROR, "not a number")]
    assert failed.keys == [(0, 0), (2, 0)]
    tokens = drain(engine)
    assert tokens.keys() == {(0, 0), (2, 0)}


def test_nothing_of_a_failed_sequence_is_found_again() -> None:
    engine, executor = make_engine(block_size=2)
    engine.add(ask(1, list(range(10)), max_tokens=20))
    engine.step(0.0)
    executor.fail_row = lambda request: "not a number"
    engine.step(0.0)
    executor.fail_row = None
    engine.add(ask(2, list(range(10))))
    drain(engine)
    assert engine.stats().prefix_hits == 0


@pytest.mark.parametrize("phase", ["fail_submit", "fail_step"])
def test_a_failed_step_ends_its_rows_and_the_engine_goes_on(phase: str) -> None:
    def fail(plan: StepPlan) -> None:
        raise MemoryError("at 0x7f00 in /somewhere")

    engine, executor = make_engine(budget=8)
    engine.add(ask(1, [1, 2, 3]))
    engine.step(0.0)
    engine.add(ask(2, list(range(30))))
    setattr(executor, phase, fail)
    assert engine.begin(0.0)
    output = engine.finish(0.0)
    setattr(executor, phase, None)
    assert sorted((f.id, f.reason) for f in output.finishes) == [(1, FinishReason.ERROR), (2, FinishReason.ERROR)]
    assert all("0x" not in (f.error or "") and "/" not in (f.error or "") for f in output.finishes)
    request = ask(3, [4, 5])
    engine.add(request)
    assert drain(engine)[(3, 0)] == expected_answer(request, 0, 100)


def test_what_can_never_fit_is_refused_when_added() -> None:
    """vLLM#39734, sglang#15626: found at the door, and the queue behind it moves."""
    engine, _ = make_engine(num_blocks=5, block_size=4, max_num_seqs=2, max_model_len=100)
    assert engine.scheduler.max_model_len == 20
    with pytest.raises(NeverFits):
        engine.add(ask(1, [1] * 20))
    with pytest.raises(NeverFits):
        engine.add(ask(2, [1], n=3))
    with pytest.raises(InvalidRequest):
        engine.add(ask(3, []))
    engine.add(ask(4, [1] * 19))
    with pytest.raises(InvalidRequest):
        engine.add(ask(4, [1]))
    assert len(drain(engine)[(4, 0)]) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": [VOCAB_SIZE]},
        {"prompt": [-1]},
        {"params": SamplingParams(stop_token_ids=(VOCAB_SIZE,))},
        {"params": SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),))},
        {"params": SamplingParams(allowed_token_ids=(-1,))},
    ],
)
def test_src_vllm_16529_54195_11375_token_ids_outside_the_vocabulary_are_refused(bad: dict[str, object]) -> None:
    engine, _ = make_engine()
    fields: dict[str, object] = {"id": 1, "prompt": [1], "params": SamplingParams(), **bad}
    with pytest.raises(InvalidRequest, match="outside 0"):
        engine.add(Request(**fields))  # type: ignore[arg-type]


def test_limits_that_cannot_serve_a_full_step_are_refused() -> None:
    with pytest.raises(InvalidOption):
        Scheduler(Limits(8, 7, 100), CacheShape(4, 4), vocab_size=VOCAB_SIZE)


class StopAfter:
    def __init__(self, count: int) -> None:
        self.left = count

    def push(self, token: int) -> str | None:
        self.left -= 1
        return "stop" if self.left == 0 else None


def test_a_stop_string_ends_its_sequence_in_the_step_that_completes_it() -> None:
    engine, _ = make_engine()
    engine._stop_matchers = lambda request: StopAfter(3) if request.id == 1 else None
    engine.add(ask(1, [1], max_tokens=50))
    engine.add(ask(2, [1], max_tokens=6))
    finishes = []
    while engine.has_work:
        finishes += (engine.step(0.0) or StepOutput()).finishes
    assert [(f.id, f.reason, f.stop_reason, f.num_output_tokens) for f in finishes] == [
        (1, FinishReason.STOP, "stop", 3),
        (2, FinishReason.LENGTH, None, 6),
    ]


def test_stop_tokens_name_themselves_and_end_of_sequence_does_not() -> None:
    engine, _ = make_engine()
    found = {}
    for number in range(60):
        params = SamplingParams(max_tokens=None, stop_token_ids=tuple(range(100, 110)))
        engine.add(Request(id=number, prompt=[number], params=params, eos_token_ids=tuple(range(10))))
    while engine.has_work:
        output = engine.step(0.0) or StepOutput()
        last = dict(zip(output.keys, output.tokens, strict=True))
        ended = [f for f in output.finishes if f.reason is FinishReason.STOP]
        found.update({f.id: (last[(f.id, 0)], f.stop_reason) for f in ended})
    assert all(stop_reason == (token if token >= 100 else None) for token, stop_reason in found.values())
    assert {token >= 100 for token, _ in found.values()} == {False, True}


def test_times_are_those_the_driver_gave() -> None:
    engine, _ = make_engine()
    engine.add(Request(id=1, prompt=[1, 2], params=SamplingParams(max_tokens=3), arrival=10.0))
    finish = None
    for now in (11.0, 12.0, 13.0):
        assert engine.begin(now)
        for finish in engine.finish(now + 0.5).finishes:
            assert (finish.arrival, finish.first_scheduled, finish.first_token, finish.finished) == (10, 11, 11.5, 13.5)
    assert finish is not None


def test_a_plan_must_be_committed_before_the_next() -> None:
    engine, _ = make_engine()
    engine.add(ask(1, [1]))
    assert engine.begin(0.0)
    with pytest.raises(RuntimeError):
        engine.scheduler.schedule(0.0)
    engine.finish(0.0)
    with pytest.raises(RuntimeError):
        engine.scheduler.commit(StepResult(tokens=[]), 0.0)


def test_decoding_rows_that_do_not_change_are_planned_with_the_same_lists() -> None:
    """Executors may keep what they derived from the list as long as they are given the same one."""
    engine, executor = make_engine()
    recorder = Recorder(executor)
    engine._executor = recorder
    engine.add(ask(1, [1], max_tokens=20))
    for _ in range(6):
        engine.step(0.0)
    assert all(p.decodes is recorder.plans[2].decodes for p in recorder.plans[2:])
    engine.add(ask(2, [1], max_tokens=20))
    drain(engine)
    assert [len(p.decodes) for p in recorder.plans[:9]] == [0, 1, 1, 1, 1, 1, 1, 2, 2]


def test_rows_outside_a_failed_step_go_on() -> None:
    """Where prefill goes first, those who decode have no part in a step of chunks, nor in its failure."""
    shape = CacheShape(64, 4)
    executor = FakeExecutor(shape)
    policy = Policy(prefill_first=True)
    engine = Engine(Scheduler(Limits(8, 64, 100), shape, vocab_size=VOCAB_SIZE, policy=policy), executor)
    request = ask(1, [1, 2, 3])
    engine.add(request)
    first = (engine.step(0.0) or StepOutput()).tokens
    engine.add(ask(2, [4, 5]))

    def fail(plan: StepPlan) -> None:
        raise RuntimeError

    executor.fail_step = fail
    failed = engine.step(0.0) or StepOutput()
    executor.fail_step = None
    assert [(f.id, f.reason) for f in failed.finishes] == [(2, FinishReason.ERROR)]
    assert first + drain(engine)[(1, 0)] == expected_answer(request, 0, 100)


@pytest.mark.parametrize("num_steps", range(1, 6))
@pytest.mark.parametrize("caching", [False, True])
def test_scores_are_given_out_at_any_preemption_once(num_steps: int, caching: bool) -> None:
    give_out_scores(num_steps, caching)


def test_scores_are_given_out_once() -> None:
    give_out_scores(2, caching=False)


def give_out_scores(num_steps: int, caching: bool) -> None:
    engine, _ = make_engine(budget=7, max_num_seqs=2, caching=caching)
    request = ask(1, list(range(30)))
    engine.add(replace(request, params=replace(request.params, prompt_logprobs=0)))
    scored: list[int] = []
    for step in range(40):
        if step == num_steps:
            preempt(engine.scheduler, engine.scheduler._live[1][0])
        output = engine.step(0.0) or StepOutput()
        scored += [score.token for scores in output.prompt_logprobs.values() for score in scores]
        if not engine.has_work:
            break
    assert scored == list(range(1, 30))


def test_a_step_scores_no_more_than_so_many_prompt_tokens_and_still_serves_everybody() -> None:
    engine, _ = make_engine(num_blocks=1024, budget=4096, max_model_len=700)
    request = ask(1, list(range(600)))
    scored = replace(request, params=replace(request.params, prompt_logprobs=0, max_tokens=1))
    for number in (1, 2, 3):
        engine.add(replace(scored, id=number, salt=bytes((number,))))
    engine.add(replace(ask(4, list(range(600))), salt=b"x"))
    ended = 0
    while engine.has_work:
        output = engine.step(0.0)
        assert output is not None
        assert sum(map(len, output.prompt_logprobs.values())) <= MAX_SCORED_TOKENS + 3
        ended += len(output.finishes)
    assert ended == 4


@pytest.mark.parametrize(
    "change",
    [
        LimitChange(max_num_seqs=0),
        LimitChange(max_num_seqs=9),
        LimitChange(max_num_batched_tokens=7),
        LimitChange(max_num_batched_tokens=65),
        LimitChange(max_num_seqs=4, max_num_batched_tokens=3),
        LimitChange(long_prefill_token_threshold=-1),
        LimitChange(itl_objective_s=-0.1),
        LimitChange(max_num_seqs=2, ttft_objective_s=-0.1),
    ],
)
def test_a_change_of_limits_that_makes_no_sense_changes_nothing(change: LimitChange) -> None:
    engine, _ = make_engine(max_num_seqs=8, budget=64)
    before = engine.stats()
    with pytest.raises(InvalidOption):
        engine.set_limits(change)
    assert engine.scheduler.limits == Limits(8, 64, 100)
    assert engine.stats() == before
