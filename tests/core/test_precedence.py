"""Who goes before whom: the smallest case of each rule."""

from __future__ import annotations

from dataclasses import replace

from chairlift.core.blocks import BlockPool
from chairlift.core.deadlines import Deadlines
from chairlift.core.engine import Engine
from chairlift.core.ordering import Sorted, Waiting
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence
from chairlift.core.types import (
    CacheShape,
    Finish,
    FinishReason,
    LimitChange,
    Limits,
    PreemptReason,
    Request,
    SamplingParams,
    StepOutput,
    WaitReason,
)
from fakes import VOCAB_SIZE, FakeExecutor, prompt


def make_engine(policy: Policy, limits: Limits, shape: CacheShape | None = None) -> Engine:
    shape = shape if shape is not None else CacheShape(64, 4)
    return Engine(Scheduler(limits, shape, vocab_size=VOCAB_SIZE, policy=policy), FakeExecutor(shape))


def ask(
    number: int, length: int = 3, max_tokens: int = 20, priority: int = 0, n: int = 1, principal: str = ""
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(
        number, prompt(length, first=number), params, float(number), n, priority=priority, principal=principal
    )


def running(engine: Engine) -> set[int]:
    return {s.request.id for s in engine.scheduler._running.live()}


def test_nobody_is_preempted_for_one_that_lowered_limits_still_keep_out() -> None:
    """With four running where one may, each step preempted one more, and the better one joined after the last."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(4, 64, 100))
    for number in range(4):
        engine.add(ask(number))
    engine.step(4.0)
    engine.set_limits(LimitChange(max_num_seqs=1))
    engine.add(ask(9, priority=-1))
    for now in range(5, 9):
        engine.step(float(now))
        assert 9 in running(engine) or not engine.stats().num_preemptions


def test_nobody_is_preempted_whose_slot_does_not_suffice() -> None:
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(2, 64, 100))
    engine.add(ask(0, priority=-1))
    engine.add(ask(1, priority=5))
    engine.step(1.0)
    engine.add(ask(2, n=2))
    engine.step(2.0)
    assert not engine.stats().num_preemptions


def test_nobody_is_preempted_whose_blocks_do_not_suffice() -> None:
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(4, 64, 100), CacheShape(8, 4))
    engine.add(ask(0, 11, 3, priority=-1))
    engine.add(ask(1, 3, 3, priority=5))
    engine.step(1.0)
    engine.add(ask(2, 23, 2))
    engine.step(2.0)
    assert not engine.stats().num_preemptions


def test_equals_keep_their_places_when_one_was_looked_at() -> None:
    """Room is made for the first of two equal owners, and then it takes it."""
    engine = make_engine(Policy(scheduling_policy="fair"), Limits(2, 64, 100))
    for number in range(2):
        engine.add(ask(number))
    engine.step(1.0)
    engine.step(1.0)
    engine.add(ask(2, priority=-1, n=2, principal="a"))
    engine.add(ask(3, priority=-1, principal="b"))
    served = engine.scheduler._service
    assert served is not None
    served.principals.service.update(a=0.0, b=0.0)
    engine.step(2.0)
    assert running(engine) == {2}


def test_src_vllm_45561_40004_a_better_level_takes_a_slot_at_once_and_an_equal_one_does_not() -> None:
    """With every slot taken, strictly higher priority starts in the next step."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(2, 64, 100))
    for number in range(2):
        engine.add(ask(number, max_tokens=40))
    engine.step(2.0)
    engine.add(ask(2))
    engine.step(3.0)
    assert running(engine) == {0, 1}
    engine.add(ask(3, priority=-1))
    engine.step(4.0)
    assert running(engine) == {0, 3}
    victim = engine.scheduler._live[1][0]
    assert victim.preemptions == [(3, PreemptReason.PRIORITY)]


def drain(engine: Engine, now: float, bound: int = 1000) -> list[Finish]:
    """Run to the end, all at one point in time."""
    finishes: list[Finish] = []
    for _ in range(bound):
        if not engine.has_work:
            return finishes
        finishes += (engine.step(now) or StepOutput()).finishes
    raise AssertionError("the engine does not drain")


def test_ageing_moves_up_to_the_next_level_that_somebody_waits_at() -> None:
    """One step up in each period, and never above the best of those who wait."""
    waiting = Waiting(Sorted, ageing_s=10.0)
    sequences = [Sequence(ask(i, priority=p), 0, (p, float(i), i, 0), 10, None) for i, p in enumerate([5, 2, 0])]
    for sequence in sequences:
        waiting.push(sequence, 0.0)
    levels = []
    for now in (9.0, 10.0, 19.0, 20.0, 95.0):
        waiting.peek(now)
        levels.append([s.order[0] for s in sequences])
    assert levels == [[5, 2, 0], [2, 0, 0], [2, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_prompt_that_several_share_is_computed_once() -> None:
    """Those who come together wait for the one that computes it, or wait for nobody where it is not theirs."""
    engine = make_engine(Policy(long_prefill_token_threshold=16), Limits(8, 64, 200))
    for number in range(4):
        engine.add(replace(ask(number, max_tokens=1), prompt=prompt(65)))
    engine.step(4.0)
    assert running(engine) == {0}
    assert engine.stats().waiting_by_reason == {WaitReason.PREFIX: 3}
    drain(engine, 5.0)
    assert engine._executor.num_computed == 65 + 3  # type: ignore[attr-defined]


def test_a_better_level_waits_for_no_lesser_one_to_compute_a_prompt() -> None:
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(8, 16, 200))
    engine.add(replace(ask(0), prompt=prompt(100)))
    engine.step(1.0)
    engine.add(replace(ask(1, priority=-1), prompt=prompt(100)))
    engine.step(2.0)
    assert running(engine) == {0, 1}


def test_a_better_claim_goes_before_prompts_that_are_half_computed() -> None:
    """vLLM#33499: or whoever comes early with a long prompt has all tokens until it is done."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(8, 16, 200))
    engine.add(ask(0, length=100))
    engine.step(1.0)
    engine.add(ask(1, length=10, priority=-1))
    engine.step(2.0)
    assert {s.request.id: s.computed for s in engine.scheduler._running.live()} == {0: 22, 1: 10}


def test_a_reused_id_has_no_deadlines_of_the_one_before() -> None:
    engine = make_engine(Policy(), Limits(8, 16, 200))
    engine.add(replace(ask(1, max_tokens=1), e2e_deadline=9.0))
    drain(engine, 1.0)
    engine.add(ask(1, max_tokens=5))
    assert [f.reason for f in drain(engine, 10.0)] == [FinishReason.LENGTH]


def test_kept_blocks_are_used_again_least_recently_used_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.take()[0] for _ in range(3)]
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.drop([block], keep=blocks)
    pool.retain([blocks[1]])
    pool.drop([blocks[1]], keep=blocks)
    assert [pool.take()[0] for _ in range(3)] == [blocks[0], blocks[2], blocks[1]]


def test_nobody_is_preempted_for_blocks_that_the_better_one_shares_with_it() -> None:
    """What the victim gives up and the other takes at once is not free for anybody."""
    engine = make_engine(Policy(scheduling_policy="priority"), Limits(4, 64, 100), CacheShape(8, 4))
    engine.add(replace(ask(0, priority=-1), prompt=prompt(11, first=5)))
    engine.add(replace(ask(1), prompt=prompt(13)))
    for _ in range(3):
        engine.step(1.0)
    assert running(engine) == {0, 1}
    assert engine.stats().num_used_blocks == 8
    before = engine.stats().num_preemptions
    engine.add(replace(ask(2, priority=-1), prompt=prompt(13)))
    engine.step(2.0)
    assert 2 in running(engine) or engine.stats().num_preemptions == before


def test_a_choice_whose_rest_of_the_prompt_must_be_whole_is_not_starved_by_those_who_come_later() -> None:
    """Without chunked prefill it waits for a step with room for all of it, and nobody may fill that room meanwhile."""
    engine = make_engine(Policy(enable_chunked_prefill=False), Limits(12, 16, 100), CacheShape(64, 8))
    engine.add(replace(ask(100, max_tokens=1), prompt=prompt(16)))
    drain(engine, 0.0)
    for number in range(8):
        engine.add(ask(number, length=2, max_tokens=12 + 3 * number))
    engine.step(1.0)
    engine.step(1.0)
    engine.add(replace(ask(50, n=2, max_tokens=80), prompt=prompt(16)))
    for step in range(40):
        engine.add(ask(1000 + 2 * step, length=1, max_tokens=4))
        engine.add(ask(1001 + 2 * step, length=1, max_tokens=9))
        engine.step(2.0)
    lead, second = engine.scheduler._live[50]
    assert lead.num_output > 20
    assert second.num_output > 10


def test_ageing_in_less_than_the_clock_can_tell_apart_comes_to_an_end() -> None:
    """A period that added nothing to the time was due again at once, and again."""
    waiting = Waiting(Sorted, ageing_s=1e-12)
    sequences = [Sequence(ask(i, priority=i), 0, (i, 0.0, i, 0), 10, None) for i in range(3)]
    for sequence in sequences:
        waiting.push(sequence, 1e6)
    waiting.peek(1e6 + 1.0)
    assert [s.order[0] for s in sequences] == [0, 0, 0]


def test_a_line_from_which_most_were_taken_keeps_its_order() -> None:
    """It forgets them in bulk."""
    line = Sorted()
    sequences = [Sequence(ask(i), 0, (0, float(-i), i, 0), 10, None) for i in range(300)]
    for sequence in sequences:
        line.push(sequence)
    for sequence in sequences[20:]:
        line.remove(sequence)
    assert len(line._heap) < 100
    order = []
    while line:
        order.append(line.peek().request.id)
        line.remove(line.peek())
    assert order == list(range(19, -1, -1))


def test_deadlines_of_those_that_are_over_are_forgotten_in_bulk_and_no_others() -> None:
    deadlines = Deadlines()
    requests = [replace(ask(i), ttft_deadline=float(i), e2e_deadline=1000.0 - i) for i in range(200)]
    for request in requests:
        deadlines.add(request)
    live = requests[150:153]
    deadlines.prune(len(live), lambda request: request in live)
    assert deadlines.next == 150.0
    assert [(entry[-2], entry[-1].id) for entry in deadlines.pop_due(2000.0)] == [
        ("ttft", 150),
        ("ttft", 151),
        ("ttft", 152),
        ("e2e", 152),
        ("e2e", 151),
        ("e2e", 150),
    ]
