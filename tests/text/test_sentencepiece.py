"""SentencePiece vocabularies against SentencePiece itself, from its own file and from GGUF."""

from __future__ import annotations

import base64
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models import open_gguf
from chairlift.text.charsmap import MAX_REPLACED_CHARS, Replacements
from chairlift.text.gguf_tokenizer import gguf_tokenizer
from chairlift.text.sentencepiece import SPACE, SentencePiece, TokenType
from chairlift.text.sentencepiece_model import read_sentencepiece, sentencepiece_tokenizer
from text.hard_texts import HARD_TEXTS
from text.vocabularies import gguf_of, kept, model_file

NAMES = ("llama", "gemma", "t5", "unigram_bytes", "own_bpe", "own_unigram")
TEXT = "The quick brown  fox, 12 of them.\n"


def metadata_of(model: SentencePiece) -> dict[str, Any]:
    """What a converter writes of a model: user-defined pieces with plain spaces, the table as bytes."""
    user = TokenType.USER_DEFINED
    keys: dict[str, Any] = {
        "model": "t5" if model.kind == "unigram" else "llama",
        "tokens": [
            piece.replace(SPACE, " ") if kind == user else piece
            for piece, kind in zip(model.pieces, model.types, strict=True)
        ],
        "token_type": np.array(model.types, np.int32),
        "scores": np.array(model.scores, np.float32),
        "add_space_prefix": model.adds_space,
        "remove_extra_whitespaces": model.removes_spaces,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    if model.replacements is not None:
        keys["precompiled_charsmap"] = np.frombuffer(model.replacements.charsmap, np.uint8)
    return {"tokenizer.ggml." + key: value for key, value in keys.items()}


@pytest.mark.parametrize("name", NAMES)
def test_both_files_cut_as_sentencepiece_does(tmp_path: Path, name: str) -> None:
    """Where pieces repeat a thousand times there are many best ways to cut, and rounding decides between them.

    A user-defined piece with a space is never cut; in GGUF it looks like one with SentencePiece's own mark.
    """
    path = model_file(tmp_path, name)
    model = read_sentencepiece(path)
    written = gguf_of(tmp_path / "a.gguf", metadata_of(model))
    for tokenizer in (sentencepiece_tokenizer(path, {}), gguf_tokenizer(open_gguf(written))):
        for text, ids in zip(HARD_TEXTS, kept()[name]["ids"], strict=True):
            if "foo bar" in text and "foo bar" in map(tokenizer.token_text, tokenizer.encode(text)):
                continue
            encoded = tokenizer.encode(text, add_special_tokens=False)
            if model.kind == "unigram" and "a" * 1000 in text:
                assert sorted(encoded) == sorted(ids)
            else:
                assert encoded == ids
            if name in ("llama", "gemma"):
                assert tokenizer.decode(ids) == text.replace(SPACE, " ")


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_surrounded_as_its_kind_is(tmp_path: Path, name: str) -> None:
    path = model_file(tmp_path, name)
    written = gguf_of(tmp_path / "a.gguf", metadata_of(read_sentencepiece(path)))
    plain = sentencepiece_tokenizer(path, {}).encode("a", add_special_tokens=False)
    assert sentencepiece_tokenizer(path, {}).encode("a") == [1, *plain]
    assert sentencepiece_tokenizer(path, {"add_bos_token": False, "add_eos_token": True}).encode("a") == [*plain, 2]
    unigram = read_sentencepiece(path).kind == "unigram"
    assert gguf_tokenizer(open_gguf(written)).encode("a") == ([*plain, 2] if unigram else [1, *plain])


def test_after_a_special_token_a_space_is_added_in_the_old_way_only(tmp_path: Path) -> None:
    path = model_file(tmp_path, "llama")
    for legacy, expected in ((None, " a a"), (True, " a a"), (False, " aa")):
        tokenizer = sentencepiece_tokenizer(path, {} if legacy is None else {"legacy": legacy})
        ids = tokenizer.encode("a</s>a", add_special_tokens=False, allow_special=True)
        assert b"".join(tokenizer.token_bytes(token) for token in ids if token != 2).decode() == expected


def test_tokens_that_a_folder_adds(tmp_path: Path) -> None:
    path = model_file(tmp_path, "gemma")
    size = len(read_sentencepiece(path).pieces)
    added = {
        str(size): {"content": "<|user|>", "rstrip": True},
        str(size + 1): {"content": "<tool>", "special": False},
        "2": {"content": "</s>", "special": True},
    }
    tokenizer = sentencepiece_tokenizer(path, {"added_tokens_decoder": added, "eos_token": {"content": "<|user|>"}})
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.eos_token_ids == (size,)
    ids = tokenizer.encode("<|user|> \n the<tool>", add_special_tokens=False, allow_special=True)
    assert ids == [size, *tokenizer.encode("the", add_special_tokens=False), size + 1]
    assert tokenizer.decode(ids) == "the<tool>"
    assert size not in tokenizer.encode("<|user|>")
    mistakes: tuple[dict[str, Any], ...] = (
        {str(size + 1): {"content": "x"}},
        {"5": {"content": "x"}},
        {"a": {"content": "x"}},
        {"5": {}},
    )
    for wrong in mistakes:
        with pytest.raises(InvalidModel, match=r"added|leave gaps"):
            sentencepiece_tokenizer(path, {"added_tokens_decoder": wrong})


def test_phi3_tokens_swallow_the_space_after_them(tmp_path: Path) -> None:
    metadata = metadata_of(read_sentencepiece(model_file(tmp_path, "llama")))
    for architecture, swallows in (("phi3", True), ("llama", False)):
        path = gguf_of(tmp_path / "a.gguf", {"general.architecture": architecture, **metadata})
        tokenizer = gguf_tokenizer(open_gguf(path))
        spaced = tokenizer.encode("</s>\n the", allow_special=True)
        assert (spaced == tokenizer.encode("</s>the", allow_special=True)) is swallows


def test_tokens_that_were_added_to_a_gguf_vocabulary_later(tmp_path: Path) -> None:
    """They are found in a text before anything else: no space is put before them, but one before what follows."""
    metadata = metadata_of(read_sentencepiece(model_file(tmp_path, "own_bpe")))
    size = len(metadata["tokenizer.ggml.tokens"])
    for key, value in (("token_type", 4), ("scores", -1000.0)):
        metadata[f"tokenizer.ggml.{key}"] = np.append(metadata[f"tokenizer.ggml.{key}"], value).astype(np.float32)
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"].astype(np.int32)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<|tool|>"]
    tokenizer = gguf_tokenizer(open_gguf(gguf_of(tmp_path / "a.gguf", metadata)))
    alone = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("<|tool|>the", add_special_tokens=False) == [size, *alone]
    assert tokenizer.decode([size, *alone]) == "<|tool|> the"


