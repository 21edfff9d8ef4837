from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from chairlift.core.controller import FEWEST_ROWS, QUANTUM_TOKENS, STARVED_STEPS, Controller
from chairlift.core.types import Chunk, Limits, StepPlan


def plan_of(rows: int, context_tokens: int, chunk_tokens: int = 0, start: int = 0, *, samples: bool = True) -> StepPlan:
    plan = StepPlan(0, decodes=list(range(rows)), num_context_tokens=context_tokens, num_chunk_tokens=chunk_tokens)
    plan.num_chunk_pairs = chunk_tokens * start + chunk_tokens * (chunk_tokens + 1) // 2
    if chunk_tokens:
        plan.chunks = [Chunk(rows, start, chunk_tokens, samples)]
    return plan


def cost(plan: StepPlan, pair_s: float = 15e-9) -> float:
    rows = len(plan.decodes) + len(plan.fillers)
    return (
        0.006
        + 350e-6 * rows
        + 0.5e-6 * plan.num_context_tokens
        + 450e-6 * plan.num_chunk_tokens
        + pair_s * plan.num_chunk_pairs
    )


def controller_of(
    itl_objective_s: float = 0.0, ttft_objective_s: float = 0.0, max_step_s: float = 0.0, *, pair_s: float = 15e-9
) -> Controller:
    """That has seen a thousand steps without noise."""
    controller = Controller(
        Limits(256, 2048, 8192),
        itl_objective_s=itl_objective_s,
        ttft_objective_s=ttft_objective_s,
        max_step_s=max_step_s,
    )
    rng = random.Random(1)
    rows = 32
    for _ in range(1000):
        rows = min(max(rows + rng.choice((-2, -1, 0, 1, 2)), 1), 100)
        plan = plan_of(rows, rows * rng.randrange(150, 250), rng.choice((0, 16, 64, 256)), rng.randrange(4000))
        controller.max_num_seqs(rows, 0, plan.num_context_tokens)
        controller.observe(plan, cost(plan, pair_s))
    return controller


def granted(controller: Controller, rows: int, context_tokens: int, start: int = 0, wanted: int = 4000) -> int:
    controller.max_num_seqs(rows + 1, 0, context_tokens)
    return controller.chunk_tokens(plan_of(rows, context_tokens), rows, context_tokens, start, wanted)


def test_without_objectives_nothing_is_held_back() -> None:
    controller = Controller(Limits(8, 64, 100), itl_objective_s=0, ttft_objective_s=0, max_step_s=0)
    assert not controller.is_active
    assert controller.max_num_seqs(8, 5, 100) == 8
    assert granted(controller, 3, 30, wanted=64) == 64


@pytest.mark.parametrize("objective_s", [0.02, 0.05, 0.1, 0.2])
def test_prompts_get_what_the_objective_leaves_and_no_more(objective_s: float) -> None:
    controller = controller_of(objective_s)
    allowed_s = objective_s / controller.margin
    for rows in (1, 8, 24, 60, 100):
        for start in (0, 500, 3000):
            count = granted(controller, rows, rows * 200, start)
            spent_s = cost(plan_of(rows, rows * 200, count, start))
            if count:
                assert spent_s < allowed_s * 1.02
            more = count + QUANTUM_TOKENS if count >= QUANTUM_TOKENS else 2 * count + 1
            assert cost(plan_of(rows, rows * 200, more, start)) > allowed_s * 0.98
            assert count % QUANTUM_TOKENS == 0 or count in (1, 2, 4, 8)


def test_chunks_of_a_step_are_counted_together() -> None:
    controller = controller_of(0.1)
    together = granted(controller, 16, 3200)
    plan = plan_of(16, 3200, 37)
    rest = controller.chunk_tokens(plan, 16, 3200, 0, 4000)
    assert 0 <= together - (37 + rest) <= QUANTUM_TOKENS
    assert (37 + rest) % QUANTUM_TOKENS == 0
    assert controller.chunk_tokens(plan_of(16, 3200, together), 16, 3200, 0, 4000) == 0


def test_what_is_left_of_a_prompt_is_granted_whole_if_it_fits() -> None:
    assert granted(controller_of(0.1), 16, 3200, wanted=37) == 37


def test_asking_changes_no_answer() -> None:
    controller = controller_of(0.05, 1.0, 0.25)
    answers = [controller.chunk_tokens(plan_of(16, 3200), 16, 3200, 0, 4000) for _ in range(300)]
    assert len(set(answers)) == 1


def test_while_nobody_decodes_there_is_nothing_to_protect() -> None:
    assert granted(controller_of(0.03), 0, 0, wanted=2000) == 2000


def test_no_step_is_planned_longer_than_allowed_whatever_the_context() -> None:
    controller = controller_of(max_step_s=0.25, pair_s=400e-9)
    for rows in (0, 1, 60):
        for start in (0, 1000, 4000):
            count = granted(controller, rows, rows * 200, start)
            assert count >= QUANTUM_TOKENS
            assert 0.15 < cost(plan_of(rows, rows * 200, count, start), 400e-9) <= 0.25


def test_a_prompt_alone_advances_even_if_its_smallest_chunk_takes_too_long() -> None:
    assert granted(controller_of(max_step_s=0.005), 0, 0, 4000) == QUANTUM_TOKENS


def test_an_engine_that_knows_nothing_feels_its_way() -> None:
    controller = Controller(Limits(256, 2048, 8192), itl_objective_s=0.1, ttft_objective_s=0, max_step_s=0.25)
    assert controller.max_num_seqs(0, 100, 0) <= 16
    sizes = []
    for _ in range(6):
        sizes.append(granted(controller, 1, 100, wanted=4000))
        plan = plan_of(1, 100, sizes[-1])
        controller.observe(plan, cost(plan))
    assert sizes[0] <= 128
    assert all(later <= 2 * earlier for earlier, later in pairwise(sizes))
    assert sizes[-1] > 150


