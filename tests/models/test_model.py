"""A model opened from either format is the same model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import (
    Model,
    ModelFiles,
    open_gguf,
    open_model,
    resolve,
    to_bfloat16,
    to_float32,
    to_int4,
    to_int8,
)
from models.writers import TinyLlama, encode, gguf_name, tiny_llama, write_gguf

CANONICAL = {
    "model.embed_tokens.weight": "embed",
    "model.layers.1.input_layernorm.weight": "layers.1.attn_norm",
    "model.layers.1.post_attention_layernorm.weight": "layers.1.mlp_norm",
    "model.layers.1.self_attn.q_proj.weight": "layers.1.q",
    "model.layers.1.self_attn.k_proj.weight": "layers.1.k",
    "model.layers.1.self_attn.v_proj.weight": "layers.1.v",
    "model.layers.1.self_attn.o_proj.weight": "layers.1.o",
    "model.layers.1.self_attn.q_proj.bias": "layers.1.q_bias",
    "model.layers.1.self_attn.k_proj.bias": "layers.1.k_bias",
    "model.layers.1.self_attn.o_proj.bias": "layers.1.o_bias",
    "model.layers.1.mlp.gate_proj.weight": "layers.1.gate",
    "model.layers.1.mlp.up_proj.weight": "layers.1.up",
    "model.layers.1.mlp.down_proj.weight": "layers.1.down",
    "model.layers.1.mlp.down_proj.bias": "layers.1.down_bias",
    "model.norm.weight": "norm",
    "lm_head.weight": "head",
}


def open_folder(folder: Path) -> Model:
    return open_model(ModelFiles("tiny", folder, "folder"))


def open_file(path: Path) -> Model:
    return open_model(ModelFiles("tiny", path, "gguf"))


def change_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    return folder


@pytest.fixture
def biased() -> TinyLlama:
    return tiny_llama(3, attention_bias=True, mlp_bias=True)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_folder_weights(biased: TinyLlama, tmp_path: Path, encoding: Any, num_shards: int) -> None:
    model = open_folder(biased.write_folder(tmp_path / "m", encoding, num_shards))
    assert len(model.weights.names) == len(biased.weights)
    for hf_name, name in CANONICAL.items():
        numbers = to_float32(model.weights.tensor(name))
        np.testing.assert_array_equal(numbers, biased.weights[hf_name].reshape(numbers.shape))


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
def test_gguf_weights_have_hugging_face_order(biased: TinyLlama, tmp_path: Path, encoding: str) -> None:
    model = open_file(biased.write_gguf(tmp_path / "m.gguf", encoding))
    assert len(model.weights.names) == len(biased.weights)
    for hf_name, name in CANONICAL.items():
        numbers = to_float32(model.weights.tensor(name))
        np.testing.assert_array_equal(numbers, biased.weights[hf_name].reshape(numbers.shape), err_msg=name)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_precision_applies_the_row_order(tmp_path: Path, encoding: str) -> None:
    """Rows of Q come out as they would from a file that never permuted them."""
    tiny = tiny_llama(4)
    stored = open_file(tiny.write_gguf(tmp_path / "m.gguf", encoding)).weights
    name = "model.layers.0.self_attn.q_proj.weight"
    plain = {"plain": encode(tiny.weights[name], encoding)}
    write_gguf(tmp_path / "plain.gguf", {}, plain)
    from_plain = open_gguf(tmp_path / "plain.gguf").tensors["plain"]
    tensor = stored.tensor("layers.0.q")
    np.testing.assert_array_equal(to_float32(tensor), to_float32(from_plain))
    np.testing.assert_array_equal(to_bfloat16(tensor), to_bfloat16(from_plain))
    np.testing.assert_array_equal(to_int8(tensor).values, to_int8(from_plain).values)
    np.testing.assert_array_equal(to_int4(tensor).values, to_int4(from_plain).values)
    np.testing.assert_array_equal(to_int4(tensor).scales, to_int4(from_plain).scales)


def test_both_formats_give_equal_configs(biased: TinyLlama, tmp_path: Path) -> None:
    folder = open_folder(biased.write_folder(tmp_path / "m")).config
    file = open_file(biased.write_gguf(tmp_path / "m.gguf")).config
    for name in folder.__slots__:
        if name != "norm_eps":
            assert getattr(folder, name) == getattr(file, name), name
    assert file.norm_eps == pytest.approx(folder.norm_eps, rel=1e-7)
    assert folder.eos_token_ids == (2,)
    assert folder.head_size == 32 and folder.q_size == 128 and folder.kv_size == 64


def test_special_tokens_that_there_are_not(tmp_path: Path) -> None:
    """Small models often keep the usual ones of large ones, in both files; transformers opens them too."""
    tiny = tiny_llama(1)
    folder = change_config(tiny.write_folder(tmp_path / "m"), bos_token_id=128000, eos_token_id=[2, 128])
    assert open_folder(folder).config.eos_token_ids == (2,)
    assert open_folder(folder).config.bos_token_id is None
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 50256]}))
    assert open_folder(folder).config.eos_token_ids == (3,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 50256}))
    assert open_folder(folder).config.eos_token_ids == (2,)
    extra = {
        "tokenizer.ggml.eos_token_id": 128,
        "tokenizer.ggml.bos_token_id": 128000,
        "tokenizer.ggml.eot_token_id": 5,
    }
    file = open_file(tiny.write_gguf(tmp_path / "m.gguf", extra=extra)).config
    assert (file.bos_token_id, file.eos_token_ids) == (None, (5,))


def test_a_number_for_each_layer_is_one_number(biased: TinyLlama, tmp_path: Path) -> None:
    """Files may say of every layer what is the same in all."""
    sizes = {"attention.head_count": [4, 4], "attention.head_count_kv": [2, 2], "feed_forward_length": [96, 96]}
    arrays = {f"llama.{key}": np.array(value, np.int32) for key, value in sizes.items()}
    plain = open_file(biased.write_gguf(tmp_path / "plain.gguf")).config
    assert (plain.num_heads, plain.num_kv_heads, plain.intermediate_size) == (4, 2, 96)
    assert open_file(biased.write_gguf(tmp_path / "m.gguf", extra=arrays)).config == plain


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tiny = tiny_llama(5, tied=True)
    for model in (open_folder(tiny.write_folder(tmp_path / "m")), open_file(tiny.write_gguf(tmp_path / "m.gguf"))):
        assert model.config.tie_embeddings
        assert "head" not in model.weights.names
        assert model.weights.tensor("head") is model.weights.tensor("embed")


def test_the_installed_package_opens() -> None:
    model = open_model(resolve("smollm2-135m-instruct"))
    config = model.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_size) == (30, 9, 3, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (576, 1536, 49152)
    assert config.tie_embeddings and config.eos_token_ids == (2,) and config.max_model_len == 8192
    assert len(model.weights.names) == 272
    assert model.gguf is not None
    tokens = model.gguf.strings("tokenizer.ggml.tokens")
    assert len(tokens) == 49152 and tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert model.gguf.numbers("tokenizer.ggml.token_type")[:3].tolist() == [3, 3, 3]
    rms = float(np.sqrt(np.square(to_float32(model.weights.tensor("layers.7.q"))).mean()))
    assert 0.01 < rms < 1.0


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "architecture BloomForCausalLM is not supported"),
        ({"architectures": None}, "architectures must be a list"),
        ({"hidden_act": "mish"}, "hidden_act mish"),
        ({"rope_scaling": {"rope_type": "xpos", "factor": 4.0}}, "rope type xpos"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "factor must be a number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 40}}, "beta_slow"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1e-320}}, "beta_slow"),
        ({"rope_scaling": {"type": "dynamic"}}, "factor must be a number"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "short_factor must be a list of 16"),
        ({"rope_scaling": {"type": "su", "short_factor": [1] * 16, "long_factor": [1] * 15}}, "long_factor must be a"),
        ({"rope_scaling": {"type": "su", "long_factor": [0] * 16, "short_factor": [0] * 16}}, "short_factor must be a"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1] * 16, "short_mscale": 1.1}}, "short_mscale"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window must be"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"]}, "layer_types must be a list"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["linear_attention"] * 2}, "linear_attention"),
        ({"partial_rotary_factor": 0.1}, "cannot be rotated in pairs"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported for llama"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"hidden_size": 0}, "hidden_size must be an integer"),
        ({"hidden_size": 10**30}, "hidden_size must be an integer"),
        ({"num_hidden_layers": ...}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 1}, "unexpected tensor model.layers.1"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 16}, "has shape"),
        ({"head_dim": 31}, "cannot be rotated in pairs"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a number"),
        ({"rope_theta": 0}, "rope_theta must be a number"),
        ({"vocab_size": 127}, "has shape"),
        ({"attention_bias": True}, "q_proj.bias is missing"),
        ({"eos_token_id": "2"}, "eos_token_id must be a token id"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
    ],
)
def test_configs_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = change_config(tiny_llama(1).write_folder(tmp_path / "m"), **changes)
    with pytest.raises(InvalidModel) as error:
        open_folder(folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"general.architecture": "rwkv7"}, "architecture rwkv7 is not supported"),
        ({"llama.expert_count": 8}, "expert_used_count is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "9 of 8 experts"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "ffn_gate_exps.weight is missing"),
        ({"llama.expert_count": 8, "llama.expert_gating_func": 2}, "expert_gating_func is not supported"),
        ({"llama.rope.dimension_count": 16}, "part of each head"),
        ({"llama.attention.value_length": 16}, "different sizes"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling longrope"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.factor is missing"),
        ({"llama.rope.dimension_count": 64}, "dimension_count must be between"),
        ({"llama.rope.dimension_count": 15}, "dimension_count 15 is odd"),
        ({"llama.block_count": 0}, "block_count must be between"),
        ({"llama.block_count": 3}, "blk.2.attn_norm.weight is missing"),
        ({"llama.block_count": 1}, "unexpected tensor blk.1"),
        ({"llama.embedding_length": "64"}, "embedding_length must be an integer"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "finite number"),
        ({"llama.rope.freq_base": 0.0}, "freq_base must be between"),
        ({"llama.attention.head_count_kv": np.array([2, 4], np.int32)}, "head_count_kv must be an integer, the same"),
        ({"llama.feed_forward_length": np.array([], np.int32)}, "feed_forward_length must be an integer, the same"),
        ({"llama.block_count": np.array([2.0, 2.0], np.float32)}, "block_count must be an integer, the same"),
        ({"general.alignment": 0}, "alignment 0"),
        ({"general.alignment": 48}, "alignment 48"),
    ],
)
def test_gguf_metadata_refused(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    path = tiny_llama(1).write_gguf(tmp_path / "m.gguf", extra=extra)
    with pytest.raises(InvalidModel) as error:
        open_file(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tensor_that_the_config_does_not_explain_is_refused(tmp_path: Path) -> None:
    tiny = tiny_llama(1)
    tiny.weights["model.layers.0.self_attn.q_norm.weight"] = np.ones(32, np.float32)
    with pytest.raises(InvalidModel, match=r"unexpected tensor model\.layers\.0\.self_attn\.q_norm\.weight"):
        open_folder(tiny.write_folder(tmp_path / "m"))


def test_names_map_one_to_one() -> None:
    names = tiny_llama(1, attention_bias=True).weights
    assert len({gguf_name(name) for name in names}) == len(names)
