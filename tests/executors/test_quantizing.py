"""Folders that `chairlift quantize` writes: the same weights to the bit, whole or not at all, and distrusted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.executors.loading import LoadedBytes
from chairlift.executors.openvino import quantizing
from chairlift.executors.openvino.choice import WeightChoice, choose_weights, rounding_error
from chairlift.executors.openvino.graph import EMBEDDING_GROUP, head_dtype, pack_layers
from chairlift.executors.openvino.options import AskedDtype, Dtype
from chairlift.executors.openvino.quantizing import quantize_model
from chairlift.executors.openvino.weights import Arena, Packed, pack
from chairlift.models import Int4Groups, Int8Groups, Model, open_model, resolve, to_float32
from chairlift.models.prepared import MARK, METADATA, WEIGHTS
from chairlift.models.summary import summarize
from chairlift.text import load_text
from models.writers import tiny_llama
from text.vocabularies import byte_level_backend, with_beginning, write_tokenizer

WIDENED = "float32, the values of the int8 that it was written in"
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "int8", "int4")


def opened(path: Path) -> Model:
    return open_model(resolve(str(path)))


def made(folder: Path, kind: str, **config: Any) -> Path:
    """A tiny model as a folder with a tokenizer, or as a GGUF file in one of its types."""
    tiny = tiny_llama(vocab_size=512, **config)
    if kind != "folder":
        return tiny.write_gguf(folder / f"{kind}.gguf", kind)
    path = tiny.write_folder(folder / "tiny", "BF16")
    write_tokenizer(path, with_beginning(byte_level_backend(), "<s>"), {"bos_token": "<s>", "eos_token": "</s>"})
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": 7}))
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    (path / "pytorch_model.bin").write_bytes(b"never copied")
    return path


def arrays(packed: Packed | Int4Groups) -> list[np.ndarray[Any, Any]]:
    match packed:
        case Int4Groups(values, scales, offsets):
            return [values, scales] if offsets is None else [values, scales, offsets]
        case Int8Groups(values, scales):
            return [values, scales]
        case list():
            return [array for part in packed for array in arrays(part)]
        case np.ndarray():
            return [packed]
        case _:
            return [packed.bits]


def packed_bytes(model: Model, weights: WeightChoice) -> list[bytes]:
    """Everything that a graph would share, in order."""
    arena = Arena()
    arenas = [arena] * model.config.num_layers
    layers = pack_layers(model, weights.dtype, arenas, arena, LoadedBytes(1 << 40, None), weights.wide)
    kind = "bfloat16" if "head" in weights.wide else head_dtype(weights.dtype)
    head = pack([model.weights.tensor("head")], kind, weights.head_group, arena)
    table = pack([model.weights.tensor("embed")], head_dtype(weights.dtype), EMBEDDING_GROUP, arena)
    found = [array for packed in (*(layers[name] for name in sorted(layers)), head, table) for array in arrays(packed)]
    vectors = [name for name in model.weights.names if model.weights.tensor(name).rows == 1]
    found += [to_float32(model.weights.tensor(name)) for name in vectors]
    return [array.tobytes() for array in found]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("folder", {"attention_bias": True}),
        ("folder", {"tied": True}),
        ("Q4_1", {"tied": True}),
        ("Q4_0", {}),
        ("Q8_0", {"tied": True}),
        ("Q4_K", {"hidden_size": 256, "intermediate_size": 256, "head_size": 64}),
        ("IQ4_XS", {"hidden_size": 256, "intermediate_size": 256, "head_size": 64}),
    ],
    ids=str,
)
def test_weights_are_the_same_to_the_bit(kind: str, config: dict[str, Any], dtype: Dtype, tmp_path: Path) -> None:
    model = opened(made(tmp_path, kind, **config))
    weights = choose_weights(model, dtype)
    quantize_model(model, weights, tmp_path / "out")
    again = opened(tmp_path / "out")
    chosen = choose_weights(again, None)
    assert (chosen.dtype, chosen.wide, chosen.head_group) == (weights.dtype, weights.wide, weights.head_group)
    assert packed_bytes(again, chosen) == packed_bytes(model, weights)
    assert replace(again.config, sampling_defaults={}) == replace(model.config, sampling_defaults={})


@pytest.mark.parametrize("asked", ["int8", "auto"])
def test_wide_weights_and_groups_of_the_head_are_remembered(asked: AskedDtype, tmp_path: Path) -> None:
    model = opened(made(tmp_path, "folder", tied=True))
    weights = replace(choose_weights(model, asked), wide=frozenset(("layers.0.down", "layers.1.o")))
    quantize_model(model, weights, tmp_path / "out")
    again = opened(tmp_path / "out")
    chosen = choose_weights(again, None)
    assert chosen.wide == weights.wide and chosen.head_group == {"int8": 64, "auto": 32}[asked]
    assert chosen.input_group == {"int8": None, "auto": 32}[asked]
    assert choose_weights(again, "float32") == WeightChoice("float32", reason=WIDENED)
    with pytest.raises(InvalidOption, match="was written in int8 by chairlift quantize, and int4 would round it a"):
        choose_weights(again, "int4")
    assert packed_bytes(again, chosen) == packed_bytes(model, weights)
    assert ("head" in again.weights.names) == (asked == "int8")  # in auto it has the groups of the embeddings


def test_what_belongs_to_a_model_goes_along(tmp_path: Path) -> None:
    path = made(tmp_path, "folder")
    quantize_model(opened(path), WeightChoice("int4"), tmp_path / "out")
    assert {item.name for item in (tmp_path / "out").iterdir()} == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "additional_chat_templates", MARK, WEIGHTS,
    }  # fmt: skip
    text, own = load_text(opened(tmp_path / "out")), load_text(opened(path))
    assert text.tokenizer.encode("the dog") == own.tokenizer.encode("the dog")
    assert text.sampling_defaults == {"temperature": 0.5} and text.eos_token_ids == own.eos_token_ids
    assert text.chat_template is not None
    summary = summarize(resolve(str(tmp_path / "out")))
    assert summary.problem is None and summary.architecture == "LlamaForCausalLM"


def test_a_gguf_files_tokenizer_goes_along(tmp_path: Path) -> None:
    model = opened(made(tmp_path, "Q4_1", tied=True))
    files = replace(model.files, sampling_defaults={"temperature": 0.2})
    quantize_model(replace(model, files=files), WeightChoice("int8"), tmp_path / "out")
    assert {item.name for item in (tmp_path / "out").iterdir()} == {MARK, WEIGHTS, METADATA}
    for source in (opened(tmp_path / "out"), resolve(str(tmp_path / "out"))):
        text = load_text(source)
        assert text.tokenizer.vocab_size == 512 and text.sampling_defaults["temperature"] == 0.2
    assert opened(tmp_path / "out").config.sampling_defaults == {"temperature": 0.2}
    assert summarize(resolve(str(tmp_path / "out"))).architecture == "llama"


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(made(tmp_path, "Q4_1"))
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidOption, match="out is there already"):
        quantize_model(model, WeightChoice("int8"), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(InvalidOption, match="missing is no folder"):
        quantize_model(model, WeightChoice("int8"), tmp_path / "missing" / "out")

    def fails(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantizing, "metadata_bytes", fails)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidOption, match="new could not be written: No space left on device"):
        quantize_model(model, WeightChoice("int8"), tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


def test_it_is_not_made_of_what_it_made(tmp_path: Path) -> None:
    quantize_model(opened(made(tmp_path, "Q4_1")), WeightChoice("int8"), tmp_path / "out")
    with pytest.raises(InvalidModel, match="take the model that it was made of"):
        quantize_model(opened(tmp_path / "out"), WeightChoice("int4"), tmp_path / "twice")


def test_a_folder_that_does_not_hang_together_is_refused(tmp_path: Path) -> None:
    quantize_model(opened(made(tmp_path, "Q4_1", tied=True)), WeightChoice("int4"), tmp_path / "out")
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    for change, message in (
        ({"format": 2}, "not valid"),
        ({"dtype": "int3"}, "not valid"),
        ({"head_group": 7}, "not valid"),
        ({"more": 1}, "not valid"),
        ({"matrices": mark["matrices"] | {"blk.0.attn_q.bias": [2, 64]}}, "tensor layers.0.q_bias is missing"),
        ({"matrices": mark["matrices"] | {"blk.0.attn_norm.weight": [4, 4]}}, "is there twice"),
        ({"matrices": mark["matrices"] | {"rope_freqs.weight": [1, 16]}}, "not valid"),
        ({"matrices": mark["matrices"] | {"rope_freqs.weight": [2, 8]}}, "rope_freqs"),
    ):
        (tmp_path / "out" / MARK).write_text(json.dumps(mark | change))
        with pytest.raises(InvalidModel, match=message):
            opened(tmp_path / "out")
    (tmp_path / "out" / MARK).write_text(json.dumps(mark))
    weights = (tmp_path / "out" / WEIGHTS).read_bytes()
    for old, new, message in (
        (b'"layers.0.q":', b'"layers.0.Q":', "layers.0.q is missing"),
        (b'"layers.0.q.scale":', b'"layers.0.q.scole":', "unexpected|no scales|missing"),
        (b'"layers.0.q.offset":', b'"layers.0.q.offsat":', "unexpected|no scales|missing"),
        (b'"norm":', b'"narm":', "missing"),
    ):
        assert old in weights
        (tmp_path / "out" / WEIGHTS).write_bytes(weights.replace(old, new))
        with pytest.raises(InvalidModel, match=message):
            opened(tmp_path / "out")


@pytest.mark.parametrize(
    ("written", "change", "message"),
    [
        ("int8", {"dtype": "int4"}, "int4 in groups of 32 for layers.0.q, which is stored as I8 in groups of 64"),
        ("int4", {"dtype": "int8"}, "int8 in groups of 64 for layers.0.q, which is stored as pack-quantized int4"),
        ("int8", {"dtype": "bfloat16"}, "bfloat16 for embed, which is stored as I8 in groups of 32"),
        ("float32", {"dtype": "bfloat16"}, "bfloat16 for embed, which is stored as F32"),
        ("int8", {"wide_weights": ["layers.0.down"]}, "bfloat16 for layers.0.down, which is stored as I8"),
        ("int8", {"wide_weights": ["layers.9.down"]}, "wide_weights names layers.9.down, which the model has not"),
        ("int8", {"head_group": 32}, "int8 in groups of 32 for head"),
    ],
)
def test_a_mark_that_is_not_what_weights_are_in_is_refused(
    written: Dtype, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    quantize_model(opened(made(tmp_path, "folder")), WeightChoice(written), tmp_path / "out")
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    (tmp_path / "out" / MARK).write_text(json.dumps(mark | change))
    with pytest.raises(InvalidModel, match=f"{MARK}: .*{message}"):
        choose_weights(opened(tmp_path / "out"), None)


# ---------------------------------------------------------------- auto


def test_auto_keeps_wide_what_rounding_hurts(tmp_path: Path) -> None:
    tiny = tiny_llama()
    harsh = tiny.weights["model.layers.1.mlp.down_proj.weight"]
    harsh[:, ::16] *= 64  # large numbers in each group leave few steps for the others
    model = opened(tiny.write_folder(tmp_path / "harsh"))
    chosen = choose_weights(model, "auto")
    assert chosen.dtype == "int8" and chosen.head_group == 32 and chosen.wide == {"layers.1.down"}
    assert "1 of 11 products in bfloat16" in chosen.reason and "most layers.1.down" in chosen.reason
    weight = model.weights.tensor("layers.1.up")
    assert 0.004 < rounding_error(weight) < 0.01 < 0.016 < rounding_error(model.weights.tensor("layers.1.down"))
    assert choose_weights(model, "int8") == choose_weights(model, None) == WeightChoice("int8")


def test_what_the_file_holds_in_the_same_groups_is_not_rounded(tmp_path: Path) -> None:
    quantize_model(opened(made(tmp_path, "Q4_1")), WeightChoice("int8"), tmp_path / "out")
    model = opened(tmp_path / "out")
    assert rounding_error(model.weights.tensor("layers.0.q")) == 0