def test_a_bound_on_steps_alone_keeps_nobody_out_at_the_start() -> None:
    controller = Controller(Limits(256, 2048, 8192), itl_objective_s=0, ttft_objective_s=0, max_step_s=0.25)
    assert controller.max_num_seqs(0, 1000, 0) == 256
    for _ in range(50):
        plan = plan_of(8, 1600)
        controller.observe(plan, cost(plan))
    assert controller.max_num_seqs(8, 1000, 1600) == 256


def test_starved_prompts_get_one_long_step_in_many() -> None:
    controller = controller_of(0.03)
    grants = []
    for _ in range(4 * STARVED_STEPS):
        count = granted(controller, 100, 20000)
        grants.append(count)
        plan = plan_of(100, 20000, count)
        controller.observe(plan, cost(plan))
    assert sum(count > 0 for count in grants) == 3
    assert all(count == 0 or count >= QUANTUM_TOKENS for count in grants)


def test_as_many_may_run_as_leave_room_for_prompts() -> None:
    for objective_s in (0.02, 0.04):
        controller = controller_of(objective_s)
        for _ in range(300):
            plan = plan_of(20, 20 * 1000)
            controller.observe(plan, cost(plan))
        cap = controller.max_num_seqs(20, 50, 20000)
        assert cost(plan_of(cap, cap * 1000)) < objective_s / controller.margin
        more = cap + 1 + math.ceil(QUANTUM_TOKENS * 450e-6 / 850e-6)
        assert cost(plan_of(more, more * 1000)) > objective_s / controller.margin * 0.98


def test_an_objective_below_the_fixed_part_of_a_step_lets_a_few_run_and_prompts_advance() -> None:
    controller = controller_of(0.001)
    assert controller.max_num_seqs(0, 9, 0) == FEWEST_ROWS
    count = granted(controller, 1, 200)
    assert count > 0
    assert cost(plan_of(1, 200, count)) < 1.3 * cost(plan_of(1, 200))


def test_delays_from_elsewhere_do_not_shorten_steps_without_end() -> None:
    controller, rng = controller_of(0.05), random.Random(4)
    for _ in range(3000):
        count = granted(controller, 40, 8000)
        plan = plan_of(40, 8000, count)
        controller.observe(plan, cost(plan) * (3.0 if rng.random() < 0.1 else 1.0))
    assert granted(controller, 20, 4000) > 0
    assert controller.margin <= 1.5


def test_the_cap_stays_within_changed_limits() -> None:
    limits = Limits(64, 256, 1000)
    controller = Controller(limits, itl_objective_s=1.0, ttft_objective_s=0, max_step_s=0)
    limits.max_num_seqs = 3
    assert controller.max_num_seqs(0, 9, 0) == 3


def test_the_margin_is_what_keeps_the_98th_percentile() -> None:
    controller, rng = controller_of(0.05), random.Random(3)
    late = 0
    for i in range(6000):
        count = granted(controller, 40, 8000)
        plan = plan_of(40, 8000, count)
        step_s = cost(plan) * rng.lognormvariate(0.0, 0.08)
        late += i >= 2000 and step_s > controller.margin * controller.times.predict(
            40, 8000, count, plan.num_chunk_pairs
        )
        controller.observe(plan, step_s)
    assert 0.005 < late / 4000 < 0.035
    assert 1.12 < controller.margin < 1.25  # exp(0.08 * 2.05) = 1.18


def test_objectives_change_while_running() -> None:
    controller = controller_of(0.05)
    before = granted(controller, 20, 4000)
    controller.set_objectives(itl_objective_s=0.1, ttft_objective_s=None)
    assert granted(controller, 20, 4000) > before
    controller.set_objectives(itl_objective_s=0.0, ttft_objective_s=None)
    assert not controller.is_active
    assert controller.max_num_seqs(20, 500, 4000) == 256


def test_prompts_are_spread_over_the_time_to_first_token() -> None:
    counts = []
    for objective_s in (0.5, 2.0, 8.0):
        controller = controller_of(ttft_objective_s=objective_s)
        controller.max_num_seqs(24, 0, 4000)
        counts.append(controller.chunk_tokens(plan_of(20, 4000), 20, 4000, 0, 1000))
    assert counts[0] > counts[1] > counts[2] > 0
    controller = controller_of(ttft_objective_s=2.0)
    controller.max_num_seqs(24, 0, 4000)
    few = controller.chunk_tokens(plan_of(20, 4000), 20, 4000, 0, 1000)
    controller.max_num_seqs(24, 12, 4000)
    assert controller.chunk_tokens(plan_of(20, 4000), 20, 4000, 0, 1000) > few
    controller.max_num_seqs(24, 1000, 4000)
    assert controller.chunk_tokens(plan_of(20, 4000), 20, 4000, 0, 1000) == 1000


def test_late_first_tokens_quicken_the_pace() -> None:
    controller = controller_of(ttft_objective_s=2.0)
    first = controller.pace
    for _ in range(20):
        controller.first_token(1.0)
    assert controller.pace > first
    controller.first_token(3.0)
    controller.first_token(3.0)
    assert controller.pace < first


def test_beside_an_inter_token_objective_prompts_get_all_that_it_leaves() -> None:
    assert granted(controller_of(0.05, 60.0), 20, 4000) == granted(controller_of(0.05), 20, 4000)
