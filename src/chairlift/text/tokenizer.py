"""Text to tokens and back, over the `tokenizers` library.

A backend is finished before it comes here and never changed afterwards, so that any number of threads may share it
(changing one in use is what raises "Already borrowed"). It encodes special tokens spelled in a text as plain text;
which of them are special is decided here, span by span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tokenizers

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models.files import shown
from chairlift.text.pieces import Decoding, TokenBytes
from chairlift.text.specials import AddedToken, Span, SpecialScanner

LONG_TEXT_CHARS = 8192
"""From here on encoding takes milliseconds, and other threads may run meanwhile."""


class Tokenizer:
    """One model's vocabulary. Thread-safe.

    `first` encodes the beginning of a text and `later` what follows a special token: they differ in vocabularies that
    put a space before the text as a whole. `normalize` is what is done to a text before the backend gets it, told
    whether the text begins the whole; `words` are added tokens that the backend does not know and any text may spell.
    `prefix` and `suffix` are the tokens that surround a text.
    """

    def __init__(
        self,
        first: tokenizers.Tokenizer,
        later: tokenizers.Tokenizer,
        added: Iterable[AddedToken],
        decoding: Decoding,
        *,
        normalize: Callable[[str, bool], str] | None = None,
        words: Sequence[AddedToken] = (),
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        bos_token_id: int | None = None,
        eos_token_ids: tuple[int, ...] = (),
        unk_token_id: int | None = None,
    ) -> None:
        self._first = first
        self._later = later
        self._added = {token.id: token for token in added}
        self._decoding = decoding
        self._normalize = normalize
        self._words = SpecialScanner(words) if words else None
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        self.vocab_size = max(first.get_vocab_size(with_added_tokens=True), max(self._added, default=-1) + 1)
        """Tokens in the vocabulary; the model may compute logits for more, which are never text."""
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(token for token in eos_token_ids if 0 <= token < self.vocab_size)
        special = [token for token in self._added.values() if token.special]
        self.special_token_ids = frozenset(token.id for token in special)
        self.scanner = SpecialScanner(special)
        """Finds the special tokens that a text spells."""
        self._never_text = self.special_token_ids - {unk_token_id}
        self._all_bytes = TokenBytes(self.vocab_size, self._make_bytes)
        self._text_bytes = TokenBytes(self.vocab_size, self._make_text_bytes)
        named = (bos_token_id, unk_token_id, *prefix, *suffix)
        if any(token is not None and not 0 <= token < self.vocab_size for token in named):
            raise InvalidModel(f"a special token lies outside the vocabulary of {self.vocab_size} tokens")

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = False) -> list[int]:
        """The tokens of a text, between the model's tokens for beginning and end.

        Special tokens spelled in the text become text, since whoever wrote it may be a stranger; with `allow_special`
        they become special tokens.

        Raises:
            InvalidRequest: the text holds half a surrogate pair, or cannot be told from a special token.
        """
        ids = self.encode_spans(text, self.scanner.find(text) if allow_special else [])
        return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids

    def encode_batch(
        self, texts: Iterable[str], *, add_special_tokens: bool = True, allow_special: bool = False
    ) -> list[list[int]]:
        """The tokens of each text; one after another, for the cores belong to the model.

        Raises:
            InvalidRequest: see `encode`.
        """
        return [self.encode(text, add_special_tokens=add_special_tokens, allow_special=allow_special) for text in texts]

    def encode_later(self, text: str) -> list[int]:
        """The tokens of a text that follows other text; special tokens that it spells are text.

        Raises:
            InvalidRequest: see `encode`.
        """
        return self._encode_text(text, is_first=False)

    def encode_spans(self, text: str, spans: Sequence[Span]) -> list[int]:
        """The tokens of a text in which exactly `spans` (in order, apart) are special tokens; none is added.

        Raises:
            InvalidRequest: see `encode`.
        """
        return self._around(text, spans, self._encode_text, is_first=True)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD.

        Some vocabularies put a space before a text, and decoding takes it away again; not from the `continuation` of
        a text, whose first word may well begin with a space of its own.

        Raises:
            InvalidRequest: an id outside the vocabulary.
        """
        table = self.bytes_of(skip_special_tokens)
        if any(not 0 <= token < self.vocab_size for token in tokens):
            raise InvalidRequest(f"token ids must be between 0 and {self.vocab_size - 1}")
        text = b"".join(map(table.__getitem__, tokens)).decode("utf-8", "replace")
        return text[1:] if self._decoding.strips_space and not continuation and text.startswith(" ") else text

    @property
    def strips_space(self) -> bool:
        """Whether a text of its own begins with a space that decoding takes away: see `decode`."""
        return self._decoding.strips_space

    def bytes_of(self, skip_special_tokens: bool) -> TokenBytes:
        """The bytes of every token by id, with or without those of special tokens."""
        return self._text_bytes if skip_special_tokens else self._all_bytes

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; of a special token, its spelling."""
        return self._all_bytes[token]

    def token_text(self, token: int) -> str:
        """One token for the eye: its bytes as text, with U+FFFD for what is only part of a character."""
        return self._all_bytes[token].decode("utf-8", "replace")

    def special_text(self, token: int | None) -> str | None:
        """How a special token is spelled, None if it is none."""
        added = self._added.get(token) if token is not None else None
        return added.text if added is not None else None

    def _around(
        self, text: str, spans: Sequence[Span], encode: Callable[[str, bool], list[int]], is_first: bool
    ) -> list[int]:
        """The tokens of `spans`, and of what stands between them."""
        if not spans:
            return encode(text, is_first)
        ids: list[int] = []
        end = 0
        for span in spans:
            if end < span.start:
                ids += encode(text[end : span.start], is_first and not end)
            ids.append(span.id)
            end = span.stop
        if end < len(text):
            ids += encode(text[end:], False)
        return ids

    def _encode_text(self, text: str, is_first: bool) -> list[int]:
        if self._words is None:
            return self._encode_plain(text, is_first)
        return self._around(text, self._words.find(text), self._encode_plain, is_first)

    def _encode_plain(self, text: str, is_first: bool) -> list[int]:
        try:
            ids = self._encode(text, is_first)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("text must not hold half a surrogate pair") from error
        if not self._never_text.isdisjoint(ids):
            ids = self._encode_apart(text, is_first)
        return ids

    def _encode_apart(self, text: str, is_first: bool) -> list[int]:
        """Encode a text whose merges spell out a special token: cut in two wherever it is spelled."""
        ids: list[int] = []
        end = 0
        for span in self.scanner.find(text):
            ids += self._encode(text[end : span.start + 1], is_first and not end)
            end = span.start + 1
        ids += self._encode(text[end:], is_first and not end)
        if not self._never_text.isdisjoint(ids):
            raise InvalidRequest("the text cannot be told from the model's special tokens")
        return ids

    def _encode(self, text: str, is_first: bool) -> list[int]:
        """Token ids of plain text. A long text goes through the batch call, which lets other Python threads run."""
        backend = self._first if is_first else self._later
        if self._normalize is not None:
            text = self._normalize(text, is_first)
        try:
            if len(text) < LONG_TEXT_CHARS:
                return backend.encode(text, add_special_tokens=False).ids
            return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InvalidRequest("the model's tokenizer cannot encode this text") from error

    def _make_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return (added.text if added.special else self._decoding.replaced(added.text)).encode()
        piece = self._first.id_to_token(token)
        return b"" if piece is None else self._decoding.bytes_of(piece)

    def _make_text_bytes(self, token: int) -> bytes:
        return b"" if token in self.special_token_ids else self._all_bytes[token]


def built(build: Callable[[], tokenizers.Tokenizer], where: str) -> tokenizers.Tokenizer:
    """What `build` makes with the library.

    Raises:
        InvalidModel: the library refuses or panics. A panic comes as a BaseException of a type without a public name.
    """
    try:
        return build()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InvalidModel(f"{where}: the tokenizer cannot be built: {shown(error)}") from error
