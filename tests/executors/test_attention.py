"""The start-up test of the private attention operation: it passes where it should, and fails where it should."""

from __future__ import annotations

from typing import Any

import openvino as ov
import pytest

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino import attention
from chairlift.executors.openvino.attention import AttentionShape, check_release
from chairlift.executors.openvino.self_test import self_test

SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_size=64)


@pytest.mark.parametrize(
    ("hint", "cache", "tolerance"),
    [("f32", "f32", 1e-4), ("f32", "u8", 0.1), ("bf16", "bf16", 0.06), ("bf16", "u8", 0.12)],
)
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        AttentionShape(4, 4, 80),
        AttentionShape(8, 1, 128, sliding_window=11),
        AttentionShape(2, 1, 32, scale=1.0),
        AttentionShape(2, 1, 256, scale=1 / 256),
        AttentionShape(8, 2, 64, sliding_window=11, has_sinks=True),
    ],
    ids=["3:1", "1:1", "window", "large scale", "small scale", "sinks"],
)
def test_passes(hint: str, cache: str, tolerance: float, shape: AttentionShape) -> None:
    self_test(ov.Core(), {"INFERENCE_PRECISION_HINT": hint, "KV_CACHE_PRECISION": cache}, shape, tolerance)


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-4), ("bf16", 0.06)])
def test_a_soft_cap_passes(kind: str, tolerance: float) -> None:
    shape = AttentionShape(4, 2, 256, sliding_window=40, scale=1 / 16, softcap=50.0)
    self_test(ov.Core(), {"INFERENCE_PRECISION_HINT": kind, "KV_CACHE_PRECISION": kind}, shape, tolerance)


def test_a_missing_soft_cap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvino.opset13.tanh", lambda x: x)
    with pytest.raises(InvalidOption, match=r"computes paged attention wrongly .* off by"):
        self_test(
            ov.Core(),
            {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"},
            AttentionShape(4, 2, 64, softcap=50.0),
            0.06,
        )


def test_wrong_values_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation is asked for a window that NumPy does not apply."""
    built: Any = attention.paged_attention

    def windowed(*inputs: Any) -> object:
        return built(*inputs[:5], AttentionShape(6, 2, 64, sliding_window=30))

    monkeypatch.setattr(attention, "paged_attention", windowed)
    with pytest.raises(InvalidOption, match=r"OpenVINO 2026\.4.* computes paged attention wrongly .* off by"):
        self_test(ov.Core(), {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "u8"}, SHAPE, 0.12)


def test_sinks_that_are_left_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    built: Any = attention.paged_attention
    monkeypatch.setattr(attention, "paged_attention", lambda *inputs: built(*inputs[:6]))
    shape = AttentionShape(6, 2, 64, has_sinks=True)
    with pytest.raises(InvalidOption, match="computes paged attention wrongly"):
        self_test(ov.Core(), {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "u8"}, shape, 0.12)


def test_a_refusal_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> object:
        raise RuntimeError("first line\nCheck failed: inputs differ\n")

    monkeypatch.setattr(attention, "paged_attention", refused)
    with pytest.raises(InvalidOption, match=r"cannot run paged attention .*: Check failed: inputs differ$"):
        self_test(ov.Core(), {}, SHAPE, 0.1)


@pytest.mark.parametrize("version", ["2026.3.0-1-releases/2026/3", "2026.40.0", "2027.4.0"])
def test_another_release_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_release()
    monkeypatch.setattr(ov, "__version__", version)
    with pytest.raises(InvalidOption, match=r"OpenVINO 2026\.4 is needed, found"):
        check_release()
