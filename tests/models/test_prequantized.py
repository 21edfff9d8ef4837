"""Checkpoints quantised for other engines: their numbers, exactly, and which packed form they become."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import (
    Model,
    ModelFiles,
    open_model,
    quantize,
    suits_int4,
    to_bfloat16,
    to_float32,
    to_int4,
    to_int8,
)
from models.quantized_folders import KINDS, float8_values, quantized_folder
from models.writers import encode, tiny_llama, write_safetensors

Q = "layers.0.q"
HF_Q = "model.layers.0.self_attn.q_proj"


def opened(folder: Path) -> Model:
    return open_model(ModelFiles("m", folder, "folder"))


def plain_name(name: str) -> str:
    """The Hugging Face name of a projection of a layer."""
    _, layer, part = name.split(".")
    where = "self_attn" if part in "qkvo" else "mlp"
    return f"model.layers.{layer}.{where}.{part}_proj.weight"


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_what_the_format_says(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and in blocks of rows that begin in the middle of a word of eight."""
    meant = quantized_folder(tiny_llama(num_layers=1), kind, tmp_path)
    weights = opened(tmp_path).weights
    for part in ("q", "k", "v", "o", "gate", "up", "down"):
        tensor = weights.tensor(f"layers.0.{part}")
        numbers = to_float32(tensor)
        np.testing.assert_array_equal(numbers, meant[plain_name(tensor.name)])
        with monkeypatch.context() as patch:
            patch.setattr(quantize, "BLOCK_NUMBERS", 5 * tensor.cols)
            np.testing.assert_array_equal(to_float32(tensor), numbers)
            np.testing.assert_array_equal(to_float32(tensor.rows_between(3, 21)), numbers[3:24])
    np.testing.assert_array_equal(to_float32(weights.tensor("embed")), meant["model.embed_tokens.weight"])


EXACT_INT4 = {
    "awq": True, "gptq": True, "gptq with biases of zeros": True, "gptq v2": True, "gptq symmetric": False,
    "packed int4": False, "packed int4 with zeros": True,
}  # fmt: skip
"""What keeps its numbers in four bits, and whether it needs offsets."""
EXACT_INT8 = ["gptq symmetric", "packed int4", "packed int8", "int8 per row", "int8 in groups"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [16, 32])
def test_integers_are_kept_in_groups_that_divide_theirs(tmp_path: Path, kind: str, group: int) -> None:
    quantized_folder(tiny_llama(num_layers=1), kind, tmp_path)
    tensor = opened(tmp_path).weights.tensor(Q)
    exact = to_float32(tensor)
    step = np.abs(exact.reshape(len(exact), -1, group)).max(axis=2).repeat(group, axis=1) / 127
    eight = to_int8(tensor, group=group)
    if kind in EXACT_INT8:
        np.testing.assert_array_equal(eight.to_float32(), exact)
    else:
        assert (np.abs(eight.to_float32() - exact) <= step * (0.5 + 127 * 2**-11)).all()
    four = to_int4(tensor, group=group)
    if kind in EXACT_INT4:
        assert (four.offsets is not None) == EXACT_INT4[kind]
        np.testing.assert_array_equal(four.to_float32(), exact)
    else:
        assert four.offsets is None
    assert four.group == eight.group == group
    assert suits_int4(tensor) == (kind in EXACT_INT4)
    assert to_bfloat16(tensor).shape == exact.shape


def test_zero_points_of_zero_borrow_in_the_first_format_of_gptq(tmp_path: Path) -> None:
    """They were stored as -1 in four bits of a word: what they borrowed from their neighbour comes back."""
    tiny = tiny_llama(num_layers=1)
    numbers = tiny.weights[HF_Q + ".weight"]
    numbers[::3] = np.abs(numbers[::3])
    meant = quantized_folder(tiny, "gptq", tmp_path)[HF_Q + ".weight"]
    tensor = opened(tmp_path).weights.tensor(Q)
    assert tensor.scaling is not None and tensor.scaling.zeros is not None
    assert 15 in (tensor.scaling.zeros.raw[0] & 15, tensor.scaling.zeros.raw[0] >> 4)
    np.testing.assert_array_equal(to_float32(tensor), meant)


def test_every_byte_of_fp8(tmp_path: Path) -> None:
    tiny = tiny_llama(num_layers=1)
    quantized_folder(tiny, "fp8", tmp_path)
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    tensor = opened(tmp_path).weights.tensor(Q)
    assert tensor.scaling is not None
    scale = np.frombuffer(tensor.scaling.scales.raw, "<f4")[0]
    place = bytes(data).index(tensor.raw.tobytes())
    data[place : place + 256] = bytes(range(256))
    (tmp_path / "model.safetensors").write_bytes(data)
    numbers = to_float32(opened(tmp_path).weights.tensor(Q)).ravel()[:256]
    positive = (float8_values() * scale).astype(np.float32)
    np.testing.assert_array_equal(numbers[:127], positive)
    np.testing.assert_array_equal(numbers[128:255], -positive)
    assert np.isnan(numbers[[127, 255]]).all()
    with pytest.raises(InvalidModel, match="not finite"):
        to_int8(opened(tmp_path).weights.tensor(Q))


