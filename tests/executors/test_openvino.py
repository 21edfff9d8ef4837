"""The OpenVINO executor against the NumPy oracle: however a sequence is cut into steps, and whoever is next to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.core.types import CacheShape, SamplingParams
from chairlift.executors.forward import ReferenceModel, empty_caches, forward, weights_of
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.choice import choose_weights
from chairlift.executors.openvino.evaluation import chunk_inputs
from chairlift.executors.openvino.graph import weight_kinds
from chairlift.executors.openvino.inputs import StepInputs
from chairlift.executors.openvino.options import Dtype, KVCacheDtype
from chairlift.executors.openvino.program import Program
from chairlift.executors.reference import ReferenceExecutor
from chairlift.models import Model, open_model, resolve, to_int4
from chairlift.sampling import Sampled
from executors.checkpoints import CONFIGS, NUM_TOKENS, VOCAB_SIZE, tokens_of, write_checkpoint
from executors.driving import BLOCK_SIZE, Driver, Recorder, divergence, run_decoding
from models.writers import tiny_llama

TOLERANCE = 1e-3
NUM_BLOCKS = 40
NUM_SLOTS = 8
MAX_STEP_TOKENS = 256
Floats = NDArray[np.float32]
Load = Callable[..., Driver]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    @cache
    def opened(name: str) -> Model:
        folder: Path = tmp_path_factory.mktemp("checkpoints")
        return open_model(resolve(str(write_checkpoint(name, folder / name))))

    return opened


@pytest.fixture(scope="module")
def exact(model_of: Callable[[str], Model]) -> Callable[[str], Floats]:
    """The oracle's logits after each token of a checkpoint's sequence."""

    @cache
    def computed(name: str) -> Floats:
        return forward(model_of(name), tokens_of(name))

    return computed


def executor_options(
    dtype: Dtype = "float32", kv_cache_dtype: KVCacheDtype = "auto", num_blocks: int = NUM_BLOCKS
) -> ExecutorOptions:
    return ExecutorOptions(
        max_num_seqs=NUM_SLOTS,
        max_model_len=num_blocks * BLOCK_SIZE // NUM_SLOTS,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_memory_bytes=1 << 30,
        max_num_batched_tokens=MAX_STEP_TOKENS,
    )


@pytest.fixture(scope="module")
def load(model_of: Callable[[str], Model]) -> Load:
    """A driver over a fresh executor, or over one that other tests of the module have left."""

    @cache
    def executor(name: str, dtype: Dtype, kv_cache_dtype: KVCacheDtype) -> tuple[OpenVINOExecutor, Recorder]:
        recorder = Recorder(NUM_SLOTS, VOCAB_SIZE)
        options = executor_options(dtype, kv_cache_dtype)
        return OpenVINOExecutor.load(model_of(name), options, lambda *_: recorder), recorder

    def driver(name: str, dtype: Dtype = "float32", kv_cache_dtype: KVCacheDtype = "auto", seed: int = 0) -> Driver:
        one, recorder = executor(name, dtype, kv_cache_dtype)
        assert one.cache_shape == CacheShape(NUM_BLOCKS, BLOCK_SIZE)
        return Driver(one, recorder, NUM_BLOCKS, seed)

    return driver


# ---------------------------------------------------------------- float32 against the oracle


@pytest.mark.parametrize("name", CONFIGS)
def test_whole_prompt_then_decodes(name: str, load: Load, exact: Callable[[str], Floats]) -> None:
    logits = run_decoding(load(name), tokens_of(name), 33)
    assert np.abs(logits - exact(name)[32:]).max() < TOLERANCE


@pytest.mark.parametrize("name", ["grouped", "window", "llama3"])
@pytest.mark.parametrize("size", [1, 7, 31, 32, 33])
def test_chunks(name: str, size: int, load: Load, exact: Callable[[str], Floats]) -> None:
    tokens = tokens_of(name)
    driver = load(name, seed=size)
    driver.join(3, tokens, 79)
    while driver.computed[3] < 79:
        driver.step({3: min(size, 79 - driver.computed[3])})
    assert np.abs(driver.logits(3) - exact(name)[78]).max() < TOLERANCE
    driver.step(decodes=[3])
    assert np.abs(driver.logits(3) - exact(name)[79]).max() < TOLERANCE
    driver.leave(3)


@pytest.mark.parametrize("name", ["grouped", "window"])
def test_mixed_steps(name: str, load: Load, exact: Callable[[str], Floats]) -> None:
    """Decodes next to chunks, joins next to leaves, over blocks that others have used."""
    tokens = tokens_of(name)
    driver = load(name, seed=1)
    rng = np.random.default_rng(5)
    num_checked = 0
    decoding: list[int] = []
    for _ in range(60):
        for slot in [s for s in decoding if driver.computed[s] == NUM_TOKENS - 1]:
            driver.leave(slot)
            decoding.remove(slot)
        for slot in range(5):
            if slot not in driver.tables and rng.random() < 0.4:
                driver.join(slot, tokens, int(rng.integers(2, 70)))
        chunks = {}
        ends = {}
        for slot in [s for s in driver.tables if s not in decoding]:
            lacking = driver.num_known(slot) - driver.computed[slot]
            chunks[slot] = int(rng.integers(1, lacking + 1))
            if chunks[slot] == lacking:
                ends[slot] = driver.num_known(slot)
        ends |= {slot: driver.computed[slot] + 1 for slot in decoding}
        if not chunks and not decoding:
            continue
        driver.step(chunks, decoding)
        for slot, end in ends.items():
            assert np.abs(driver.logits(slot) - exact(name)[end - 1]).max() < TOLERANCE
            num_checked += 1
        decoding += [slot for slot in ends if slot not in decoding]
    assert num_checked > 100


def test_prefix_hit(load: Load, exact: Callable[[str], Floats]) -> None:
    """A sequence that starts above zero, from blocks that another one computed."""
    tokens = tokens_of("grouped")
    driver = load("grouped")
    driver.join(0, tokens, 70)
    driver.step({0: 70})
    shared = driver.leave(0, keep=2)
    driver.join(1, tokens, 79, blocks=shared)
    driver.join(2, tokens, 65, blocks=shared)
    driver.step({1: 15, 2: 1})
    assert np.abs(driver.logits(1) - exact("grouped")[78]).max() < TOLERANCE
    assert np.abs(driver.logits(2) - exact("grouped")[64]).max() < TOLERANCE
    driver.leave(1)
    driver.leave(2)


def test_return_after_preemption(load: Load, exact: Callable[[str], Floats]) -> None:
    """All that was known, prompt and output, is computed again; then it decodes on."""
    tokens = tokens_of("llama3")
    driver = load("llama3")
    driver.join(0, tokens, 40)
    driver.step({0: 40})
    for _ in range(5):
        driver.step(decodes=[0])
    driver.leave(0)
    driver.join(0, tokens, 40, num_known=46)
    driver.step({0: 20})
    driver.step({0: 26})
    assert np.abs(driver.logits(0) - exact("llama3")[45]).max() < TOLERANCE
    driver.step(decodes=[0])
    assert np.abs(driver.logits(0) - exact("llama3")[46]).max() < TOLERANCE
    driver.leave(0)


def test_prompt_scores(load: Load, model_of: Callable[[str], Model]) -> None:
    """Token by token what the oracle says, over chunks, with a neighbour that decodes and one that is held."""
    tokens = tokens_of("tied")
    params = SamplingParams(temperature=0.0, prompt_logprobs=3)
    driver = load("tied")
    recorder = Recorder(NUM_SLOTS, VOCAB_SIZE)
    oracle = Driver(
        ReferenceExecutor(model_of("tied"), CacheShape(NUM_BLOCKS, BLOCK_SIZE), recorder), recorder, NUM_BLOCKS
    )
    for one in (driver, oracle):
        one.join(1, tokens, 5)
        one.join(2, tokens, 6)
        one.step({1: 5, 2: 6})
        one.join(0, tokens, 78, params=params)
    scores = []
    for one in (driver, oracle):
        steps = [one.step({0: count}, [1], fillers=[2], scores=True) for count in (9, 69)]
        scores.append([s for step in steps for s in step.prompt_logprobs[0]])
        for slot in range(3):
            one.leave(slot)
    got, wanted = scores
    assert [s.token for s in got] == tokens[1:78]
    assert [s.rank for s in got] == [s.rank for s in wanted]
    assert np.allclose([s.logprob for s in got], [s.logprob for s in wanted], atol=TOLERANCE)
    assert [[t for t, _ in s.top] for s in got] == [[t for t, _ in s.top] for s in wanted]


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_neighbours_change_nothing(dtype: Dtype, load: Load) -> None:
    """Bit for bit: the same row with other rows next to it, in the same bucket."""
    tokens = tokens_of("grouped")
    driver = load("grouped", dtype)
    seen: list[list[Floats]] = []
    for variant in range(3):
        rng = np.random.default_rng(variant)
        driver.join(0, tokens, 40)
        others = [rng.integers(3, VOCAB_SIZE, 80).tolist() for _ in range(7)]
        for slot, other in enumerate(others, 1):
            driver.join(slot, other, 10 + variant * slot)
        for slot in range(1, 8):
            driver.step({slot: 10 + variant * slot})
        driver.step({0: 40})
        rows = [driver.logits(0)]
        for _ in range(4):
            # 8 rows: the one that is looked at stands at another place each time
            order = (
                [0, *range(1, 8)] if variant == 0 else [*range(1, 8), 0] if variant == 1 else [3, 0, 1, 2, 4, 5, 6, 7]
            )
            driver.step(decodes=order)
            rows.append(driver.logits(0))
        for slot in range(8):
            driver.leave(slot)
        seen.append(rows)
    for rows in seen[1:]:
        for a, b in zip(seen[0], rows, strict=True):
            assert np.array_equal(a, b)


def test_padding_changes_nothing(load: Load) -> None:
    """9 rows are computed as 10, 10 as 10: the same bucket, so the same bits."""
    tokens = tokens_of("plain")
    driver = load("plain")
    driver.join(0, tokens, 9)
    driver.join(1, tokens, 30)
    driver.step({0: 9})
    padded = driver.logits(0)
    driver.leave(0)
    driver.join(0, tokens, 9)
    driver.step({0: 9, 1: 1})
    assert np.array_equal(driver.logits(0), padded)
    driver.leave(0)
    driver.leave(1)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_fillers_are_neighbours_like_others_and_change_nothing(dtype: Dtype, load: Load) -> None:
    """Bit for bit, next to rows that decode and next to rows that are held; also from a held row's blocks later on."""
    tokens = tokens_of("grouped")
    seen: list[list[Floats]] = []
    for held in (False, True):
        driver = load("grouped", dtype)
        for slot in range(8):
            driver.join(slot, tokens, 33 + slot)
            driver.step({slot: 33 + slot})
        rows = []
        for _ in range(12):
            driver.step(decodes=range(4) if held else range(8), fillers=range(4, 8) if held else ())
            rows += [driver.logits(slot) for slot in range(4)]
        shared = [driver.leave(slot, keep=1) for slot in range(2, 8)]
        driver.join(5, tokens, 40, blocks=shared[-1])
        driver.step({5: 8})
        rows.append(driver.logits(5))
        driver.step(decodes=[0, 1, 5])
        rows += [driver.logits(slot) for slot in (0, 1, 5)]
        for slot in (0, 1, 5):
            driver.leave(slot)
        seen.append(rows)
    for a, b in zip(*seen, strict=True):
        assert np.array_equal(a, b)


