"""Who is let in, who is not and why, and that every place that is given comes back."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from chairlift.core.admission import Admission, AdmissionLimits, RefusalReason
from chairlift.core.allowances import OwnLimits
from chairlift.core.errors import InvalidOption, NeverFits, Overloaded
from chairlift.core.tickets import Ticket
from chairlift.core.types import BACKGROUND_PRIORITY, EngineStats

CAPS = (
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_num_queued_reqs_per_principal",
    "max_num_queued_tokens_per_principal",
    "max_num_reqs_per_principal",
)


def stats(running: int, waiting: int, slots: int = 2) -> EngineStats:
    return EngineStats(running, waiting, 0, 0, 0, 0, 0, max_num_seqs=slots)


def make(slots: int = 2, policy: Any = "fcfs", **caps: int | None) -> Admission:
    return Admission(AdmissionLimits(**caps), max_num_seqs=slots, policy=policy)


def one(admission: Admission, principal: str = "a", num_tokens: int = 1, now: float = 0.0, **fields: Any) -> Ticket:
    (ticket,) = admission.admit(principal, [num_tokens], now, **fields)
    return ticket


def refusal(admission: Admission, principal: str = "a", num_tokens: int = 1, **fields: Any) -> Overloaded:
    before = counts(admission)
    with pytest.raises(Overloaded) as caught:
        one(admission, principal, num_tokens, **fields)
    assert counts(admission) == before
    return caught.value


def counts(admission: Admission) -> tuple[int, int, int, int]:
    return admission.num_live, admission.num_queued, admission.num_queued_tokens, admission.num_principals


def fill_slots(admission: Admission, slots: int = 2, waiting: int = 0) -> list[Ticket]:
    """Every slot taken by somebody else, on a principal of its own."""
    tickets = [one(admission, "occupant") for _ in range(slots)]
    for ticket in tickets:
        admission.started(ticket, 0.0)
    admission.observe(stats(slots, waiting, slots), 0.0)
    return tickets


# ---------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("cap", "reason"),
    [
        ("max_num_queued_reqs", "max_num_queued_reqs"),
        ("max_num_queued_reqs_per_principal", "max_num_queued_reqs_per_principal"),
    ],
)
def test_requests_queue_up_to_the_cap(cap: str, reason: str) -> None:
    admission = make(**{cap: 3})
    fill_slots(admission)
    for _ in range(3):
        one(admission)
    assert refusal(admission).reason == reason


@pytest.mark.parametrize("cap", ["max_num_queued_tokens", "max_num_queued_tokens_per_principal"])
def test_tokens_queue_up_to_the_cap(cap: str) -> None:
    admission = make(**{cap: 100})
    fill_slots(admission)
    one(admission, num_tokens=60)
    assert refusal(admission, num_tokens=41).reason == cap
    one(admission, num_tokens=40)
    assert refusal(admission).reason == cap


def test_a_cap_on_what_is_in_flight_counts_who_runs_too() -> None:
    admission = make(slots=4, max_num_reqs_per_principal=2)
    running = one(admission)
    admission.started(running, 0.0)
    one(admission)
    error = refusal(admission)
    assert error.reason is RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL
    assert error.wait_s is None  # nobody has ended yet
    one(admission, "b")
    admission.ended(running, 3.0)
    one(admission)
    assert refusal(admission).wait_s == pytest.approx(1.5)  # two in flight, three seconds each


@pytest.mark.parametrize("cap", CAPS[2:])
def test_a_cap_of_one_principal_is_none_of_another(cap: str) -> None:
    admission = make(**{cap: 1})
    fill_slots(admission, slots=1)
    admission.observe(stats(2, 0), 0.0)
    one(admission, "a")
    assert refusal(admission, "a").reason == cap
    one(admission, "b")


def test_answers_count_each_and_the_prompt_once() -> None:
    admission = make(slots=4)
    one(admission, num_tokens=10, n=3)
    assert counts(admission) == (3, 3, 10, 1)


def test_src_vllm_53936_prompts_and_choices_enter_together_or_not_at_all() -> None:
    admission = make(max_num_queued_reqs=5, max_num_queued_tokens=50)
    fill_slots(admission)
    with pytest.raises(Overloaded):
        one(admission)
        admission.admit("a", [1, 1, 1], 0.0, n=2)
    assert admission.num_queued == 1
    with pytest.raises(Overloaded, match="tokens"):
        admission.admit("a", [30, 30], 0.0)
    assert admission.num_queued == 1
    assert [ticket.num_tokens for ticket in admission.admit("a", [20, 25], 0.0, n=2)] == [20, 25]
    assert counts(admission) == (7, 5, 46, 2)


def test_nothing_is_capped_unless_told() -> None:
    admission = make()
    for _ in range(5000):
        one(admission, num_tokens=10_000)
    admission.check_room("a")
    assert admission.num_live == 5000


# ---------------------------------------------------------------- free slots


@pytest.mark.parametrize("cap", CAPS[:4])
def test_who_finds_a_free_slot_does_not_queue(cap: str) -> None:
    """A burst into an idle engine fills its slots whatever the caps are, and then the queue."""
    admission = make(slots=4, **{cap: 0})
    for _ in range(4):
        admission.check_room("a")
        one(admission, num_tokens=1000)
    assert refusal(admission).reason == cap
    with pytest.raises(Overloaded):
        admission.check_room("a")


@pytest.mark.parametrize("cap", CAPS[:4])
def test_seats_leave_the_whole_queue_to_those_who_come_after(cap: str) -> None:
    admission = make(slots=4, **{cap: 2})
    for _ in range(6):
        one(admission)
    assert refusal(admission).reason == cap


def test_as_soon_as_somebody_waits_in_the_engine_everybody_who_waits_counts() -> None:
    admission = make(slots=4, max_num_queued_reqs=3)
    tickets = [one(admission) for _ in range(4)]
    admission.started(tickets[0], 0.0)
    admission.observe(stats(1, 3, slots=4), 0.0)  # three have a slot, and no blocks
    assert refusal(admission).reason is RefusalReason.MAX_NUM_QUEUED_REQS
    admission.started(tickets[1], 0.1)
    admission.observe(stats(2, 2, slots=4), 0.1)
    one(admission)
    refusal(admission)


def test_a_slot_promised_to_somebody_on_the_way_is_not_free() -> None:
    admission = make(slots=2, max_num_queued_reqs=0)
    one(admission)
    one(admission)
    admission.observe(stats(0, 0), 0.0)  # they are still being tokenised
    refusal(admission)
    admission.observe(stats(1, 0), 0.1)
    refusal(admission)


def test_the_bound_on_slots_may_change_while_serving() -> None:
    admission = make(slots=4, max_num_queued_reqs=0)
    admission.observe(stats(0, 0, slots=1), 0.0)
    one(admission)
    refusal(admission)
    admission.observe(stats(0, 0, slots=2), 1.0)
    one(admission)


def test_caps_may_change_while_serving() -> None:
    admission = make(max_num_queued_reqs=4)
    fill_slots(admission)
    tickets = [one(admission) for _ in range(4)]
    admission.set_limits(AdmissionLimits(max_num_queued_reqs=2))
    for ticket in tickets[:2]:
        refusal(admission)
        admission.ended(ticket, 0.0)
    refusal(admission)
    admission.ended(tickets[2], 0.0)
    one(admission)
    admission.set_limits(AdmissionLimits())
    one(admission)


# ---------------------------------------------------------------- who may go over the cap


@pytest.mark.parametrize("cap", ["max_num_queued_reqs", "max_num_queued_tokens", "max_num_queued_reqs_per_principal"])
def test_background_work_does_not_keep_urgent_requests_out(cap: str) -> None:
    admission = make(**{cap: 8})
    fill_slots(admission)
    for _ in range(8):
        one(admission, priority=5)
    assert refusal(admission, priority=5).reason == cap
    one(admission, priority=4)
    one(admission, priority=-1)
    for priority in (-9, 4, 5):  # a quarter over it, and no further
        assert refusal(admission, priority=priority).reason == cap


def test_the_cap_is_the_cap_among_equals() -> None:
    for policy in ("fcfs", "priority", "fair", "deadline"):
        admission = make(policy=policy, max_num_queued_reqs=8)
        fill_slots(admission)
        for i in range(8):
            one(admission, e2e_deadline=100.0 + i)
        refusal(admission, e2e_deadline=108.0)
        with pytest.raises(Overloaded):
            admission.check_room("a")


def test_who_would_be_in_the_second_half_of_the_line_does_not_go_over_the_cap() -> None:
    admission = make(max_num_queued_reqs=8)
    fill_slots(admission)
    for priority in (1, 1, 1, 1, 9, 9, 9, 9):
        one(admission, priority=priority)
    refusal(admission, priority=5)
    one(admission, priority=0)


def test_a_flood_of_one_user_does_not_keep_another_out() -> None:
    admission = make(policy="fair", max_num_queued_reqs=8)
    fill_slots(admission)
    for _ in range(8):
        one(admission, "flood")
    refusal(admission, "flood")
    with pytest.raises(Overloaded):
        admission.check_room("flood")
    admission.check_room("light")
    one(admission, "light")
    fcfs = make(max_num_queued_reqs=8)
    fill_slots(fcfs)
    for _ in range(8):
        one(fcfs, "flood")
    refusal(fcfs, "light")  # first come, first served, at the door too


def test_a_flood_of_one_tenant_does_not_keep_another_of_the_same_user_out() -> None:
    admission = make(policy="fair", max_num_queued_reqs=16)
    fill_slots(admission)
    for _ in range(16):
        one(admission, "key", tenant="flood")
    refusal(admission, "key", tenant="flood")
    with pytest.raises(Overloaded):
        admission.check_room("key", "flood")
    admission.check_room("key", "light")
    one(admission, "key", tenant="light")
    one(admission, "key", tenant="lighter")
    refusal(admission, "key", tenant="third")  # an eighth over the cap; the rest is for other users
    one(admission, "other")


def test_names_that_a_greedy_user_makes_up_gain_it_nothing_against_others() -> None:
    admission = make(policy="fair", max_num_queued_reqs=16)
    fill_slots(admission)
    for i in range(18):  # an eighth over the cap
        one(admission, "greedy", tenant=f"made up {i}")
    refusal(admission, "greedy", tenant="made up as well")
    for _ in range(2):
        one(admission, "other")
    refusal(admission, "other")


def test_requests_with_deadlines_get_past_those_that_can_wait() -> None:
    admission = make(policy="deadline", max_num_queued_reqs=8)
    fill_slots(admission)
    for _ in range(8):
        one(admission)
    refusal(admission)
    one(admission, ttft_deadline=5.0)


# ---------------------------------------------------------------- what never fits


def test_what_an_empty_queue_cannot_take_never_fits() -> None:
    admission = make(slots=2, max_num_queued_reqs=4, max_num_queued_tokens=100)
    for _ in range(2):  # whether anybody is there or not
        with pytest.raises(NeverFits) as caught:
            one(admission, n=7)
        assert caught.value.param == "n"
        with pytest.raises(NeverFits) as caught:
            admission.admit("a", [1, 1, 60, 60], 0.0)
        assert caught.value.param == "prompt"
        with pytest.raises(NeverFits):
            Admission(AdmissionLimits(max_num_reqs_per_principal=3), max_num_seqs=9).admit("a", [1], 0.0, n=4)
        fill_slots(admission, waiting=1)
    assert refusal(admission, num_tokens=1000).reason is RefusalReason.MAX_NUM_QUEUED_TOKENS  # an idle engine takes it


# ---------------------------------------------------------------- correction, idempotence, leaks


def test_an_estimate_is_put_right_while_it_matters() -> None:
    admission = make(max_num_queued_tokens=100)
    fill_slots(admission)
    ticket = one(admission, num_tokens=80)
    refusal(admission, num_tokens=40)
    admission.tokenised(ticket, 30)
    assert admission.num_queued_tokens == 30
    one(admission, num_tokens=40)
    admission.started(ticket, 0.0)
    admission.tokenised(ticket, 5)
    assert admission.num_queued_tokens == 40
    admission.ended(ticket, 1.0)
    admission.tokenised(ticket, 7)
    assert admission.num_queued_tokens == 40


def test_nothing_happens_twice_to_a_ticket() -> None:
    admission = make()
    ticket, other = one(admission, num_tokens=5), one(admission, num_tokens=7)
    for _ in range(3):
        admission.started(ticket, 1.0)
        assert counts(admission) == (2, 1, 7, 1)
    for _ in range(3):
        admission.ended(ticket, 2.0)
        admission.started(ticket, 3.0)
        assert counts(admission) == (1, 1, 7, 1)
    for _ in range(3):
        admission.ended(other, 2.0)
        assert counts(admission) == (0, 0, 0, 0)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline"])
def test_src_tgi_1877_every_permit_comes_back_after_ten_thousand_mixed_cancels(policy: Any) -> None:
    """Random lives in random orders, with caps and counts that change, recounted all the way."""
    generator = random.Random(7)
    slots, caps = 8, {"max_num_queued_reqs": 40, "max_num_reqs_per_principal": 12}
    admission = make(slots=slots, policy=policy, **caps)
    live: dict[Ticket, str] = {}
    gone: list[Ticket] = []
    refused: Counter[str] = Counter()
    now = 0.0
    for turn in range(10_000):
        now += generator.random() * 0.02
        principal = f"p{generator.randrange(5)}"
        try:
            tickets = admission.admit(
                principal,
                [generator.randrange(1, 50) for _ in range(generator.choice([1, 1, 3]))],
                now,
                tenant=f"t{generator.randrange(4)}",
                n=generator.choice([1, 1, 2]),
                priority=generator.randrange(3),
                ttft_deadline=generator.choice([None, None, now + generator.random() * 3]),
                e2e_deadline=generator.choice([None, now + generator.random() * 9]),
            )
        except Overloaded as error:
            refused[RefusalReason(error.reason).value] += 1
        else:
            live |= dict.fromkeys(tickets, "queued")
        for ticket in generator.sample(list(live), min(len(live), generator.randrange(5))):
            step = generator.random()
            if step < 0.2:
                admission.tokenised(ticket, generator.randrange(1, 50))
            elif step < 0.6 and sum(t.num_seqs for t, state in live.items() if state == "running") < slots:
                admission.started(ticket, now)
                live[ticket] = "running"
            elif step > 0.7:
                admission.ended(ticket, now)
                gone.append(ticket)
                del live[ticket]
        if gone:
            admission.ended(generator.choice(gone), now)
            admission.started(generator.choice(gone), now)
        queued = [ticket for ticket, state in live.items() if state == "queued"]
        num_running = sum(ticket.num_seqs for ticket, state in live.items() if state == "running")
        admission.observe(stats(num_running, generator.randrange(2), slots), now)
        assert counts(admission) == (
            sum(ticket.num_seqs for ticket in live),
            sum(ticket.num_seqs for ticket in queued),
            sum(ticket.num_tokens for ticket in queued),
            len({ticket.principal for ticket in live}),
        ), turn
        assert admission.num_tenants == len({(ticket.principal, ticket.tenant) for ticket in live})
        assert admission.num_queued <= 40 + 10 + slots
    assert set(refused) == {"max_num_queued_reqs", "max_num_reqs_per_principal", "deadline"}
    for ticket in live:
        admission.ended(ticket, now)
    admission.observe(stats(0, 0, slots), now)
    assert (*counts(admission), admission.num_tenants) == (0, 0, 0, 0, 0)
    assert len([one(admission, f"p{i // 12}", now=now) for i in range(48)]) == 48
    assert refusal(admission, "p0", now=now).reason is RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL
    if policy != "fair":  # under which a newcomer gets past them
        assert refusal(admission, "other", now=now).reason is RefusalReason.MAX_NUM_QUEUED_REQS


# ---------------------------------------------------------------- waits and deadlines


def busy(policy: Any = "fcfs", *, slots: int = 2, **caps: int | None) -> Admission:
    """An engine that frees a slot every half second, with nobody queued."""
    admission = make(slots=slots, policy=policy, **caps)
    for step in range(200):
        now = step * 0.5
        ticket = one(admission, "occupant")
        admission.started(ticket, now)
        admission.ended(ticket, now + 0.5 * slots)
        admission.observe(stats(slots, 1, slots), now)
    return admission


def test_a_refusal_says_how_long_the_queue_is() -> None:
    admission = busy(max_num_queued_reqs=8)
    for _ in range(8):
        one(admission, now=100.0)
    error = refusal(admission, now=100.0)
    assert error.wait_s == pytest.approx(4.5, rel=0.1)
    assert "8 requests wait, of at most 8" in str(error)
    assert "4." in str(error)


def test_a_deadline_that_cannot_be_kept_is_refused_at_once() -> None:
    admission = busy()
    for _ in range(8):
        one(admission, now=100.0)
    for name in ("ttft_deadline", "e2e_deadline"):
        soon: dict[str, Any] = {name: 102.0}
        late: dict[str, Any] = {name: 106.0}
        error = refusal(admission, now=100.0, **soon)
        assert error.reason is RefusalReason.DEADLINE
        assert error.wait_s == pytest.approx(4.5, rel=0.1)
        admission.ended(one(admission, now=100.0, **late), 100.0)
    assert refusal(admission, now=100.0, ttft_deadline=110.0, e2e_deadline=101.0).reason is RefusalReason.DEADLINE


def test_a_deadline_is_never_refused_on_a_guess() -> None:
    admission = make(slots=1)
    admission.observe(stats(1, 3, slots=1), 0.0)
    for _ in range(100):
        one(admission, ttft_deadline=0.001)
    idle = busy()
    idle.observe(stats(0, 0), 100.0)
    one(idle, now=100.0, ttft_deadline=100.001)  # a slot is free


def test_lower_priorities_are_not_in_the_way_of_a_deadline() -> None:
    admission = busy()
    for _ in range(20):
        one(admission, now=100.0, priority=5)
    refusal(admission, now=100.0, priority=5, ttft_deadline=102.0)
    one(admission, now=100.0, priority=4, ttft_deadline=102.0)


def test_under_earliest_deadline_first_only_earlier_deadlines_are_in_the_way() -> None:
    admission = busy("deadline")
    for i in range(20):
        one(admission, now=100.0, e2e_deadline=120.0 + i)
    for _ in range(20):
        one(admission, now=100.0)
    one(admission, now=100.0, ttft_deadline=102.0)
    for _ in range(11):
        one(admission, now=100.0, ttft_deadline=106.4)
    refusal(admission, now=100.0, ttft_deadline=106.41)  # six and a half seconds' worth of others before it
    one(admission, now=100.0, ttft_deadline=106.39)


def test_under_fair_shares_a_flood_of_another_tenant_is_not_in_the_way() -> None:
    admission = busy("fair")
    for _ in range(100):
        one(admission, "key", tenant="flood", now=100.0)
    one(admission, "key", tenant="light", now=100.0, ttft_deadline=102.0)
    refusal(admission, "key", tenant="flood", now=100.0, ttft_deadline=102.0)


def test_under_fair_shares_a_flood_of_others_is_not_in_the_way() -> None:
    admission = busy("fair")
    for _ in range(100):
        one(admission, "flood", now=100.0)
    one(admission, "light", now=100.0, ttft_deadline=102.0)
    refusal(admission, "flood", now=100.0, ttft_deadline=102.0)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_a_cap_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        AdmissionLimits(**{name: value})


def test_a_cap_must_let_somebody_in() -> None:
    with pytest.raises(InvalidOption):
        AdmissionLimits(max_num_reqs_per_principal=0)
    assert AdmissionLimits(max_num_queued_reqs=0).max_num_queued_reqs == 0


# ---------------------------------------------------------------- the background


def test_the_background_takes_nobodys_place_and_has_no_caps() -> None:
    admission = make(slots=2, **dict.fromkeys(CAPS, 2))
    waiting = [one(admission, "a", 50, priority=BACKGROUND_PRIORITY) for _ in range(20)]
    fill_slots(admission)
    assert counts(admission) == (2, 0, 0, 1)
    assert admission.num_background == 20
    own = [one(admission, "a"), one(admission, "a")]
    assert refusal(admission, "a").reason == RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL
    for ticket in waiting:
        admission.tokenised(ticket, 7)
        admission.started(ticket, 1.0)
        admission.ended(ticket, 2.0)
        admission.ended(ticket, 2.0)
    assert admission.num_background == 0
    assert admission._background.num_queued_tokens == 0
    assert counts(admission) == (4, 2, 2, 2)
    for ticket in own:
        admission.ended(ticket, 3.0)


def test_the_background_uses_up_a_minute_like_anything_else() -> None:
    admission = make()
    admission.set_own_limits({"a": OwnLimits(max_reqs_per_minute=2)})
    for _ in range(2):
        one(admission, "a", priority=BACKGROUND_PRIORITY)
    for priority in (0, BACKGROUND_PRIORITY):
        assert refusal(admission, "a", priority=priority).reason == RefusalReason.MAX_REQS_PER_MINUTE
