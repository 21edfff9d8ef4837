"""From the spelling of a token in the vocabulary to the bytes it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MAX_TOKENS = 1 << 20
MAX_PIECE_CHARS = 1 << 10
"""Longest spelling of a token; finding the merges of a token takes time with the square of its length."""

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a vocabulary spells bytes.

    `byte_level`: each character stands for one byte. `words`: pieces begin a word, which a space is put before, unless
    they begin with `##`. `text`: UTF-8, with `replacements` (usually of U+2581 by a space)
    and, with `byte_fallback`, tokens `<0x00>` .. `<0xFF>` for single bytes. `strips_space`: a text, as opposed to the
    continuation of one, was given a leading space when it was encoded, which decoding takes away again.
    """

    kind: Literal["byte_level", "words", "text"]
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strips_space: bool = False

    def bytes_of(self, piece: str) -> bytes:
        """The bytes of an ordinary token."""
        if self.kind == "byte_level":
            try:
                return piece.translate(_BYTES).encode("latin-1")
            except UnicodeEncodeError:  # spelled with a character that stands for no byte
                return piece.encode()
        if self.kind == "words":
            return (piece[2:] if piece.startswith("##") else " " + piece).encode()
        if self.byte_fallback and (byte := byte_of(piece)) is not None:
            return bytes((byte,))
        return self.replaced(piece).encode()

    def replaced(self, spelling: str) -> str:
        """A spelling with the characters that stand for others replaced by those."""
        for old, new in self.replacements:
            spelling = spelling.replace(old, new)
        return spelling


def byte_of(piece: str) -> int | None:
    """The byte that a token of the form `<0x0A>` stands for."""
    match = _BYTE_PIECE.fullmatch(piece)
    return int(match[1], 16) if match else None


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, `[256]`.

    Bytes that print in Latin-1 stand for themselves; the rest, in order, take the characters from U+0100 on.

    Source: Radford et al. 2019 (GPT-2), the released encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_ins = {byte: 0x100 + index for index, byte in enumerate(others)}
    return [chr(stand_ins.get(byte, byte)) for byte in range(256)]


# A character that stands for no byte must not pass for one: U+00AD is outside the vocabulary, and so are the
# characters of bytes that have a stand-in.
_BYTES: dict[int, int] = {ord(character): byte for byte, character in enumerate(byte_characters())}
_BYTES.update({code: 0xFFFF for code in range(256) if code not in _BYTES})


class TokenBytes(dict[int, bytes]):
    """Bytes by token id, made when first asked for; ids outside the vocabulary stand for nothing."""

    def __init__(self, num_tokens: int, make: Callable[[int], bytes]) -> None:
        self._num_tokens = num_tokens
        self._make = make

    def __missing__(self, token: int) -> bytes:
        if not 0 <= token < self._num_tokens:
            return b""
        data = self[token] = self._make(token)
        return data
