"""A GGUF file of every family is the same model as its safetensors folder: config, weights, logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.executors.forward import ReferenceModel, empty_caches, weights_of
from chairlift.models import Model, ModelConfig, ModelFiles, Rope, open_model, resolve, to_float32
from executors.families import LATEST, NUM_TOKENS, POSITIONS, expected, tokens_of, write_checkpoint
from executors.gguf_families import NAMES, metadata_of, tensors_of, write_gguf_checkpoint
from models.test_mutants import run
from models.writers import encode, write_gguf

TOLERANCE = 2e-4
DIFFERENT: dict[str, dict[str, Any]] = {
    "gemma": {"norm_offset": 0.0},
    "gemma2": {"norm_offset": 0.0, "attention_scale": 64**-0.5},
    "gemma3": {"norm_offset": 0.0, "attention_scale": 256**-0.5},
    "nemotron": {"norm_offset": 0.0},
}
"""What a file says otherwise: Gemma's norms have their offset already, and it does not say how scores are scaled."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Model, Model]]:
    """The model of a folder and that of a file."""

    @cache
    def opened(name: str) -> tuple[Model, Model]:
        folder: Path = tmp_path_factory.mktemp("checkpoints")
        file = write_gguf_checkpoint(name, folder / f"{name}.gguf")
        return open_model(resolve(str(write_checkpoint(name, folder / name)))), open_model(resolve(str(file)))

    return opened


def numbers_of(config: ModelConfig) -> dict[str, Any]:
    """All that a config says but for the name of its family, ropes as numbers."""
    values: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(config)}
    for key in ("rope", "local_rope"):
        rope: Rope | None = values.pop(key)
        values[key] = rope and [rope.amplitude, *rope.inv_freq(NUM_TOKENS)]
    for key in ("norm_eps", "attention_scale", "residual_scale", "logit_scale", "embedding_scale"):
        values[key] = values[key] and pytest.approx(values[key], rel=1e-6)
    del values["architecture"]
    return values


@pytest.mark.parametrize("name", NAMES)
def test_configs_are_equal(name: str, both: Callable[[str], tuple[Model, Model]]) -> None:
    folder, file = (model.config for model in both(name))
    wanted = numbers_of(replace(folder, **DIFFERENT.get(name, {})))
    got = numbers_of(file)
    for key, value in wanted.items():
        if key in ("rope", "local_rope") and value is not None:
            np.testing.assert_allclose(got[key], value, rtol=1e-6)
        else:
            assert got[key] == value, key


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_equal(name: str, both: Callable[[str], tuple[Model, Model]]) -> None:
    folder, file = both(name)
    offset = np.float32(folder.config.norm_offset)
    assert set(folder.weights.names) == set(file.weights.names)
    for key in folder.weights.names:
        wanted = to_float32(folder.weights.tensor(key)) + (
            offset if "norm" in key and not key.endswith("_bias") else np.float32(0)
        )
        np.testing.assert_array_equal(to_float32(file.weights.tensor(key)), wanted, key)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LATEST else ()) for name in NAMES]
)
def test_logits_are_those_of_transformers(name: str, both: Callable[[str], tuple[Model, Model]]) -> None:
    folder, file = both(name)
    config = replace(file.config, attention_scale=folder.config.attention_scale)
    keys, values = empty_caches(config, NUM_TOKENS)
    logits = ReferenceModel(config, weights_of(file), NUM_TOKENS).forward(tokens_of(name), 0, keys, values)
    assert np.abs(logits[list(POSITIONS)] - expected(name)).max() < TOLERANCE


@pytest.mark.parametrize("encoding", ["BF16", "Q8_0"])
def test_parts_of_a_tensor_are_cut_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    """Phi keeps q, k and v in one tensor, and gate and up."""
    model = open_model(resolve(str(write_gguf_checkpoint("phi3-short", tmp_path / "m.gguf", encoding))))
    assert model.gguf is not None
    for key, parts in (("attn_qkv", "qkv"), ("ffn_up", ("gate", "up"))):
        whole = to_float32(model.gguf.tensors[f"blk.1.{key}.weight"])
        stacked = np.concatenate([to_float32(model.weights.tensor(f"layers.1.{part}")) for part in parts])
        np.testing.assert_array_equal(stacked, whole)


