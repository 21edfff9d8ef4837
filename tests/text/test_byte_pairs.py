"""`vocab.json` and `merges.txt`: read as the same vocabulary in a `tokenizer.json` or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, pre_tokenizers

from chairlift.core.errors import InvalidModel
from chairlift.models import ModelFiles
from chairlift.text import Tokenizer, load_text
from text.hard_texts import HARD_TEXTS
from text.vocabularies import byte_level_backend, byte_level_metadata, gguf_of, with_beginning, write_tokenizer

END = "<|endoftext|>"
SPECIALS = (END, "<|im_start|>", "<|im_end|>")
PLAIN = "<tool_call>"
MODEL = json.loads(byte_level_backend(()).to_str())["model"]
NUM_PIECES = len(MODEL["vocab"])


def loaded(folder: Path) -> Tokenizer:
    return load_text(ModelFiles("a", folder, "folder")).tokenizer


def write(folder: Path, vocab: dict[str, Any] | None = None, merges: str | None = None, **files: Any) -> Tokenizer:
    """The tokenizer of a folder with both files and further ones by name."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(MODEL["vocab"] if vocab is None else vocab))
    lines = "\n".join(["#version: 0.2", *map(" ".join, MODEL["merges"]), ""])
    (folder / "merges.txt").write_text(lines if merges is None else merges)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return loaded(folder)


def described(**changes: Any) -> dict[str, Any]:
    """A tokenizer_config.json that says what each added token is."""
    flags = {"special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    tokens = [flags | {"content": text} for text in SPECIALS] + [flags | {"content": PLAIN, "special": False}]
    decoder = {str(NUM_PIECES + index): token for index, token in enumerate(tokens)}
    return {"added_tokens_decoder": decoder, "tokenizer_class": "GPT2Tokenizer", **changes}


def assert_alike(tokenizer: Tokenizer, other: Tokenizer) -> None:
    for text in (*HARD_TEXTS, f"a{END} b<|im_end|>  <|im_start|>x{PLAIN} y"):
        for allow_special in (False, True):
            ids = tokenizer.encode(text, allow_special=allow_special)
            assert ids == other.encode(text, allow_special=allow_special), text
            assert tokenizer.decode(ids, skip_special_tokens=False) == other.decode(ids, skip_special_tokens=False)
    assert tokenizer.vocab_size == other.vocab_size
    assert tokenizer.special_token_ids == other.special_token_ids


@pytest.mark.parametrize(
    ("tokenizer_class", "adds_space", "adds_bos"),
    [("GPT2Tokenizer", False, False), ("GPT2TokenizerFast", True, False), ("CodeGenTokenizer", False, True)],
)
def test_as_a_tokenizer_json(tmp_path: Path, tokenizer_class: str, adds_space: bool, adds_bos: bool) -> None:
    config = described(tokenizer_class=tokenizer_class, add_prefix_space=adds_space, add_bos_token=adds_bos)
    backend = byte_level_backend(SPECIALS)
    backend.add_tokens([AddedToken(PLAIN, normalized=False)])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    other = with_beginning(backend, END) if adds_bos else backend
    names = {"bos_token": END, "eos_token": END}
    write_tokenizer(tmp_path / "other", other, names)
    tokenizer = write(tmp_path / "a", tokenizer_config__json=config)
    assert_alike(tokenizer, loaded(tmp_path / "other"))
    assert tokenizer.bos_token_id == NUM_PIECES and tokenizer.eos_token_ids == (NUM_PIECES,)


def test_qwen2_as_a_gguf_file(tmp_path: Path) -> None:
    config = described(tokenizer_class="Qwen2Tokenizer", eos_token="<|im_end|>")
    backend = byte_level_backend(SPECIALS)
    backend.add_tokens([AddedToken(PLAIN, normalized=False)])
    metadata = byte_level_metadata(backend, pre="qwen2")
    metadata["tokenizer.ggml.token_type"][NUM_PIECES + len(SPECIALS)] = 4  # user-defined
    path = gguf_of(tmp_path / "a.gguf", metadata)
    tokenizer = write(tmp_path / "a", tokenizer_config__json=config)
    assert_alike(tokenizer, load_text(ModelFiles("a", path, "gguf")).tokenizer)
    assert tokenizer.bos_token_id is None and tokenizer.eos_token_ids == (NUM_PIECES + 2,)


def test_older_folders_name_added_tokens_alone(tmp_path: Path) -> None:
    """Those that are named by their use, too, are special."""
    added = {text: NUM_PIECES + index for index, text in enumerate((*SPECIALS, PLAIN))}
    others = {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    old = write(
        tmp_path / "old",
        config__json={"model_type": "qwen2"},
        added_tokens__json=added,
        special_tokens_map__json=others,
    )
    new = write(tmp_path / "new", tokenizer_config__json=described(tokenizer_class="Qwen2TokenizerFast"))
    assert_alike(old, new)
    assert old.eos_token_ids == (NUM_PIECES,)


def test_the_first_folders_of_gpt2_name_nothing(tmp_path: Path) -> None:
    vocab = MODEL["vocab"] | {END: NUM_PIECES}
    tokenizer = write(tmp_path, vocab, config__json={"model_type": "gpt2"})
    assert tokenizer.special_token_ids == {NUM_PIECES}
    assert tokenizer.bos_token_id == NUM_PIECES and tokenizer.eos_token_ids == (NUM_PIECES,)
    assert tokenizer.encode("the dog") == byte_level_backend().encode("the dog").ids


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"config__json": {"model_type": "roberta"}}, "is not known"),
        ({"tokenizer_config__json": {"tokenizer_class": "RobertaTokenizer"}}, "RobertaTokenizer"),
        ({"vocab": {"a": 0, "b": 2}}, "leave gaps"),
        ({"vocab": {"a": 0, "b": 0}}, "leave gaps"),
        ({"vocab": {"a": "0"}}, "vocab.json"),
        ({"vocab": {}}, "cannot be built"),
        ({"merges": "a b c\n"}, "is no pair"),
        ({"merges": "ab\n"}, "is no pair"),
        ({"merges": "a \u6f22\n"}, "cannot be built"),
        ({"added_tokens__json": {"<a>": NUM_PIECES + 1}}, "leave gaps"),
        ({"added_tokens__json": {"a": NUM_PIECES}}, "leave gaps"),
        ({"added_tokens__json": {"<a>": "x"}}, "added_tokens.json"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"x": {"content": "<a>"}}}}, "malformed"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"500": 5}}}, "malformed"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, files: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidModel, match=reason):
        write(tmp_path, **{"config__json": {"model_type": "gpt2"}, **files})


def test_a_file_of_the_two_is_none(tmp_path: Path) -> None:
    write(tmp_path, config__json={"model_type": "gpt2"})
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InvalidModel, match=r"no vocab\.json with merges\.txt"):
        loaded(tmp_path)
