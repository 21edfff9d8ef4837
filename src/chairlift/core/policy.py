"""What of the scheduler is a choice: how batches form, who goes first, how steps are filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from chairlift.core.errors import InvalidOption

BatchingName = Literal["static", "dynamic", "continuous"]
OrderName = Literal["fcfs", "priority", "fair", "deadline"]
ReservationName = Literal["on-demand", "max"]

DYNAMIC_WAIT_S = 0.05
"""How long a dynamic batch waits to be full, unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every choice about scheduling that is made before the engine starts.

    Raises:
        InvalidOption: a value that makes no sense.
    """

    batching: BatchingName = "continuous"
    max_batch_wait_s: float | None = None
    """How long the first of a static or dynamic batch waits for others. None: a static batch waits until it is full or
    nothing more can come, a dynamic one `DYNAMIC_WAIT_S`."""
    kv_reservation: ReservationName = "on-demand"
    """`max` reserves the blocks of prompt and longest output when a sequence joins. Held batches always do."""
    enable_chunked_prefill: bool = True
    prefill_first: bool = False
    """Steps are either all prefill or all decode, and prefill goes first: decodes stall while prompts come in."""
    scheduling_policy: OrderName = "fcfs"
    weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of principals under `fair`; 1 for those not named."""
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0
    """What a token counts as service under `fair`. Source: the costs used by Sheng et al. 2024 (VTC)."""
    charges_ahead: bool = True
    """Under `fair`, who joins is charged at once for as much output as is expected. False, as published for VTC: output
    is charged as it comes, and who had nothing waiting is lifted to the least service of those who wait."""
    priority_ageing_s: float = 60.0
    """A request that has waited so long counts as one level of priority better, as often as it takes to reach the best
    level that waits. 0: never."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step while others want to prefill or decode; 0: no such bound."""
    watermark: float = 0.01
    """Share of the blocks left free when a sequence joins others, so that those do not run out at once."""
    max_bypass: int = 16
    """How often later ones may join before a waiting request that does not fit."""
    itl_objective_s: float = 0.0
    """Inter-token latency to hold by steering `max_num_seqs` and the prefill budget; 0: none."""
    ttft_objective_s: float = 0.0
    """Time to first token to hold by steering the prefill budget; 0: none."""
    max_step_s: float = 0.0
    """Longest step to plan for, as predicted from the steps so far; 0: no such bound."""
    single_pass: bool = False
    """Every sequence is pooled: it is computed whole, in one step, and ends with it."""
    length_window_s: float = 0.0
    """Of those who came within such a window of time the shorter go first, so that neighbours in a batch have similar
    lengths; 0: order of arrival."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("batching", BatchingName),
            ("kv_reservation", ReservationName),
            ("scheduling_policy", OrderName),
        ):
            if getattr(self, name) not in get_args(kind):
                raise InvalidOption(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        for name in (
            "priority_ageing_s",
            "itl_objective_s",
            "ttft_objective_s",
            "max_step_s",
            "input_token_weight",
            "output_token_weight",
            "long_prefill_token_threshold",
            "max_bypass",
            "length_window_s",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidOption(f"{name} must be at least 0")
        if not 0 <= self.watermark < 1:
            raise InvalidOption("watermark must be at least 0 and below 1")
        if self.max_batch_wait_s is not None and not 0 <= self.max_batch_wait_s < float("inf"):
            raise InvalidOption("max_batch_wait must be at least 0")
        if self.batching == "continuous" and self.max_batch_wait_s is not None:
            raise InvalidOption("max_batch_wait is for static and dynamic batching: continuous batching never waits")
        if self.batching != "continuous" and self.prefill_first:
            raise InvalidOption("prefill_first is for continuous batching")
        if self.single_pass and self.enable_chunked_prefill:
            raise InvalidOption("a single pass is computed whole: it goes without chunked prefill")
        if any(not 0 < weight < float("inf") for weight in self.weights.values()):
            raise InvalidOption("a weight must be above 0 and finite")


SETTINGS = (
    "batching",
    "max_batch_wait_ms",
    "kv_reservation",
    "enable_chunked_prefill",
    "prefill_first",
    "scheduling_policy",
    "tenant_weights",
    "priority_ageing_s",
    "max_bypass",
    "watermark",
    "long_prefill_token_threshold",
    "itl_objective_ms",
    "ttft_objective_ms",
)
"""What users choose of a policy, by the names that flags and options have."""


def policy_of(settings: Mapping[str, Any], *, max_step_s: float) -> Policy:
    """The policy that users ask for by `SETTINGS`, all of which are given.

    Raises:
        InvalidOption: a value that makes no sense.
    """
    rest = dict(settings)
    wait_ms = rest.pop("max_batch_wait_ms")
    return Policy(
        max_batch_wait_s=None if wait_ms is None else wait_ms / 1e3,
        weights=dict(rest.pop("tenant_weights")),
        itl_objective_s=rest.pop("itl_objective_ms") / 1e3,
        ttft_objective_s=rest.pop("ttft_objective_ms") / 1e3,
        max_step_s=max_step_s,
        **rest,
    )
