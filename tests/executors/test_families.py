"""Every family against Hugging Face transformers, whose logits are stored: see `make_family_fixtures.py`.

The NumPy oracle at the stored positions, and what each feature is worth; then the OpenVINO executor in every precision.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel
from chairlift.executors.forward import ReferenceModel, empty_caches, forward, weights_of
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.program import Program
from chairlift.models import Model, ModelConfig, open_model, resolve, to_float32
from executors.driving import Driver, Recorder, divergence, run_decoding
from executors.families import (
    CONFIGS,
    LATEST,
    NUM_TOKENS,
    POSITIONS,
    VOCAB_SIZE,
    expected,
    tokens_of,
    write_checkpoint,
)
from executors.families import weights_of as tensors_of
from models.writers import encode, write_safetensors

ORACLE_TOLERANCE = 2e-4
TOLERANCE = 1e-3
NUM_BLOCKS = 12
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    @cache
    def opened(name: str) -> Model:
        folder: Path = tmp_path_factory.mktemp("checkpoints")
        return open_model(resolve(str(write_checkpoint(name, folder / name))))

    return opened


def computed(config: ModelConfig, weights: dict[str, Floats], name: str) -> Floats:
    """The oracle's logits at the stored positions, with this config and these weights."""
    keys, values = empty_caches(config, NUM_TOKENS)
    model = ReferenceModel(config, weights, NUM_TOKENS)
    return model.forward(tokens_of(name), 0, keys, values)[list(POSITIONS)]


@pytest.mark.parametrize("name", CONFIGS)
def test_oracle_agrees_with_transformers(name: str, model_of: Callable[[str], Model]) -> None:
    model = model_of(name)
    logits = computed(model.config, weights_of(model), name)
    assert np.abs(logits - expected(name)).max() < ORACLE_TOLERANCE
    assert expected(name).std() > 3
    logits -= logits.max(axis=1, keepdims=True)
    best = 1 / np.exp(logits).sum(axis=1)
    assert best.mean() < 0.8, "rounding would not be seen where nothing is undecided"


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3-long", "smollm3"])
def test_oracle_computes_chunks_alike(name: str, model_of: Callable[[str], Model]) -> None:
    model = model_of(name)
    reference = ReferenceModel(model.config, weights_of(model), NUM_TOKENS)
    keys, values = empty_caches(model.config, NUM_TOKENS)
    tokens = tokens_of(name)
    cuts = [0, 1, 30, 65, *range(66, NUM_TOKENS + 1)]
    rows = [reference.forward(tokens[first:last], first, keys, values) for first, last in pairwise(cuts)]
    assert np.abs(np.concatenate(rows)[list(POSITIONS)] - expected(name)).max() < ORACLE_TOLERANCE


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_for_pictures(prefix: str, model_of: Callable[[str], Model], tmp_path: Path) -> None:
    """Both ways in which such checkpoints have been written."""
    text = {key: value for key, value in CONFIGS["gemma3"].items() if key not in ("architectures", "eos_token_id")}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "eos_token_id": [2, 5]}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {prefix + key.removeprefix("model."): value for key, value in tensors_of("gemma3").items()}
    picture = np.zeros((2, 2), np.float32)
    others = {"vision_tower.patch.weight": picture, "multi_modal_projector.norm.weight": picture}
    encoded = {key: encode(value, "F32") for key, value in (tensors | others).items()}
    write_safetensors(tmp_path / "model.safetensors", encoded)
    model, alone = open_model(resolve(str(tmp_path))), model_of("gemma3")
    assert model.config == replace(alone.config, eos_token_ids=(2, 5))
    assert model.weights.names == alone.weights.names
    key = "layers.2.down"
    np.testing.assert_array_equal(to_float32(model.weights.tensor(key)), to_float32(alone.weights.tensor(key)))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_of_older_checkpoints(prefix: str, model_of: Callable[[str], Model], tmp_path: Path) -> None:
    """GPT-2 as published: names that begin with the layers, and the mask of each layer beside its weights."""
    tensors = {prefix + key.removeprefix("transformer."): value for key, value in tensors_of("gpt2").items()}
    tensors[prefix + "h.1.attn.bias"] = np.ones((4, 4), np.float32)
    tensors["lm_head.weight"] = tensors[prefix + "wte.weight"]
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    write_safetensors(tmp_path / "model.safetensors", {key: encode(value, "F16") for key, value in tensors.items()})
    model, alone = open_model(resolve(str(tmp_path))), model_of("gpt2")
    assert model.weights.names == alone.weights.names
    for key in ("layers.1.k", "layers.0.down", "layers.1.v_bias"):
        wanted = to_float32(alone.weights.tensor(key)).astype(np.float16)
        np.testing.assert_array_equal(to_float32(model.weights.tensor(key)), wanted)


