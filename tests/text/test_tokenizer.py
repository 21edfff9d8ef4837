from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import BertProcessing

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models import open_gguf, resolve
from chairlift.text import Tokenizer, load_text
from chairlift.text.gguf_tokenizer import gguf_tokenizer
from chairlift.text.hf_tokenizer import hf_tokenizer
from chairlift.text.specials import Span
from chairlift.text.tokenizer import LONG_TEXT_CHARS
from text.hard_texts import HARD_TEXTS
from text.vocabularies import (
    SPACE,
    byte_level_backend,
    byte_level_metadata,
    gguf_of,
    sentencepiece_encode,
    sentencepiece_metadata,
    with_beginning,
    write_tokenizer,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
PHRASES = st.lists(
    st.sampled_from(
        ["the", " ", "  ", "a", "aa", "dog", "\n", "12", "<|end|>", "</s>", "é", "🙂", "end", SPACE, "<", ">"]
    ),
    max_size=20,
).map("".join)

BACKEND = byte_level_backend()
SENTENCEPIECE = sentencepiece_metadata()
LOST_BYTES = {4, 6, 19, 20, 22, 29, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_text(resolve("smollm2-135m-instruct")).tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def byte_level(folder: Path) -> Tokenizer:
    return hf_tokenizer(write_tokenizer(folder / "bytes", byte_level_backend()), {})


@pytest.fixture(scope="module")
def sentencepiece(folder: Path) -> Tokenizer:
    return gguf_tokenizer(open_gguf(gguf_of(folder / "sp.gguf", SENTENCEPIECE)))


# ---------------------------------------------------------------- SmolLM2, from GGUF


def smollm2_by_parts() -> tokenizers.Tokenizer:
    """The same vocabulary put together from the library's own parts, as its `tokenizer.json` does."""
    gguf = open_gguf(resolve("smollm2-135m-instruct").path)
    pieces = gguf.strings("tokenizer.ggml.tokens")
    merges = [(left, right) for left, right in (m.split(" ") for m in gguf.strings("tokenizer.ggml.merges"))]
    backend = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece in pieces[:17]])
    return backend


def test_smollm2_encodes_as_its_parts_do(smollm2: Tokenizer) -> None:
    parts = smollm2_by_parts()

    @settings(max_examples=300, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        expected = parts.encode(text, add_special_tokens=False).ids
        assert smollm2.encode(text, allow_special=True) == expected

    check()
    for text in HARD_TEXTS:
        assert smollm2.encode(text, allow_special=True) == parts.encode(text, add_special_tokens=False).ids


def test_smollm2_known_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_token_id == 1
    assert smollm2.eos_token_ids == (2,)
    assert len(smollm2.special_token_ids) == 17
    assert smollm2.encode("<|im_start|>", allow_special=True) == [1]
    assert 1 not in smollm2.encode("<|im_start|>")
    assert [smollm2.token_bytes(token) for token in smollm2.encode(" 2024")] == [b" ", b"2", b"0", b"2", b"4"]
    assert smollm2.token_text(2) == "<|im_end|>"


def test_smollm2_lacks_tokens_for_some_bytes(smollm2: Tokenizer) -> None:
    """It drops them, as the original does: no text of its training had them. Nothing else is lost."""
    single = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
    assert {byte for byte in range(256) if bytes((byte,)) not in single} == LOST_BYTES


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_smollm2_text_comes_back(smollm2: Tokenizer, text: str) -> None:
    kept = bytes(byte for byte in text.encode() if byte not in LOST_BYTES)
    tokens = smollm2.encode(text)
    assert b"".join(map(smollm2.token_bytes, tokens)) == kept
    assert smollm2.decode(tokens) == kept.decode("utf-8", "replace")


def test_hard_texts_come_back(smollm2: Tokenizer, byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for text in HARD_TEXTS:
        assert smollm2.decode(smollm2.encode(text)) == text
        assert byte_level.decode(byte_level.encode(text)) == text
        assert sentencepiece.decode(sentencepiece.encode(text)) == text.replace(SPACE, " ")


# ---------------------------------------------------------------- special tokens


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PHRASES)
def test_special_tokens_in_a_text_stay_text(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentencepiece):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.special_token_ids.isdisjoint(tokens)
        assert tokenizer.decode(tokens, skip_special_tokens=False) == text.replace(
            SPACE, " " if tokenizer is sentencepiece else SPACE
        )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PHRASES)
