"""What a model takes, known before it is loaded; and what is said where it does not fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from chairlift.core.errors import InvalidOption
from chairlift.executors.bandwidth import measure_bandwidth
from chairlift.executors.loading import LoadedBytes
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor, memory
from chairlift.executors.openvino.attention import BLOCK_SIZE
from chairlift.executors.openvino.graph import build_head, pack_layers
from chairlift.executors.openvino.memory import cache_kind, check_encoder_memory, check_memory, memory_need, token_bytes
from chairlift.executors.openvino.options import Dtype, KVCacheDtype
from chairlift.executors.openvino.pace import expected_tokens_per_s
from chairlift.executors.openvino.program import Program
from chairlift.executors.openvino.weights import Arena
from chairlift.models import DEFAULT_MODEL, Encoding, Model, Tensor, open_model, resolve, to_int4, to_int8
from chairlift.models.encoder import open_encoder
from chairlift.models.grids import BLOCK_SHAPES
from chairlift.models.quantize import int4_bytes, int8_bytes
from chairlift.models.resolve import EMBEDDING_MODEL
from executors.checkpoints import write_checkpoint
from executors.families import write_checkpoint as write_family

OPTIONS = ExecutorOptions(max_num_seqs=4, max_model_len=256, kv_cache_memory_bytes=1 << 20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(resolve(str(write_checkpoint("grouped", tmp_path_factory.mktemp("made") / "tiny"))))


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return open_model(resolve(DEFAULT_MODEL))


@pytest.mark.parametrize("encoding", [Encoding.F16, *BLOCK_SHAPES], ids=lambda encoding: encoding.label)
def test_packed_weights_take_what_was_said(encoding: Encoding) -> None:
    raw = memoryview(bytes(4 * 512 // encoding.unit * encoding.unit_bytes))
    tensor = Tensor("t", (4, 512), encoding, raw)
    for group in (32, 64):
        eight, four = to_int8(tensor, group=group), to_int4(tensor, group=group)
        offsets = 0 if four.offsets is None else four.offsets.nbytes
        assert int8_bytes(tensor, group) == eight.values.nbytes + eight.scales.nbytes
        assert int4_bytes(tensor, group) == four.values.nbytes + four.scales.nbytes + offsets


@pytest.mark.parametrize("kind", ["float32", "u8"])
def test_a_token_in_the_cache_takes_what_was_said(tiny: Model, kind: KVCacheDtype) -> None:
    options = replace(OPTIONS, dtype="float32", kv_cache_dtype=kind)
    program = Program(tiny, options)
    block_bytes = sum(tensor.byte_size / (program.cache_shape.num_blocks + 1) for tensor in program.cache.values())
    assert block_bytes == BLOCK_SIZE * token_bytes(tiny.config, cache_kind(ov.Core(), options, tiny.config))


def test_figures_of_a_real_model(smollm2: Model) -> None:
    """Measured once: what the process took while it loaded and afterwards, in MiB, without 31 for imports; and 39 for
    the tokenizer and the tables for answers in a form."""
    measured = {"float32": (1210, 772), "bfloat16": (363, 347), "int8": (254, 237), "int4": (264, 247)}
    for dtype, figures in measured.items():
        need = memory_need(smollm2, dtype, "bf16")  # type: ignore[arg-type]
        for expected, figure in zip((need.loading_bytes, need.running_bytes), figures, strict=True):
            assert 0.95 < expected / ((figure + 39) << 20) < 1.05, (dtype, expected >> 20, figure)
    assert token_bytes(smollm2.config, "bf16") == 23_040


def test_many_layers_take_more_than_their_weights(smollm2: Model) -> None:
    """Measured once, with 120 layers of 256: 42 (bfloat16) to 109 MiB (int4) beyond weights and what 30 take."""
    few, many = (memory._overhead_bytes(replace(smollm2.config, num_layers=count)) for count in (30, 120))
    assert 80 << 20 < many - few < 110 << 20


def test_text_takes_memory_by_the_size_of_the_vocabulary(smollm2: Model) -> None:
    """Measured once, with SmolLM2 and Gemma 3: what an engine takes more than its executor alone, in MB."""
    for vocab_size, measured_mb in ((49_152, 41.2), (262_144, 244.0)):
        sized = replace(smollm2, config=replace(smollm2.config, vocab_size=vocab_size))
        assert 0.9 < memory_need(sized, "int8", "bf16").text_bytes / (measured_mb * 1e6) < 1.1


@pytest.mark.long
def test_a_process_takes_what_was_said(smollm2: Model) -> None:
    """In a process of its own: what is counted is what only it has, less what it could give back."""
    code = """
import ctypes, gc, pathlib, re, openvino
from chairlift.models import open_model, resolve
from chairlift.worker.build import load
from chairlift.worker.options import EngineOptions
def taken():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"Private_Dirty: *([0-9]+)", text)[1])
before = taken()
options = dict(max_num_seqs=64, max_num_batched_tokens=256, max_model_len=64, kv_cache_memory_bytes=4 << 20)
loaded = load(EngineOptions(model="smollm2-135m-instruct", dtype="int8", **options))
print(taken() - before)
loaded.grammars.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.9 < memory_need(smollm2, "int8", "bf16").running_bytes / int(done.stdout) < 1.1


