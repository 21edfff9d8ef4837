from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidModel
from chairlift.text.specials import AddedToken, Span, SpecialScanner

SPELLINGS = st.lists(st.text("<>|ab", min_size=1, max_size=5), min_size=1, max_size=8, unique=True)


def scanner(*spellings: str, **flags: bool) -> SpecialScanner:
    return SpecialScanner([AddedToken(index, spelling, **flags) for index, spelling in enumerate(spellings)])


@given(SPELLINGS, st.text("<>|ab ", max_size=40))
def test_finds_the_leftmost_then_the_longest(spellings: list[str], text: str) -> None:
    expected = []
    position = 0
    while position < len(text):
        here = [spelling for spelling in spellings if text.startswith(spelling, position)]
        if here:
            best = max(here, key=len)
            expected.append(Span(position, position + len(best), spellings.index(best)))
            position += len(best)
        else:
            position += 1
    assert scanner(*spellings).find(text) == expected


def test_one_token_within_another() -> None:
    assert scanner("<a", "<a|", "<a|b>").find("<a|b>x<a|c<ab") == [Span(0, 5, 2), Span(6, 9, 1), Span(10, 12, 0)]


def test_characters_with_a_meaning_in_patterns_are_plain() -> None:
    assert scanner("[.*]", "(?i)", "$^").find("[.*]x(?i)[ab]$^") == [Span(0, 4, 0), Span(5, 9, 1), Span(13, 15, 2)]


def test_no_tokens_find_nothing() -> None:
    assert scanner().find("anything") == []
    assert scanner().spellings_in("anything") == []


def test_strips_white_space_on_the_side_it_asks_for() -> None:
    assert scanner("<m>", lstrip=True).find("a  \u2003<m> b") == [Span(1, 7, 0)]
    assert scanner("<m>", rstrip=True).find("a <m> \n b") == [Span(2, 8, 0)]
    assert scanner("<m>", lstrip=True, rstrip=True).find("<m>  <m>") == [Span(0, 5, 0), Span(5, 8, 0)]
    assert scanner("<m>", rstrip=True).find("<m>\x1c") == [Span(0, 3, 0)], "a separator of Python's, not of Unicode's"


def test_single_words_stand_alone() -> None:
    assert scanner("ab", single_word=True).find("ab xab ab_ -ab-") == [Span(0, 2, 0), Span(12, 14, 0)]


def test_any_case() -> None:
    assert scanner("<End>").spellings_in("<END> <end>") == [(0, 5), (6, 11)]


@pytest.mark.parametrize("spelling", ["", "x" * 257])
def test_refuses_spellings_of_no_sane_length(spelling: str) -> None:
    with pytest.raises(InvalidModel):
        scanner(spelling)


def test_refuses_one_spelling_for_two_tokens() -> None:
    with pytest.raises(InvalidModel):
        scanner("<a>", "<a>")


def test_deep_nesting_is_one_clear_error_or_works() -> None:
    nested = ["a" * size for size in range(1, 257)]
    try:
        found = scanner(*nested).find("a" * 100)
    except InvalidModel:
        return
    assert found == [Span(0, 100, 99)]


@pytest.mark.parametrize("text", ["<|" * 50_000, "<|reserved_" * 9_000, "<" * 100_000, "<|reserved_1" * 8_000])
def test_time_is_linear_in_the_text(text: str) -> None:
    """100 KB at most 50 ms each (test D4), measured in CPU time of this thread; tripled for slow machines."""
    many = scanner(*(f"<|reserved_{index}|>" for index in range(1000)))
    start = time.thread_time()
    assert many.find(text) == []
    assert time.thread_time() - start < 0.15