def test_transposed_weights_are_plain_numbers(tmp_path: Path) -> None:
    """Bytes of FP8 that lie transposed are refused by name."""
    write_checkpoint("gpt2", tmp_path / "m")
    tensors = {key: encode(value, "F32") for key, value in tensors_of("gpt2").items()}
    shape = tensors_of("gpt2")["transformer.h.0.mlp.c_fc.weight"].shape
    tensors["transformer.h.0.mlp.c_fc.weight"] = ("F8_E4M3", shape, bytes(shape[0] * shape[1]))
    write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    with pytest.raises(InvalidModel, match=r"mlp\.c_fc\.weight lies transposed as F8_E4M3"):
        open_model(resolve(str(tmp_path / "m")))


# ---------------------------------------------------------------- what every feature is worth

WITHOUT: dict[str, list[dict[str, Any]]] = {
    "qwen2-window-yarn": [
        {"sliding_window": None},
        {"sliding_layers": ()},
        {"rope": {"scaling": "none"}},
        {"rope": {"amplitude": 1.0}},
        {"rope": {"beta_slow": 2.0}},
    ],
    "qwen3": [{"qk_norm": "none"}],
    "mistral": [{"sliding_window": None}, {"sliding_window": 25}],
    "smollm3": [{"unrotated_layers": ()}, {"unrotated_layers": (True, False, False, True)}],
    "gemma2": [
        {"activation": "silu"},
        {"attention_scale": None},
        {"attention_softcap": None},
        {"attention_softcap": 50.0},
        {"embedding_scale": 1.0},
        {"logit_softcap": None},
        {"norm_offset": 0.0},
        {"post_norms": False},
        {"sliding_layers": ()},
        {"sliding_window": None},
        {"sliding_window": 25},
    ],
    "gemma3": [
        {"activation": "silu"},
        {"attention_scale": None},
        {"embedding_scale": 1.0},
        {"local_rope": None},
        {"norm_offset": 0.0},
        {"post_norms": False},
        {"qk_norm": "none"},
        {"rope": {"scaling": "none"}},
        {"sliding_layers": ()},
        {"sliding_window": None},
        {"norm_eps": 1e-1},
    ],
    "phi3-long": [
        {"rope": {"scaling": "none"}},
        {"rope": {"original_max_model_len": 128}},
        {"rope": {"amplitude": 1.0}},
    ],
    "phi3-short": [
        {"rope": {"scaling": "none"}},
        {"rope": {"original_max_model_len": 64}},
        {"rope": {"amplitude": 1.0}},
    ],
    "phi3-window": [{"sliding_window": None}],
    "olmo2": [{"qk_norm": "none"}, {"post_norms": False}],
    "olmo3": [
        {"local_rope": None},
        {"sliding_layers": ()},
        {"sliding_window": None},
        {"rope": {"beta_fast": 32.0}},
        {"rope": {"amplitude": 1.0}},
    ],
    "granite": [{"embedding_scale": 1.0}, {"attention_scale": None}, {"residual_scale": 1.0}, {"logit_scale": 1.0}],
    "stablelm": [{"norm": "rms"}, {"rope": {"dim": 16}}, {"norm_eps": 1e-1}],
    "qwen3moe": [{"experts_per_token": 2}, {"normalised_experts": False}, {"qk_norm": "none"}],
    "qwen3moe-sums": [{"normalised_experts": True}],
    "mixtral": [{"experts_per_token": 1}, {"sliding_window": None}, {"normalised_experts": False}],
    "qwen3moe-dense": [{"experts_per_token": 2}, {"normalised_experts": False}],
    "qwen2moe": [{"shared_expert_size": 0}, {"normalised_experts": True}],
    "gpt-oss": [
        {"attention_sinks": False},
        {"swiglu_limit": None},
        {"swiglu_limit": 8.0},
        {"swiglu_alpha": 1.0},
        {"sliding_window": None},
        {"sliding_layers": (False, True, False)},
        {"experts_per_token": 1},
        {"normalised_experts": False},
        {"rope": {"truncate": True}},
        {"rope": {"amplitude": 1.0}},
    ],
    "gpt2": [
        {"norm": "rms"},
        {"activation": "silu"},
        {"learned_positions": False},
        {"attention_scale": 1.0},
        {"norm_eps": 1e-1},
        {"unrotated_layers": ()},
    ],
    "gemma": [{"embedding_scale": 1.0}, {"norm_offset": 0.0}, {"activation": "silu"}],
    "olmoe": [{"qk_norm": "none"}, {"normalised_experts": True}, {"experts_per_token": 2}],
    "exaone4": [
        {"qk_norm": "none"},
        {"post_norms": False},
        {"sliding_layers": ()},
        {"sliding_window": None},
        {"unrotated_layers": ()},
    ],
    "arcee": [{"activation": "relu"}],
    "nemotron": [{"norm": "rms"}, {"norm_offset": 0.0}, {"activation": "relu"}, {"rope": {"dim": 32}}],
    "starcoder2": [{"norm": "rms"}, {"sliding_window": None}, {"activation": "relu"}],
    "gpt-bigcode": [{"attention_scale": 1.0}, {"learned_positions": False}, {"activation": "relu"}],
    "gpt-neo": [{"attention_scale": None}, {"sliding_layers": ()}, {"sliding_window": None}, {"activation": "relu"}],
    "gpt2-depth": [{"scale_by_depth": False}, {"activation": "relu"}],
    "stablelm-parallel": [{"qk_norm": "none"}, {"qk_norm": "zeroth"}],
    "dynamic": [{"rope": {"scaling": "none"}}, {"rope": {"factor": 1.5}}, {"rope": {"original_max_model_len": 33}}],
    "yarn": [{"rope": {"amplitude": 1.0}}, {"rope": {"factor": 4.0}}, {"rope": {"original_max_model_len": 64}}],
    "yarn-mscale": [{"rope": {"amplitude": 1.0}}, {"rope": {"truncate": True}}],
}


