"""The tokenizer of a Hugging Face folder: `tokenizer.json`, and what `tokenizer_config.json` adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken as BackendToken
from tokenizers import pre_tokenizers

from chairlift.core.errors import InvalidModel
from chairlift.models.files import MAX_JSON_BYTES, read_bytes, shown
from chairlift.text.pieces import Decoding
from chairlift.text.specials import AddedToken
from chairlift.text.tokenizer import Tokenizer, built

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

HINT = "make a tokenizer.json of it: transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
"""What helps a folder without one that cannot be read."""

_ADDS_BOS_CLASSES = ("Llama", "CodeLlama", "Gemma", "Cohere")
"""Tokenizer classes of transformers in which `add_bos_token` and `add_eos_token` overrule the post-processor."""


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class _Model(msgspec.Struct):
    """Some kinds name the token for what no piece holds, one gives its id."""

    unk_token: str | None = None
    unk_id: int | None = None


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def hf_tokenizer(path: Path, config: Mapping[str, Any], eos_token_ids: tuple[int, ...] = ()) -> Tokenizer:
    """Load `tokenizer.json`. `config` is the content of `tokenizer_config.json`; `eos_token_ids` join those it names.

    Raises:
        InvalidModel: the file is missing, too large, malformed, or spells tokens in a way that is not known.
    """
    return tokenizer_from(read_bytes(path, MAX_JSON_BYTES), shown(path), config, eos_token_ids)


def tokenizer_from(
    data: bytes, where: str, config: Mapping[str, Any], eos_token_ids: tuple[int, ...] = ()
) -> Tokenizer:
    """The same of the content of a `tokenizer.json`, whatever it was read from.

    Raises:
        InvalidModel: see `hf_tokenizer`.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"{where}: no valid tokenizer: {shown(error)}") from error
    decoding = _decoding(file.decoder, where)
    first = built(lambda: tokenizers.Tokenizer.from_buffer(data), where)
    prefix, suffix = _surroundings(first, where)
    first.encode_special_tokens = True
    added = [
        AddedToken(token.id, token.content, token.special, token.lstrip, token.rstrip, token.single_word)
        for token in file.added_tokens
    ]
    if any(first.token_to_id(token.text) != token.id for token in added):
        raise InvalidModel(f"{where}: an added token has an id that belongs to another token")
    ids = {name: first.token_to_id(text) for name, text in special_texts(config).items()}
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    if str(config.get("tokenizer_class", "")).startswith(_ADDS_BOS_CLASSES):
        prefix = _overruled(prefix, bos, config.get("add_bos_token"))
        suffix = _overruled(suffix, eos, config.get("add_eos_token"))
    unknown = file.model.unk_token
    return Tokenizer(
        first,
        _for_later_text(first, file, data, where),
        added,
        decoding,
        prefix=prefix,
        suffix=suffix,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys((*eos_token_ids, *(() if eos is None else (eos,))))),
        unk_token_id=file.model.unk_id if unknown is None else first.token_to_id(unknown),
    )


def special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that `tokenizer_config.json` names, by name: what chat templates call them."""
    texts = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def described_tokens(config: Mapping[str, Any], where: str) -> dict[int, tuple[str, dict[str, Any]]]:
    """The added tokens that `tokenizer_config.json` describes: text and fields by id.

    Raises:
        InvalidModel: something there is no token.
    """
    described = config.get("added_tokens_decoder")
    tokens = {}
    for name, fields in described.items() if isinstance(described, dict) else ():
        text = fields.get("content") if isinstance(fields, dict) else None
        if not name.isascii() or not name.isdigit() or len(name) > 8 or not isinstance(text, str):
            raise InvalidModel(f"{where}: tokenizer_config.json: added_tokens_decoder is malformed")
        tokens[int(name)] = text, fields
    return tokens


def _decoding(decoder: dict[str, Any] | None, where: str) -> Decoding:
    """How the vocabulary spells bytes, read off the steps of the library's decoder."""
    steps = [decoder or {}]
    if decoder is not None and decoder.get("type") == "Sequence":
        steps = [step for step in decoder.get("decoders", []) if isinstance(step, dict)]
    replacements: list[tuple[str, str]] = []
    byte_fallback = strips_space = False
    for step in steps:
        kind = step.get("type")
        pattern = step.get("pattern")
        if kind == "ByteLevel":
            return Decoding("byte_level")
        if kind == "Replace" and isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
            replacements.append((pattern["String"], str(step.get("content", ""))))
        elif kind == "Metaspace":
            replacements.append((str(step.get("replacement", "\u2581")), " "))
            strips_space = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Strip" and step.get("content") == " ":
            strips_space = bool(step.get("start"))
        elif kind != "Fuse":
            raise InvalidModel(f"{where}: decoder '{shown(kind)}' is not supported")
    return Decoding("text", tuple(replacements), byte_fallback, strips_space)


def _surroundings(backend: tokenizers.Tokenizer, where: str) -> tuple[list[int], list[int]]:
    """The tokens that the post-processor puts before and after a text."""
    try:
        bare = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a", add_special_tokens=True).ids
    except Exception as error:  # the library raises plain Exception
        raise InvalidModel(f"{where}: the tokenizer encodes nothing: {shown(error)}") from error
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise InvalidModel(f"{where}: the post-processor changes the tokens of a text")


def _overruled(tokens: list[int], token: int | None, wanted: object) -> list[int]:
    if wanted is False or token is None:
        return [] if wanted is False else tokens
    return [token] if wanted is True and not tokens else tokens


def _for_later_text(first: tokenizers.Tokenizer, file: _File, data: bytes, where: str) -> tokenizers.Tokenizer:
    """A backend for the text after a special token, where a space is put before the first word of all only.

    It shares the vocabulary of `first` unless the pre-tokenizer is a composite, which can only be changed as JSON.
    """
    if not _prepends_to_first(file.pre_tokenizer):
        return first
    cut = first.pre_tokenizer
    if not isinstance(cut, pre_tokenizers.Metaspace):
        whole = msgspec.json.decode(data)
        for step in whole["pre_tokenizer"]["pretokenizers"]:
            if step.get("type") == "Metaspace":
                step["prepend_scheme"] = "never"
        later = built(lambda: tokenizers.Tokenizer.from_buffer(msgspec.json.encode(whole)), where)
        later.encode_special_tokens = True
        return later
    later = tokenizers.Tokenizer(first.model)
    if first.normalizer is not None:
        later.normalizer = first.normalizer
    later.pre_tokenizer = pre_tokenizers.Metaspace(cut.replacement, prepend_scheme="never", split=cut.split)
    later.add_tokens(
        [
            BackendToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
            for token in sorted(file.added_tokens, key=lambda token: token.id)
        ]
    )
    later.encode_special_tokens = True
    if any(later.token_to_id(token.content) != token.id for token in file.added_tokens):
        raise InvalidModel(f"{where}: the ids of the added tokens leave gaps")
    return later


def _prepends_to_first(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    steps = pre_tokenizer.get("pretokenizers") if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    return any(
        isinstance(step, dict) and step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"
        for step in steps or []
    )