def test_allowed_special_tokens_are_those_of_the_library(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.encode(text, allow_special=True) == BACKEND.encode(text, add_special_tokens=False).ids


def test_exactly_the_given_spans_are_special(byte_level: Tokenizer) -> None:
    text = "<|end|>a<|end|>"
    (end,) = byte_level.encode("<|end|>", allow_special=True)
    tokens = byte_level.encode_spans(text, [Span(8, 15, end)])
    assert tokens.count(end) == 1 and tokens[-1] == end
    assert byte_level.decode(tokens, skip_special_tokens=False) == text


def test_a_word_that_is_itself_a_special_token_is_cut(folder: Path) -> None:
    """Without cuts, and with words looked up whole, merging alone would make the special token of its spelling."""
    vocab = {piece: token for token, piece in enumerate(["<", "s", ">", "<s", "<s>", "a"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("<", "s"), ("<s", ">")], ignore_merges=True))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer = hf_tokenizer(write_tokenizer(folder / "cut", backend), {})
    assert tokenizer.encode("<s>", allow_special=True) == [4]
    assert tokenizer.encode("a<s><s>a") == [5, 0, 1, 2, 0, 1, 2, 5]


def test_skipping_special_tokens(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("a<|end|>b", allow_special=True)
    assert byte_level.decode(tokens) == "ab"
    assert byte_level.decode(tokens, skip_special_tokens=False) == "a<|end|>b"


# ---------------------------------------------------------------- beginnings, SentencePiece


def test_what_surrounds_a_text_comes_from_the_post_processor(folder: Path) -> None:
    backend = with_beginning(byte_level_backend(), "<|begin|>")
    tokenizer = hf_tokenizer(write_tokenizer(folder / "begin", backend), {"bos_token": {"content": "<|begin|>"}})
    assert tokenizer.bos_token_id == backend.token_to_id("<|begin|>")
    assert tokenizer.encode("the") == backend.encode("the").ids
    assert tokenizer.encode("the", add_special_tokens=False) == backend.encode("the", add_special_tokens=False).ids
    assert tokenizer.encode("") == [tokenizer.bos_token_id]


@pytest.mark.parametrize("wanted", [True, False, None])
def test_llama_classes_overrule_the_post_processor(folder: Path, wanted: bool | None) -> None:
    for begins in (True, False):
        backend = byte_level_backend()
        if begins:
            with_beginning(backend, "<s>")
        config = {
            "tokenizer_class": "LlamaTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "add_bos_token": wanted,
        }
        tokenizer = hf_tokenizer(write_tokenizer(folder / f"overruled{begins}", backend), config)
        expected = begins if wanted is None else wanted
        assert tokenizer.encode("") == ([tokenizer.bos_token_id] if expected else [])
        assert tokenizer.eos_token_ids == (backend.token_to_id("</s>"),)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(TEXTS, st.text("ab dogthe ", max_size=60), st.text("a ", max_size=60)))
def test_sentencepiece_merges_by_score(sentencepiece: Tokenizer, text: str) -> None:
    assert sentencepiece.encode(text, add_special_tokens=False) == sentencepiece_encode(SENTENCEPIECE, text)


def test_sentencepiece_details(sentencepiece: Tokenizer, folder: Path) -> None:
    assert sentencepiece.encode("") == [1]
    assert sentencepiece.eos_token_ids == (2,)
    assert sentencepiece.decode(sentencepiece.encode(" the")) == " the"
    assert sentencepiece.decode(sentencepiece.encode("the", add_special_tokens=False), continuation=True) == " the"
    assert sentencepiece.encode("\n", add_special_tokens=False)[-1] == 3 + 0x0A
    assert sentencepiece.decode([3 + 0xF0, 3 + 0x9F, 259]) == "\ufffd" + sentencepiece.token_text(259)
    bare = gguf_tokenizer(
        open_gguf(gguf_of(folder / "bare.gguf", sentencepiece_metadata(add_space_prefix=False, add_bos_token=False)))
    )
    assert bare.decode(bare.encode("the")) == "the"
    assert bare.encode("") == []
    assert bare.token_text(bare.encode("the")[0])[0] == "t"


def test_tokens_that_users_defined_are_text(folder: Path) -> None:
    tokens = [*SENTENCEPIECE["tokenizer.ggml.tokens"], "  ", "<think>"]
    types = [*SENTENCEPIECE["tokenizer.ggml.token_type"], 4, 4]
    scores = [*SENTENCEPIECE["tokenizer.ggml.scores"], 0, 0]
    changes = {"token_type": np.array(types, np.int32), "scores": np.array(scores, np.float32)}
    metadata = sentencepiece_metadata(tokens=tokens, add_space_prefix=False, **changes)
    tokenizer = gguf_tokenizer(open_gguf(gguf_of(folder / "user.gguf", metadata)))
    two, think = len(tokens) - 2, len(tokens) - 1
    encoded = tokenizer.encode("a  b<think></s>", add_special_tokens=False)
    assert {two, think} <= set(encoded) and 2 not in encoded
    assert tokenizer.decode(encoded) == "a  b<think></s>"


def test_text_after_a_special_token_begins_without_a_space_where_only_the_first_word_has_one(folder: Path) -> None:
    """`prepend_scheme: first`: what transformers calls the non-legacy Llama tokenizer."""
    pieces = ["<unk>", "<s>", SPACE, "a", "b", SPACE + "a", SPACE + "b", "ab"]
    for name, cut in {
        "single": pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        "composite": pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first", split=False)]),
    }.items():
        merges = [(SPACE, "a"), (SPACE, "b"), ("a", "b")]
        backend = tokenizers.Tokenizer(
            models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, unk_token="<unk>")
        )
        backend.pre_tokenizer = cut
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        backend.add_special_tokens([AddedToken("<unk>", normalized=False), AddedToken("<s>", normalized=False)])
        tokenizer = hf_tokenizer(write_tokenizer(folder / name, backend), {})
        for text in ("a<s>a", "<s>b a", "a b<s> a<s><s>b", "<s>", "b"):
            expected = backend.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, allow_special=True) == expected
        assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


