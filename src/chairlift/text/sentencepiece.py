"""SentencePiece vocabularies, wherever they are written: how they normalise a text and cut it into pieces.

The text is normalised here and cut by the `tokenizers` library: its own way to normalise replaces characters that
combine one by one, and fails where tokens are looked for in what was normalised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import tokenizers
from tokenizers import AddedToken as BackendToken
from tokenizers import models

from chairlift.text.charsmap import Replacements
from chairlift.text.pieces import Decoding
from chairlift.text.specials import AddedToken, SpecialScanner

SPACE = "\u2581"
_NEVER = -1e6
"""Score of what is no text: any path over pieces of the text is better."""
_SPACES = re.compile(" {2,}")


class TokenType(IntEnum):
    """What a piece is, by the numbers that SentencePiece models and GGUF files share."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """Pieces with scores and types, by token id, and what is done to a text before it is cut.

    In this order: `replacements` are made, except in user-defined pieces; `removes_spaces` leaves one of several
    spaces in a row and none at the ends; `adds_space` puts one before the text.
    """

    kind: Literal["bpe", "unigram"]
    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown: int | None
    adds_space: bool = True
    removes_spaces: bool = False
    replacements: Replacements | None = None

    @property
    def byte_fallback(self) -> bool:
        """Whether characters that no piece holds are spelled in bytes: each of them has a piece."""
        names = frozenset(self.pieces)
        return all(f"<0x{byte:02X}>" in names for byte in range(256))

    def cuts(self, token: int) -> bool:
        """Whether this is a piece that texts are cut into, whatever else."""
        return token < len(self.pieces) and self.types[token] in (TokenType.NORMAL, TokenType.USER_DEFINED)

    def decoding(self) -> Decoding:
        return Decoding("text", ((SPACE, " "),), self.byte_fallback, self.adds_space or self.removes_spaces)

    def normalizer(self, *, later_too: bool) -> TextNormalizer:
        """What is done to a text; with `later_too` a space is put also before what follows a special token."""
        user_defined = [
            AddedToken(token, piece)
            for token, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True))
            if kind == TokenType.USER_DEFINED
        ]
        kept = SpecialScanner(user_defined) if user_defined and self.replacements is not None else None
        return TextNormalizer(self.replacements, kept, self.removes_spaces, self.adds_space, later_too)

    def backend(self) -> tokenizers.Tokenizer:
        """What cuts a normalised text. Control pieces are spelled in it with a space, which no such text has.

        Raises:
            Exception: from the library, of any type: see `built`.
        """
        hidden = (TokenType.CONTROL, TokenType.UNKNOWN)
        names = [f" {piece}" if kind in hidden else piece for piece, kind in zip(self.pieces, self.types, strict=True)]
        if self.kind == "unigram":
            return tokenizers.Tokenizer(models.Unigram(self._scored(names), self.unknown, self.byte_fallback))
        backend = tokenizers.Tokenizer(self._bpe(names))
        backend.add_tokens(
            [
                BackendToken(piece, normalized=False)
                for piece, kind in zip(self.pieces, self.types, strict=True)
                if kind == TokenType.USER_DEFINED
            ]
        )
        return backend

    def _bpe(self, names: Sequence[str]) -> models.BPE:
        normal = {
            piece: score
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
            if kind == TokenType.NORMAL
        }
        return models.BPE(
            vocab={name: token for token, name in enumerate(names)},
            merges=merges_by_score(normal),
            unk_token=None if self.unknown is None else names[self.unknown],
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
        )

    def _scored(self, names: Sequence[str]) -> list[tuple[str, float]]:
        """A user-defined piece is likelier than anything, the longer the more, so that it is cut wherever it can be."""
        scored = []
        for name, score, kind in zip(names, self.scores, self.types, strict=True):
            if kind == TokenType.USER_DEFINED:
                scored.append((name, 0.1 * (len(name.encode()) - 1)))
            else:
                scored.append((name, float(score) if kind == TokenType.NORMAL else _NEVER))
        return scored


@dataclass(frozen=True, slots=True)
class TextNormalizer:
    """From a text to what is cut into pieces: see `SentencePiece`. In `kept` tokens nothing is replaced."""

    replacements: Replacements | None
    kept: SpecialScanner | None
    removes_spaces: bool
    adds_space: bool
    later_too: bool

    def __call__(self, text: str, is_first: bool) -> str:
        """A text, which begins the whole or follows a special token."""
        normal = text if self.replacements is None else self._replaced(self.replacements, text)
        if self.removes_spaces:
            normal = _SPACES.sub(" ", normal).strip(" ")
        if text and self.adds_space and (is_first or self.later_too):
            normal = " " + normal
        normal = normal.replace(" ", SPACE)
        return normal.rstrip(SPACE) if self.removes_spaces else normal

    def _replaced(self, replacements: Replacements, text: str) -> str:
        if self.kept is None:
            return replacements.apply(text)
        parts: list[str] = []
        end = 0
        for span in self.kept.find(text):
            parts += (replacements.apply(text[end : span.start]), text[span.start : span.stop])
            end = span.stop
        return "".join(parts) + replacements.apply(text[end:])


def merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs whose joining gives a piece, best score first.

    SentencePiece joins, again and again, the two neighbours that form the piece of the highest score; ranking all
    pairs by the score of what they form does the same with a table of merges. Of pairs that form the same piece, the
    one with the longer left part comes first: that is the order in which a run of equal characters is eaten up.

    Source: Kudo and Richardson 2018, arXiv:1808.06226; its BPE model.
    """
    ranked = sorted((piece for piece in scores if len(piece) > 1), key=lambda piece: -scores[piece])
    return [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in scores and piece[cut:] in scores
    ]
