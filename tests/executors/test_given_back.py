"""What is not in memory twice: weights after the plugin laid them out, and the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor, program
from chairlift.executors.openvino.choice import choose_weights
from chairlift.executors.openvino.embeddings import Embeddings
from chairlift.executors.openvino.evaluation import chunk_inputs
from chairlift.executors.openvino.graph import weight_kinds
from chairlift.executors.openvino.inputs import uniform_inputs
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.program import Program
from chairlift.executors.openvino.quantizing import quantize_model
from chairlift.executors.openvino.weights import Arena, BFloat16, gives_back_early, pack
from chairlift.models import Encoding, Int8Groups, Model, Tensor, open_model, resolve, to_float32
from chairlift.models.quantize import rows_at
from chairlift.models.tensor import Scaling
from chairlift.sampling import Sampler
from executors.checkpoints import write_checkpoint
from executors.families import write_checkpoint as write_family

OPTIONS = ExecutorOptions(max_num_seqs=4, max_model_len=256, kv_cache_memory_bytes=1 << 20, max_num_batched_tokens=64)


def model_of(name: str, folder: Path) -> Model:
    write = write_checkpoint if name in ("grouped", "plain") else write_family
    return open_model(resolve(str(write(name, folder / name))))


def loaded(model: Model, dtype: Dtype) -> Program:
    """A program as an executor makes it ready."""
    options = ExecutorOptions(
        max_num_seqs=4, max_model_len=256, kv_cache_memory_bytes=1 << 20, max_num_batched_tokens=64, dtype=dtype
    )
    made = Program(model, options)
    OpenVINOExecutor(made, Sampler(4, model.config.vocab_size), options)
    return made


def results(program: Program, model: Model) -> list[NDArray[np.float32]]:
    """States of prompts and of decodes, and logits, at many sizes."""
    tokens = np.random.default_rng(5).integers(0, model.config.vocab_size, 65).astype(np.int32)
    seen = []
    for size in (1, 2, 3, 5, 8, 17, 33, 64):
        program.start(chunk_inputs(tokens[:size], 0, size))
        hidden = program.hidden_states().copy()
        seen += [hidden, program.logits(hidden).copy()]
        program.start(chunk_inputs(tokens, size, 1))
        seen.append(program.hidden_states().copy())
        program.start(uniform_inputs(size, 0, program.cache_shape))
        seen.append(program.hidden_states().copy())
    return seen


def test_reading_what_was_given_back_is_seen() -> None:
    arena = Arena()
    first, second = arena.empty((3, 5000), np.int8), arena.empty((100,), np.float32)
    first[:], second[:] = 1, 1
    arena.release()
    if not gives_back_early("int8"):
        pytest.skip("this system does not say which pages are there")
    assert not arena.was_read()
    assert second.sum() == 0
    assert arena.was_read()
    arena.release()
    assert not arena.was_read()
    assert first[2, 4999] == 0
    assert arena.was_read()


@pytest.mark.parametrize(
    ("name", "dtype"), [("grouped", "int8"), ("grouped", "int4"), ("qwen3moe", "bfloat16"), ("gpt-oss", "int4")]
)
def test_weights_given_back_early_are_not_missed(
    name: str, dtype: Dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(name, tmp_path)
    early = loaded(model, dtype)
    monkeypatch.setattr(program, "gives_back_early", lambda dtype: False)
    late = Program(
        model, ExecutorOptions(max_num_seqs=4, max_model_len=256, kv_cache_memory_bytes=1 << 20, dtype=dtype)
    )
    for own, other in zip(results(early, model), results(late, model), strict=True):
        assert np.array_equal(own, other)
    if gives_back_early(dtype):
        assert not any(packed.was_read() for packed in (*early._packed, early._packed_experts))


def test_weights_are_packed_again_where_a_size_misses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the plugin lays weights out for one token and again for several."""
    model = model_of("grouped", tmp_path)
    compiled: list[str] = []

    class Core(ov.Core):  # type: ignore[misc]
        def compile_model(self, graph: ov.Model, *rest: Any) -> ov.CompiledModel:
            compiled.append(graph.get_friendly_name())
            return super().compile_model(graph, *rest)

    monkeypatch.setattr(ov, "Core", Core)
    plain = results(loaded(model, "int8"), model)
    assert [name for name in compiled if name != "self_test"] == ["head", "body"]
    monkeypatch.setattr(Arena, "was_read", lambda arena: True)
    monkeypatch.setattr(program, "gives_back_early", lambda dtype: True)
    again = results(loaded(model, "int8"), model)
    assert [name for name in compiled if name != "self_test"] == ["head", "body", "head", "head", "body", "body"]
    for own, other in zip(again, plain, strict=True):
        assert np.array_equal(own, other)


# ---------------------------------------------------------------- the embedding


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("prepared", [False, True])
def test_embeddings_are_those_of_a_table_that_was_rounded_as_a_whole(
    kind: Dtype, prepared: bool, tmp_path: Path
) -> None:
    model = model_of("grouped", tmp_path)
    if prepared:
        quantize_model(model, choose_weights(model, kind), tmp_path / "out")
        model = open_model(resolve(str(tmp_path / "out")))
    match pack([model.weights.tensor("embed")], *weight_kinds(model, kind)["embed"], Arena()):
        case np.ndarray() as table:
            pass
        case BFloat16(bits):
            table = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case Int8Groups() as groups:
            table = groups.to_float32()
    tokens = np.array([3, 0, 3, 11, len(table) - 1], np.int32)
    rows = Embeddings(model, ExecutorOptions(max_num_seqs=1, max_model_len=64, dtype=kind)).rows(tokens)
    assert np.array_equal(rows, table[tokens])


@pytest.mark.parametrize("encoding", [Encoding.F32, Encoding.F16, Encoding.BF16, Encoding.Q8_0, Encoding.Q4_K])
def test_rows_are_read_in_any_order(encoding: Encoding) -> None:
    num_bytes = 7 * 512 // encoding.unit * encoding.unit_bytes
    tensor = Tensor("t", (7, 512), encoding, np.random.default_rng(1).integers(0, 60, num_bytes, np.uint8).data)
    rows = np.array([6, 0, 0, 5], np.int32)
    assert np.array_equal(to_float32(rows_at(tensor, rows)), to_float32(tensor)[rows])
    if encoding is Encoding.F16:
        lying = Tensor("t", (512, 7), encoding, tensor.raw).transposed()
        assert np.array_equal(to_float32(rows_at(lying, rows)), to_float32(lying)[rows])


@pytest.mark.parametrize("encoding", [Encoding.I8, Encoding.F8_E4M3])
@pytest.mark.parametrize("block", [(1, 64), (1, 128), (4, 64)])
def test_rows_are_read_with_their_scales(encoding: Encoding, block: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 100, 8 * 128, np.uint8)
    stored = (-(-8 // block[0]), 128 // block[1])
    scales = Tensor("s", stored, Encoding.F32, rng.random(stored, np.float32).reshape(-1).view(np.uint8).data)
    tensor = Tensor("t", (6, 128), encoding, raw.data, scaling=Scaling(scales, block, 8, first_row=2))
    rows = np.array([5, 0, 3], np.int32)
    assert np.array_equal(to_float32(rows_at(tensor, rows)), to_float32(tensor)[rows])
