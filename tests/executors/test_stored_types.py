"""Models as they are found on disks, with weights of several types: the executor against the oracle of the file's own
float32 numbers, so that all that is lost on the way shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.executors.forward import forward
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.options import Dtype
from chairlift.models import Model, ModelFiles, open_model
from executors.driving import Driver, Recorder, divergence, run_decoding
from models.quantized_folders import quantized_folder
from models.writers import TinyLlama, encode, gguf_name, interleave, tiny_llama, write_gguf

NUM_BLOCKS = 16
TOKENS = [int(token) for token in np.random.default_rng(3).integers(3, 128, 40)]


def mixed_gguf(types: dict[str, str], folder: Path) -> ModelFiles:
    """A file whose projections are stored by the ending of their names, all else as Q8_0; rows of 256 numbers."""
    tiny = tiny_llama(num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, head_size=64, intermediate_size=256)
    tensors = {}
    for name, numbers in tiny.weights.items():
        kind = "F32" if numbers.ndim == 1 else types.get(name.split(".")[-2].removesuffix("_proj"), "Q8_0")
        tensors[gguf_name(name)] = encode(_as_converted(tiny, name, numbers), kind)
    return ModelFiles("mixed", write_gguf(folder / "mixed.gguf", tiny.gguf_metadata(), tensors), "gguf")


def _as_converted(tiny: TinyLlama, name: str, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    return interleave(numbers, tiny.config[heads]) if heads else numbers


def folder_of(kind: str, folder: Path) -> ModelFiles:
    quantized_folder(tiny_llama(num_layers=1), kind, folder)
    return ModelFiles(kind, folder, "folder")


FILES: dict[str, Callable[[Path], ModelFiles]] = {
    "Q4_K_M": lambda path: mixed_gguf(dict.fromkeys("qko", "Q4_K") | {"gate": "Q4_K", "up": "Q4_K", "v": "Q6_K"}, path),
    "fallbacks": lambda path: mixed_gguf({"q": "Q5_0", "k": "Q5_1", "v": "Q5_K", "o": "IQ4_NL", "up": "IQ4_XS"}, path),
    "few bits": lambda path: mixed_gguf({"q": "Q2_K", "k": "Q3_K", "v": "Q4_1", "o": "Q4_0", "gate": "Q2_K"}, path),
    "awq": lambda path: folder_of("awq", path),
    "gptq activation order": lambda path: folder_of("gptq activation order", path),
    "fp8 in blocks": lambda path: folder_of("fp8 in blocks", path),
}


def driver_of(model: Model, dtype: Dtype) -> Driver:
    recorder = Recorder(2, model.config.vocab_size)
    options = ExecutorOptions(
        max_num_seqs=2,
        max_model_len=NUM_BLOCKS * 32 // 2,
        dtype=dtype,
        kv_cache_memory_bytes=1 << 30,
        max_num_batched_tokens=64,
    )
    return Driver(OpenVINOExecutor.load(model, options, lambda *_: recorder), recorder, NUM_BLOCKS, 0)


@pytest.mark.parametrize(
    "name", [*list(FILES)[:3], *(pytest.param(name, marks=pytest.mark.long) for name in list(FILES)[3:])]
)
def test_every_type_is_computed_as_its_file_says(name: str, tmp_path: Path) -> None:
    model = open_model(FILES[name](tmp_path))
    exact = forward(model, TOKENS)
    assert exact.std() > 2.5
    wide = run_decoding(driver_of(model, "float32"), TOKENS, 20)
    assert np.abs(wide - exact[19:]).max() < 1e-3
    small = run_decoding(driver_of(model, "int8"), TOKENS, 20)
    assert 0 < divergence(small, exact[19:]).mean() < 0.03


@pytest.mark.parametrize("name", ["Q4_K_M", "awq", pytest.param("gptq activation order", marks=pytest.mark.long)])
def test_int4_loses_nothing_of_what_has_four_bits(name: str, tmp_path: Path) -> None:
    """What is left is the rounding of activations; rounding such weights anew costs several times as much."""
    if name == "Q4_K_M":
        types = dict.fromkeys(("q", "k", "o", "gate", "up"), "Q4_K") | {"v": "Q6_K", "down": "Q6_K"}
        model = open_model(mixed_gguf(types, tmp_path))
    else:
        model = open_model(FILES[name](tmp_path))
    exact = forward(model, TOKENS)
    own = run_decoding(driver_of(model, "int4"), TOKENS, 20)
    assert 0 < divergence(own, exact[19:]).mean() < 0.03
