"""Experts as files hold them: MXFP4, gate and up interleaved, a tensor for each; and how they are packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel
from chairlift.executors.forward import forward
from chairlift.executors.loading import LoadedBytes
from chairlift.executors.openvino import memory
from chairlift.executors.openvino.choice import choose_weights
from chairlift.executors.openvino.graph import is_expert, pack_layers, weight_kinds
from chairlift.executors.openvino.memory import memory_need
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.weights import Arena
from chairlift.models import Int8Groups, Model, ModelFiles, open_model, resolve, to_float32, to_int8
from chairlift.models.quantize import int8_bytes
from executors.driving import divergence
from executors.families import (
    CONFIGS,
    NUM_TOKENS,
    tokens_of,
    weights_of,
    write_checkpoint,
    write_mxfp4_checkpoint,
)
from executors.gguf_families import metadata_of, tensors_of, write_gguf_checkpoint
from executors.test_families import run_executor
from models.test_mutants import run
from models.writers import Encoded, encode, write_gguf, write_safetensors


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The model of a folder in float32."""

    @cache
    def opened(name: str) -> Model:
        return open_model(resolve(str(write_checkpoint(name, tmp_path_factory.mktemp("plain") / name))))

    return opened


@pytest.fixture(scope="module", params=["folder", "file"])
def mxfp4(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """GPT-OSS as it is shipped, and as it is converted."""
    folder: Path = tmp_path_factory.mktemp("mxfp4")
    if request.param == "folder":
        return open_model(resolve(str(write_mxfp4_checkpoint("gpt-oss", folder / "m"))))
    return open_model(resolve(str(write_gguf_checkpoint("gpt-oss", folder / "m.gguf", "MXFP4"))))


def test_mxfp4_holds_the_weights(mxfp4: Model, plain: Callable[[str], Model]) -> None:
    weights = plain("gpt-oss").weights
    assert mxfp4.config.swiglu_limit == 7.0 and not mxfp4.config.rope.truncate
    assert set(mxfp4.weights.names) == set(weights.names)
    for key in weights.names:
        own, wanted = mxfp4.weights.tensor(key), to_float32(weights.tensor(key))
        np.testing.assert_array_equal(to_float32(own), wanted, key)
        if is_expert(key) and own.rows > 1:
            np.testing.assert_array_equal(to_int8(own, group=32).to_float32(), wanted, key)
            assert int8_bytes(own, 32) == own.rows * own.cols * (1 + 4 / 32)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_mxfp4_is_exact_wherever_four_or_eight_bits_are_asked_for(mxfp4: Model, dtype: Dtype) -> None:
    """And gate and up are interleaved, as the product wants them."""
    kinds = weight_kinds(mxfp4, dtype)
    assert {kinds[key] for key in mxfp4.weights.names if is_expert(key) and "bias" not in key} == {(dtype, 32)}
    arenas = [Arena() for _ in range(mxfp4.config.num_layers)]
    layers = pack_layers(mxfp4, dtype, arenas, Arena(), LoadedBytes(1, None))
    names = next(names for names in layers if names[0] == "layers.1.experts.0.gate")
    weight = layers[names]
    assert isinstance(weight, Int8Groups)
    rows = weight.to_float32().reshape(mxfp4.config.num_experts, -1, mxfp4.config.hidden_size)
    for expert in range(mxfp4.config.num_experts):
        for turn, part in enumerate(("gate", "up")):
            wanted = to_float32(mxfp4.weights.tensor(f"layers.1.experts.{expert}.{part}"))
            np.testing.assert_array_equal(rows[expert, turn::2], wanted)


def test_experts_in_a_tensor_each(plain: Callable[[str], Model], tmp_path: Path) -> None:
    """As files of Mixtral were written before there were tensors of three dimensions for all."""
    tensors = {}
    for key, numbers in tensors_of("mixtral").items():
        if "_exps" not in key:
            tensors[key] = encode(numbers, "F32")
        for n in range(len(numbers) if "_exps" in key else 0):
            tensors[key.replace("_exps", f".{n}")] = encode(numbers[n], "F32")
    path = write_gguf(tmp_path / "m.gguf", metadata_of("mixtral"), tensors)
    own, weights = open_model(resolve(str(path))).weights, plain("mixtral").weights
    assert set(own.names) == set(weights.names)
    for key in weights.names:
        np.testing.assert_array_equal(to_float32(own.tensor(key)), to_float32(weights.tensor(key)), key)
    del tensors["blk.1.ffn_up.2.weight"]
    with pytest.raises(InvalidModel, match=r"blk\.1\.ffn_up_exps\.weight is missing"):
        open_model(resolve(str(write_gguf(tmp_path / "m.gguf", metadata_of("mixtral"), tensors))))


@pytest.mark.parametrize("encoding", ["BF16", "F16"])
def test_gate_and_up_interleaved_in_every_float(encoding: str, plain: Callable[[str], Model], tmp_path: Path) -> None:
    """Their rows are every other column of what is stored."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt-oss"]))
    tensors = {key: encode(value, encoding) for key, value in weights_of("gpt-oss").items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    own, weights = open_model(resolve(str(tmp_path))).weights, plain("gpt-oss").weights
    for key in weights.names:
        wanted = to_float32(weights.tensor(key)).astype(np.float32)
        rounded = np.array(wanted, np.float16) if encoding == "F16" else _as_bfloat16(wanted)
        np.testing.assert_array_equal(to_float32(own.tensor(key)), rounded, key)
    part = own.tensor("layers.1.experts.2.up")
    np.testing.assert_array_equal(to_float32(part.rows_between(5, 9)), to_float32(part)[5:14])


def _as_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def test_auto_looks_at_experts_in_the_groups_that_they_keep(mxfp4: Model) -> None:
    """Nothing is lost there, so nothing has to stay wide."""
    choice = choose_weights(mxfp4, "auto")
    assert choice.dtype == "int8" and not any(map(is_expert, choice.wide))


def test_memory_of_experts_in_mxfp4(mxfp4: Model, plain: Callable[[str], Model]) -> None:
    """Scales in float32 for 32 numbers each, against those of 64 in float16 that others are rounded to."""
    own, rounded = (memory_need(model, "int8", "bf16") for model in (mxfp4, plain("gpt-oss")))
    config = mxfp4.config
    numbers = 3 * config.num_layers * config.num_experts * config.expert_size * config.hidden_size
    assert own.weight_bytes - rounded.weight_bytes == numbers * 4 // 32 - numbers * 2 // 64


def test_experts_are_there_twice_while_they_are_loaded(mxfp4: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin lays them out while it compiles, before anything can be given back."""
    monkeypatch.setattr(memory, "_WARM_UP_BYTES", 0)  # more than all of so small a model
    need, config = memory_need(mxfp4, "int8", "bf16"), mxfp4.config
    numbers = 3 * config.num_layers * config.num_experts * config.expert_size * config.hidden_size
    assert numbers * 1.125 <= need.loading_bytes - need.running_bytes < need.weight_bytes


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    ("name", "encoding"),
    [("gpt-oss", "Q8_0"), ("gpt-oss", "Q4_0"), ("gpt-oss", "Q4_1"), ("qwen2moe", "Q5_1"), ("mixtral", "Q8_0")],
)
def test_experts_of_every_form_are_computed(name: str, encoding: str, dtype: Dtype, tmp_path: Path) -> None:
    """Kept and rounded, signed and with offsets, gate and up interleaved and apart."""
    model = open_model(resolve(str(write_gguf_checkpoint(name, tmp_path / "m.gguf", encoding))))
    decoded, _, _ = run_executor(model, name, dtype)
    assert divergence(decoded, forward(model, tokens_of(name), NUM_TOKENS)[22:]).mean() < 0.02


