from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from chairlift.core.errors import InvalidModel
from chairlift.text.pretokenizers import RECIPES, recipe_named
from text.hard_texts import HARD_TEXTS

TEXT = "I'LL pay  2024\n\n\tfooBar(x)!! Äé"

EXPECTED = {
    "gpt-2": ["I", "'", "LL", " pay", " ", " 2024", "\n\n", "\t", "fooBar", "(", "x", ")!!", " Äé"],
    "smollm": ["I", "'", "LL", " pay", "  ", "2", "0", "2", "4", "\n\n", "\t", "fooBar", "(", "x", ")!!", " Äé"],
    "llama-bpe": ["I", "'LL", " pay", " ", " ", "202", "4", "\n\n", "\tfooBar", "(x", ")!!", " Äé"],
    "qwen2": ["I", "'LL", " pay", " ", " ", "2", "0", "2", "4", "\n\n", "\tfooBar", "(x", ")!!", " Äé"],
    "tekken": ["I", "'LL", " pay", " ", " ", "2", "0", "2", "4", "\n\n", "\tfoo", "Bar", "(x", ")!!", " Äé"],
    "gpt-4o": ["I'LL", " pay", " ", " ", "202", "4", "\n\n", "\tfoo", "Bar", "(x", ")!!", " Äé"],
    "deepseek-llm": ["I", "'", "LL", " pay", "  ", "2", "0", "2", "4", "\n", "\n", "\tfooBar", "(", "x", ")!!", " Äé"],
    "deepseek-coder": [
        "I",
        "'",
        "LL",
        " pay",
        "  ",
        "2",
        "0",
        "2",
        "4",
        "\n",
        "\n",
        "\tfooBar",
        "(",
        "x",
        ")!!",
        " Äé",
    ],
    "deepseek-v3": ["I", "'LL", " pay", "  ", "202", "4", "\n\n", "\tfooBar", "(x", ")!!", " Äé"],
    "seed-coder": ["I", "'LL", " pay", " ", " ", "2", "0", "2", "4", "\n\n", "\tfooBar", "(x", ")!!", " Äé"],
    "bloom": ["I'LL", " pay", " ", " 2024", "\n\n\t", "fooBar", "(", "x", ")!!", " Äé"],
    "viking": ["I'LL", " pay", " ", " ", "2", "0", "2", "4", "\n\n\t", "fooBar", "(", "x", ")!!", " Äé"],
    "default": ["I", "'", "LL", " pay", " ", " ", "202", "4", "\n\n", "\t", "fooBar", "(", "x", ")!!", " Äé"],
}


def words(name: str, text: str) -> list[str]:
    """The words a recipe cuts a text into, by their places: their spelling is in byte characters."""
    cut = recipe_named(name).pre_tokenizer()
    return [text[start:stop] for _, (start, stop) in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", EXPECTED)
def test_words_of_each_family(name: str) -> None:
    assert words(name, TEXT) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_loses_nothing(name: str) -> None:
    for text in (TEXT, " " * 40, "\n \n", "١٢٣٤ Ⅷ½ ſ's 'S", "a\u0301 👩‍👩‍👧 \x00\ufffd", "'''", "1" * 100):
        assert "".join(words(name, text)) == text


def test_unknown_names_are_refused_by_name() -> None:
    with pytest.raises(InvalidModel, match=r"no-such-cut.*smollm"):
        recipe_named("no-such-cut")


_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_DIGITS_AND_WORDS = pre_tokenizers.Sequence([_DIGITS, _WORDS])

ORIGINALS = {
    "gpt-2": _WORDS,
    "olmo": _WORDS,
    "smollm": _DIGITS_AND_WORDS,
    "refact": _DIGITS_AND_WORDS,
    "command-r": _DIGITS_AND_WORDS,
    "minerva-7b": _DIGITS_AND_WORDS,
}
"""The parts of the library that the makers' own files name where those are not patterns."""


@pytest.mark.parametrize("name", sorted(ORIGINALS))
def test_recipes_cut_as_the_original_parts(name: str) -> None:
    for text in (*HARD_TEXTS, TEXT):
        assert recipe_named(name).pre_tokenizer().pre_tokenize_str(text) == ORIGINALS[name].pre_tokenize_str(text)
