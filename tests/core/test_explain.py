"""Sentences that say what happened, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chairlift.core.explain import facts, missed, sentence, unnamed
from chairlift.core.types import Decisions, Finish, FinishReason, PreemptReason, WaitReason

BLOCKS, PRIORITY = PreemptReason.BLOCKS, PreemptReason.PRIORITY


def finish(decisions: dict[str, Any] | None = None, **fields: Any) -> Finish:
    """By default: arrived at 100, started and computed at once, ten tokens in a second."""
    made: dict[str, Any] = {
        "id": 5,
        "choice": 0,
        "reason": FinishReason.LENGTH,
        "stop_reason": None,
        "error": None,
        "num_prompt_tokens": 20,
        "num_output_tokens": 10,
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "arrival": 100.0,
        "first_scheduled": 100.001,
        "first_token": 100.05,
        "finished": 101.05,
        "decisions": Decisions(**({"chunks": 1} | (decisions or {}))),
    }
    return Finish(**(made | fields))


def test_who_met_no_obstacle_reads_a_short_sentence() -> None:
    assert sentence(finish()) == (
        "Started at once; 20 prompt tokens in one chunk; first token after 50 ms, 9 more in 1.0 s; ended by its length."
    )


def test_everything_that_happened_is_said_in_order() -> None:
    everything = finish(
        {
            "queued_behind": 12,
            "waited": ((WaitReason.BLOCKS, 1.2), (WaitReason.TOKENS, 0.4)),
            "preemptions": ((17, BLOCKS),),
            "preempted_s": 0.3,
            "chunks": 3,
            "recomputed_tokens": 96,
            "passed": 2,
        },
        num_prompt_tokens=640,
        num_cached_tokens=512,
        num_output_tokens=64,
        num_preemptions=1,
        first_scheduled=101.6,
        first_token=101.9,
        finished=104.0,
    )
    assert sentence(everything) == (
        "12 others waited when it came; waited 1.2 s for cache blocks and 0.4 s for the token budget; "
        "passed by 2 later ones; preempted once by request 17 (blocks), 0.3 s until it went on; "
        "640 prompt tokens, 512 of them from the cache, 96 tokens computed again, all in 3 chunks; "
        "first token after 1.9 s, 63 more in 2.1 s; ended by its length."
    )


def test_one_is_not_many() -> None:
    one = finish(
        {"queued_behind": 1, "passed": 1, "recomputed_tokens": 1},
        num_prompt_tokens=1,
        num_output_tokens=1,
        finished=100.05,
    )
    assert sentence(one) == (
        "1 other waited when it came; passed by 1 later one; 1 prompt token, 1 token computed again, all in one chunk; "
        "its only token after 50 ms; ended by its length."
    )


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        ([(WaitReason.SLOTS, 2.0)], "Waited 2.0 s for a slot"),
        ([(WaitReason.STEP, 0.0301)], "Waited 30 ms for the next step"),
        ([(WaitReason.STEP, 0.0099), (WaitReason.SLOTS, 0.0009)], "Started at once"),
        ([(WaitReason.STEP, 0.0099), (WaitReason.BATCH, 120.4)], "Waited 120 s for a batch"),
        (
            [(WaitReason.SLOTS, 1.0), (WaitReason.PREFIX, 0.1), (WaitReason.TOKENS, 0.25)],
            "Waited 1.0 s for a slot, 0.1 s for a beginning that another one was computing and 0.25 s for the token "
            "budget",
        ),
    ],
)
def test_waits_are_said_if_they_can_be_felt(waited: list[tuple[WaitReason, float]], said: str) -> None:
    assert sentence(finish({"waited": tuple(waited)})).partition("; ")[0] == said


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_to_wait_has_its_words(reason: WaitReason) -> None:
    assert sentence(finish({"waited": ((reason, 1.0),)})).startswith("Waited 1.0 s for ")


@pytest.mark.parametrize(("delay_s", "said"), [(0.0099, "Started at once"), (0.5, "Started after 0.5 s")])
def test_a_delay_that_nothing_explains_is_said_all_the_same(delay_s: float, said: str) -> None:
    assert sentence(finish(first_scheduled=100.0 + delay_s)).startswith(said)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (0.138, "0.14 s"),
        (0.994, "0.99 s"),
        (0.996, "1.0 s"),
        (1.25, "1.2 s"),
        (99.94, "99.9 s"),
        (99.96, "100 s"),
    ],
)
def test_durations_have_two_or_three_digits(seconds: float, said: str) -> None:
    assert f"waited {said} for" in sentence(finish({"queued_behind": 1, "waited": ((WaitReason.SLOTS, seconds),)}))


@pytest.mark.parametrize(
    ("preemptions", "said", "said_unnamed"),
    [
        ([(17, BLOCKS)] * 2, "twice by request 17 (blocks)", "twice by another request (blocks)"),
        (
            [(17, BLOCKS), (4, PRIORITY), (17, BLOCKS)],
            "3 times (twice by request 17 (blocks) and once by request 4 (priority))",
            "3 times (twice by another request (blocks) and once by another request (priority))",
        ),
        (
            [(17, BLOCKS), (18, BLOCKS)],
            "twice (once by request 17 (blocks) and once by request 18 (blocks))",
            "twice by other requests (blocks)",
        ),
        (
            [(number, BLOCKS) for number in (10, 11, 12, 13, 14, 14)],
            "6 times (once by request 10 (blocks), once by request 11 (blocks), once by request 12 (blocks) and "
            "3 times by others)",
            "6 times by other requests (blocks)",
        ),
        (
            [(5, BLOCKS)],
            "once by an answer before it (blocks)",
            "once by an answer before it (blocks)",
        ),
    ],
)
def test_who_preempted_it(preemptions: list[tuple[int, PreemptReason]], said: str, said_unnamed: str) -> None:
    preempted = finish({"preemptions": tuple(preemptions)}, num_preemptions=len(preemptions))
    assert sentence(preempted).split("; ")[1] == f"preempted {said}"
    assert sentence(preempted, unnamed).split("; ")[1] == f"preempted {said_unnamed}"
    given: Any = facts(preempted, unnamed)["preemptions"]
    assert sum(one["count"] for one in given) == len(preemptions)
    assert not any(character.isdigit() for one in given for character in one["by"])


def test_time_away_is_summed_over_preemptions() -> None:
    text = sentence(finish({"preemptions": ((7, BLOCKS), (7, BLOCKS)), "preempted_s": 0.75}))
    assert "preempted twice by request 7 (blocks), 0.75 s in all until it went on" in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reason": FinishReason.STOP}, "ended by itself"),
        ({"reason": FinishReason.STOP, "stop_reason": "private"}, "ended by a stop string"),
        ({"reason": FinishReason.STOP, "stop_reason": 0}, "ended by a stop token"),
        ({"reason": FinishReason.LENGTH}, "ended by its length"),
        ({"reason": FinishReason.ABORT}, "given up after 1.0 s"),
        ({"reason": FinishReason.DEADLINE}, "given up after 1.0 s: its end did not come in time"),
        (
            {
                "reason": FinishReason.DEADLINE,
                "first_token": None,
                "error": "ttft deadline: no first token within 1.000 s",
            },
            "given up after 1.0 s: its first token did not come in time",
        ),
        ({"reason": FinishReason.ERROR, "error": "private"}, "ended by an error"),
    ],
)
def test_how_it_ended(fields: dict[str, Any], said: str) -> None:
    text = sentence(finish(**fields))
    assert text.endswith(f"; {said}.")
    assert "private" not in text + json.dumps(facts(finish(**fields)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ttft deadline: no first token within 0.5 s", "ttft"),
        ("e2e deadline: not finished within 0.5 s", "e2e"),
        (None, "e2e"),
    ],
)
def test_which_deadline_was_missed(error: str | None, kind: str) -> None:
    assert missed(finish(reason=FinishReason.DEADLINE, error=error)) == kind
    assert missed(finish(reason=FinishReason.DEADLINE, error=error, first_token=None)) == kind


def test_who_never_started_has_no_prompt_and_no_tokens() -> None:
    waiting = finish(
        {"queued_behind": 3, "waited": ((WaitReason.SLOTS, 2.0),), "chunks": 0},
        reason=FinishReason.ABORT,
        num_output_tokens=0,
        first_scheduled=None,
        first_token=None,
        finished=102.0,
    )
    assert sentence(waiting) == (
        "3 others waited when it came; waited 2.0 s for a slot; never started; given up after 2.0 s."
    )
    given = facts(waiting)
    assert (given["started_after_s"], given["first_token_after_s"], given["ended_after_s"]) == (None, None, 2.0)


def test_the_facts_are_plain_data() -> None:
    given = facts(
        finish(
            {"waited": ((WaitReason.BLOCKS, 1.25),), "preemptions": ((17, BLOCKS),), "preempted_s": 0.5, "chunks": 2}
        )
    )
    assert json.loads(json.dumps(given)) == given
    assert given == {
        "queued_behind": 0,
        "passed": 0,
        "waited_s": {"blocks": 1.25},
        "preemptions": [{"by": "request 17", "reason": "blocks", "count": 1}],
        "preempted_s": 0.5,
        "prompt_tokens": 20,
        "cached_tokens": 0,
        "recomputed_tokens": 0,
        "chunks": 2,
        "output_tokens": 10,
        "started_after_s": 0.001,
        "first_token_after_s": 0.05,
        "ended_after_s": 1.05,
        "ended_by": "length",
    }


def test_a_clock_that_went_back_gives_no_negative_times() -> None:
    odd = finish(arrival=200.0)
    assert "-" not in sentence(odd)
    assert facts(odd)["ended_after_s"] == 0.0
