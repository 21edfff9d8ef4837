"""SentencePiece vocabularies, wherever they are written: how they normalise a text and cut it into pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import tokenizers
from tokenizers import Regex, models, normalizers

from chairlift.text.pieces import Decoding

SPACE = "\u2581"
_NEVER = -1e6
"""Score of what is no text: any path over pieces of the text is better."""


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

    In this order: `charsmap` (SentencePiece's table of replacements, compiled) is applied; `removes_spaces` leaves one
    of several spaces in a row and none at the ends; `adds_space` puts one before the text.
    """

    kind: Literal["bpe", "unigram"]
    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown: int | None
    adds_space: bool = True
    removes_spaces: bool = False
    charsmap: bytes = b""

    @property
    def byte_fallback(self) -> bool:
        """Whether characters that no piece holds are spelled in bytes: each of them has a piece."""
        names = frozenset(self.pieces)
        return all(f"<0x{byte:02X}>" in names for byte in range(256))

    def decoding(self) -> Decoding:
        return Decoding("text", ((SPACE, " "),), self.byte_fallback, strips_space=self.adds_space)

    def backend(self, *, adds_space: bool | None = None) -> tokenizers.Tokenizer:
        """A backend without added tokens; `adds_space` overrules the vocabulary's own habit.

        Raises:
            Exception: from the library, of any type: see `built`.
        """
        backend = tokenizers.Tokenizer(self._bpe() if self.kind == "bpe" else self._unigram())
        backend.normalizer = self._normalizer(self.adds_space if adds_space is None else adds_space)
        return backend

    def _bpe(self) -> models.BPE:
        vocab = {piece: token for token, piece in enumerate(self.pieces)}
        normal = {
            piece: score
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
            if kind == TokenType.NORMAL
        }
        return models.BPE(
            vocab=vocab,
            merges=merges_by_score(normal),
            unk_token=None if self.unknown is None else self.pieces[self.unknown],
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
        )

    def _unigram(self) -> models.Unigram:
        scored = [
            (piece, float(score) if kind in (TokenType.NORMAL, TokenType.USER_DEFINED) else _NEVER)
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
        ]
        return models.Unigram(scored, self.unknown, self.byte_fallback)

    def _normalizer(self, adds_space: bool) -> normalizers.Normalizer:
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.removes_spaces:
            steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        if adds_space:
            steps.append(normalizers.Prepend(SPACE))
        steps.append(normalizers.Replace(" ", SPACE))
        return normalizers.Sequence(steps) if len(steps) > 1 else steps[0]


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