# ---------------------------------------------------------------- refused by name


def changed(folder: Path, kind: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The line with which a checkpoint is refused after a change of its tensors `name -> (kind, shape, bytes)`."""
    quantized_folder(tiny_llama(num_layers=1), kind, folder)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__")
    tensors = {
        name: (entry["dtype"], tuple(entry["shape"]), data[end:][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    change(tensors)
    write_safetensors(path, tensors)
    with pytest.raises(InvalidModel) as error:
        model = opened(folder)
        for name in model.weights.names:
            to_float32(model.weights.tensor(name))
    assert str(error.value).isprintable() and len(str(error.value)) < 400
    return str(error.value)


def words(*shape: int) -> tuple[str, tuple[int, ...], bytes]:
    return "I32", shape, bytes(4 * int(np.prod(shape)))


def zeros(*shape: int) -> tuple[str, tuple[int, ...], bytes]:
    return encode(np.zeros(shape, np.float32), "F16")


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "no scales": ("awq", lambda t: t.pop(HF_Q + ".scales"), "scales is missing"),
    "no zeros": ("gptq", lambda t: t.pop(HF_Q + ".qzeros"), "qzeros is missing"),
    "scales as integers": ("awq", lambda t: t.update({HF_Q + ".scales": words(2, 128)}), "stored as I32"),
    "weight as floats": ("awq", lambda t: t.update({HF_Q + ".qweight": zeros(64, 16)}), "stored as F16"),
    "scales of another group": ("awq", lambda t: t.update({HF_Q + ".scales": zeros(4, 128)}), "has shape (4, 128)"),
    "zeros of other rows": ("gptq", lambda t: t.update({HF_Q + ".qzeros": words(2, 15)}), "has shape (2, 15)"),
    "fewer columns": ("gptq", lambda t: t.update({HF_Q + ".qweight": words(7, 128)}), "has shape"),
    "a group that is not there": (
        "gptq",
        lambda t: t.update({HF_Q + ".g_idx": ("I32", (64,), np.full(64, 2, np.int32).tobytes())}),
        "groups outside 0 to 1",
    ),
    "a weight twice": ("awq", lambda t: t.update({HF_Q + ".weight": zeros(128, 64)}), "there twice"),
    "biases that add something": (
        "gptq with biases of zeros",
        lambda t: t.update({HF_Q + ".bias": encode(np.ones(128, np.float32), "F16")}),
        "unexpected tensor",
    ),
    "another kind of checkpoint": ("awq", lambda t: t.update({HF_Q + ".weight_packed": words(128, 8)}), "missing"),
    "a shape that lies": (
        "packed int4",
        lambda t: t.update({HF_Q + ".weight_shape": ("I64", (2,), np.array([2**62, 64]).tobytes())}),
        "no weight of",
    ),
    "three groups": ("packed int4", lambda t: t.update({HF_Q + ".weight_scale": zeros(128, 3)}), "has shape (128, 3)"),
    "scales of other blocks": ("fp8 in blocks", lambda t: t.update({HF_Q + ".weight_scale_inv": zeros(2, 2)}), "shape"),
    "int8 without scales": ("int8 per row", lambda t: t.pop(HF_Q + ".weight_scale"), "stored as I8"),
    "words without a scheme": ("awq", lambda t: t.update({"model.norm.weight": words(64)}), "stored as I32"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_tensors_that_do_not_belong_together(tmp_path: Path, name: str) -> None:
    kind, change, message = CHANGES[name]
    assert message in changed(tmp_path, kind, change)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes is not supported"),
    "no method": ({"bits": 4}, "quant_method None is not supported"),
    "method of another type": ({"quant_method": ["awq"]}, "is not supported"),
    "AWQ for vectors": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
    "AWQ of 3 bits": ({"quant_method": "awq", "bits": 3}, "3 bits"),
    "GPTQ of 8 bits": ({"quant_method": "gptq", "bits": 8}, "8 bits"),
    "GPTQ for marlin": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
    "group of 0": ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size"),
    "E5M2": ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
    "blocks of one size": ({"quant_method": "fp8", "weight_block_size": [128]}, "two sizes"),
    "NVFP4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
    "one group of another format": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"format": "marlin-24"}}},
        "marlin-24",
    ),
    "sparse": ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
    "rotated": ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}, "transform_config"),
    "not an object": ([], "must be an object"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", REFUSED)
def test_schemes_that_are_refused_by_name(tmp_path: Path, name: str) -> None:
    scheme, message = REFUSED[name]
    tiny = tiny_llama(num_layers=1, quantization_config=scheme)
    with pytest.raises(InvalidModel) as error:
        opened(tiny.write_folder(tmp_path / "m"))
    assert message in str(error.value) and len(str(error.value)) < 400


def test_projections_left_alone_are_read_as_they_are(tmp_path: Path) -> None:
    """`modules_to_not_convert`: what has no scales beside it is a plain weight."""
    tiny = tiny_llama(num_layers=1, quantization_config=KINDS["awq"][1])
    model = opened(tiny.write_folder(tmp_path / "m", "BF16"))
    np.testing.assert_array_equal(to_float32(model.weights.tensor(Q)), tiny.weights[HF_Q + ".weight"])
