"""Encoders against transformers and sentence-transformers, whose vectors are in a fixture."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.core.types import NO_SAMPLING, Chunk, Join, PoolingParams, Request, StepPlan
from chairlift.executors.openvino.encoder import GROUP_TOKENS, EncoderExecutor, grouped, padded_length
from chairlift.executors.openvino.options import Dtype, EncoderOptions
from chairlift.executors.pooling import activated
from chairlift.models.encoder import Encoder, open_encoder
from chairlift.models.resolve import EMBEDDING_MODEL, ModelFiles, resolve
from chairlift.text.passages import load_passages
from executors.encoders import CONFIGS, FIXTURES, TEXTS, sequences, write_encoder

Floats = NDArray[np.float32]
ITEMS = range(7)


def expected(name: str) -> Floats:
    with np.load(FIXTURES) as stored:
        vector: Floats = stored[name]
        return vector


def open_tiny(name: str, folder: Path, **changes: object) -> Encoder:
    return open_encoder(ModelFiles(name, write_encoder(name, folder / name, **changes), "folder"))


def executor_of(encoder: Encoder, dtype: Dtype = "float32", **options: int) -> EncoderExecutor:
    most = encoder.config.max_model_len
    return EncoderExecutor(encoder, EncoderOptions(max_num_seqs=64, max_model_len=most, dtype=dtype, **options))


def plan_of(items: list[tuple[list[int], PoolingParams]]) -> StepPlan:
    joins = [
        Join(slot, Request(slot, ids, NO_SAMPLING, pooling=pooling), 0, list(ids))
        for slot, (ids, pooling) in enumerate(items)
    ]
    return StepPlan(0, joins=joins, chunks=[Chunk(join.slot, 0, len(join.tokens), False, pools=True) for join in joins])


def vectors_of(executor: EncoderExecutor, items: list[tuple[list[int], PoolingParams]]) -> list[Floats]:
    result = executor.submit(plan_of(items)).result()
    assert not result.errors and not result.tokens
    return [np.frombuffer(result.vectors[slot], "<f4") for slot in range(len(items))]


@cache
def minilm(dtype: Dtype) -> list[Floats]:
    """Vectors of the fixture's texts, computed together."""
    files = resolve(EMBEDDING_MODEL)
    encoder, passages = open_encoder(files), load_passages(files)
    items = [(passages.encode(text, encoder.config.max_model_len).tokens, PoolingParams()) for text in TEXTS]
    return vectors_of(executor_of(encoder, dtype), items)


def test_vectors_are_those_of_sentence_transformers() -> None:
    for text, got, wanted in zip(TEXTS, minilm("float32"), expected("minilm"), strict=True):
        assert np.abs(got - wanted).max() <= 1e-5, text[:40]


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 0.9995), ("int8", 0.998)])
def test_cheaper_precisions_stay_near(dtype: Dtype, least: float) -> None:
    cosines = [float(got @ wanted) for got, wanted in zip(minilm(dtype), expected("minilm"), strict=True)]
    assert least <= min(cosines) < 1


def test_odd_rows_are_not_rounded(tmp_path: Path) -> None:
    """The plugin's products in eight bits would be off by a fifth there, which makes vectors twice as far off."""
    encoder = open_tiny("bert", tmp_path, intermediate_size=37)
    items = [(ids, PoolingParams()) for ids, _ in sequences("bert")]
    exact, own = (vectors_of(executor_of(encoder, dtype), items) for dtype in ("float32", "int8"))
    errors = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(own, exact, strict=True)]
    assert np.mean(errors) < 0.022


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_states_are_pooled_as_the_folder_says(name: str, pooling: str, tmp_path: Path) -> None:
    folder = write_encoder(name, tmp_path / name)
    names = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    kinds = ("Transformer", "Pooling")
    modules = [f'{{"type": "sentence_transformers.models.{k}", "path": "{i or ""}"}}' for i, k in enumerate(kinds)]
    (folder / "modules.json").write_text(f"[{', '.join(modules)}]")
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(f'{{"pooling_mode_{names[pooling]}": true}}')
    encoder = open_encoder(ModelFiles(name, folder, "folder"))
    got = vectors_of(executor_of(encoder), [(ids, PoolingParams()) for ids, _ in sequences(name)])
    for i in ITEMS:
        states = expected(f"{name}.{i}")
        wanted = {"cls": states[0], "mean": states.mean(axis=0), "last": states[-1]}[pooling]
        assert np.abs(got[i] - wanted).max() <= 2e-5 * max(1, np.abs(wanted).max()), (i, pooling)


