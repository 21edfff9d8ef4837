"""Products and embeddings in every precision and from every encoding, each as a graph of its own, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import Type
from openvino import opset13 as op

from chairlift.executors.forward import activated as compute_activation
from chairlift.executors.openvino.attention import parameter
from chairlift.executors.openvino.layers import Heads, RmsNorm, Rotation, activated, embedding, product
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.weights import Arena, pack
from chairlift.models import Encoding, Int4Groups, Int8Groups, Tensor, suits_int4, to_float32, to_int4, to_int8
from chairlift.models.config import Activation
from models.writers import encode

Floats = NDArray[np.float32]
BLOCKS = [
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"
]  # fmt: skip
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def tensor(rows: int, cols: int, encoding: str, seed: int) -> Tensor:
    numbers = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32) + 0.3
    _, _, stored = encode(numbers, encoding)
    return Tensor(f"w{seed}", (rows, cols), Encoding[encoding], memoryview(stored))


def run(model: ov.Model, *inputs: NDArray[np.float32] | NDArray[np.int32], properties: dict[str, str]) -> Floats:
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    output: Floats = request.infer(list(inputs))[0].copy()
    return output


def rounded(one: Tensor, dtype: Dtype) -> Floats:
    match dtype:
        case "int8":
            return to_int8(one, group=64).to_float32()
        case "int4":
            if suits_int4(one):
                return to_int4(one, group=32).to_float32()
            return to_int8(one, group=32).to_float32()
        case _:
            return to_float32(one)


@pytest.mark.parametrize("encoding", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2), ("int8", 1e-4), ("int4", 1e-4)]
)
def test_products(dtype: Dtype, tolerance: float, encoding: str) -> None:
    """Three weights multiplied as one; the relative error is that of the arithmetic, not of the rounding."""
    parts = [tensor(rows, 192, encoding, rows) for rows in (64, 32, 16)]
    arena = Arena()
    x = parameter("x", Type.f32, [-1, 192])
    y = product(x.output(0), pack(parts, dtype, 64 if dtype == "int8" else 32, arena))
    data = np.random.default_rng(0).standard_normal((5, 192)).astype(np.float32)
    got = run(ov.Model([op.result(y)], [x], "product"), data, properties=EXACT)
    exact = data @ np.concatenate([rounded(part, dtype) for part in parts]).T
    assert np.abs(got - exact).max() < tolerance * np.abs(exact).max()


def test_products_of_weights_in_several_forms() -> None:
    """At int4 a file may hold one weight in four bits, exactly as it is, and the next in more, which takes eight."""
    parts = [tensor(rows, 256, encoding, rows) for rows, encoding in enumerate(BLOCKS, 16)]
    arena = Arena()
    packed = pack(parts, "int4", 32, arena)
    assert isinstance(packed, list)
    four = [encoding for encoding, part in zip(BLOCKS, packed, strict=True) if isinstance(part, Int4Groups)]
    assert four == ["Q4_0", "Q4_1", "Q4_K"]
    x = parameter("x", Type.f32, [-1, 256])
    data = np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
    got = run(ov.Model([op.result(product(x.output(0), packed))], [x], "product"), data, properties=EXACT)
    wanted = data @ np.concatenate([rounded(part, "int4") for part in parts]).T
    assert np.abs(got - wanted).max() < 1e-4 * np.abs(wanted).max()
    exact = data @ np.concatenate([to_float32(part) for part in parts]).T
    assert np.abs(got - exact).max() < 2e-2 * np.abs(exact).max()


@pytest.mark.parametrize("encoding", ["Q8_0", "IQ4_XS"])
def test_scales_of_either_width(encoding: str) -> None:
    """Groups of a file whose scales need float32 are multiplied, and gathered, as exactly as the others."""
    one = tensor(48, 256, encoding, 3)
    arena = Arena()
    packed = pack([one], "int8", 32, arena)
    assert isinstance(packed, Int8Groups) and (packed.scales.dtype == np.float32) == (encoding == "IQ4_XS")
    x, ids = parameter("x", Type.f32, [-1, 256]), parameter("ids", Type.i32, [-1])
    outputs = [op.result(product(x.output(0), packed)), op.result(embedding(ids.output(0), packed))]
    request = ov.Core().compile_model(ov.Model(outputs, [x, ids], "both"), "CPU", EXACT).create_infer_request()
    data = np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
    results = request.infer([data, np.array([47, 3], np.int32)])
    exact = to_float32(one)
    np.testing.assert_allclose(results[0], data @ exact.T, atol=1e-4 * np.abs(data @ exact.T).max())
    np.testing.assert_allclose(results[1], exact[[47, 3]], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("bfloat16", 0.02), ("int8", 0.02)])
def test_embeddings(dtype: Dtype, tolerance: float) -> None:
    table = tensor(50, 64, "Q8_0", 1)
    arena = Arena()
    ids = parameter("ids", Type.i32, [-1])
    rows = embedding(ids.output(0), pack([table], dtype, 32, arena))
    wanted = np.array([3, 49, 3, 0], np.int32)
    got = run(ov.Model([op.result(rows)], [ids], "embedding"), wanted, properties=EXACT)
    assert np.abs(got - to_float32(table)[wanted]).max() <= tolerance


@pytest.mark.parametrize("activation", get_args(Activation))
def test_activations(activation: Activation) -> None:
    """Against their formulas, one number at a time."""
    formulas: dict[Activation, Callable[[float], float]] = {
        "silu": lambda v: v / (1 + math.exp(-v)),
        "gelu": lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2,
        "gelu_tanh": lambda v: v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
        "relu": lambda v: max(v, 0.0),
        "relu2": lambda v: max(v, 0.0) ** 2,
    }
    x = parameter("x", Type.f32, [-1, 41])
    data = np.linspace(-8, 8, 41, dtype=np.float32).reshape(1, -1)
    exact = [[formulas[activation](float(value)) for value in data[0]]]
    got = run(ov.Model([op.result(activated(x.output(0), activation))], [x], "act"), data, properties=EXACT)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(compute_activation(data, activation), exact, rtol=1e-5, atol=2e-6)


def test_rotation_and_norm_are_one_kernel_each() -> None:
    """The plugin recognises them only in one form; written otherwise they cost a tenth of a step."""
    x = parameter("x", Type.f32, [-1, 4 * 64])
    positions = parameter("positions", Type.i32, [-1])
    rotate, heads = Rotation(positions.output(0), np.full(32, 0.1, np.float32), 64), Heads(64)
    y = rotate(heads.split(RmsNorm(1e-5)(x.output(0), np.ones((1, 256), np.float32)), 4))
    compiled = ov.Core().compile_model(ov.Model([op.result(y)], [x, positions], "fused"), "CPU", EXACT)
    kinds = [node.get_rt_info()["layerType"].value for node in compiled.get_runtime_model().get_ops()]
    assert kinds.count("RoPE") == 1
    assert kinds.count("RMS") == 1


def test_positions_keep_their_precision_under_bfloat16() -> None:
    """bfloat16 has 8 bits: 8,191 would become 8,192, and every token near it the same."""
    x = parameter("x", Type.f32, [-1, 64])
    positions = parameter("positions", Type.i32, [-1])
    inv_freq = (10000.0 ** (-np.arange(0, 64, 2) / 64)).astype(np.float32)
    heads = Heads(64)
    y = heads.join(Rotation(positions.output(0), inv_freq, 64)(heads.split(x.output(0), 1)), 1)
    data = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    where = np.array([8189, 8190, 8191], np.int32)
    got = run(
        ov.Model([op.result(y)], [x, positions], "rope"),
        data,
        where,
        properties={"INFERENCE_PRECISION_HINT": "bf16"},
    )
    angles = where[:, None] * inv_freq
    a, b = data[:, :32], data[:, 32:]
    exact = np.concatenate((a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)), axis=1)
    assert np.abs(got - exact).max() < 0.05
