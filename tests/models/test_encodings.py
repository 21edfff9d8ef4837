"""Every encoding against a scalar formula written from its description, and every precision against its bound."""

import hashlib
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from chairlift.core.errors import InvalidModel
from chairlift.models import (
    Encoding,
    Tensor,
    open_gguf,
    quantize,
    suits_int4,
    to_bfloat16,
    to_float32,
    to_int4,
    to_int8,
)
from models.block_writers import SCALES_AT, UNITS, e2m1, scalar
from models.writers import encode, write_gguf

BLOCKS_OF_256 = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
BLOCKS = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", *BLOCKS_OF_256]
ENCODINGS = ["F32", "F16", "BF16", *BLOCKS]


def stored(numbers: NDArray[np.float32], encoding: str) -> Tensor:
    _, _, data = encode(numbers, encoding)
    return Tensor("w", numbers.shape, Encoding[encoding], memoryview(data))


def random_tensor(encoding: str, rows: int = 24, cols: int | None = None, seed: int = 0) -> Tensor:
    cols = cols or (256 if encoding in BLOCKS_OF_256 else 192)
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.normal(0.0, 1.0, (rows, 1)))
    return stored((rng.normal(0.05, 0.1, (rows, cols)) * spread).astype(np.float32), encoding)


# ---------------------------------------------------------------- scalar formulas