def changed(model: Model, change: dict[str, Any]) -> tuple[ModelConfig, dict[str, Floats]]:
    """A config that lacks something, and the weights that go with it."""
    config, weights = model.config, weights_of(model)
    if "rope" in change:
        return replace(config, rope=replace(config.rope, **change["rope"])), weights
    if change == {"qk_norm": "zeroth"}:  # all heads normalised with the weight of the first
        weights.update({name: weights[name.rpartition(".")[0] + ".0"] for name in weights if "_norm." in name})
        return config, weights
    return replace(config, **change), weights


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(
            name,
            change,
            id=f"{name}: {change}",
            marks=pytest.mark.long if name in LATEST and change != changes[0] else (),
        )
        for name, changes in WITHOUT.items()
        for change in changes
    ],
)
def test_every_feature_moves_the_logits(name: str, change: dict[str, Any], model_of: Callable[[str], Model]) -> None:
    config, weights = changed(model_of(name), change)
    assert np.abs(computed(config, weights, name) - expected(name)).max() > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("qwen2", "layers.1.q_bias"),
        ("qwen2", "layers.0.v_bias"),
        ("granite", "layers.1.o_bias"),
        ("stablelm", "layers.1.attn_norm_bias"),
        ("stablelm", "layers.0.mlp_norm_bias"),
        ("stablelm", "norm_bias"),
        ("stablelm", "layers.0.k_bias"),
        ("gpt2", "layers.0.attn_norm_bias"),
        ("gpt2", "layers.1.mlp_norm_bias"),
        ("gpt2", "layers.1.q_bias"),
        ("gpt2", "layers.0.v_bias"),
        ("gpt2", "layers.1.o_bias"),
        ("gpt2", "layers.0.up_bias"),
        ("gpt2", "layers.1.down_bias"),
        ("gpt-oss", "layers.1.q_bias"),
        ("gpt-oss", "layers.2.o_bias"),
        ("gpt-oss", "layers.1.router_bias"),
        *(("gpt-oss", f"layers.0.experts.{n}.{part}_bias") for n, part in enumerate(("gate", "up", "down"), 3)),
        ("gpt2", "norm_bias"),
        ("seed-oss", "layers.1.q_bias"),
        ("seed-oss", "layers.0.v_bias"),
        ("nemotron", "layers.0.mlp_norm_bias"),
        ("starcoder2", "layers.1.o_bias"),
        ("starcoder2", "layers.0.up_bias"),
        ("starcoder2", "layers.1.down_bias"),
        ("gpt-neo", "layers.0.o_bias"),
    ],
)
def test_every_bias_moves_the_logits(name: str, weight: str, model_of: Callable[[str], Model]) -> None:
    weights = weights_of(model_of(name))
    del weights[weight]
    moved = np.abs(computed(model_of(name).config, weights, name) - expected(name)).max()
    # A bias of keys adds the same to all scores of a query, but for the rotation between them.
    assert moved > 10 * TOLERANCE