def test_fillers_are_no_worse_than_padding(load: Load) -> None:
    """9 tokens are computed as 10, and so are 9 with a filler: the same bits."""
    tokens = tokens_of("grouped")
    driver = load("grouped", "int8")
    driver.join(7, tokens, 33)
    driver.step({7: 33})
    seen = []
    for fillers in ([], [7]):
        driver.join(0, tokens, 9)
        driver.step({0: 9}, fillers=fillers)
        seen.append(driver.logits(0))
        driver.leave(0)
    assert np.array_equal(seen[0], seen[1])
    driver.leave(7)


def test_fillers_are_paid_for_and_not_sampled(
    model_of: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Body and head compute every row; the sampler sees two, and what a filler would draw next is as it was."""
    tokens = tokens_of("plain")
    recorder = Recorder(NUM_SLOTS, VOCAB_SIZE)
    program = Program(model_of("plain"), executor_options())
    driver = Driver(OpenVINOExecutor(program, recorder, executor_options()), recorder, NUM_BLOCKS)
    for slot in range(8):
        driver.join(slot, tokens, 20)
    driver.step(dict.fromkeys(range(8), 20))
    computed: list[tuple[str, int]] = []
    sampled: list[list[int]] = []
    start, logits, sample = program.start, program.logits, recorder.sample

    def counting_start(inputs: StepInputs) -> None:
        computed.append(("body", len(inputs.token_ids)))
        start(inputs)

    def counting_logits(hidden: Floats) -> Floats:
        computed.append(("head", len(hidden)))
        return logits(hidden)

    def counting_sample(slots: NDArray[np.int64], *rest: Any) -> Sampled:
        sampled.append(slots.tolist())
        return sample(slots, *rest)

    monkeypatch.setattr(program, "start", counting_start)
    monkeypatch.setattr(program, "logits", counting_logits)
    monkeypatch.setattr(recorder, "sample", counting_sample)
    drawn = recorder._num_output.copy()
    result = driver.step(decodes=[6, 1], fillers=[0, 2, 3, 4, 5, 7])
    assert computed == [("body", 8), ("head", 8)]
    assert sampled == [[6, 1]]
    assert result.tokens == [tokens[21], tokens[21]]
    assert (recorder._num_output - drawn).tolist() == [0, 1, 0, 0, 0, 0, 1, 0]


def test_a_broken_row_fails_alone(model_of: Callable[[str], Model], exact: Callable[[str], Floats]) -> None:
    """NaN in the cache of one sequence: its own step fails, its neighbours' numbers stay as they are."""
    tokens = tokens_of("grouped")
    recorder = Recorder(NUM_SLOTS, VOCAB_SIZE)
    program = Program(model_of("grouped"), executor_options())
    driver = Driver(OpenVINOExecutor(program, recorder, executor_options()), recorder, NUM_BLOCKS)
    for slot in range(3):
        driver.join(slot, tokens, 40)
    driver.step(dict.fromkeys(range(3), 40))
    program.cache["value_cache.1"].data[driver.tables[1][0] + 1] = np.nan
    result = driver.step(decodes=[0, 1, 2])
    assert set(result.errors) == {1}
    assert result.tokens == [tokens[41], -1, tokens[41]]
    for slot in (0, 2):
        assert np.abs(driver.logits(slot) - exact("grouped")[40]).max() < TOLERANCE


# ---------------------------------------------------------------- precisions


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "bound"),
    [
        ("float32", "u8", 0.01),
        ("bfloat16", "auto", 0.01),
        ("bfloat16", "u8", 0.02),
        ("int8", "auto", 0.03),
        ("int8", "u8", 0.03),
    ],
)
def test_precisions_stay_near_the_oracle(
    dtype: Dtype, kv_cache_dtype: KVCacheDtype, bound: float, load: Load, exact: Callable[[str], Floats]
) -> None:
    own = run_decoding(load("grouped", dtype, kv_cache_dtype), tokens_of("grouped"), 20)
    assert 0 < divergence(own, exact("grouped")[19:]).mean() < bound


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_odd_rows_are_not_rounded(dtype: Dtype, tmp_path: Path) -> None:
    """The plugin's products in eight bits are off by a fifth there, from five tokens on."""
    tiny = tiny_llama(1, intermediate_size=37)
    model = open_model(resolve(str(tiny.write_folder(tmp_path / "m"))))
    kinds = weight_kinds(model, dtype)
    assert kinds["layers.0.down"] == ("bfloat16", 0) and kinds["layers.0.up"][0] == dtype
    assert choose_weights(model, "auto").dtype == "int8"
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).astype(np.int32)
    program = Program(model, executor_options(dtype))
    program.start(chunk_inputs(tokens, 0, len(tokens)))
    logits = program.logits(program.hidden_states())
    bound = {"int8": 0.02, "int4": 0.5}[dtype]
    assert divergence(logits, forward(model, tokens.tolist())).mean() < bound