def test_weights_that_stay_wide_are_counted_so(smollm2: Model) -> None:
    """Of q, k and v, which are multiplied as one, the first one's name counts."""
    plain = memory_need(smollm2, "int8", "bf16")
    for name, num_numbers in (("head", 49152 * 576), ("layers.0.q", (576 + 2 * 192) * 576), ("layers.0.k", 0)):
        need = memory_need(smollm2, "int8", "bf16", {name})
        assert need.weight_bytes - plain.weight_bytes == num_numbers * 2 - num_numbers * 66 // 64


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["gpt2", "qwen3moe"])
def test_weights_take_what_was_said(name: str, dtype: Dtype, tmp_path: Path) -> None:
    """Learned positions and routers too, which are computed in float32."""
    model = open_model(resolve(str(write_family(name, tmp_path / name))))
    head, experts, layers = Arena(), Arena(), [Arena() for _ in range(model.config.num_layers)]
    products = pack_layers(model, dtype, layers, experts, LoadedBytes(1, None))
    build_head(model, dtype, 32, head)
    apart = {"embed", "head", *(part for parts in products for part in parts)}
    others = [model.weights.tensor(one) for one in model.weights.names if one not in apart]
    assert {"gpt2": "positions", "qwen3moe": "layers.0.router"}[name] in {tensor.name for tensor in others}
    # The embedding stays in the file.
    num_bytes = sum(packed.num_bytes for packed in (head, experts, *layers))
    num_bytes += sum(4 * tensor.rows * tensor.cols for tensor in others)
    assert memory_need(model, dtype, "bf16", head_group=32).weight_bytes == num_bytes


def test_what_does_not_fit_is_refused_with_what_would(smollm2: Model) -> None:
    options = replace(OPTIONS, dtype="float32", kv_cache_memory_bytes=None)
    check_memory(smollm2, options, "f32", 4 << 30)
    with pytest.raises(InvalidOption) as error:
        check_memory(smollm2, options, "f32", 800_000_000)
    line = str(error.value)
    assert "with float32 weights it takes 1.3 GB while it loads and 874 MB then" in line and "800 MB are free" in line
    assert "bfloat16 would (431 MB); int8 would (301 MB); int4 would (308 MB)" in line
    with pytest.raises(InvalidOption, match=r"no precision does, int8 takes 301 MB"):
        check_memory(smollm2, options, "f32", 100_000_000)
    check_memory(smollm2, options, "f32", 0)  # nobody says what is free


def test_a_cache_that_does_not_fit_is_refused_with_one_that_would(smollm2: Model) -> None:
    options = replace(OPTIONS, dtype="int8", kv_cache_memory_bytes=10**9)
    with pytest.raises(InvalidOption, match=r"1\.0 GB of cache aside, and 1\.0 GB are free: a cache of 716 MB would"):
        check_memory(smollm2, options, "bf16", 10**9)


def test_a_context_that_the_cache_cannot_hold_is_refused(smollm2: Model) -> None:
    options = replace(OPTIONS, max_model_len=2048, whole_context=True, kv_cache_memory_bytes=23_040 * 1024)
    with pytest.raises(InvalidOption, match=r"2048, which takes 48\.7 MB of cache .* 23\.6 MB: 992 tokens would fit"):
        check_memory(smollm2, options, "bf16", 10**9)
    check_memory(smollm2, replace(options, whole_context=False), "bf16", 10**9)
    check_memory(smollm2, replace(options, kv_cache_memory_bytes=23_040 * 2112), "bf16", 10**9)


def test_an_engine_asks_before_it_loads(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(InvalidOption, match="does not fit"):
        OpenVINOExecutor.load(tiny, OPTIONS)


def test_an_encoder_that_does_not_fit_is_refused() -> None:
    encoder = open_encoder(resolve(EMBEDDING_MODEL))
    check_encoder_memory(encoder, "float32", 10**9)
    with pytest.raises(InvalidOption, match="with float32 weights it takes 306 MB while it loads, and 300 MB are free"):
        check_encoder_memory(encoder, "float32", 300_000_000)


def test_the_pace_to_expect_is_near_what_was_measured(smollm2: Model) -> None:
    """In milliseconds for a token after 128 and 1024, on two cores that read 31 GB/s."""
    measured = {"float32": (22.7, 24.1), "bfloat16": (17.4, 19.3), "int8": (8.7, 10.7), "int4": (12.3, 15.1)}
    for dtype, (short_ms, long_ms) in measured.items():
        need = memory_need(smollm2, dtype, "f32" if dtype == "float32" else "bf16")  # type: ignore[arg-type]
        for context, measured_ms in ((128, short_ms), (1024, long_ms)):
            rate = expected_tokens_per_s(need, 30, context, 31e9)
            assert 0.85 < rate * measured_ms / 1e3 < 1.15, (dtype, context, 1e3 / rate)
            assert expected_tokens_per_s(need, 30, 8192, 31e9) < rate < expected_tokens_per_s(need, 30, context, 62e9)


def test_memory_is_read_at_some_speed() -> None:
    assert 1e8 < measure_bandwidth(1) < 1e13
    assert np.isfinite(measure_bandwidth(1))