def test_parallel_residual_moves_the_logits(model_of: Callable[[str], Model]) -> None:
    model = model_of("stablelm-parallel")
    weights = weights_of(model)
    for layer in range(model.config.num_layers):
        for part in ("", "_bias"):
            weights[f"layers.{layer}.mlp_norm{part}"] = weights[f"layers.{layer}.attn_norm{part}"]
    config = replace(model.config, parallel_residual=False)
    assert np.abs(computed(config, weights, "stablelm-parallel") - expected("stablelm-parallel")).max() > 10 * TOLERANCE


# ---------------------------------------------------------------- the executor


def loaded(model: Model, dtype: Dtype) -> Driver:
    """A driver over a fresh executor that serves as many tokens as the stored sequences have."""
    recorder = Recorder(4, VOCAB_SIZE)
    options = ExecutorOptions(
        max_num_seqs=4,
        max_model_len=NUM_TOKENS,
        dtype=dtype,
        kv_cache_memory_bytes=1 << 28,
        max_num_batched_tokens=NUM_TOKENS,
    )
    return Driver(OpenVINOExecutor.load(model, options, lambda *_: recorder), recorder, NUM_BLOCKS)


def run_executor(model: Model, name: str, dtype: Dtype) -> tuple[Floats, Floats, Floats]:
    """Logits of one sequence: of all positions from 23 on by decoding, of some by chunks, of the whole at once."""
    driver = loaded(model, dtype)
    tokens = tokens_of(name)
    decoded = run_decoding(driver, tokens, 23)
    chunked = []
    driver.join(1, tokens, 79)
    for count in (7, 26, 13, 1, 32):
        driver.step({1: count})
    chunked.append(driver.logits(1))
    driver.step(decodes=[1])
    chunked.append(driver.logits(1))
    driver.leave(1)
    driver.join(2, tokens, NUM_TOKENS)
    driver.step({2: NUM_TOKENS})
    whole = driver.logits(2)[None]
    driver.leave(2)
    return decoded, np.stack(chunked), whole


def check_executor(model: Model, name: str, dtype: Dtype, check: Callable[[Floats, Floats], None]) -> None:
    decoded, chunked, whole = run_executor(model, name, dtype)
    after = [i for i, position in enumerate(POSITIONS) if position >= 22]
    stored = expected(name)
    check(decoded[[POSITIONS[i] - 22 for i in after]], stored[after])
    check(chunked, stored[[POSITIONS.index(78), POSITIONS.index(79)]])
    check(whole, stored[[POSITIONS.index(79)]])


def close(logits: Floats, stored: Floats) -> None:
    assert np.abs(logits - stored).max() < TOLERANCE


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3-long", "stablelm-parallel", "gpt2", "qwen3moe", "gpt-oss"])
def test_float32(name: str, model_of: Callable[[str], Model]) -> None:
    check_executor(model_of(name), name, "float32", close)


