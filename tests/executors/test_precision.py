"""What the plugin is told, on machines with and without bfloat16 and with a processor quota."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino.options import Dtype, ExecutorOptions, KVCacheDtype
from chairlift.executors.openvino.precision import choose_precision, num_quota_threads


class Processor:
    """Stands for an OpenVINO core: says what the machine can do."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = list(capabilities)

    def get_property(self, device: str, name: str) -> list[str]:
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return self._capabilities


def options(dtype: Dtype, kv_cache_dtype: KVCacheDtype = "auto", num_threads: int | None = None) -> ExecutorOptions:
    return ExecutorOptions(
        max_num_seqs=1, max_model_len=1, dtype=dtype, kv_cache_dtype=kv_cache_dtype, num_threads=num_threads
    )


NEW = Processor("BF16", "FP32", "INT8")
OLD = Processor("FP32", "INT8")


@pytest.mark.parametrize(
    ("processor", "dtype", "kv_cache_dtype", "hint", "cache", "group"),
    [
        (NEW, "int8", "auto", "bf16", "bf16", "64"),
        (NEW, "int8", "u8", "bf16", "u8", "64"),
        (NEW, "int4", "auto", "bf16", "bf16", "32"),
        (NEW, "bfloat16", "auto", "bf16", "bf16", "0"),
        (NEW, "float32", "auto", "f32", "f32", "0"),
        (NEW, "float32", "u8", "f32", "u8", "0"),
        (OLD, "int8", "auto", "f32", "f32", "64"),
        (OLD, "int8", "float32", "f32", "f32", "64"),
        (OLD, "bfloat16", "auto", "f32", "f32", "0"),
    ],
)
def test_body(
    processor: Processor, dtype: Dtype, kv_cache_dtype: KVCacheDtype, hint: str, cache: str, group: str
) -> None:
    chosen = choose_precision(processor, options(dtype, kv_cache_dtype))
    assert chosen.body["INFERENCE_PRECISION_HINT"] == hint
    assert chosen.body["KV_CACHE_PRECISION"] == cache
    assert chosen.body["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group
    assert 0 < chosen.tolerance < 0.2


@pytest.mark.parametrize(("dtype", "group"), [("int8", "32"), ("int4", "32"), ("float32", "0"), ("bfloat16", "0")])
def test_what_is_multiplied_can_be_rounded_in_smaller_groups(dtype: Dtype, group: str) -> None:
    chosen = choose_precision(NEW, replace(options(dtype), input_group=32))
    assert chosen.body["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group
    assert chosen.head == choose_precision(NEW, options(dtype)).head


@pytest.mark.parametrize(("dtype", "group"), [("int8", "64"), ("int4", "64"), ("float32", "0"), ("bfloat16", "0")])
def test_logits_are_always_float32(dtype: Dtype, group: str) -> None:
    head = choose_precision(NEW, options(dtype)).head
    assert head["INFERENCE_PRECISION_HINT"] == "f32"
    assert head["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group


@pytest.mark.parametrize(
    ("processor", "dtype", "kv_cache_dtype", "reason"),
    [
        (NEW, "float32", "bfloat16", "bfloat16 key/value cache is not possible with float32 weights"),
        (OLD, "int8", "bfloat16", "not possible on a processor without bfloat16"),
        (NEW, "int8", "float32", "float32 key/value cache is not possible with int8 weights"),
    ],
)
def test_impossible(processor: Processor, dtype: Dtype, kv_cache_dtype: KVCacheDtype, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        choose_precision(processor, options(dtype, kv_cache_dtype))


@pytest.mark.parametrize(
    ("processor", "dtype", "kind", "advised"),
    [
        (NEW, "int8", "float32", "bfloat16"),
        (NEW, "float32", "bfloat16", "float32"),
        (OLD, "int8", "bfloat16", "float32"),
    ],
)
def test_only_what_goes_is_advised(processor: Processor, dtype: Dtype, kind: KVCacheDtype, advised: str) -> None:
    """Where scores have a soft cap no cache is in eight bits."""
    for has_cap, end in ((False, f"choose {advised} or u8$"), (True, f"choose {advised}$")):
        with pytest.raises(InvalidOption, match=end):
            choose_precision(processor, options(dtype, kind), has_cap=has_cap)


def test_threads_are_what_was_asked_for() -> None:
    chosen = choose_precision(NEW, options("int8", num_threads=3))
    assert chosen.body["INFERENCE_NUM_THREADS"] == chosen.head["INFERENCE_NUM_THREADS"] == 3


@pytest.mark.parametrize(
    ("text", "num_processors", "expected"),
    [
        ("max 100000\n", 8, None),
        ("200000 100000\n", 8, 2),
        ("250000 100000\n", 8, 2),
        ("50000 100000\n", 8, 1),
        ("800000 100000\n", 8, None),
        ("nonsense", 8, None),
    ],
)
def test_quota(text: str, num_processors: int, expected: int | None, tmp_path: Path) -> None:
    path = tmp_path / "sys/fs/cgroup/cpu.max"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert num_quota_threads(num_processors, tmp_path) == expected


def test_no_quota(tmp_path: Path) -> None:
    assert num_quota_threads(8, tmp_path) is None