def test_a_composite_decoder_is_read_step_by_step(folder: Path) -> None:
    pieces = ["<unk>", SPACE, "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = hf_tokenizer(write_tokenizer(folder / "steps", backend), {})
    for text in HARD_TEXTS:
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == backend.decode(tokens) == text.replace(SPACE, " ")


def test_gguf_and_json_of_one_vocabulary_agree(folder: Path, byte_level: Tokenizer) -> None:
    metadata = byte_level_metadata(byte_level_backend())
    tokenizer = gguf_tokenizer(open_gguf(gguf_of(folder / "bytes.gguf", metadata)))
    assert tokenizer.special_token_ids == byte_level.special_token_ids
    for text in HARD_TEXTS:
        for allow_special in (False, True):
            assert tokenizer.encode(text, allow_special=allow_special) == byte_level.encode(
                text, allow_special=allow_special
            )


def test_accents_are_composed_where_a_file_or_its_family_says_so(folder: Path) -> None:
    composed, apart = "\u00e9t\u00e9", "e\u0301te\u0301"
    for changes, alike in (({"pre": "qwen2"}, True), ({}, False), ({"normalizer.nfc": True}, True)):
        path = gguf_of(folder / "nfc.gguf", byte_level_metadata(byte_level_backend(), **changes))
        tokenizer = gguf_tokenizer(open_gguf(path))
        assert (tokenizer.encode(apart) == tokenizer.encode(composed)) is alike


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_in_gguf_are_cut_as_bert_does(folder: Path, lowercase: bool) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    texts = [text for text in HARD_TEXTS if SPACE not in text]  # the format marks words with this character
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.encode_special_tokens = True
    pieces = [backend.id_to_token(token) or "" for token in range(backend.get_vocab_size())]
    marked = [piece[2:] if piece.startswith("##") else SPACE + piece for piece in pieces]
    keys = {
        "model": "bert",
        "tokens": [*specials, *marked[5:]],
        "token_type": np.array([3] * 5 + [1] * (len(pieces) - 5), np.int32),
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        "normalizer.lowercase": lowercase,
    }
    path = gguf_of(folder / "words.gguf", {"tokenizer.ggml." + key: value for key, value in keys.items()})
    tokenizer = gguf_tokenizer(open_gguf(path))
    for text in texts:
        assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.decode(tokenizer.encode("the quick def")) == "the quick def"


# ---------------------------------------------------------------- requests that are wrong, threads, long texts


def test_half_a_surrogate_pair_is_no_text(byte_level: Tokenizer) -> None:
    for text in ("\ud800", "a\udfffb" * LONG_TEXT_CHARS):
        with pytest.raises(InvalidRequest, match="surrogate"):
            byte_level.encode(text)


@pytest.mark.parametrize("token", [-1, 10**6, 2**70])
def test_ids_outside_the_vocabulary(byte_level: Tokenizer, token: int) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        byte_level.decode([0, token])
    assert byte_level.token_bytes(token) == b""


def test_a_long_text_has_the_tokens_of_a_short_one(smollm2: Tokenizer) -> None:
    line = "The quick brown fox <|im_end|> jumps over 12 dogs.\n"
    times = LONG_TEXT_CHARS // len(line) + 1
    assert smollm2.encode(line * times) == smollm2.encode(line) * times
    assert smollm2.encode_batch([line, "", line * times]) == [smollm2.encode(line), [], smollm2.encode(line) * times]


def test_src_vllm_40949_many_threads_share_a_tokenizer(smollm2: Tokenizer) -> None:
    """64 threads at every use of it: no "Already borrowed", and the same tokens."""
    texts = [*HARD_TEXTS, "word " * (LONG_TEXT_CHARS // 4)]
    expected = [smollm2.encode(text, allow_special=True) for text in texts]
    fresh = load_text(resolve("smollm2-135m-instruct")).tokenizer
    failures: list[object] = []
    gate = threading.Barrier(64)

    def work(offset: int) -> None:
        gate.wait()
        try:
            for turn in range(2 * len(texts)):
                index = (offset + turn) % len(texts)
                tokens = fresh.encode(texts[index], allow_special=True)
                if tokens != expected[index] or fresh.decode(tokens, skip_special_tokens=False) != texts[index]:
                    failures.append(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------- files that are wrong


def test_every_cut_of_a_tokenizer_file_is_one_clear_error(folder: Path) -> None:
    data = write_tokenizer(folder / "whole", byte_level_backend(vocab_size=300)).read_bytes()
    path = folder / "cut.json"
    for percent in range(100):
        path.write_bytes(data[: len(data) * percent // 100])
        with pytest.raises(InvalidModel):
            hf_tokenizer(path, {})


def test_m1_mutated_files_load_or_fail_in_one_line(folder: Path) -> None:
    """Bytes changed at random in both forms of a file: no crash, and no error but the one for invalid models."""
    chance = random.Random(11)
    whole_json = write_tokenizer(folder / "mutated", byte_level_backend(vocab_size=300)).read_bytes()
    whole_gguf = gguf_of(folder / "mutated.gguf", SENTENCEPIECE).read_bytes()
    json_path, gguf_path = folder / "mutant.json", folder / "mutant.gguf"
    loaded = 0
    for _ in range(150):
        for whole, path in ((whole_json, json_path), (whole_gguf, gguf_path)):
            data = bytearray(whole)
            for _ in range(chance.choice((1, 2, 5))):
                data[chance.randrange(len(data))] = chance.choice((0, 0x22, 0x7D, 0xFF, chance.randrange(256)))
            path.write_bytes(data)
            try:
                tokenizer = hf_tokenizer(path, {}) if path is json_path else gguf_tokenizer(open_gguf(path))
            except InvalidModel as error:
                assert "\n" not in str(error)
                continue
            loaded += 1
            tokenizer.decode(tokenizer.encode("the dog </s>"))
    assert 0 < loaded < 300


def test_a_special_token_with_the_id_of_another(folder: Path) -> None:
    whole = json.loads(write_tokenizer(folder / "ids", byte_level_backend(vocab_size=300)).read_text())
    whole["added_tokens"][0]["id"] += 1
    path = folder / "ids.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(InvalidModel):
        hf_tokenizer(path, {})


def test_forking_after_encoding_warns_of_nothing() -> None:
    """The library warns, and loses its threads, when a process forks after it has encoded in parallel."""
    code = (
        "import os\n"
        "from chairlift.models import resolve\n"
        "from chairlift.text import load_text\n"
        "tokenizer = load_text(resolve('smollm2-135m-instruct')).tokenizer\n"
        "tokenizer.encode_batch(['word ' * 5000, 'short'])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(len(tokenizer.encode('still works')))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("2", "")


def test_fields_of_the_wrong_type(folder: Path) -> None:
    whole = json.loads(write_tokenizer(folder / "typed", byte_level_backend(vocab_size=300)).read_text())
    path = folder / "typed.json"
    strangers: list[Any] = [None, 1, "x", [], {}, [1], {"type": "Nonsense"}, {"type": "Sequence"}, -1, 1e308, [[[[]]]]]
    kept = 0
    for field in (*whole, "model.vocab", "model.merges", "model.type", "added_tokens.0", "pre_tokenizer.type"):
        for stranger in strangers:
            changed = json.loads(json.dumps(whole))
            inner = changed
            *parents, last = field.split(".")
            for parent in parents:
                inner = inner[parent]
            inner[int(last) if last.isdigit() else last] = stranger
            path.write_text(json.dumps(changed))
            try:
                tokenizer = hf_tokenizer(path, {})
            except InvalidModel as error:
                assert "\n" not in str(error)
                continue
            kept += 1
            tokenizer.encode("a")
    assert kept < len(whole) * len(strangers)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), None])
def test_unknown_ways_to_decode_are_refused(folder: Path, decoder: decoders.Decoder | None) -> None:
    backend = byte_level_backend(vocab_size=300)
    if decoder is None:
        backend = tokenizers.Tokenizer(backend.model)
    else:
        backend.decoder = decoder
    with pytest.raises(InvalidModel, match="decoder"):
        hf_tokenizer(write_tokenizer(folder / "decoder", backend), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "rwkv"),
        ({"model": "bert", "merges": None}, "unknown words"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "no-such-cut"}, "no-such-cut"),
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "0 tokens"),
        ({"tokens": ["a", "a"], "token_type": None}, "alike"),
        ({"tokens": ["a" * 1025]}, "1024"),
        ({"tokens": ["a", "b"]}, "differ in length"),
        ({"merges": ["ab"]}, "no pair"),
        ({"merges": ["no such"]}, "cannot be built"),
        ({"bos_token_id": 10**6}, "outside the vocabulary"),
        ({"eos_token_id": "x"}, "integer"),
        ({"add_bos_token": 1, "bos_token_id": 1}, "true or false"),
    ],
)
def test_malformed_metadata(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    metadata = byte_level_metadata(byte_level_backend(vocab_size=300), **changes)
    with pytest.raises(InvalidModel, match=message):
        gguf_tokenizer(open_gguf(gguf_of(tmp_path / "bad.gguf", metadata)))


def test_malformed_scores(tmp_path: Path) -> None:
    for changes in ({"scores": None}, {"scores": ["x"]}):
        with pytest.raises(InvalidModel, match="scores"):
            gguf_tokenizer(open_gguf(gguf_of(tmp_path / "bad.gguf", sentencepiece_metadata(**changes))))