# ---------------------------------------------------------------- malformed

KEY = "model.layers.1.mlp.experts.down_proj"


def _without(end: str) -> Callable[[dict[str, Encoded]], None]:
    def change(tensors: dict[str, Encoded]) -> None:
        del tensors[KEY + end]

    return change


def _instead(end: str, encoding: str, *shape: int) -> Callable[[dict[str, Encoded]], None]:
    size = {"U8": 1, "I8": 1, "F32": 4, "BF16": 2}[encoding]

    def change(tensors: dict[str, Encoded]) -> None:
        tensors[KEY + end] = encoding, shape, bytes(int(np.prod(shape)) * size)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("_scales"), "down_proj_scales is missing"),
        (_without("_blocks"), "down_proj is missing"),
        (_without("_bias"), "down_proj_bias is missing"),
        (_instead("_scales", "I8", 6, 128, 2), "down_proj_scales is stored as I8, not as U8"),
        (_instead("_scales", "U8", 6, 128, 1), "down_proj_blocks has shape (1536, 16) beside scales of 768 x 1"),
        (_instead("_blocks", "U8", 6, 128, 2, 8), "down_proj_blocks has shape (1536, 8) beside scales of 768 x 2"),
        (_instead("", "BF16", 6, 64, 128), "down_proj is there twice, plain and quantised"),
        (_instead("_bias", "F32", 5, 128), "down_proj_bias has shape (5, 128), the config asks for (6, 128)"),
        (_instead(".weight", "F32", 2, 2), "unexpected tensor"),
    ],
)
def test_tensors_that_do_not_belong_together(
    change: Callable[[dict[str, Encoded]], None],
    message: str,
    whole: tuple[str, dict[str, Encoded]],
    tmp_path: Path,
) -> None:
    config, tensors = whole[0], dict(whole[1])
    change(tensors)
    (tmp_path / "config.json").write_text(config)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(InvalidModel) as error:
        open_model(resolve(str(tmp_path)))
    assert message in str(error.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Encoded]]:
    """The config and the tensors of a good one."""
    folder = write_mxfp4_checkpoint("gpt-oss", tmp_path_factory.mktemp("whole") / "m")
    return (folder / "config.json").read_text(), _stored(folder / "model.safetensors")