def test_int4_is_the_oracle_with_rounded_weights(load: Load, model_of: Callable[[str], Model]) -> None:
    """What is left is the rounding of activations; the rounding of these weights alone costs 0.8 nats."""
    model = model_of("grouped")
    weights = weights_of(model)
    for layer in range(model.config.num_layers):
        for part in ("q", "k", "v", "o", "gate", "up", "down"):
            name = f"layers.{layer}.{part}"
            weights[name] = to_int4(model.weights.tensor(name), group=32).to_float32()
    tokens = tokens_of("grouped")
    keys, values = empty_caches(model.config, len(tokens))
    exact = ReferenceModel(model.config, weights).forward(tokens, 0, keys, values)
    own = run_decoding(load("grouped", "int4"), tokens, 20)
    assert 0 < divergence(own, exact[19:]).mean() < 0.03


# ---------------------------------------------------------------- limits


def test_a_step_larger_than_any_that_was_prepared_is_refused(load: Load, exact: Callable[[str], Floats]) -> None:
    """The plugin laid out the weights anew for such a step, from memory that had been given back: zeros."""
    tokens = tokens_of("plain")
    driver = load("plain")
    slots = range(320 // 79 + 1)
    for slot in slots:
        driver.join(slot, tokens, 79)
    with pytest.raises(ValueError, match="at most 320 were prepared"):
        driver.step(dict.fromkeys(slots, 79))
    for slot in slots:
        driver.leave(slot)
    driver.join(0, tokens, 79)
    driver.step({0: 79})
    assert np.abs(driver.logits(0) - exact("plain")[78]).max() < TOLERANCE
    driver.leave(0)


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype"), [("float32", "bfloat16"), ("int8", "float32"), ("bfloat16", "float32")]
)
def test_impossible_precisions_are_refused(
    dtype: Dtype, kv_cache_dtype: KVCacheDtype, model_of: Callable[[str], Model]
) -> None:
    with pytest.raises(InvalidOption, match="key/value cache is not possible"):
        OpenVINOExecutor.load(model_of("plain"), executor_options(dtype, kv_cache_dtype))


def test_a_budget_too_small_for_every_sequence_is_refused(model_of: Callable[[str], Model]) -> None:
    options = ExecutorOptions(max_num_seqs=8, max_model_len=100, max_num_batched_tokens=7)
    with pytest.raises(InvalidOption, match="less than max_num_seqs"):
        OpenVINOExecutor.load(model_of("plain"), options)


def test_budget_and_rates_are_measured(model_of: Callable[[str], Model]) -> None:
    options = ExecutorOptions(
        max_num_seqs=8, max_model_len=100, dtype="float32", kv_cache_memory_bytes=1 << 26, num_threads=1
    )
    executor = OpenVINOExecutor.load(model_of("plain"), options)
    assert executor.max_num_batched_tokens >= 8
    assert 0 < executor.step_rates.step_s(executor.max_num_batched_tokens) < 1
    assert executor.cache_shape.num_blocks == 8 * 4
