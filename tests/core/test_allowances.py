"""What single principals may have: caps of their own, and buckets that fill by the minute."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chairlift.core.admission import RATES, Admission, AdmissionLimits, RefusalReason
from chairlift.core.allowances import Bucket, OwnLimits
from chairlift.core.errors import InvalidOption, NeverFits, Overloaded
from chairlift.core.types import EngineStats


def make(own: dict[str, OwnLimits], **caps: int | None) -> Admission:
    admission = Admission(AdmissionLimits(**caps), max_num_seqs=2)
    admission.set_own_limits(own)
    return admission


def refused(admission: Admission, principal: str, now: float = 0.0, num_tokens: int = 1) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        admission.admit(principal, [num_tokens], now)
    return caught.value


def test_a_bucket_gives_what_a_minute_gives_and_no_more() -> None:
    generator = random.Random(1)
    bucket, now, taken = Bucket(600, 0.0), 0.0, 0
    while now < 600:
        now += generator.random()
        if not bucket.wait_s(7, now):
            bucket.take(7, now)
            taken += 7
    assert 6000 < taken <= 6600


def test_a_bucket_that_owes_says_when_it_will_not() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.wait_s(1, 0.0) == 31.0
    assert bucket.wait_s(1, 30.5) == 0.5
    assert bucket.wait_s(1, 31.0) == 0.0
    assert bucket.wait_s(1000, 31.0) == 59.0, "what is larger than a minute's worth waits for a full bucket"
    assert bucket.wait_s(1000, 90.0) == 0.0
    assert bucket.wait_s(60, 20.0) == 0.0, "a clock that goes back takes nothing away"


def test_caps_of_its_own_go_before_those_for_everybody() -> None:
    admission = make({"big": OwnLimits(max_num_reqs=3)}, max_num_reqs_per_principal=1)
    for _ in range(3):
        admission.admit("big", [1], 0.0)
    admission.admit("other", [1], 0.0)
    for principal in ("big", "other"):
        assert refused(admission, principal).reason is RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL


@pytest.mark.parametrize(
    ("own", "cap"),
    [
        (OwnLimits(max_num_queued_reqs=1), "max_num_queued_reqs_per_principal"),
        (OwnLimits(max_num_queued_tokens=10), "max_num_queued_tokens_per_principal"),
    ],
)
def test_a_queue_of_its_own(own: OwnLimits, cap: str) -> None:
    admission = make({"small": own})
    for _ in range(2):
        (ticket,) = admission.admit("occupant", [1], 0.0)
        admission.started(ticket, 0.0)
    admission.observe(EngineStats(2, 0, 0, 0, 0, 0, 0, max_num_seqs=2), 0.0)
    admission.admit("small", [10], 0.0)
    assert refused(admission, "small", num_tokens=10).reason == cap
    for _ in range(20):
        admission.admit("other", [10], 0.0)
    with pytest.raises(NeverFits):
        admission.admit("small", [6, 6, 6, 6], 0.0)


def test_requests_of_a_minute() -> None:
    admission = make({"slow": OwnLimits(max_reqs_per_minute=2)})
    for now in (0.0, 1.0):
        admission.admit("slow", [5, 5], now, n=3)
    error = refused(admission, "slow", 2.0)
    assert error.reason is RefusalReason.MAX_REQS_PER_MINUTE
    assert error.reason in RATES
    assert error.wait_s == pytest.approx(28)
    admission.admit("other", [5], 2.0)
    admission.admit("slow", [5], 30.1)


def test_tokens_of_a_minute_count_prompts_at_once_and_answers_when_they_end() -> None:
    admission = make({"slow": OwnLimits(max_tokens_per_minute=100)})
    (ticket,) = admission.admit("slow", [30], 0.0)
    admission.tokenised(ticket, 50)
    admission.admit("slow", [50], 0.0)
    assert refused(admission, "slow", 0.0).reason is RefusalReason.MAX_TOKENS_PER_MINUTE
    admission.admit("slow", [10], 6.0)
    admission.spent("slow", 100, 6.0)
    error = refused(admission, "slow", 6.0)
    assert error.wait_s == pytest.approx(60.6)
    assert "tokens" in str(error)
    admission.spent("unknown", 100, 6.0)


def test_who_is_refused_for_something_else_pays_nothing() -> None:
    admission = make({"a": OwnLimits(max_reqs_per_minute=2, max_num_reqs=1)})
    admission.admit("a", [1], 0.0)
    for _ in range(10):
        assert refused(admission, "a").reason is RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL


def test_new_limits_keep_the_buckets_whose_size_stays() -> None:
    own = {"a": OwnLimits(max_reqs_per_minute=1), "b": OwnLimits(max_reqs_per_minute=1)}
    admission = make(own)
    for name in own:
        admission.admit(name, [1], 0.0)
        refused(admission, name)
    admission.set_own_limits(own | {"b": OwnLimits(max_reqs_per_minute=2)})
    refused(admission, "a")
    admission.admit("b", [1], 0.0)
    admission.set_own_limits({})
    admission.admit("a", [1], 0.0)


@pytest.mark.parametrize(
    "wrong", [{"max_num_reqs": 0}, {"max_reqs_per_minute": 0}, {"max_num_queued_reqs": -1}, {"max_num_reqs": True}]
)
def test_limits_that_let_nothing_in_are_a_mistake(wrong: Any) -> None:
    with pytest.raises(InvalidOption):
        OwnLimits(**wrong)
    assert OwnLimits(max_num_queued_reqs=0).max_num_queued_reqs == 0
