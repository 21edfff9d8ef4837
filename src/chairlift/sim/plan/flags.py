"""A setting as the flags of `chairlift serve`."""

from __future__ import annotations

from chairlift.core.policy import Policy
from chairlift.sim.fleet import EngineSetup

DEFAULT = Policy()


def serve_flags(setup: EngineSetup) -> list[str]:
    """What an engine of this kind is started with: its limits and order always, else what is not so by itself.

    The cache and the longest sequence are not among them: a server takes those from its memory and its model.
    """
    policy = setup.policy
    flags = [
        f"--max-num-seqs {setup.max_num_seqs}",
        f"--max-num-batched-tokens {setup.max_num_batched_tokens}",
        f"--scheduling-policy {policy.scheduling_policy}",
    ]
    values = (
        ("batching", policy.batching),
        ("kv-reservation", policy.kv_reservation),
        ("watermark", policy.watermark),
        ("long-prefill-token-threshold", policy.long_prefill_token_threshold),
        ("max-bypass", policy.max_bypass),
        ("priority-ageing-s", policy.priority_ageing_s),
    )
    flags += [f"--{name} {value}" for name, value in values if value != getattr(DEFAULT, name.replace("-", "_"))]
    if policy.max_batch_wait_s is not None:
        flags.append(f"--max-batch-wait-ms {1e3 * policy.max_batch_wait_s:g}")
    for name, seconds in (("itl", policy.itl_objective_s), ("ttft", policy.ttft_objective_s)):
        if seconds:
            flags.append(f"--{name}-objective-ms {1e3 * seconds:g}")
    if policy.weights:
        flags.append("--tenant-weights " + ",".join(f"{name}={weight:g}" for name, weight in policy.weights.items()))
    if not policy.enable_chunked_prefill:
        flags.append("--no-enable-chunked-prefill")
    if policy.prefill_first:
        flags.append("--prefill-first")
    if not setup.enable_prefix_caching:
        flags.append("--no-enable-prefix-caching")
    return flags
