from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from chairlift.text.pieces import Decoding, TokenBytes, byte_characters, byte_of

BYTE_LEVEL = Decoding("byte_level")
TEXT = Decoding("text", (("\u2581", " "),), byte_fallback=True)


def test_every_byte_has_its_own_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert set(characters) == set(pre_tokenizers.ByteLevel.alphabet())
    assert BYTE_LEVEL.bytes_of("".join(characters)) == bytes(range(256))


@given(st.text(st.sampled_from([*byte_characters(), "\xad", "\u0144", " ", "\n", "\x7f", "🙂"]), max_size=8))
def test_byte_level_pieces_decode_as_the_library_does(piece: str) -> None:
    assert BYTE_LEVEL.bytes_of(piece).decode("utf-8", "replace") == decoders.ByteLevel().decode([piece])


def test_pieces_that_spell_no_bytes_are_text() -> None:
    assert BYTE_LEVEL.bytes_of("a b") == b"a b"
    assert BYTE_LEVEL.bytes_of("\xad") == "\xad".encode()


def test_byte_tokens() -> None:
    assert [TEXT.bytes_of(f"<0x{byte:02X}>") for byte in range(256)] == [bytes((byte,)) for byte in range(256)]
    assert Decoding("text").bytes_of("<0x41>") == b"<0x41>"
    for piece in ("<0x4>", "<0x411>", "<0xZZ>", "<1x41>", "<0x41)", "", "<0x+1>"):
        assert byte_of(piece) is None, piece


def test_replacements() -> None:
    assert TEXT.bytes_of("\u2581a\u2581") == b" a "


def test_bytes_are_made_once_and_only_for_known_ids() -> None:
    made: list[int] = []

    def make(token: int) -> bytes:
        made.append(token)
        return b"x" * token

    table = TokenBytes(3, make)
    assert [table[token] for token in (2, 2, 0, 3, -1, 2**70)] == [b"xx", b"xx", b"", b"", b"", b""]
    assert made == [2, 0]
    assert len(table) == 2, "ids of no token must not fill the table"