def scalar_f32(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def scalar_f16(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 2}e", data))


def scalar_bf16(data: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def scalar_q8_0(data: bytes) -> list[float]:
    out = []
    for i in range(0, len(data), 34):
        step, *quants = struct.unpack_from("<e32b", data, i)
        out += [step * quant for quant in quants]
    return out


def scalar_q4_0(data: bytes) -> list[float]:
    out = []
    for i in range(0, len(data), 18):
        step, *packed = struct.unpack_from("<e16B", data, i)
        out += [step * ((byte & 15) - 8) for byte in packed] + [step * ((byte >> 4) - 8) for byte in packed]
    return out


def scalar_q4_1(data: bytes) -> list[float]:
    out = []
    for i in range(0, len(data), 20):
        step, low, *packed = struct.unpack_from("<ee16B", data, i)
        out += [step * (byte & 15) + low for byte in packed] + [step * (byte >> 4) + low for byte in packed]
    return out


SIMPLE: dict[str, Callable[[bytes], list[float]]] = {
    "F32": scalar_f32,
    "F16": scalar_f16,
    "BF16": scalar_bf16,
    "Q8_0": scalar_q8_0,
    "Q4_0": scalar_q4_0,
    "Q4_1": scalar_q4_1,
}


def by_formula(encoding: str, data: bytes) -> list[float]:
    return SIMPLE[encoding](data) if encoding in SIMPLE else scalar(encoding, data)


def random_blocks(encoding: str, count: int) -> bytes:
    """Not only what an encoder writes: random bytes, negative scales, scales of zero; only nothing infinite."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (count, UNITS[encoding][1]), dtype=np.uint8)
    for place in SCALES_AT[encoding]:
        scales = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-20, 400.0, *rng.normal(0, 1, count - 6)], np.float16)
        blocks[:, place : place + 2] = scales[:, None].view(np.uint8)
    if encoding == "MXFP4":
        blocks[:, 0] = 96 + blocks[:, 0] % 64  # the others are looked at one by one
    return blocks.tobytes()


def test_the_table_of_types_is_the_one_of_the_writers() -> None:
    assert {e.label: (e.unit, e.unit_bytes) for e in Encoding if e.name in UNITS} == UNITS


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_float32_is_the_scalar_formula(encoding: str) -> None:
    """Float64 arithmetic rounded once; where two rounded numbers are added, one more rounding is allowed."""
    tensor = random_tensor(encoding)
    wanted = np.array(by_formula(encoding, tensor.raw.tobytes())).reshape(tensor.shape)
    if encoding in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        np.testing.assert_allclose(to_float32(tensor), wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    else:
        np.testing.assert_array_equal(to_float32(tensor), wanted.astype(np.float32))


@pytest.mark.parametrize("encoding", BLOCKS)
def test_any_bytes_decode_by_the_formula(encoding: str) -> None:
    data = random_blocks(encoding, 16)
    tensor = Tensor("w", (4, 4 * UNITS[encoding][0]), Encoding[encoding], memoryview(data))
    wanted = np.array(by_formula(encoding, data)).reshape(tensor.shape)
    np.testing.assert_allclose(to_float32(tensor), wanted, rtol=3e-7, atol=1e-7 * np.abs(wanted).max())


DECODED_BY_GGUF = {
    "Q8_0": "b31d0577e3b3be87",
    "Q4_0": "215e732924338ecd",
    "Q4_1": "14c3f9d2cc2b860c",
    "Q5_0": "e523fef167757307",
    "Q5_1": "8ec9ad3dedc20eb9",
    "IQ4_NL": "2f567ff9078c75dc",
    "Q2_K": "a09356b410224dc5",
    "Q3_K": "420440966993b35c",
    "Q4_K": "115dcf5c21eb46f0",
    "Q5_K": "4db6726f644ede86",
    "Q6_K": "2bda4871b90463b6",
    "IQ4_XS": "8a06fea5b9ba11a4",
    "MXFP4": "b563b7e225b43e75",
}
"""SHA-256 of what the `gguf` package 0.19 makes of `random_blocks(encoding, 64)` as float32."""


@pytest.mark.parametrize("encoding", BLOCKS)
def test_decoding_is_that_of_the_gguf_package_to_the_bit(encoding: str) -> None:
    unit = UNITS[encoding][0]
    tensor = Tensor("w", (8, 8 * unit), Encoding[encoding], memoryview(random_blocks(encoding, 64)))
    numbers = to_float32(tensor)
    numbers += 0.0  # the sign of a zero is nobody's business
    assert hashlib.sha256(numbers.astype("<f4").tobytes()).hexdigest()[:16] == DECODED_BY_GGUF[encoding]


TOLERANCES = {
    "F32": 0.0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.02, "Q4_0": 0.3, "Q4_1": 0.25, "Q5_0": 0.15, "Q5_1": 0.12,
    "Q2_K": 0.9, "Q3_K": 0.6, "Q4_K": 0.25, "Q5_K": 0.13, "Q6_K": 0.1, "IQ4_NL": 0.35, "IQ4_XS": 0.4,
    "MXFP4": 0.6,
}  # fmt: skip
"""How far a normal number may be from what is stored of it."""


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_file_stores_what_was_written(tmp_path: Path, encoding: str) -> None:
    cols = 256 if encoding in BLOCKS_OF_256 else 64
    numbers = np.random.default_rng(2).normal(0, 1, (6, cols)).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": encode(numbers, encoding), "v": encode(numbers[0], "F32")})
    tensors = open_gguf(path).tensors
    assert tensors["w"].shape == (6, cols) and tensors["v"].shape == (1, cols)
    assert tensors["w"].encoding.label == encoding
    tolerance = TOLERANCES[encoding]
    np.testing.assert_allclose(to_float32(tensors["w"]), numbers, atol=tolerance)
    np.testing.assert_array_equal(to_float32(tensors["v"]), numbers[:1])


# ---------------------------------------------------------------- bfloat16


def nearest_bfloat16(number: float) -> int:
    """By search: the nearest of the two neighbours, the even one at a tie."""
    low = int.from_bytes(struct.pack("<f", number), "little") >> 16
    candidates = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in (low, low + 1)]
    below, above = (abs(candidate - number) for candidate in candidates)
    if below == above:
        return low + (low & 1)
    return low if below < above else low + 1


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=64))
def test_bfloat16_rounds_to_nearest_even(numbers: list[float]) -> None:
    tensor = stored(np.array([numbers], np.float32), "F32")
    assert to_bfloat16(tensor)[0].tolist() == [nearest_bfloat16(number) for number in numbers]


def test_bfloat16_of_ties_infinities_and_nan() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF]], np.uint32)
    got = to_bfloat16(stored(bits.view(np.float32), "F32"))[0].tolist()
    assert got[:5] == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80]
    assert all(value & 0x7F80 == 0x7F80 and value & 0x7F for value in got[5:])


def test_bfloat16_passes_through() -> None:
    tensor = random_tensor("BF16")
    assert to_bfloat16(tensor).tobytes() == tensor.raw.tobytes()


# ---------------------------------------------------------------- int8


KEPT_AS_INT8 = ["Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS", "MXFP4"]
"""Symmetric groups of 32, whatever their bits."""


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("group", [32, 64])
def test_int8_error_is_half_a_step_of_the_largest(encoding: str, group: int) -> None:
    tensor = random_tensor(encoding)
    exact = to_float32(tensor).reshape(24, -1, group)
    groups = to_int8(tensor, group=group)
    assert groups.values.shape == exact.shape and groups.values.dtype == np.int8
    assert groups.scales.shape == (24, tensor.cols // group, 1)
    if group == 32 and encoding in KEPT_AS_INT8:
        np.testing.assert_array_equal(groups.to_float32(), to_float32(tensor))
        assert groups.scales.dtype == (np.float32 if encoding in ("IQ4_XS", "MXFP4") else np.float16)
        return
    assert groups.scales.dtype == np.float16
    step = np.abs(exact).max(axis=2, keepdims=True) / 127
    error = np.abs(groups.to_float32().reshape(exact.shape) - exact)
    assert (error <= step * (0.5 + 127 * 2**-11)).all()
    assert np.abs(groups.values.astype(int)).max() == 127
    assert (np.abs(groups.values.astype(int)).max(axis=2) >= 126).all()


def test_several_weights_lie_on_top_of_each_other() -> None:
    """Also where one needs wider scales than the other, and memory comes from elsewhere."""
    given: list[tuple[int, ...]] = []

    def allocate(shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]:
        given.append(shape)
        return np.full(shape, 7, dtype)

    one, two = random_tensor("Q8_0", cols=256), random_tensor("IQ4_XS", rows=3)
    groups = to_int8(one, two, group=32, allocate=allocate)
    assert groups.scales.dtype == np.float32 and given == [(27, 8, 32), (27, 8, 1)]
    both = np.concatenate([to_float32(one), to_float32(two)])
    np.testing.assert_array_equal(groups.to_float32(), both)
    np.testing.assert_array_equal(to_float32(one, two), both)
    np.testing.assert_array_equal(to_bfloat16(one, two), np.concatenate([to_bfloat16(one), to_bfloat16(two)]))


@pytest.mark.parametrize(("cols", "group"), [(64, 64), (96, 32), (48, 16), (40, 8), (44, 44), (7, 7), (1, 1)])
def test_int8_groups_that_do_not_fit(cols: int, group: int) -> None:
    numbers = np.random.default_rng(0).normal(0, 1, (5, cols)).astype(np.float32)
    groups = to_int8(stored(numbers, "F32"))
    assert groups.group == group
    np.testing.assert_allclose(groups.to_float32(), numbers, atol=0.5 / 127 * 4.5)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-6, 1e-5, 3e-4, 1e-3, 1.0, 8e6])
def test_int8_of_very_small_and_very_large_numbers(size: float) -> None:
    """A scale among the subnormals of float16 is coarse; no number may wrap around because of it."""
    rng = np.random.default_rng(0)
    numbers = (rng.uniform(-1, 1, (400, 64)) * size).astype(np.float32)
    groups = to_int8(stored(numbers, "F32"))
    assert np.abs(groups.to_float32() - numbers).max() <= max(size * 0.5 / 127 * 1.1, 6e-8)
    assert groups.values.min() >= -127


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("convert", [to_int8, to_int4])
def test_numbers_without_a_scale_are_refused(bad: float, convert: Callable[[Tensor], object]) -> None:
    numbers = np.zeros((4, 64), np.float32)
    numbers[2, 5] = bad
    with pytest.raises(InvalidModel, match="tensor w holds"):
        convert(stored(numbers, "F32"))


def every_mxfp4() -> Tensor:
    """Each of the sixteen numbers, twice, with each of the scales that are numbers, `[255, 32]`."""
    packed = [code | code << 4 for code in range(16)]
    data = b"".join(bytes([scale, *packed]) for scale in range(255))
    return Tensor("w", (255, 32), Encoding.MXFP4, memoryview(data))


def test_mxfp4_is_exact_in_int8() -> None:
    """Also at the ends of what float32 can hold; only twelve at the last scale is beyond."""
    tensor = every_mxfp4()
    groups = to_int8(tensor, group=32)
    numbers, scales = groups.values.astype(int), groups.scales.astype(np.float64)
    for row in range(255):
        meant = [math.ldexp(e2m1(code), row - 127) for code in (*range(16), *range(16))]
        assert (numbers[row, 0] * scales[row, 0]).tolist() == meant
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(to_float32(tensor), groups.to_float32())
        np.testing.assert_array_equal(to_float32(tensor), (numbers * scales).reshape(255, 32).astype(np.float32))


def test_a_scale_of_mxfp4_that_is_no_number() -> None:
    data = bytes([127, *range(16), 255, *range(16)])
    tensor = Tensor("w", (2, 32), Encoding.MXFP4, memoryview(data))
    assert np.isnan(to_float32(tensor)[1, 1:8]).all() and not np.isnan(to_float32(tensor)[0]).any()
    with pytest.raises(InvalidModel, match="tensor w holds"):
        to_int8(tensor, group=32)


def test_rows_of_interleaved_weights() -> None:
    """In every precision: pairs of equally many rows."""
    tensors = [random_tensor("Q4_0", rows, seed=seed) for seed, rows in enumerate((24, 24, 8, 8))]

    def interleaved(parts: list[NDArray[Any]]) -> NDArray[Any]:
        pairs = [np.stack(parts[at : at + 2], axis=1).reshape(-1, *parts[at].shape[1:]) for at in (0, 2)]
        return np.concatenate(pairs)

    for convert in (to_float32, to_bfloat16):
        np.testing.assert_array_equal(
            convert(*tensors, interleaved=2), interleaved([convert(tensor) for tensor in tensors])
        )
    for group in (32, 64):
        apart8, apart4 = ([to(tensor, group=group) for tensor in tensors] for to in (to_int8, to_int4))
        got8, got4 = to_int8(*tensors, group=group, interleaved=2), to_int4(*tensors, group=group, interleaved=2)
        for got, apart in ((got8, apart8), (got4, apart4)):
            np.testing.assert_array_equal(got.values, interleaved([one.values for one in apart]))
            np.testing.assert_array_equal(got.scales, interleaved([one.scales for one in apart]))


# ---------------------------------------------------------------- int4


def unpack(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Numbers 0..15 in row order, element by element: the low half is the even one."""
    flat = values.reshape(values.shape[0], -1)
    out = np.empty((flat.shape[0], flat.shape[1] * 2), np.int64)
    for row in range(flat.shape[0]):
        for i, byte in enumerate(flat[row].tolist()):
            out[row, 2 * i], out[row, 2 * i + 1] = byte & 15, byte >> 4
    return out


def test_int4_of_q4_0_is_exact() -> None:
    tensor = random_tensor("Q4_0")
    groups = to_int4(tensor)
    assert groups.offsets is None and groups.group == 32 and groups.scales.dtype == np.float16
    signed = unpack(groups.values)
    signed = np.where(signed > 7, signed - 16, signed)
    by_hand = signed.reshape(24, -1, 32) * groups.scales.astype(np.float64)
    np.testing.assert_array_equal(by_hand.reshape(24, -1).astype(np.float32), to_float32(tensor))
    np.testing.assert_array_equal(groups.to_float32(), to_float32(tensor))


@pytest.mark.parametrize("encoding", ["Q4_1", "Q4_K"])
def test_int4_keeps_fractional_zero_points(encoding: str) -> None:
    """Scales and minima of a sub-block of Q4_K have 17 bits: they stay whole."""
    tensor = random_tensor(encoding)
    groups = to_int4(tensor)
    assert groups.offsets is not None and groups.group == 32
    quants = unpack(groups.values).reshape(24, -1, 32).astype(np.float64)
    steps, offsets = groups.scales.astype(np.float64), groups.offsets.astype(np.float64)
    exact = np.array(by_formula(encoding, tensor.raw.tobytes())).reshape(quants.shape)
    np.testing.assert_array_equal(quants * steps + offsets, exact)
    np.testing.assert_array_equal(groups.to_float32(), to_float32(tensor))
    zeros = offsets[steps != 0] / steps[steps != 0]
    assert (np.abs(zeros - np.rint(zeros)) > 0.01).mean() > 0.9


@pytest.mark.parametrize(("encoding", "group"), [("Q2_K", 16), ("Q3_K", 16), ("Q4_1", 16), ("Q4_K", 8)])
def test_int4_in_the_files_own_or_smaller_groups_is_exact(encoding: str, group: int) -> None:
    tensor = random_tensor(encoding)
    groups = to_int4(tensor, group=group)
    assert groups.group == group
    np.testing.assert_array_equal(groups.to_float32(), to_float32(tensor))


@pytest.mark.parametrize("encoding", ["Q4_1", "Q4_K"])
def test_int4_of_flat_blocks(encoding: str) -> None:
    """A block of equal numbers has step 0, where no zero point can stand for its offset."""
    numbers = np.repeat(np.array([[0.5], [0.0], [-3.0]], np.float32), 256, axis=1)
    groups = to_int4(stored(numbers, encoding))
    np.testing.assert_allclose(groups.to_float32(), numbers, rtol=1e-3)
    np.testing.assert_array_equal(groups.to_float32(), to_float32(stored(numbers, encoding)))


def test_four_bits_are_not_for_what_a_file_holds_in_more() -> None:
    suited = [encoding for encoding in ENCODINGS if suits_int4(random_tensor(encoding))]
    assert suited == ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q4_K"]


@pytest.mark.parametrize("encoding", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("group", [32, 64])
def test_int4_rounding_beats_the_plain_formula(encoding: str, group: int) -> None:
    tensor = random_tensor(encoding, 64, 512)
    exact = to_float32(tensor)
    groups = to_int4(tensor, group=group)
    assert groups.offsets is None and groups.group == group
    shaped = exact.reshape(64, -1, group)
    step = np.abs(shaped).max(axis=2, keepdims=True) / 7
    plain = np.clip(np.rint(shaped / step), -7, 7) * step
    error = np.square(groups.to_float32() - exact).mean()
    assert error < 0.85 * np.square(plain - shaped).mean()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("encoding", "place"), [("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q4_K", 0), ("Q4_K", 2)])
def test_int4_of_scales_that_are_not_finite(bad: float, encoding: str, place: int) -> None:
    tensor = random_tensor(encoding)
    data = bytearray(tensor.raw)
    data[place : place + 2] = np.array([bad], "<f2").tobytes()
    with pytest.raises(InvalidModel, match="tensor w holds"):
        to_int4(Tensor("w", tensor.shape, tensor.encoding, memoryview(data)))


@pytest.mark.parametrize(("one", "two"), [("Q4_0", "BF16"), ("Q4_1", "Q4_K")])
def test_int4_of_several_weights_on_top_of_each_other(one: str, two: str) -> None:
    tensors = random_tensor(one, cols=256), random_tensor(two, rows=3, cols=256)
    apart = [to_int4(tensor).to_float32() for tensor in tensors]
    np.testing.assert_array_equal(to_int4(*tensors).to_float32(), np.concatenate(apart))


def test_int4_with_offsets_and_without_do_not_lie_on_top_of_each_other() -> None:
    with pytest.raises(ValueError, match="offsets"):
        to_int4(random_tensor("Q4_0"), random_tensor("Q4_1"))


def test_int4_of_a_row_that_cannot_be_packed() -> None:
    with pytest.raises(InvalidModel, match="two to a byte"):
        to_int4(stored(np.ones((2, 7), np.float32), "F32"))


# ---------------------------------------------------------------- blocks of rows and their order


def uninterleaved(count: int, num_heads: int) -> list[int]:
    """Which row of the file each row of the weight is, by the description."""
    size = count // num_heads
    halves = [[head * size + 2 * j + half for j in range(size // 2)] for head in range(num_heads) for half in (0, 1)]
    return [row for rows in halves for row in rows]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("block_numbers", [1, 192 * 5, 1 << 20])
def test_blocks_and_threads_change_nothing(encoding: str, block_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(encoding, 24, 256 if encoding in BLOCKS_OF_256 else 192)
    order = uninterleaved(24, 3)
    shuffled = Tensor("w", tensor.shape, tensor.encoding, tensor.raw, 3)
    wanted = to_float32(tensor)[order], to_bfloat16(tensor)[order], to_int8(tensor).values[order]
    wanted4 = to_int4(tensor)
    monkeypatch.setattr(quantize, "BLOCK_NUMBERS", block_numbers)
    monkeypatch.setattr(quantize, "MIN_THREADED_NUMBERS", 1)
    np.testing.assert_array_equal(to_float32(shuffled), wanted[0])
    np.testing.assert_array_equal(to_bfloat16(shuffled), wanted[1])
    np.testing.assert_array_equal(to_int8(shuffled).values, wanted[2])
    got4 = to_int4(shuffled)
    np.testing.assert_array_equal(got4.values, wanted4.values[order])
    np.testing.assert_array_equal(got4.scales, wanted4.scales[order])


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
def test_order_of_a_vector_permutes_its_numbers(encoding: str) -> None:
    numbers = np.arange(12, dtype=np.float32)[None]
    order = uninterleaved(12, 3)
    plain = stored(numbers, encoding)
    tensor = Tensor("v", plain.shape, plain.encoding, plain.raw, 3)
    np.testing.assert_array_equal(to_float32(tensor)[0], numbers[0, order])
    np.testing.assert_array_equal(to_bfloat16(tensor)[0], to_bfloat16(plain)[0, order])
