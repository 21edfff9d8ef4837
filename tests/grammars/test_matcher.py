"""What may come next, against languages small enough to be written out."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from chairlift.core.structured import StructuredOutputs
from chairlift.grammars.compiling import InvalidGrammar, Vocabulary, compiled, tokenizer_of
from chairlift.grammars.matcher import Matcher
from chairlift.text.grammars import grammar_text, literal
from grammars.small import END, NUM_WORDS, OTHER_END, TOKENIZER, TOKENS, TURN, legal, text_of

BLANKS = tuple(" \t\n\r")


def follow(**form: Any) -> Matcher:
    grammar = grammar_text(StructuredOutputs(**form))
    return Matcher(compiled(TOKENIZER, grammar), TOKENIZER.vocab_size, (END, OTHER_END))


def say(matcher: Matcher, text: str) -> Matcher:
    for byte in text.encode():
        assert byte in legal(matcher), (text, chr(byte))
        matcher.accept(byte)
    return matcher


WORDS = ("red", "read", "green", "re", "a.b|c", "né\n", '"q"', "\\d")
LANGUAGES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "choice": ({"choice": WORDS}, set(WORDS)),
    "choice, one": ({"choice": ["abc"]}, {"abc"}),
    "regex": (
        {"regex": "(ab|c){1,3}e?"},
        {
            "".join(one) + end
            for n in (1, 2, 3)
            for one in itertools.product(("ab", "c"), repeat=n)
            for end in ("", "e")
        },
    ),
    "grammar": ({"grammar": 'start: "x" (a | "b" a)\na: "é" | "abc"'}, {"xé", "xabc", "xbé", "xbabc"}),
    "json": (
        {"json": {"enum": ["a", 1, True, None, {"ab": []}]}, "whitespace_pattern": ""},
        {'"a"', "1", "true", "null", '{"ab":[]}'},
    ),
    "json in text": (
        {"grammar": f'start: {literal("<a b=")} j {literal(">")}\nj: %json {{"enum": [1, "ab"]}}'},
        {"<a b=1>", '<a b="ab">'},
    ),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_iq8_every_token_that_may_come_leads_to_a_text_of_the_language(name: str) -> None:
    """And an answer may end where it is one. All paths at random, from many seeds."""
    form, words = LANGUAGES[name]
    language = {word.encode() for word in words}
    prefixes = {word[:size] for word in language for size in range(len(word) + 1)}
    said = set()
    for seed in range(60):
        draw = random.Random(seed)
        matcher, text = follow(**form), b""
        for _ in range(40):
            tokens = legal(matcher)
            ends = tokens & {END, OTHER_END}
            assert (text in language) == (ends == {END, OTHER_END}) == bool(ends)
            assert all(text + TOKENS[token] in prefixes for token in tokens - ends), text
            assert tokens, text
            token = draw.choice(sorted(tokens))
            if token in ends:
                break
            matcher.accept(token)
            text += TOKENS[token]
        assert text in language
        said.add(text)
    assert len(said) >= min(len(language), 4)


@pytest.mark.parametrize("text", [
    '{}', '{"a": 1}', '{"a":[1,2.5e-3,"x\\n",{"b":null}],"c":true}', '{\n  "a": {\n    "b": []\n  }\n}'])  # fmt: skip
def test_any_json_object_can_be_said(text: str) -> None:
    assert json.loads(text) is not None
    assert legal(say(follow(json_object=True), text)) == {END, OTHER_END}


@pytest.mark.parametrize("text", ["1", "[", " ", '{"a" 1', "{}{", '{"a":01', '{"a":"\n'])
def test_nothing_else_can(text: str) -> None:
    matcher = say(follow(json_object=True), text[:-1])
    assert ord(text[-1]) not in legal(matcher)


def test_src_vllm_38696_at_most_eight_blanks_in_a_row_between_the_parts_of_json() -> None:
    """Row 69 of the catalogue: a model that may go on with blanks for ever sometimes does."""
    forms: list[dict[str, Any]] = [{"json_object": True}, {"json": {}}, {"json": {"type": "object"}, "lenient": True}]
    for form in forms:
        for prefix in ("{", '{"a"', '{"a":', '{"a":[1', '{"a":[1,', '{"a":1'):
            matcher = say(follow(**form), prefix + "\n" + " " * 7)
            assert not {ord(blank) for blank in BLANKS} & legal(matcher), prefix
            assert legal(matcher)
    matcher = say(follow(json={"type": "array"}, whitespace_pattern=" *"), "[" + " " * 40)
    assert ord(" ") in legal(matcher)
    assert ord(" ") not in legal(say(follow(json={"type": "array"}, whitespace_pattern=""), "["))


@pytest.mark.parametrize(("kind", "ascii_one", "other"), [(r"\d", "3", "٣"), (r"\w", "e", "é")])
def test_digits_and_letters_are_those_of_all_scripts_but_in_patterns_of_schemas(
    kind: str, ascii_one: str, other: str
) -> None:
    """As in Python, and as in JavaScript."""
    for one in (ascii_one, other):
        assert legal(say(follow(regex=kind), one)) == {END, OTHER_END}
    schema = {"type": "string", "pattern": f"^{kind}$"}
    assert ord('"') in legal(say(follow(json=schema), f'"{ascii_one}'))
    assert other.encode()[0] not in legal(say(follow(json=schema), '"'))


def test_blanks_inside_a_string_are_its_own_affair() -> None:
    assert ord(" ") in legal(say(follow(json_object=True), '{"a":"' + " " * 30))


def test_after_an_end_only_ends_follow() -> None:
    """With `ignore_eos` an answer goes on when it is over: with nothing that could be read."""
    matcher = say(follow(regex="ab*"), "a")
    assert legal(matcher) == {END, OTHER_END, ord("b")}
    for _ in range(3):
        matcher.accept(END)
        assert legal(matcher) == {END, OTHER_END}


def test_tokens_that_are_no_text_are_said_by_name_only() -> None:
    matcher = say(follow(grammar="start: /a+/ <turn>"), "a")
    assert TURN in legal(matcher)
    assert TURN not in legal(say(follow(regex="(?s:.*)"), "a"))
    assert text_of([TURN]) == b""


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"json": {"type": "thing"}}, "Invalid type"),
        ({"json": {"uniqueItems": True, "type": "array"}}, "uniqueItems"),
        ({"json": {"format": "no-such"}}, "no-such"),
        ({"json": {"$ref": "http://example.org/x"}}, "http://example.org/x"),
        ({"json": {"$ref": "#"}}, "no text satisfies it"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"json": {"pattern": "(", "type": "string"}}, "regex"),
        ({"regex": "("}, "regex"),
        ({"regex": "(?=a)b"}, "regex"),
        ({"grammar": "start: "}, None),
        ({"grammar": "nonsense"}, "nonsense"),
        ({"grammar": "start: other"}, "other"),
        ({"grammar": 'begin: "a"'}, "start"),
        ({"grammar": "start: <nobody>"}, "nobody"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_grammar_says_why(form: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        assert legal(follow(**form)) == {END, OTHER_END}
        return
    with pytest.raises(InvalidGrammar, match=reason) as caught:
        follow(**form)
    assert len(str(caught.value)) < 400


def test_nothing_satisfies_false() -> None:
    with pytest.raises(ValueError, match="nothing satisfies"):
        follow(json=False)


def test_keywords_that_cannot_be_enforced_are_ignored_on_request_only() -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    assert legal(say(follow(json=schema, lenient=True), "[1,1]")) == {END, OTHER_END}
    either = {"oneOf": [{"type": "object", "properties": {name: {"type": "string"}}} for name in "ab"]}
    with pytest.raises(InvalidGrammar, match="oneOf"):
        follow(json=either)
    assert legal(say(follow(json=either, lenient=True), '{"a":""}')) == {END, OTHER_END}


def test_src_tensorrt_llm_18896_a_dead_end_says_so() -> None:
    """Row 37: a grammar that needs a byte which no token has is only noticed when the answer comes there."""
    tokenizer = tokenizer_of(Vocabulary([b"a", b"b", b"</s>"], [2], [2]), None)
    grammar = compiled(tokenizer, grammar_text(StructuredOutputs(regex="abc")))
    matcher = Matcher(grammar, tokenizer.vocab_size, (2,))
    for token in (0, 1):
        assert legal(matcher) == {token}
        matcher.accept(token)
    assert not legal(matcher)
    assert "dead end" in str(matcher.fill(np.zeros(NUM_WORDS, np.uint32)))


def test_an_answer_that_is_dear_to_follow_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.02)
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    matcher = follow(regex="a+")
    for _ in range(8):
        legal(matcher)
        matcher.accept(ord("a"))
    assert not legal(matcher)


class Panic(BaseException):
    """What the library raises when it panics is no Exception either."""


class Panicking:
    """The library's matcher, broken."""

    def consume_tokens(self, tokens: list[int]) -> bool:
        raise Panic

    unsafe_compute_mask_ptr = consume_tokens


@pytest.mark.parametrize("accepts", [True, False])
def test_a_library_that_panics_costs_one_answer(accepts: bool) -> None:
    notes = []
    matcher = Matcher(Panicking(), 3, (2,), lambda grown_s, is_broken: notes.append(is_broken))  # type: ignore[arg-type]
    if accepts:
        matcher.accept(1)
    words = np.zeros(NUM_WORDS, np.uint32)
    assert matcher.fill(words) == "the grammar cannot be followed"
    assert notes.count(True) == 1


def test_several_tokens_at_once_are_as_one_after_the_other() -> None:
    said = [*b"ab", END, OTHER_END]
    for size in range(len(said) + 1):
        one, all_at_once = follow(regex="ab*"), follow(regex="ab*")
        for token in said[:size]:
            one.accept(token)
        all_at_once.accept_all(said[:size])
        assert legal(one) == legal(all_at_once)