def _stored(path: Path) -> dict[str, Encoded]:
    """The tensors of a safetensors file, as they are written."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {key: (one["dtype"], tuple(one["shape"]), body[slice(*one["data_offsets"])]) for key, one in header.items()}


def test_other_numbers_are_not_interleaved(tmp_path: Path) -> None:
    """Bytes of FP8 in one tensor for all experts."""
    folder = write_checkpoint("gpt-oss", tmp_path / "m")
    tensors = _stored(folder / "model.safetensors")
    key = "model.layers.0.mlp.experts.gate_up_proj"
    shape = tensors[key][1]
    tensors[key] = "F8_E4M3", shape, bytes(int(np.prod(shape)))
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(InvalidModel, match=r"gate_up_proj lies transposed as F8_E4M3"):
        open_model(resolve(str(folder)))


@pytest.mark.parametrize(
    ("form", "count"),
    [("folder", 4), *(pytest.param(form, 500, marks=pytest.mark.long) for form in ("folder", "gguf"))],
)
def test_mutants_in_mxfp4(form: Literal["folder", "gguf"], count: int, tmp_path: Path) -> None:
    if form == "gguf":
        path = damaged = write_gguf_checkpoint("gpt-oss", tmp_path / "m.gguf", "MXFP4")
        header_bytes = 6000
    else:
        path = write_mxfp4_checkpoint("gpt-oss", tmp_path / "m")
        damaged = path / "model.safetensors"
        header_bytes = 8 + int.from_bytes(damaged.read_bytes()[:8], "little")
    assert run(ModelFiles("m", path, form), damaged, count, header_bytes) > count // 3
