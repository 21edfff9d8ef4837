"""The oracle against Hugging Face transformers, whose logits are stored: see `make_fixtures.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.types import CacheShape, SamplingParams
from chairlift.executors.forward import ReferenceModel, empty_caches, forward, weights_of
from chairlift.executors.reference import ReferenceExecutor
from chairlift.models import Model, ModelConfig, open_model, resolve
from executors.checkpoints import CONFIGS, FIXTURES, VOCAB_SIZE, tokens_of, write_checkpoint
from executors.driving import BLOCK_SIZE, Driver, Recorder

TOLERANCE = 1e-4
Floats = NDArray[np.float32]


def open_checkpoint(name: str, folder: Path) -> Model:
    return open_model(resolve(str(write_checkpoint(name, folder / name))))


def expected(name: str) -> Floats:
    with np.load(FIXTURES) as stored:
        logits: Floats = stored[name]
    return logits


def computed(config: ModelConfig, weights: dict[str, Floats], token_ids: list[int]) -> Floats:
    keys, values = empty_caches(config, len(token_ids))
    return ReferenceModel(config, weights).forward(token_ids, 0, keys, values)


@pytest.mark.parametrize("name", CONFIGS)
def test_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    logits = forward(open_checkpoint(name, tmp_path), tokens_of(name))
    assert np.abs(logits - expected(name)).max() < TOLERANCE
    assert logits.std() > 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain", {"rope": {"theta": 1e30}}),
        ("llama3", {"rope": {"scaling": "none"}}),
        ("linear", {"rope": {"scaling": "none"}}),
        ("window", {"sliding_window": None}),
        ("window", {"sliding_window": 23}),
        ("plain", {"norm_eps": 1e-1}),
    ],
    ids=["rope", "llama3 scaling", "linear scaling", "window", "window by one", "epsilon"],
)
def test_every_feature_moves_the_logits(name: str, change: dict[str, object], tmp_path: Path) -> None:
    model = open_checkpoint(name, tmp_path)
    if isinstance(change.get("rope"), dict):
        change = {"rope": replace(model.config.rope, **change["rope"])}  # type: ignore[arg-type]
    config = replace(model.config, **change)  # type: ignore[arg-type]
    logits = computed(config, weights_of(model), tokens_of(name))
    assert np.abs(logits - expected(name)).max() > 10 * TOLERANCE


@pytest.mark.parametrize("kind", ["k", "v"])
def test_query_heads_read_their_own_group(kind: str, tmp_path: Path) -> None:
    """Exchange the two key/value heads: every query head then reads another one."""
    model = open_checkpoint("grouped", tmp_path)
    weights = weights_of(model)
    weights[f"layers.1.{kind}"] = np.roll(weights[f"layers.1.{kind}"], model.config.head_size, axis=0)
    logits = computed(model.config, weights, tokens_of("grouped"))
    assert np.abs(logits - expected("grouped")).max() > 10 * TOLERANCE


@pytest.mark.parametrize("bias", ["q", "v", "o", "gate", "up", "down"])
def test_every_bias_moves_the_logits(bias: str, tmp_path: Path) -> None:
    model = open_checkpoint("biased", tmp_path)
    weights = weights_of(model)
    del weights[f"layers.0.{bias}_bias"]
    logits = computed(model.config, weights, tokens_of("biased"))
    assert np.abs(logits - expected("biased")).max() > 10 * TOLERANCE


def drive(name: str, tmp_path: Path, num_blocks: int = 12) -> Driver:
    recorder = Recorder(4, VOCAB_SIZE)
    executor = ReferenceExecutor(open_checkpoint(name, tmp_path), CacheShape(num_blocks, BLOCK_SIZE), recorder)
    return Driver(executor, recorder, num_blocks)


def test_executor_chunks_and_decodes_over_scattered_blocks(tmp_path: Path) -> None:
    tokens = tokens_of("window")
    driver = drive("window", tmp_path)
    driver.join(2, tokens, 70)
    assert driver.step({2: 37}).tokens == []
    assert driver.step({2: 33}).tokens == [tokens[70]]
    for position in range(70, 79):
        assert np.abs(driver.logits(2) - expected("window")[position - 1]).max() < TOLERANCE
        assert driver.step(decodes=[2]).tokens == [tokens[position + 1]]


def test_executor_starts_from_blocks_of_another_sequence(tmp_path: Path) -> None:
    tokens = tokens_of("grouped")
    driver = drive("grouped", tmp_path)
    driver.join(0, tokens, 70)
    driver.step({0: 70})
    shared = driver.leave(0, keep=2)
    driver.join(0, tokens, 75, blocks=shared)
    driver.step({0: 11})
    assert np.abs(driver.logits(0) - expected("grouped")[74]).max() < TOLERANCE


def test_executor_scores_the_prompt(tmp_path: Path) -> None:
    tokens = tokens_of("tied")
    driver = drive("tied", tmp_path)
    driver.join(0, tokens, 50, params=SamplingParams(temperature=0.0, prompt_logprobs=2))
    scores = [s for count in (20, 30) for s in driver.step({0: count}, scores=True).prompt_logprobs[0]]
    logits = expected("tied")[:49].astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [s.token for s in scores] == tokens[1:50]
    assert np.allclose([s.logprob for s in scores], wanted[np.arange(49), tokens[1:50]], atol=1e-3)
    assert all(len(s.top) == 2 for s in scores)


def test_executor_holds_fillers_in_place(tmp_path: Path) -> None:
    """They give nothing, and neither what others compute nor what they would go on with changes."""
    tokens = tokens_of("grouped")
    driver = drive("grouped", tmp_path)
    for slot in (0, 1):
        driver.join(slot, tokens, 40)
    driver.step({0: 40, 1: 40})
    for position in range(40, 44):
        assert driver.step(decodes=[1], fillers=[0]).tokens == [tokens[position + 1]]
        assert np.abs(driver.logits(1) - expected("grouped")[position]).max() < TOLERANCE
    assert driver.step(decodes=[0, 1]).tokens == [tokens[41], tokens[45]]
    assert np.abs(driver.logits(0) - expected("grouped")[40]).max() < TOLERANCE