def test_the_library_fails_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of the library is no Exception: it would end whatever thread it comes up in."""

    class Panic(BaseException):
        pass

    def panic(*_: object, **__: object) -> NoReturn:
        raise Panic

    tokenizer = sentencepiece_tokenizer(model_file(tmp_path, "llama"), {})
    monkeypatch.setattr(tokenizer, "_first", SimpleNamespace(encode=panic, encode_batch_fast=panic))
    for text in ("a", "a" * 10_000):
        with pytest.raises(InvalidRequest, match="cannot encode"):
            tokenizer.encode(text)


def test_user_defined_pieces_are_spaces_to_a_reader(tmp_path: Path) -> None:
    tokenizer = sentencepiece_tokenizer(model_file(tmp_path, "gemma"), {})
    ids = tokenizer.encode("a   b", add_special_tokens=False)
    assert tokenizer.token_bytes(ids[1]) == b"   "


@pytest.mark.parametrize(
    ("config", "message"),
    [({"tokenizer_class": "XLNetTokenizer"}, "XLNetTokenizer"), ({"tokenizer_class": 1}, "1 uses")],
)
def test_classes_that_use_the_file_in_ways_of_their_own(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        sentencepiece_tokenizer(model_file(tmp_path, "llama"), config)


# ---------------------------------------------------------------- files that are wrong


def test_mutants_load_or_fail_in_one_line(tmp_path: Path) -> None:
    chance = random.Random(6)
    path = tmp_path / "mutant.model"
    loaded = 0
    for name in NAMES:
        whole = base64.b64decode(kept()[name]["model"])
        for turn in range(60):
            data = bytearray(whole)
            for _ in range(chance.choice((1, 2, 5))):
                data[chance.randrange(len(data))] = chance.choice((0, 0xFF, 0x80, chance.randrange(256)))
            path.write_bytes(data if turn % 3 else data[: chance.randrange(len(data))])
            try:
                tokenizer = sentencepiece_tokenizer(path, {})
            except InvalidModel as error:
                assert "\n" not in str(error)
                continue
            loaded += 1
            tokenizer.decode(tokenizer.encode(TEXT))
    assert 0 < loaded < 240


def test_tables_of_replacements_lead_nowhere_else(tmp_path: Path) -> None:
    """Whatever passes the check can be followed by any text."""
    chance = random.Random(7)
    model = read_sentencepiece(model_file(tmp_path, "t5"))
    assert model.replacements is not None
    whole = model.replacements.charsmap
    size = int.from_bytes(whole[:4], "little")
    for wrong in (b"", whole[:3], whole[:-1], whole[: 4 + size], whole + b"\xff\0"):
        with pytest.raises(ValueError, match="its t"):
            Replacements(wrong)
    passed = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(3):
            data[4 + chance.randrange(len(data) - 4)] = chance.randrange(256)
        try:
            replacements = Replacements(bytes(data))
        except ValueError:
            continue
        passed += 1
        for text in HARD_TEXTS:
            replacements.apply(text)
    assert 0 < passed < 300


def table_of(units: dict[int, int], texts: bytes) -> bytes:
    """A table of 256 units, all of which lead to the first one's block."""
    return struct.pack("<257I", 1024, *(units.get(i, 0) for i in range(256))) + texts


