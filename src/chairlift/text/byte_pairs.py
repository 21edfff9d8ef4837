"""`vocab.json` and `merges.txt`: a byte-level vocabulary as folders had it before there was a `tokenizer.json`.

How texts are cut is not in these files: the class of transformers that a folder names says it. They are put together
as a `tokenizer.json` would be, and read as one.

    vocab.json            {"the": 262, ...}          added_tokens.json        {"<|im_start|>": 151644, ...}
    merges.txt            a pair a line              tokenizer_config.json    added_tokens_decoder, which goes before
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken as BackendToken
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from chairlift.core.errors import InvalidModel
from chairlift.models.files import MAX_JSON_BYTES, exists, read_bytes, read_json, shown
from chairlift.text.hf_tokenizer import HINT, described_tokens, special_texts, tokenizer_from
from chairlift.text.pretokenizers import recipe_named
from chairlift.text.tokenizer import Tokenizer, built

VOCABULARY, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"

_END = "<|endoftext|>"
_GPT2 = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_QWEN2 = {"eos_token": _END, "unk_token": _END, "pad_token": _END}
_DEFAULTS = {"GPT2Tokenizer": _GPT2, "CodeGenTokenizer": _GPT2, "Qwen2Tokenizer": _QWEN2}
"""Special tokens of the classes that are known, unless a folder names others."""

_CLASSES = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_bigcode", "codegen", "phi", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
}
"""What a kind of model has where no class is named, as with the first folders of GPT-2."""


def byte_pair_tokenizer(
    folder: Path, config: Mapping[str, Any], model_type: object, eos_token_ids: tuple[int, ...] = ()
) -> Tokenizer:
    """Load both files. `config` is the content of `tokenizer_config.json`; `eos_token_ids` join those it names.

    Raises:
        InvalidModel: a file is missing, too large or malformed, or a class is not known.
    """
    where = shown(folder)
    kind = str(config.get("tokenizer_class") or _CLASSES.get(str(model_type), "")).removesuffix("Fast")
    if kind not in _DEFAULTS:
        raise InvalidModel(
            f"{where}: how {shown(kind) or 'this model'} uses {VOCABULARY} and {MERGES} is not known; {HINT}"
        )
    config = {**_DEFAULTS[kind], **config}
    vocabulary = _ids(folder / VOCABULARY)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise InvalidModel(f"{where}: the ids of {VOCABULARY} leave gaps; {HINT}")
    merges = _merges(folder / MERGES)
    added = _added(folder, config)

    def build() -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
        backend.decoder = decoders.ByteLevel()
        if kind == "Qwen2Tokenizer":
            backend.normalizer = normalizers.NFC()
            backend.pre_tokenizer = recipe_named("qwen2").pre_tokenizer()
        else:
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space") is True)
        backend.add_tokens([added[token] for token in sorted(added)])
        known = set(special_texts(config).values()) & backend.get_vocab(with_added_tokens=True).keys()
        backend.add_special_tokens([BackendToken(text, normalized=False) for text in sorted(known)])
        _surround(backend, config)
        return backend

    backend = built(build, where)
    if any(backend.token_to_id(token.content) != number for number, token in added.items()):
        raise InvalidModel(f"{where}: the ids of the added tokens leave gaps; {HINT}")
    return tokenizer_from(backend.to_str().encode(), where, config, eos_token_ids)


def _ids(path: Path) -> dict[str, int]:
    try:
        return msgspec.convert(read_json(path, MAX_JSON_BYTES), dict[str, int])
    except msgspec.ValidationError as error:
        raise InvalidModel(f"{shown(path)}: not tokens with their ids: {shown(error)}") from error


def _merges(path: Path) -> list[tuple[str, str]]:
    try:
        lines = read_bytes(path, MAX_JSON_BYTES).decode().split("\n")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{shown(path)}: not UTF-8") from error
    merges = []
    for line in lines:
        pair = line.removesuffix("\r")
        if not pair or pair.startswith("#version"):
            continue
        left, space, right = pair.partition(" ")
        if not space or " " in right:
            raise InvalidModel(f"{shown(path)}: '{shown(pair)}' is no pair")
        merges.append((left, right))
    return merges


def _added(folder: Path, config: Mapping[str, Any]) -> dict[int, BackendToken]:
    """The tokens that are found in a text before it is cut, by id."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    described = described_tokens(config, shown(folder))
    if described:
        return {
            number: BackendToken(text, **{flag: fields.get(flag) is True for flag in flags})
            for number, (text, fields) in described.items()
        }
    if not exists(folder / ADDED):
        return {}
    others = config.get("additional_special_tokens")
    named = {*special_texts(config).values()}
    named.update(text for text in (others if isinstance(others, list) else ()) if isinstance(text, str))
    return {
        number: BackendToken(text, special=text in named, normalized=text not in named)
        for text, number in _ids(folder / ADDED).items()
    }


def _surround(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Put a special token before or after every text, if the folder asks for it."""
    texts = special_texts(config)
    sides = [texts.get(name) if config.get(flag) is True else None
             for name, flag in (("bos_token", "add_bos_token"), ("eos_token", "add_eos_token"))]  # fmt: skip
    around = {text: backend.token_to_id(text) for text in sides if text is not None}
    if around:
        before, after = sides
        backend.post_processor = TemplateProcessing(
            single=[*([before] if before else []), "$A", *([after] if after else [])],
            special_tokens=list(around.items()),
        )
