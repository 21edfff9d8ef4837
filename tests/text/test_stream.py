"""Incremental text against its definition: what all tokens so far make certain, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from chairlift.core.errors import InvalidRequest
from chairlift.text import StopAutomaton, StopMatcher, TextStream, Tokenizer
from chairlift.text.pieces import Decoding, byte_characters
from chairlift.text.specials import AddedToken

PIECES = [
    *(bytes((byte,)) for byte in range(256)),
    *(b"ab", b"abc", b"bc", b" the", b"\n\n", b"xaby", b"aabaab", b"<stop>", b"e\xcc\x81", b"stop>"),
    *("é".encode(), "你好".encode(), "🙂".encode(), "🙂".encode()[:2], "🙂".encode()[2:], "🙂".encode()[1:] + b"a"),
    *(b"\xe4\xbd", b"\xa0b", b"\xff\xfea", "\ufffd".encode(), "👩‍👩‍👧".encode()),
]
SPECIAL = len(PIECES)
VOCABULARY = st.integers(0, SPECIAL)
LIKELY = st.sampled_from([*b"ab<sto>\n", *range(256, SPECIAL + 1)])
STOPS = st.lists(
    st.one_of(
        st.sampled_from(
            ["a", "b", "ab", "aab", "abaab", "<stop>", "stop", "\n\n", "你", "好", "🙂", "é", "b<", "\ufffd"]
        ),
        st.text("ab<", min_size=1, max_size=6),
    ),
    max_size=4,
).map(tuple)


def tokenizer_of(pieces: Sequence[bytes]) -> Tokenizer:
    characters = byte_characters()
    spelled = ["".join(characters[byte] for byte in piece) for piece in pieces]
    backend = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(spelled)}, merges=[]))
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", normalized=False)])
    return Tokenizer(backend, backend, [AddedToken(len(pieces), "<|end|>")], Decoding("byte_level"))


TOKENIZER = tokenizer_of(PIECES)


def certain_text(data: bytes, stops: tuple[str, ...], include_stop: bool) -> tuple[str, str | None]:
    """The text that these bytes make certain, whatever follows, and the stop string that ended it; by brute force."""
    encoded = {stop: stop.encode() for stop in stops}
    for end in range(1, len(data) + 1):
        ending = [stop for stop in stops if data[:end].endswith(encoded[stop])]
        if ending:
            stop = max(ending, key=lambda stop: len(encoded[stop]))
            return data[: end if include_stop else end - len(encoded[stop])].decode("utf-8", "replace"), stop
    held = max(
        (size for stop in encoded.values() for size in range(1, len(stop)) if data.endswith(stop[:size])), default=0
    )
    if held:
        return data[: len(data) - held].decode("utf-8", "replace"), None
    sizes = [size for size in (3, 2, 1) if size <= len(data)]
    incomplete = next((size for size in sizes if may_become_a_character(data[-size:])), 0)
    return data[: len(data) - incomplete].decode("utf-8", "replace"), None


def may_become_a_character(tail: bytes) -> bool:
    """Whether some bytes appended make exactly one character of this."""
    for extra in range(1, 4):
        for first in (b"\x80", b"\x90", b"\xa0", b"\xbf", b"\x8f", b"\x9f"):
            candidate = tail + (first + b"\x80" * 3)[:extra]
            try:
                if len(candidate.decode()) == 1:
                    return True
            except UnicodeDecodeError:
                continue
    return False


def split(tokens: Sequence[int], chance: random.Random) -> list[list[int]]:
    """The tokens in chunks, some of them empty."""
    chunks: list[list[int]] = []
    rest = list(tokens)
    while rest:
        size = chance.choice((0, 1, 1, 1, 2, 3, len(rest)))
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks


def check(tokens: Sequence[int], stops: tuple[str, ...], include_stop: bool, seed: int, skip: bool = True) -> None:
    stream = TextStream(TOKENIZER, stops, include_stop, skip)
    table = [*PIECES, b"" if skip else b"<|end|>"]
    text, seen = "", b""
    for chunk in split(tokens, random.Random(seed)):
        piece = stream.push(chunk)
        text += piece
        seen += b"".join(table[token] for token in chunk)
        expected, stop = certain_text(seen, stops, include_stop)
        assert (text, stream.stopped) == (expected, stop)
    text += stream.finish()
    if stream.stopped is None:
        assert text == TOKENIZER.decode(tokens, skip_special_tokens=skip, continuation=True)
    assert stream.push([97]) == "" if stream.stopped else True
    assert stream.finish() == "" if stream.stopped else True


@settings(max_examples=800, deadline=None)
@given(st.lists(st.one_of(VOCABULARY, LIKELY), max_size=24), STOPS, st.booleans(), st.integers(0, 9), st.booleans())
def test_src_vllm_48853_and_3574_deltas_are_what_is_certain(
    tokens: list[int], stops: tuple[str, ...], include_stop: bool, seed: int, skip: bool
) -> None:
    check(tokens, stops, include_stop, seed, skip)


def random_case(chance: random.Random) -> tuple[list[int], tuple[str, ...], bool]:
    likely = [*b"ab<sto>\n", *range(256, SPECIAL + 1)]
    tokens = [chance.choice(likely) if chance.random() < 0.7 else chance.randrange(SPECIAL + 1) for _ in range(20)]
    pool = ["a", "ab", "aab", "abaab", "<stop>", "stop", "\n\n", "你", "🙂", "é", "b<", "ba", "the\n"]
    return tokens, tuple(chance.sample(pool, chance.randrange(4))), chance.random() < 0.5


def test_bar_s19_5000_sequences() -> None:
    chance = random.Random(19)
    for _ in range(5000):
        tokens, stops, include_stop = random_case(chance)
        check(tokens, stops, include_stop, chance.randrange(1 << 30))


@pytest.mark.long
def test_bar_s19_a_million_sequences() -> None:
    chance = random.Random(1919)
    for _ in range(1_000_000):
        tokens, stops, include_stop = random_case(chance)
        check(tokens, stops, include_stop, chance.randrange(1 << 30))


# ---------------------------------------------------------------- worker and server agree


@settings(max_examples=500, deadline=None)
@given(st.lists(LIKELY, max_size=24), STOPS.filter(bool), st.integers(0, 12))
def test_matcher_and_stream_stop_at_the_same_token(tokens: list[int], stops: tuple[str, ...], min_tokens: int) -> None:
    """The engine passes over stop strings that are complete before `min_tokens`; so does the stream."""
    automaton = StopAutomaton(stops)
    matcher = StopMatcher(TOKENIZER, automaton)
    stream = TextStream(TOKENIZER, automaton, min_tokens=min_tokens)
    alone = TextStream(TOKENIZER, stops, min_tokens=min_tokens)
    text = ""
    for count, token in enumerate(tokens, start=1):
        stop = matcher.push(token)
        text += stream.push((token,))
        if stop is not None and count >= min_tokens:
            assert stream.stopped == stop
            break
        assert stream.stopped is None
    assert alone.push(tokens) + alone.finish() == text + stream.finish()


def test_a_stop_string_passed_over_may_overlap_the_one_that_counts() -> None:
    stream = TextStream(TOKENIZER, ("aa",), min_tokens=2)
    assert [stream.push(b"a"), stream.push(b"a"), stream.finish()] == ["", "", ""]
    assert stream.stopped == "aa"
    stream = TextStream(TOKENIZER, ("aa",), min_tokens=3)
    assert [stream.push(b"a"), stream.push(b"a"), stream.push(b"a")] == ["", "a", ""]
    assert stream.stopped == "aa"


def test_the_stop_string_that_ends_first_counts_and_of_those_the_longest() -> None:
    for stops in (("abcd", "bc"), ("bc", "abcd")):
        stream = TextStream(TOKENIZER, stops)
        assert stream.push(b"xabcd") == "xa"
        assert stream.stopped == "bc"
    for stops in (("b", "ab"), ("ab", "b")):
        stream = TextStream(TOKENIZER, stops)
        assert stream.push(b"xab") == "x"
        assert stream.stopped == "ab"


def test_a_matcher_reports_the_first_of_several_in_one_token() -> None:
    matcher = StopMatcher(TOKENIZER, ("b", "y"))
    assert matcher.push(PIECES.index(b"xaby")) == "b"
    assert matcher.push(PIECES.index(b"xaby")) == "b"


# ---------------------------------------------------------------- single cases


def test_half_a_character_waits() -> None:
    stream = TextStream(TOKENIZER)
    assert [stream.push([byte]) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_bytes_that_are_no_characters() -> None:
    stream = TextStream(TOKENIZER)
    assert stream.push([0xFF, 0x61, 0xE4, 0xBD]) == "\ufffda"
    assert stream.push([0x61]) == "\ufffda"
    assert stream.push([0xF0]) == ""
    assert stream.finish() == "\ufffd"


def test_half_a_surrogate_is_an_error_at_once() -> None:
    stream = TextStream(TOKENIZER)
    assert [stream.push([byte]) for byte in b"\xed\xac\x80\xed\x9f\xbf"] == [
        "",
        "\ufffd\ufffd",
        "\ufffd",
        "",
        "",
        "\ud7ff",
    ]


def test_an_incomplete_character_before_a_possible_stop_string_is_already_certain() -> None:
    stream = TextStream(TOKENIZER, ("<stop>",))
    assert stream.push([0xE4]) == ""
    assert stream.push(b"<") == "\ufffd"
    assert stream.finish() == "<"


def test_special_tokens_are_hidden_or_shown() -> None:
    assert TextStream(TOKENIZER).push([97, SPECIAL, 98]) == "ab"
    assert TextStream(TOKENIZER, skip_special_tokens=False).push([97, SPECIAL, 98]) == "a<|end|>b"
    shown = TextStream(TOKENIZER, ("|end|>",), skip_special_tokens=False)
    assert shown.push([97, SPECIAL, 98]) == "a<"
    assert TextStream(TOKENIZER, ("ab",)).push([97, SPECIAL, 98]) == "", "hidden tokens do not break a stop string"


def test_a_text_of_its_own_loses_the_space_that_it_begins_with() -> None:
    cases: tuple[tuple[list[bytes], str], ...] = (
        ([b" the"], "the"),
        ([b" ", b" the"], " the"),
        ([b"a", b" "], "a "),
        ([b"\n", b" the"], "\n the"),
        ([], ""),
    )
    for pieces, expected in cases:
        for stop in ((), ("zz",)):
            stream = TextStream(TOKENIZER, stop, strips_space=True)
            tokens = [[PIECES.index(piece)] for piece in pieces]
            text = "".join(map(stream.push, tokens)) + stream.finish()
            assert text == expected
    stream = TextStream(TOKENIZER, (" the", "!"), strips_space=True)
    assert [stream.push(b" "), stream.push(b"t"), stream.push(b"o"), stream.finish()] == ["", "", "to", ""]
    stream = TextStream(TOKENIZER, ("<stop>",), True, strips_space=True)
    assert stream.push(b" <stop>") == "<stop>", "the stop string is looked for in what the model wrote"
    assert TextStream(TOKENIZER).push([PIECES.index(b" the")]) == " the"


def test_nothing_pushed() -> None:
    for stops in ((), ("a",)):
        stream = TextStream(TOKENIZER, stops)
        assert stream.push([]) == ""
        assert stream.finish() == ""


@pytest.mark.parametrize("stop", ["", "\ud800"])
def test_impossible_stop_strings(stop: str) -> None:
    with pytest.raises(InvalidRequest):
        StopAutomaton(("a", stop))


def test_time_is_linear_in_text_and_stop_strings() -> None:
    """Long stop strings that nearly match at every position: a naive search would need a billion comparisons."""
    stops = tuple("a" * 2000 + end for end in "bcdefghijklmnop")
    stream = TextStream(TOKENIZER, stops)
    matcher = StopMatcher(TOKENIZER, stops)
    total = 0
    for _ in range(100):
        total += len(stream.push(b"a" * 1000))
        assert all(matcher.push(token) is None for token in b"a" * 1000)
    assert total + len(stream.finish()) == 100_000
    assert total == 98_000


def test_a_stream_keeps_only_what_it_holds_back() -> None:
    stream = TextStream(TOKENIZER, ("<stop>",))
    for _ in range(1000):
        stream.push(b"some text <sto")
    assert len(stream._held) == 4 and stream._partial == b""
