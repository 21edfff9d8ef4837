"""Greedy answers of the whole engine: the same tokens whatever the batch, the chunks, the cache and the preemptions."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams
from chairlift.executors.forward import ReferenceModel, empty_caches, weights_of
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.models import Model, open_model, resolve
from executors.checkpoints import VOCAB_SIZE, write_checkpoint
from executors.families import write_checkpoint as write_family

NUM_OUTPUT = 40
NUM_REQUESTS = 24


@pytest.fixture(scope="module", params=["grouped", pytest.param("gemma2", marks=pytest.mark.long)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Attention of the plugin, or of ordinary operations."""
    folder: Path = tmp_path_factory.mktemp("checkpoints") / request.param
    write = write_family if request.param == "gemma2" else write_checkpoint
    return open_model(resolve(str(write(request.param, folder))))


@cache
def prompts() -> list[list[int]]:
    """Of every length up to 90; every third begins like the first, for longer than a block."""
    rng = np.random.default_rng(0)
    common = [int(t) for t in rng.integers(3, VOCAB_SIZE, 70)]
    cut = [[int(t) for t in rng.integers(3, VOCAB_SIZE, int(rng.integers(1, 90)))] for _ in range(NUM_REQUESTS)]
    return [common[:66] + prompt[:9] if i % 3 == 0 else prompt for i, prompt in enumerate(cut)]


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    """The oracle's answers, one sequence after the other."""
    oracle = ReferenceModel(model.config, weights_of(model))
    answers = []
    for prompt in prompts():
        keys, values = empty_caches(model.config, len(prompt) + NUM_OUTPUT)
        answer: list[int] = []
        new, start = prompt, 0
        while len(answer) < NUM_OUTPUT:
            logits = oracle.forward(new, start, keys, values)
            start += len(new)
            new = [int(logits[-1].argmax())]
            answer += new
        answers.append(answer)
    return answers


@pytest.mark.parametrize(
    ("max_num_seqs", "budget", "num_blocks", "caching"),
    [
        (1, 64, 40, False),
        (1, 64, 40, True),
        (24, 64, 200, True),
        (24, 24, 200, False),
        (8, 9, 60, True),
        (12, 50, 16, True),
        (12, 50, 16, False),
    ],
    ids=["alone", "alone, cached", "all at once", "small chunks", "tiny chunks", "preempted, cached", "preempted"],
)
def test_greedy_answers(
    max_num_seqs: int, budget: int, num_blocks: int, caching: bool, model: Model, expected: list[list[int]]
) -> None:
    options = ExecutorOptions(
        max_num_seqs=max_num_seqs,
        max_model_len=160,
        dtype="float32",
        kv_cache_memory_bytes=1 << 30,
        max_num_batched_tokens=budget,
    )
    executor = OpenVINOExecutor.load(model, options)
    shape = CacheShape(min(num_blocks, executor.cache_shape.num_blocks), executor.cache_shape.block_size)
    scheduler = Scheduler(
        Limits(max_num_seqs, budget, 160), shape, vocab_size=VOCAB_SIZE, enable_prefix_caching=caching
    )
    engine = Engine(scheduler, executor)
    for i, prompt in enumerate(prompts()):
        engine.add(Request(i, prompt, SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True)))
    answers: list[list[int]] = [[] for _ in prompts()]
    preemptions = 0
    while engine.begin(0.0):
        engine.wait()
        output = engine.finish(0.0)
        for (request, _), token in zip(output.keys, output.tokens, strict=True):
            answers[request].append(token)
        assert not [finish.error for finish in output.finishes if finish.error]
        preemptions += sum(finish.num_preemptions for finish in output.finishes)
    assert answers == expected
    assert (preemptions > 0) == (num_blocks == 16)