@pytest.mark.parametrize("name", ["bert_pair", "roberta_labels"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    encoder = open_tiny(name, tmp_path)
    executor = executor_of(encoder)
    for activate in (False, True):
        items = [
            (ids, PoolingParams("classify", activate=activate, num_first=num_first))
            for ids, num_first in sequences(name)
        ]
        for i, got in enumerate(vectors_of(executor, items)):
            logits = expected(f"{name}.{i}")
            wanted = activated(logits, encoder.config.label_activation) if activate else logits
            assert np.abs(got - wanted).max() <= 2e-5 * max(1, np.abs(wanted).max()), (i, activate)


def test_the_second_text_of_a_pair_counts_as_one(tmp_path: Path) -> None:
    """A fixture that came out the same without types would prove nothing."""
    executor = executor_of(open_tiny("bert_pair", tmp_path))
    ids, num_first = sequences("bert_pair")[-1]
    items = [(ids, PoolingParams("classify", activate=False, num_first=n)) for n in (0, num_first)]
    one, two = vectors_of(executor, items)
    assert np.abs(one - two).max() > 1e-2


def test_neighbours_change_nothing(tmp_path: Path) -> None:
    """Whoever else is in the batch, and however long they are."""
    executor = executor_of(open_tiny("bert", tmp_path))
    items = [(ids, PoolingParams()) for ids, _ in sequences("bert")]
    together = vectors_of(executor, items)
    for item, vector in zip(items, together, strict=True):
        assert np.abs(vectors_of(executor, [item])[0] - vector).max() <= 1e-6
    assert [v.tobytes() for v in vectors_of(executor, items[::-1])[::-1]] == [v.tobytes() for v in together]


def test_dimensions_and_length(tmp_path: Path) -> None:
    executor = executor_of(open_tiny("bert", tmp_path))
    ids = sequences("bert")[4][0]
    whole, raw, short = vectors_of(
        executor,
        [
            (ids, PoolingParams()),
            (ids, PoolingParams(normalize=False)),
            (ids, PoolingParams(dimensions=8)),
        ],
    )
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-6)
    assert np.allclose(raw / np.linalg.norm(raw), whole, atol=1e-6)
    assert len(short) == 8 and np.allclose(short, raw[:8] / np.linalg.norm(raw[:8]), atol=1e-6)


def test_one_text_that_the_device_cannot_compute_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group fails as a whole, and is computed text by text then; a hundred times, and the executor goes on."""
    executor = executor_of(open_tiny("bert", tmp_path))
    good = [(ids, PoolingParams()) for ids, _ in sequences("bert")]
    alone = vectors_of(executor, good)
    started: list[list[Join]] = []
    start, outputs = executor._start, executor._outputs

    def start_noted(group: list[Join]) -> None:
        started.append(group)
        start(group)

    def outputs_unless_bad() -> Floats:
        found = outputs()
        if any(join.tokens[0] == 1 for join in started[-1]):
            raise RuntimeError("the device failed")
        return found

    monkeypatch.setattr(executor, "_start", start_noted)
    monkeypatch.setattr(executor, "_outputs", outputs_unless_bad)
    for _ in range(100):
        result = executor.submit(plan_of([*good[:3], ([1, 5, 6], PoolingParams()), *good[3:]])).result()
        assert list(result.errors) == [3] and sorted(result.vectors) == [0, 1, 2, 4, 5, 6, 7]
    for slot, vector in zip([0, 1, 2, 4, 5, 6, 7], alone, strict=True):
        assert np.abs(np.frombuffer(result.vectors[slot], "<f4") - vector).max() <= 1e-6


def test_numbers_that_are_not_finite_are_an_error_of_their_text(tmp_path: Path) -> None:
    encoder = open_tiny("bert", tmp_path)
    table = encoder.weights.tensor("embed")
    numbers = np.frombuffer(table.raw, "<f4").reshape(table.shape).copy()
    numbers[7] = np.nan
    path = encoder.files.path / "model.safetensors"
    data = bytearray(path.read_bytes())
    at = data.index(bytes(table.raw))
    data[at : at + numbers.nbytes] = numbers.tobytes()
    path.write_bytes(data)
    executor = executor_of(open_encoder(encoder.files))
    result = executor.submit(plan_of([([3, 4], PoolingParams()), ([7, 4], PoolingParams())])).result()
    assert list(result.vectors) == [0] and "not finite" in result.errors[1]


def test_a_budget_below_the_longest_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot hold a text of 48"):
        executor_of(open_tiny("bert", tmp_path), max_num_batched_tokens=47)


def test_groups_are_of_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 200).tolist()
    joins = plan_of([([3] * length, PoolingParams()) for length in lengths]).joins
    groups = grouped(joins)
    assert sorted(join.slot for group in groups for join in group) == list(range(200))
    longest = [max(len(join.tokens) for join in group) for group in groups]
    assert longest == sorted(longest)
    for group, length in zip(groups, longest, strict=True):
        assert len(group) == 1 or len(group) * padded_length(length) <= GROUP_TOKENS
    num_padded = sum(len(group) * padded_length(length) for group, length in zip(groups, longest, strict=True))
    assert num_padded < 1.15 * sum(lengths)


def test_every_kind_of_checkpoint_is_in_the_fixture() -> None:
    with np.load(FIXTURES) as stored:
        assert {name.partition(".")[0] for name in stored.files} == {*CONFIGS, "minilm"}