def test_yarn_that_was_added_later_stretches_the_context(tmp_path: Path) -> None:
    tensors = {key: encode(numbers, "F32") for key, numbers in tensors_of("yarn").items()}
    path = write_gguf(tmp_path / "m.gguf", {**metadata_of("yarn"), "llama.context_length": 32}, tensors)
    assert open_model(resolve(str(path))).config.max_model_len == 256


@pytest.mark.parametrize("count", [6, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name",
    [
        *("phi3-long", "olmo3", "stablelm-parallel", "gemma2", "gemma3", "granite"),
        pytest.param("qwen2moe", marks=pytest.mark.long),
    ],
)
def test_mutants(name: str, count: int, tmp_path: Path) -> None:
    """Damaged files with what single families have: as in `test_mutants.py`."""
    path = write_gguf_checkpoint(name, tmp_path / "m.gguf")
    assert run(ModelFiles("m", path, "gguf"), path, count, header_bytes=6000) > count // 3


def test_sliding_layers_by_period(tmp_path: Path) -> None:
    """A number says that all but every n-th layer have a window; Gemma 3 means 6 where the file says nothing."""
    tensors = {key: encode(numbers, "F32") for key, numbers in tensors_of("gemma3").items()}
    metadata = metadata_of("gemma3")
    for period, wanted in ((2, (True, False, True)), (None, (True, True, True))):
        metadata["gemma3.attention.sliding_window_pattern"] = period
        given = {key: value for key, value in metadata.items() if value is not None}
        path = write_gguf(tmp_path / f"{period}.gguf", given, tensors)
        assert open_model(resolve(str(path))).config.sliding_layers == wanted


def test_what_older_files_of_gemma2_do_not_say(tmp_path: Path) -> None:
    """Windows and caps are those of the published models."""
    tensors = {key: encode(numbers, "F32") for key, numbers in tensors_of("gemma2").items()}
    unsaid = ("softcapping", "sliding_window")
    metadata = {key: value for key, value in metadata_of("gemma2").items() if not key.endswith(unsaid)}
    config = open_model(resolve(str(write_gguf(tmp_path / "m.gguf", metadata, tensors)))).config
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert (config.sliding_window, config.sliding_layers) == (4096, (True, False, True))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma2", {"gemma2.attn_logit_softcapping": 100.0}, "attn_logit_softcapping must be between 0.001 and 64"),
        ("gemma2", {"gemma2.final_logit_softcapping": 0.0}, "final_logit_softcapping must be between"),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": np.array([True])}, "1 kinds of layers for 3"),
        ("gemma3", {"gemma3.rope.freq_base_swa": 0.0}, "freq_base_swa must be between"),
        ("olmo3", {"olmo2.rope.scaling.yarn_beta_slow": 100.0}, "yarn_beta_slow must be between"),
        ("olmo3", {"olmo2.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is not supported"),
        ("olmo3", {"olmo2.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier is not supported"),
        ("granite", {"granite.logit_scale": 0.0}, "logit_scale must be between"),
        ("granite", {"granite.rope.dimension_count": 16}, "a part of each head"),
        ("stablelm", {"stablelm.attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon must be between"),
        ("phi3-long", {"phi3.rope.scaling.attn_factor": 0.0}, "attn_factor must be between"),
        ("phi3-long", {"phi3.rope.dimension_count": 32}, "rope_factors_short.weight must hold 16 numbers"),
        ("phi3-long", {"phi3.attention.head_count_kv": 4}, "blk.0.attn_qkv.weight has shape"),
    ],
)
def test_metadata_refused(name: str, change: dict[str, object], message: str, tmp_path: Path) -> None:
    tensors = {key: encode(numbers, "F32") for key, numbers in tensors_of(name).items()}
    path = write_gguf(tmp_path / "m.gguf", {**metadata_of(name), **change}, tensors)
    with pytest.raises(InvalidModel) as error:
        open_model(resolve(str(path)))
    assert message in str(error.value)
