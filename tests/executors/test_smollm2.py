"""The embedded model: float32 near the oracle, the default near float32, and little difference between cuts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.types import SamplingParams
from chairlift.executors.forward import forward
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.options import Dtype
from chairlift.models import DEFAULT_MODEL, Model, open_model, resolve
from chairlift.text import load_text
from executors.answers import prompts, stored_answers
from executors.driving import Driver, Recorder, divergence, run_decoding

NUM_BLOCKS = 8
TEXT = (
    "A ski lift never stops: people step on and off at every pass, and nobody waits for the slowest of a group to "
    "reach the top. The inventor had watched the queue at the old funicular, which left only when it was full."
)
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model(resolve(DEFAULT_MODEL))


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return load_text(resolve(DEFAULT_MODEL)).tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def exact(model: Model, tokens: list[int]) -> Floats:
    return forward(model, tokens)


@pytest.fixture(scope="module")
def load(model: Model) -> Callable[[Dtype], Driver]:
    @cache
    def executor(dtype: Dtype) -> Driver:
        recorder = Recorder(2, model.config.vocab_size)
        # Every size of step up to this is run first.
        budget = {"float32": 64, "int8": 40, "int4": 8}[dtype]
        options = ExecutorOptions(max_num_seqs=2, max_model_len=128, dtype=dtype, max_num_batched_tokens=budget)
        return Driver(OpenVINOExecutor.load(model, options, lambda *_: recorder), recorder, NUM_BLOCKS)

    return executor


def test_float32_is_the_oracle(load: Callable[[Dtype], Driver], tokens: list[int], exact: Floats) -> None:
    own = run_decoding(load("float32"), tokens, 30)
    assert np.abs(own - exact[29:]).max() < 1e-3
    assert exact.std() > 2


def test_float32_answers_as_the_oracle(load: Callable[[Dtype], Driver]) -> None:
    """Each token of ten answers is the likeliest one after those before it."""
    driver, params = load("float32"), SamplingParams(temperature=0.0, prompt_logprobs=0)
    text = load_text(resolve(DEFAULT_MODEL))
    for prompt, answer in zip(prompts(text), stored_answers(DEFAULT_MODEL), strict=True):
        tokens = prompt + answer
        driver.join(0, tokens, len(tokens), params=params)
        scores = driver.step({0: len(tokens)}, scores=True).prompt_logprobs[0]
        driver.leave(0)
        assert [score.rank for score in scores[-len(answer) :]] == [1] * len(answer)


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.03), ("int4", 0.03)])
def test_default_is_near_float32(
    dtype: Dtype, bound: float, load: Callable[[Dtype], Driver], tokens: list[int], exact: Floats
) -> None:
    """Its file's four-bit weights are exact in int4, and in int8 nearly so."""
    own = run_decoding(load(dtype), tokens, 8)
    assert 0 < divergence(own, exact[7:]).mean() < bound


@pytest.mark.parametrize("size", [3, 7, 33, None])
def test_default_depends_little_on_how_a_prompt_is_cut(
    size: int | None, load: Callable[[Dtype], Driver], tokens: list[int]
) -> None:
    """Mean divergence of chunked prompts from whole ones, at most 0.001 nats; None leaves the last token for itself.

    A single token was once computed in another way than several: 0.007 nats.
    """
    driver = load("int8")
    rows = []
    for is_cut in (True, False):
        for count in range(20, 40, 2):
            chunk = (size or count - 1) if is_cut else count
            driver.join(1, tokens, count)
            while driver.computed[1] < count:
                driver.step({1: min(chunk, count - driver.computed[1])})
            rows.append(driver.logits(1))
            driver.leave(1)
    cut, whole = np.split(np.stack(rows), 2)
    assert divergence(cut, whole).mean() <= 1e-3


def test_default_depends_little_on_who_decodes_beside(load: Callable[[Dtype], Driver], tokens: list[int]) -> None:
    """The same for a sequence that decodes alone, next to another, and next to a chunk."""
    driver = load("int8")
    rows = []
    for company in ("nobody", "a decode", "a chunk"):
        driver.join(0, tokens, 20)
        driver.step({0: 20})
        if company == "a decode":
            driver.join(1, tokens[5:], 10)
            driver.step({1: 10})
        for _ in range(10):
            if company == "a chunk":
                driver.join(1, tokens[5:], 12)
                driver.step({1: 12}, [0])
                driver.leave(1)
            else:
                driver.step(decodes=[0] if company == "nobody" else [0, 1])
            rows.append(driver.logits(0))
        driver.leave(0)
        if company == "a decode":
            driver.leave(1)
    alone, *others = np.split(np.stack(rows), 3)
    for other in others:
        assert divergence(other, alone).mean() <= 1e-3
