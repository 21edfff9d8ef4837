"""`tokenizer.model`: a SentencePiece vocabulary as its makers write it, and the tokenizer that a folder makes of it.

The file is a protocol buffer: fields, each a number and a wire type, then a varint, 4 or 8 bytes, or a length and as
many bytes. Of the model only these are read:

    1 piece: 1 text, 2 score, 3 type         3 normalizer: 2 charsmap, 3 adds a space, 4 removes spaces,
    2 trainer: 3 kind, 24 space as suffix        5 escapes spaces

Source: sentencepiece_model.proto of SentencePiece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.files import MAX_JSON_BYTES, read_bytes, shown
from chairlift.text.charsmap import Replacements
from chairlift.text.hf_tokenizer import HINT, described_tokens
from chairlift.text.pieces import MAX_PIECE_CHARS, MAX_TOKENS, byte_of
from chairlift.text.sentencepiece import SPACE, SentencePiece, TokenType
from chairlift.text.specials import AddedToken
from chairlift.text.tokenizer import Tokenizer, built

CLASSES = ("Llama", "CodeLlama", "Gemma")
"""Tokenizer classes of transformers that read such a file as it is."""

_KINDS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


def sentencepiece_tokenizer(path: Path, config: Mapping[str, Any], eos_token_ids: tuple[int, ...] = ()) -> Tokenizer:
    """Load `tokenizer.model`. `config` is the content of `tokenizer_config.json`; `eos_token_ids` join its own.

    Raises:
        InvalidModel: the file is missing, too large or malformed, or the folder wants it used in a way not known.
    """
    where = shown(path)
    name = str(config.get("tokenizer_class", "LlamaTokenizer"))
    if not name.startswith(CLASSES):
        raise InvalidModel(f"{where}: how {shown(name)} uses this file is not known; {HINT}")
    model = read_sentencepiece(path)
    added = _added(model, config, where)
    fresh = [token for token in added if token.id >= len(model.pieces)]
    if any(token.id >= len(model.pieces) + len(fresh) for token in fresh):
        raise InvalidModel(f"{where}: the ids of the added tokens leave gaps; {HINT}")
    ids = {token.text: token.id for token in added}
    backend = built(model.backend, where)
    bos, eos = (_named(config, name, ids, fallback) for name, fallback in (("bos_token", "<s>"), ("eos_token", "</s>")))
    return Tokenizer(
        backend,
        backend,
        added,
        model.decoding(),
        normalize=model.normalizer(later_too=config.get("legacy") is not False),
        words=[token for token in added if not token.special and not model.cuts(token.id)],
        prefix=[bos] if bos is not None and config.get("add_bos_token") is not False else [],
        suffix=[eos] if eos is not None and config.get("add_eos_token") is True else [],
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys((*eos_token_ids, *(() if eos is None else (eos,))))),
        unk_token_id=model.unknown,
    )


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a vocabulary.

    Raises:
        InvalidModel: the file is missing, too large, malformed, or of a kind that is not supported.
    """
    data = read_bytes(path, MAX_JSON_BYTES)
    where = shown(path)
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(data):
            if number == 1:
                fields = dict(_fields(_as_bytes(value)))
                pieces.append(_as_bytes(fields.get(1, b"")).decode())
                scores.append(struct.unpack("<f", _as_bytes(fields.get(2, b"\0\0\0\0")))[0])
                types.append(TokenType(_as_int(fields.get(3, 1))))
            elif number == 2:
                trainer = dict(_fields(_as_bytes(value)))
            elif number == 3:
                normalizer = dict(_fields(_as_bytes(value)))
        kind = _KINDS.get(_as_int(trainer.get(3, 1)))
        suffix = _as_int(trainer.get(24, 0))
        charsmap = _as_bytes(normalizer.get(2, b""))
        adds, removes, escapes = (bool(_as_int(normalizer.get(number, 1))) for number in (3, 4, 5))
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is one
        raise InvalidModel(f"{where}: no SentencePiece model: {shown(error)}") from error
    if not pieces or len(pieces) > MAX_TOKENS or max(map(len, pieces)) > MAX_PIECE_CHARS:
        raise InvalidModel(f"{where}: no SentencePiece model, or one larger than {MAX_TOKENS} pieces")
    if len(set(pieces)) != len(pieces) or "" in pieces:
        raise InvalidModel(f"{where}: two pieces are spelled alike, or one not at all")
    if kind is None or suffix or not escapes:
        raise InvalidModel(f"{where}: this kind of SentencePiece model is not supported; {HINT}")
    try:
        replacements = Replacements(charsmap) if charsmap else None
    except ValueError as error:
        raise InvalidModel(f"{where}: its table of replacements is malformed: {error}") from error
    unknown = types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else None
    return SentencePiece(kind, pieces, scores, types, unknown, adds, removes, replacements)


def _added(model: SentencePiece, config: Mapping[str, Any], where: str) -> list[AddedToken]:
    """The tokens that are no ordinary text: the model's own, as the folder describes them, and the folder's."""
    added = {
        token: AddedToken(token, piece.replace(SPACE, " "), special=kind != TokenType.USER_DEFINED)
        for token, (piece, kind) in enumerate(zip(model.pieces, model.types, strict=True))
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    }
    for token, (text, fields) in described_tokens(config, where).items():
        if token < len(model.pieces) and (text.replace(" ", SPACE) != model.pieces[token] or byte_of(text) is not None):
            raise InvalidModel(f"{where}: added token {token} has an id that belongs to another token")
        flags = {flag: bool(fields.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
        added[token] = AddedToken(token, text.replace(SPACE, " "), bool(fields.get("special", True)), **flags)
    return list(added.values())


def _named(config: Mapping[str, Any], name: str, ids: Mapping[str, int], fallback: str) -> int | None:
    value = config.get(name, fallback)
    text = value.get("content") if isinstance(value, dict) else value
    return ids.get(text) if isinstance(text, str) else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and a whole number or the bytes of anything else.

    Raises:
        ValueError: the message is cut off, or has a wire type that is not known.
    """
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire = key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(data) - position:
            raise ValueError("cut off")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than 70 bits")


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field of the wrong type")
    return value


def _as_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a field of the wrong type")
    return value
