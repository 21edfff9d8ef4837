"""How the CPU plugin is told to compute: one set of properties for the body, one for the head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino.graph import GROUPS, head_dtype
from chairlift.executors.openvino.options import EncoderOptions, ExecutorOptions, KVCacheDtype

Properties = dict[str, str | int | bool]

_CACHE_NAMES: dict[KVCacheDtype, str] = {"float32": "f32", "bfloat16": "bf16", "u8": "u8"}
_TOLERANCES: dict[str, float] = {"f32": 1e-3, "bf16": 0.06, "u8": 0.12}
"""How far attention over normal random numbers may be from NumPy's: five times what was measured, a tenth of what a
wrong block gives."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Properties to compile with, and the error that the self-test of attention may show."""

    body: Properties
    head: Properties
    tolerance: float


class Capable(Protocol):
    """What is asked of an `openvino.Core`."""

    def get_property(self, device: str, name: str, /) -> Sequence[str]: ...


def choose_precision(core: Capable, options: ExecutorOptions, *, has_cap: bool = False) -> Precision:
    """What the weights' precision and the cache's ask of this machine.

    The body of anything but float32 runs in bfloat16 where the processor has it. The head always runs in float32:
    its outputs are the logits, and rounding those to bfloat16 costs more quality than it saves time. Where attention
    scores have a soft cap (`has_cap`) no cache is in eight bits, and none is advised.

    Raises:
        InvalidOption: a combination that the plugin does not have.
    """
    or_u8 = "" if has_cap else " or u8"
    has_bfloat16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    wide = options.dtype == "float32" or not has_bfloat16
    cache = options.kv_cache_dtype
    if cache == "auto":
        cache = "float32" if wide else "bfloat16"
    if cache == "bfloat16" and wide:
        reason = "with float32 weights" if has_bfloat16 else "on a processor without bfloat16"
        raise InvalidOption(f"a bfloat16 key/value cache is not possible {reason}: choose float32{or_u8}")
    if cache == "float32" and not wide:
        reason = f"with {options.dtype} weights"
        raise InvalidOption(f"a float32 key/value cache is not possible {reason}: choose bfloat16{or_u8}")
    common = _common(options.num_threads)
    hint = "INFERENCE_PRECISION_HINT"
    quantise = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    name = _CACHE_NAMES[cache]
    input_group = min(GROUPS[options.dtype], options.input_group or GROUPS[options.dtype])
    body = {**common, hint: "f32" if wide else "bf16", quantise: str(input_group), "KV_CACHE_PRECISION": name}
    head_group = options.head_group if head_dtype(options.dtype) == "int8" else 0
    head = {**common, hint: "f32", quantise: str(head_group)}
    return Precision(body, head, _TOLERANCES[name] if wide else max(_TOLERANCES[name], _TOLERANCES["bf16"]))


def encoder_properties(core: Capable, options: EncoderOptions) -> Properties:
    """What a single pass in this precision asks of this machine."""
    wide = options.dtype == "float32" or "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {
        **_common(options.num_threads),
        "INFERENCE_PRECISION_HINT": "f32" if wide else "bf16",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUPS[options.dtype]),
    }


def _common(num_threads: int | None) -> Properties:
    num_threads = num_threads or num_quota_threads(len(os.sched_getaffinity(0)))
    common: Properties = {"ENABLE_CPU_PINNING": False}
    if num_threads is not None:
        common["INFERENCE_NUM_THREADS"] = num_threads
    return common


def num_quota_threads(num_processors: int, root: Path = Path("/")) -> int | None:
    """Threads that a control group's CPU quota pays for, if those are fewer than the processors; else None.

    Source: cgroups(7), cpu.max: quota and period in microseconds.
    """
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    if not quota.isdigit():
        return None
    num_threads = max(int(quota) // int(period), 1)
    return num_threads if num_threads < num_processors else None
