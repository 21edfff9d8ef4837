"""Texts and pairs of texts as an encoder reads them: token ids between its special tokens, cut to what it can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models.files import MAX_JSON_BYTES, exists, read_bytes, read_json, shown
from chairlift.models.resolve import ModelFiles
from chairlift.text.tokenizer import LONG_TEXT_CHARS, built

MAX_VOCAB_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids of a text, or of two; `num_first` of them are the first one's, 0 where a model tells no two apart."""

    tokens: list[int]
    num_first: int = 0


class PassageTokenizer:
    """One encoder's vocabulary. Thread-safe: what it is made of is never changed."""

    def __init__(self, backend: tokenizers.Tokenizer, where: str) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # a text that spells one is text: whoever wrote it may be a stranger
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._num_around = backend.num_special_tokens_to_add(is_pair=False)
        self._num_around_pair = backend.num_special_tokens_to_add(is_pair=True)
        if not self.vocab_size:
            raise InvalidModel(f"{where}: an empty vocabulary")

    def encode(self, text: str, max_tokens: int | None = None) -> Passage:
        """One text; its end is left out if it has more than `max_tokens`.

        Raises:
            InvalidRequest: the text holds half a surrogate pair.
        """
        encoding = self._encoded(text)
        if max_tokens is not None:
            encoding.truncate(max(max_tokens - self._num_around, 0))
        return Passage(self._backend.post_process(encoding).ids)

    def encode_pair(self, first: str, second: str, max_tokens: int | None = None) -> Passage:
        """Two texts; of the longer one so much is left out that both fit into `max_tokens`.

        Raises:
            InvalidRequest: a text holds half a surrogate pair.
        """
        one, two = self._encoded(first), self._encoded(second)
        if max_tokens is not None:
            room = max(max_tokens - self._num_around_pair, 0)
            sizes = _shares(len(one.ids), len(two.ids), room)
            one.truncate(sizes[0])
            two.truncate(sizes[1])
        both = self._backend.post_process(one, two)
        num_first = both.type_ids.index(1) if 1 in both.type_ids else 0
        return Passage(both.ids, num_first)

    def encode_ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text, with those that surround it or without.

        Raises:
            InvalidRequest: the text holds half a surrogate pair.
        """
        if add_special_tokens:
            return self.encode(text).tokens
        ids: list[int] = self._encoded(text).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """About the text of tokens: what the vocabulary did not keep of it is lost."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=False))

    def token_bytes(self, token: int) -> bytes:
        """How one token is spelled."""
        piece = self._backend.id_to_token(token)
        return b"" if piece is None else piece.encode()

    def around(self, tokens: Sequence[int]) -> Passage:
        """Token ids of a client, as they are: it knows the vocabulary, or it would not send them.

        Raises:
            InvalidRequest: an id outside the vocabulary, or none at all.
        """
        if not tokens:
            raise InvalidRequest("a list of token ids must not be empty", "input")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise InvalidRequest(f"token ids must be at least 0 and below {self.vocab_size}", "input")
        return Passage(list(tokens))

    def _encoded(self, text: str) -> Any:
        """A long text goes through the batch call, which lets other threads run."""
        try:
            if len(text) < LONG_TEXT_CHARS:
                return self._backend.encode(text, add_special_tokens=False)
            return self._backend.encode_batch_fast([text], add_special_tokens=False)[0]
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("text must not hold half a surrogate pair", "input") from error


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two lengths fits into `room`: the longer gives way until both are equal, then both do."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half


def load_passages(files: ModelFiles) -> PassageTokenizer:
    """The tokenizer of an encoder: its `tokenizer.json`, or the WordPiece vocabulary in `vocab.txt`.

    Raises:
        InvalidModel: neither is there, or it cannot be used.
    """
    path = files.path / "tokenizer.json"
    if exists(path):
        data = read_bytes(path, MAX_JSON_BYTES)
        try:
            msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModel(f"{shown(path)}: no valid tokenizer: {shown(error)}") from error
        return PassageTokenizer(built(lambda: tokenizers.Tokenizer.from_buffer(data), shown(path)), shown(path))
    path = files.path / "vocab.txt"
    if not exists(path):
        raise InvalidModel(f"{shown(files.path)}: neither tokenizer.json nor vocab.txt")
    return PassageTokenizer(built(lambda: _word_pieces(files.path), shown(path)), shown(path))


def _word_pieces(folder: Path) -> tokenizers.Tokenizer:
    """BERT's own way of cutting texts, over a vocabulary of one piece a line."""
    lines = read_bytes(folder / "vocab.txt", MAX_VOCAB_BYTES).decode().splitlines()
    vocabulary = {piece: i for i, piece in enumerate(lines)}
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if exists(config_path) else {}
    lowercase = config.get("do_lower_case") is not False
    strip_accents = config.get("strip_accents")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.get("tokenize_chinese_chars") is not False,
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in vocabulary])
    backend.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return backend