@pytest.mark.parametrize("name", ["gemma3", "granite", "phi3-long"])
def test_every_operation_is_one_kernel(name: str, model_of: Callable[[str], Model]) -> None:
    """Weights stay compressed, and norms and rotations are recognised, whatever is multiplied in between."""
    config = model_of(name).config
    options = ExecutorOptions(max_num_seqs=4, max_model_len=NUM_TOKENS, dtype="int8", kv_cache_memory_bytes=1 << 24)
    program = Program(model_of(name), options)
    kernels = Counter[str]()
    for request in (program._body, program._head._request):
        nodes = request.get_compiled_model().get_runtime_model().get_ops()
        kernels.update(node.get_rt_info()["layerType"].value for node in nodes)
    assert kernels["FullyConnected"] == 5 * config.num_layers + 1
    assert kernels["RoPE"] == 2 * config.num_layers
    norms = 2 * (config.pre_norms + config.post_norms + (config.qk_norm != "none"))
    assert kernels["RMS"] == norms * config.num_layers + 1
    assert kernels["Convert"] <= 2  # positions, and numbers of the embedding


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize(("name", "num_products"), [("mixtral", 3), ("gpt-oss", 2)])
def test_only_routed_experts_are_computed(
    name: str, num_products: int, dtype: Dtype, model_of: Callable[[str], Model]
) -> None:
    """The plugin has replaced the products over all experts by ones that gather tokens."""
    options = ExecutorOptions(max_num_seqs=4, max_model_len=NUM_TOKENS, dtype=dtype, kv_cache_memory_bytes=1 << 24)
    program = Program(model_of(name), options)
    nodes = program._body.get_compiled_model().get_runtime_model().get_ops()
    kernels = Counter(node.get_rt_info()["layerType"].value for node in nodes)
    assert kernels["GatherMatmul"] == num_products * model_of(name).config.num_layers
    assert kernels["Tile"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "name", sorted(set(CONFIGS) - {"gemma2", "gemma3", "phi3-long", "stablelm-parallel", "gpt2", "qwen3moe", "gpt-oss"})
)
def test_float32_of_the_others(name: str, model_of: Callable[[str], Model]) -> None:
    check_executor(model_of(name), name, "float32", close)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.002), ("int8", 0.02)])
def test_rounded(name: str, dtype: Dtype, bound: float, model_of: Callable[[str], Model]) -> None:
    """Mean divergence from transformers' float32, over all positions that are decoded."""
    decoded, chunked, whole = run_executor(model_of(name), name, dtype)
    exact = forward(model_of(name), tokens_of(name), NUM_TOKENS)
    assert divergence(decoded, exact[22:]).mean() < bound
    assert divergence(np.concatenate((chunked, whole)), exact[[78, 79, 79]]).mean() < 3 * bound


@pytest.mark.long
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3-long", "smollm3", "stablelm-parallel", "granite"])
def test_neighbours_in_a_step(name: str, model_of: Callable[[str], Model]) -> None:
    """Three sequences of different lengths: decodes next to chunks, over blocks in any order."""
    driver = loaded(model_of(name), "float32")
    tokens, exact = tokens_of(name), forward(model_of(name), tokens_of(name), NUM_TOKENS)
    for slot, num_prompt in enumerate((3, 40, 71)):
        driver.join(slot, tokens, num_prompt)
    steps: list[tuple[dict[int, int], list[int]]] = [({0: 3, 1: 17}, []), ({1: 23, 2: 30}, [0]), ({2: 41}, [0, 1])]
    for chunks, decodes in (*steps, *[({}, [0, 1, 2])] * 8):
        driver.step(chunks, decodes)
        for slot in (*chunks, *decodes):
            if driver.num_known(slot) == driver.computed[slot] + 1:  # it sampled
                assert np.abs(driver.logits(slot) - exact[driver.computed[slot] - 1]).max() < TOLERANCE


def test_the_last_learned_position(tmp_path: Path) -> None:
    """A last prompt token alone in its chunk has a companion one position on, which the table does not have."""
    config = {**CONFIGS["gpt2"], "n_positions": NUM_TOKENS}
    tensors = tensors_of("gpt2")
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:NUM_TOKENS]
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", {key: encode(value, "F32") for key, value in tensors.items()})
    driver = loaded(open_model(resolve(str(tmp_path))), "float32")
    driver.join(0, tokens_of("gpt2"), NUM_TOKENS)
    driver.step({0: NUM_TOKENS - 1})
    driver.step({0: 1})
    close(driver.logits(0), expected("gpt2")[POSITIONS.index(79)])