def test_tables_of_replacements_that_lead_to_themselves_take_time_in_proportion() -> None:
    """Every character would be followed to the end of the text, or replaced by a megabyte; every byte leads on."""
    tables = {byte: byte << 10 | byte for byte in range(256)}
    endless = Replacements(table_of({ord("a"): tables[ord("a")]}, b"x\0"))
    looked_up: list[int] = []
    endless._child = lambda unit, byte: looked_up.append(byte) or Replacements._child(endless, unit, byte)  # type: ignore[method-assign,func-returns-value]
    assert endless.apply("a" * 1000) == "a" * 1000
    assert len(looked_up) <= 1000 * MAX_REPLACED_CHARS
    with pytest.raises(ValueError, match="its texts have more than"):
        Replacements(table_of({ord("a"): tables[ord("a")] | 1 << 8}, b"x" * (1 << 20) + b"\0"))
    with pytest.raises(ValueError, match="too many branches"):
        Replacements(table_of(tables, b"x\0"))


@pytest.mark.parametrize("kind", [np.int32, np.uint8])
def test_malformed_tables_in_gguf(tmp_path: Path, kind: type) -> None:
    metadata = metadata_of(read_sentencepiece(model_file(tmp_path, "t5")))
    metadata["tokenizer.ggml.precompiled_charsmap"] = np.array([1, 2, 3], kind)
    with pytest.raises(InvalidModel, match="charsmap is malformed"):
        gguf_tokenizer(open_gguf(gguf_of(tmp_path / "a.gguf", metadata)))
