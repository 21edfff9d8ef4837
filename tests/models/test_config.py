"""Configs: rotary frequencies against formulas, defaults, generation_config.json."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import ModelConfig, ModelFiles, Rope, open_model
from models.writers import encode, tiny_llama, write_gguf

LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    """The config read back from a folder whose config.json has these changes; a field set to `...` is left out."""
    tiny = tiny_llama(0, **{key: value for key, value in changes.items() if value is not ...})
    tiny.config = {key: value for key, value in tiny.config.items() if changes.get(key) is not ...}
    tiny.write_folder(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return open_model(ModelFiles("tiny", folder, "folder")).config


def llama3_by_wavelength(theta: float, dim: int, parameters: dict[str, Any]) -> list[float]:
    """The Llama 3.1 rule, pair by pair: by how many turns a pair makes in the original context."""
    out = []
    context = parameters["original_max_position_embeddings"]
    for j in range(dim // 2):
        freq = theta ** (-2 * j / dim)
        wavelength = 2 * math.pi / freq
        if wavelength < context / parameters["high_freq_factor"]:
            out.append(freq)
        elif wavelength > context / parameters["low_freq_factor"]:
            out.append(freq / parameters["factor"])
        else:
            width = parameters["high_freq_factor"] - parameters["low_freq_factor"]
            smooth = (context / wavelength - parameters["low_freq_factor"]) / width
            out.append((1 - smooth) * freq / parameters["factor"] + smooth * freq)
    return out


def test_plain_rope() -> None:
    freq = Rope(64, 10000.0).inv_freq()
    assert len(freq) == 32
    np.testing.assert_allclose(freq, [10000.0 ** (-2 * j / 64) for j in range(32)], rtol=1e-12)


def test_linear_rope(tmp_path: Path) -> None:
    config = config_of(tmp_path / "m", rope_scaling={"type": "linear", "factor": 4.0})
    np.testing.assert_allclose(config.rope.inv_freq(), np.array(Rope(32, 10000.0).inv_freq()) / 4, rtol=1e-6)
    assert config.max_model_len == 4 * 512


@pytest.mark.parametrize("new_style", [False, True])
def test_llama3_rope(tmp_path: Path, new_style: bool) -> None:
    """Both spellings: rope_scaling and rope_theta apart, and rope_parameters of transformers 5."""
    if new_style:
        config = config_of(tmp_path / "m", rope_theta=..., rope_parameters={**LLAMA31, "rope_theta": 500000.0})
    else:
        config = config_of(tmp_path / "m", rope_theta=500000.0, rope_scaling=LLAMA31)
    wanted = llama3_by_wavelength(500000.0, 32, LLAMA31)
    np.testing.assert_allclose(config.rope.inv_freq(), wanted, rtol=1e-6)
    plain = Rope(32, 500000.0).inv_freq()
    ratios = np.array(plain) / config.rope.inv_freq()
    assert ratios.min() == 1.0 and ratios.max() == pytest.approx(8.0) and ((ratios > 1.01) & (ratios < 7.9)).any()


def test_factors_of_a_gguf_file(tmp_path: Path) -> None:
    """A converted Llama 3.1 brings its scaling as a tensor of divisors."""
    tiny = tiny_llama(0, rope_theta=500000.0)
    path = tiny.write_gguf(tmp_path / "plain.gguf")
    plain = open_model(ModelFiles("tiny", path, "gguf"))
    wanted = llama3_by_wavelength(500000.0, 32, LLAMA31)
    factors = (np.array(plain.config.rope.inv_freq()) / np.array(wanted)).astype(np.float32)
    tensors = (
        {
            gguf_key: (tensor.encoding.label, tensor.shape if tensor.rows > 1 else (tensor.cols,), tensor.raw.tobytes())
            for gguf_key, tensor in plain.gguf.tensors.items()
        }
        if plain.gguf
        else {}
    )
    path = write_gguf(
        tmp_path / "m.gguf", tiny.gguf_metadata(), {"rope_freqs.weight": encode(factors, "F32"), **tensors}
    )
    config = open_model(ModelFiles("tiny", path, "gguf")).config
    assert config.rope.scaling == "factors"
    np.testing.assert_allclose(config.rope.inv_freq(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "keys", [{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {"llama.rope.scale_linear": 2.0}]
)
def test_linear_rope_of_a_gguf_file(tmp_path: Path, keys: dict[str, Any]) -> None:
    path = tiny_llama(0).write_gguf(tmp_path / "m.gguf", extra=keys)
    rope = open_model(ModelFiles("tiny", path, "gguf")).config.rope
    np.testing.assert_allclose(rope.inv_freq(), np.array(Rope(32, 10000.0).inv_freq()) / 2, rtol=1e-6)


def test_defaults_of_missing_fields(tmp_path: Path) -> None:
    absent: dict[str, Any] = dict.fromkeys(
        ["head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "max_position_embeddings",
         "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id"], ...
    )  # fmt: skip
    config = config_of(tmp_path / "m", num_heads=4, num_kv_heads=4, head_size=16, **absent)
    assert (config.head_size, config.num_kv_heads, config.rope.theta) == (16, 4, 10000.0)
    assert (config.max_model_len, config.norm_eps) == (2048, 1e-6)
    assert not config.tie_embeddings and not config.attention_bias and not config.mlp_bias
    assert config.bos_token_id is None and config.eos_token_ids == ()


def test_sliding_window_is_for_mistral(tmp_path: Path) -> None:
    mistral: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    assert config_of(tmp_path / "a", **mistral).sliding_window == 64
    assert config_of(tmp_path / "b", **{**mistral, "sliding_window": None}).sliding_window is None
    assert config_of(tmp_path / "c", sliding_window=64).sliding_window is None
    assert config_of(tmp_path / "d", **{**mistral, "sliding_window": ...}).sliding_window == 4096


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "wanted"),
    [(2, 7, (7,)), (2, [7, 8, 7], (7, 8)), ([2, 3], None, (2, 3)), (..., [9], (9,)), (..., None, ())],
)
def test_end_of_sequence_ids(tmp_path: Path, config_eos: Any, generation_eos: Any, wanted: tuple[int, ...]) -> None:
    generation = {} if generation_eos is None else {"eos_token_id": generation_eos}
    assert config_of(tmp_path / "m", generation, eos_token_id=config_eos).eos_token_ids == wanted


def test_sampling_defaults(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "do_sample": True, "max_new_tokens": 100, "foo": [1]}
    defaults = config_of(tmp_path / "a", generation).sampling_defaults
    assert defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "max_tokens": 100}
    assert config_of(tmp_path / "b", {**generation, "do_sample": False}).sampling_defaults == {"max_tokens": 100}
    assert config_of(tmp_path / "c").sampling_defaults == {}


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": 2.0}, "top_p must be above 0.0 and at most 1.0"),
        ({"top_p": 0.0}, "top_p must be above 0.0 and at most 1.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be at least 0.01"),
        ({"repetition_penalty": 1e300}, "repetition_penalty must be a number"),
        ({"eos_token_id": [[2]]}, "eos_token_id must be"),
        ({"eos_token_id": list(range(65))}, "eos_token_id must be"),
        ({"do_sample": 1}, "do_sample must be true or false"),
    ],
)
def test_generation_configs_refused(tmp_path: Path, generation: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        config_of(tmp_path / "m", generation)


@pytest.mark.parametrize(
    "factors", [np.ones(15, np.float32), np.zeros(16, np.float32), np.full(16, np.nan, np.float32)]
)
def test_rope_factors_refused(tmp_path: Path, factors: Any) -> None:
    tensors = {
        "rope_freqs.weight": encode(factors, "F32"),
        "token_embd.weight": encode(np.zeros((128, 64), np.float32), "F32"),
    }
    path = write_gguf(tmp_path / "m.gguf", tiny_llama(0).gguf_metadata(), tensors)
    with pytest.raises(InvalidModel, match=r"rope_freqs\.weight must hold"):
        open_model(ModelFiles("tiny", path, "gguf"))


def test_special_ids_of_a_gguf_file(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 6, "tokenizer.ggml.eom_token_id": 5}
    path = tiny_llama(0).write_gguf(tmp_path / "m.gguf", extra=extra)
    config = open_model(ModelFiles("tiny", path, "gguf")).config
    assert config.eos_token_ids == (5, 6) and config.bos_token_id == 1
