"""Engine options: what is refused before anything is loaded, and what the scheduler is told."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy
from chairlift.worker.options import MAX_STEP_S, EngineOptions, decode_options, worker_command


def test_without_options_the_policy_is_the_default_with_a_bounded_step() -> None:
    assert EngineOptions(model="m").policy() == Policy(max_step_s=MAX_STEP_S)


def test_every_option_of_the_policy_arrives_and_survives_the_command_line() -> None:
    options = EngineOptions(
        model="m",
        batching="static",
        max_batch_wait_ms=250,
        kv_reservation="max",
        enable_chunked_prefill=False,
        scheduling_policy="fair",
        tenant_weights={"a": 2.0, "b": 0.5},
        priority_ageing_s=5,
        max_bypass=3,
        watermark=0.0,
        itl_objective_ms=50,
        ttft_objective_ms=800,
    )
    assert options.policy() == Policy(
        batching="static",
        max_batch_wait_s=0.25,
        kv_reservation="max",
        enable_chunked_prefill=False,
        scheduling_policy="fair",
        weights={"a": 2.0, "b": 0.5},
        priority_ageing_s=5,
        max_bypass=3,
        watermark=0.0,
        itl_objective_s=0.05,
        ttft_objective_s=0.8,
        max_step_s=MAX_STEP_S,
    )
    assert decode_options(worker_command(options, 3)[-1]) == options
    assert EngineOptions(model="m", prefill_first=True).policy().prefill_first
    assert EngineOptions(model="m", long_prefill_token_threshold=64).policy().long_prefill_token_threshold == 64
    assert EngineOptions(model="m", batching="dynamic").policy().max_batch_wait_s is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching": "sometimes"}, "batching must be one of static, dynamic, continuous"),
        ({"kv_reservation": "none"}, "kv_reservation must be one of"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of"),
        ({"batching": "static"}, "needs max_batch_wait_ms: a batch that never fills"),
        ({"max_batch_wait_ms": 5}, "max_batch_wait_ms goes with batching static or dynamic"),
        ({"batching": "dynamic", "max_batch_wait_ms": -1}, "max_batch_wait_ms must be a number of at least 0"),
        ({"batching": "dynamic", "max_batch_wait_ms": float("nan")}, "max_batch_wait_ms must be a number"),
        ({"batching": "dynamic", "prefill_first": True}, "prefill_first goes with batching continuous"),
        ({"watermark": 1.0}, "watermark is a share"),
        ({"max_bypass": -1}, "max_bypass must be an integer of at least 0"),
        ({"long_prefill_token_threshold": 1.5}, "long_prefill_token_threshold must be an integer"),
        ({"priority_ageing_s": float("inf")}, "priority_ageing_s must be a number"),
        ({"itl_objective_ms": -1}, "itl_objective_ms must be"),
        ({"ttft_objective_ms": "fast"}, "ttft_objective_ms must be"),
        ({"tenant_weights": {"a": 0}}, "tenant_weights of 'a' must be above 0"),
        ({"tenant_weights": {"a": "much"}}, "tenant_weights of 'a' must be a number"),
        ({"tenant_weights": "a=2"}, "tenant_weights must map names"),
        ({"tenant_weights": {1: 2}}, "tenant_weights has names that are text, not 1"),
        ({"ttft_objective_ms": 10**400}, "ttft_objective_ms must be a number"),
        ({"journal": 5}, "journal must name a file"),
        ({"journal": b"there"}, "journal must name a file"),
        ({"tenant_weights": {"a": 2}}, "tenant_weights goes with scheduling_policy fair: fcfs has no shares"),
        (
            {"long_prefill_token_threshold": 8, "enable_chunked_prefill": False},
            "long_prefill_token_threshold goes with chunked prefill",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_the_user_gave(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        EngineOptions(model="m", **options)


def test_a_sequence_is_as_long_as_the_model_was_made_for_or_shorter() -> None:
    assert EngineOptions(model="m").context_len("m", 10) == 10
    assert [EngineOptions(model="m", max_model_len=most).context_len("m", 10) for most in (5, 10)] == [5, 10]
    with pytest.raises(InvalidOption, match="max_model_len is 11, but m was made for 10 tokens"):
        EngineOptions(model="m", max_model_len=11).context_len("m", 10)
