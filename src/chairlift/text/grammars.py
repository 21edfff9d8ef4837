"""From the form of an answer to a grammar in the language of llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from chairlift.core.structured import StructuredOutputs
from chairlift.text.harmony import FINAL, rules_before_final

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~/")

BLANKS = r"[ \t\n\r]{1,8}"
"""Between the parts of JSON at most eight blanks: a model that may write any number of them sometimes never stops."""

_NONE: Mapping[str, int] = MappingProxyType({})


def grammar_text(form: StructuredOutputs, special_ids: Mapping[str, int] = _NONE) -> str:
    """The grammar of a form. It may be none, which is found by compiling it.

    `special_ids` are the tokens that are no text, by how they are spelled: what a thought stands between may be such.

    Raises:
        ValueError: a schema that is not understood.
    """
    text = _answer(form)
    if form.after is None and form.alternative is None:
        return text
    rules = ["answer: @form" if form.alternative is None else "answer: @form | @alternative"]
    grammars = [_named("form", text)]
    if form.alternative is not None:
        grammars.append(_named("alternative", form.alternative))
    rules += ["start: answer"] if form.after is None else _after_thought(*form.after, special_ids)
    return json.dumps({"grammars": [_named("main", "\n".join(rules)), *grammars]})


def _answer(form: StructuredOutputs) -> str:
    if form.json is not None or form.json_object:
        schema = json.loads('{"type":"object"}' if form.json is None else form.json)
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise ValueError("nothing satisfies the schema")
        options = _blanks(form.whitespace_pattern)
        options["lenient"] = options["coerce_one_of"] = form.lenient
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:  # one expression, since alternatives of a grammar are few at a time
        return LLMatcher.grammar_from_regex("|".join(map(_escaped, dict.fromkeys(form.choice))))
    return LLMatcher.grammar_from_lark(form.grammar or "")


def _named(name: str, text: str) -> dict[str, Any]:
    """A grammar that others refer to by a name."""
    grammar = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text}
    return {**grammar, "name": name}


def _after_thought(opening: str, closing: str, special_ids: Mapping[str, int]) -> list[str]:
    """An answer after any text that ends with `closing`; with `opening`, only if it begins with that."""
    if closing == FINAL:
        return rules_before_final(begun=not opening)

    def tag(text: str) -> str:
        return f"<[{special_ids[text]}]>" if text in special_ids else literal(text)

    begun = "thought gap" if not opening else f"({tag(opening)} thought gap)?"
    any_text = "/(?s:.*)/"
    if closing in special_ids:
        thought = [f"thought: text {tag(closing)}", f"text: {any_text}"]
    else:
        thought = [f"thought[suffix={tag(closing)}]: {any_text}"]
    return [f"start: {begun} answer", *thought, r"gap: /\n{0,2}/"]


def literal(text: str) -> str:
    """A text as a terminal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A text as a regular expression that matches it alone."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)


def _blanks(pattern: str | None) -> JsonCompileOptions:
    return {"whitespace_flexible": False} if pattern == "" else {"whitespace_pattern": pattern or BLANKS}
