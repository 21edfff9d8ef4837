"""Schemas, expressions and grammars that broke other servers, by what was wrong, and any number of variations."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.text.grammars import grammar_text

schema = LLMatcher.grammar_from_json_schema
regex = LLMatcher.grammar_from_regex
lark = LLMatcher.grammar_from_lark


def _deep(depth: int, key: str = "not") -> str:
    return f'{{"{key}":' * depth + "{}" + "}" * depth


def _chain(count: int) -> dict[str, Any]:
    """References that multiply: each definition needs the one before it ten times."""
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(1, count):
        defs[f"d{i}"] = {"type": "object", "properties": {f"p{j}": {"$ref": f"#/$defs/d{i - 1}"} for j in range(10)}}
    return {"$ref": f"#/$defs/d{count - 1}", "$defs": defs}


VICIOUS = {
    "30,000 deep": json.dumps({"grammars": [{"lark_grammar": "start: %json " + _deep(30_000)}]}),
    "no schema": json.dumps({"grammars": [{"json_schema": 3}]}),
    "no grammar": "[]",
    "no JSON": "{",
    "nothing": "",
    "unknown type": schema({"type": "thing"}),
    "reference to itself": schema({"$ref": "#"}),
    "reference outside": schema({"$ref": "file:///etc/passwd"}),
    "reference to nowhere": schema({"$ref": "#/$defs/x"}),
    "two references in a circle": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "pattern that is none": schema({"type": "string", "pattern": "(((("}),
    "lookahead": regex("(?=(a+))a*b"),
    "back reference": regex("(a+)\\1"),
    "deep expression": regex("(" * 50_000 + "a" + ")" * 50_000),
    "deep grammar": lark("start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "empty grammar": lark(""),
    "grammar without a start": lark('other: "a"'),
    "two thousand optional fields": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    ),
    "a multiple of a large prime": schema({"type": "integer", "multipleOf": 99_999_989}),
    "definitions that multiply": schema(
        {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"k{i}{j}": {"type": "integer"}}} for i in range(20)]}
                for j in range(20)
            ]
        }
    ),
}
"""Each is refused."""

SLOW = ("a multiple of a large prime", "two thousand optional fields")
"""Take seconds, and are tried on their own."""

DOUBTFUL = {
    "two thousand choices of a rule": lark(
        "\n".join(["start: " + " | ".join(f"r{i}" for i in range(3000)), *(f'r{i}: "{i}" "x"*' for i in range(3000))])
    ),
    "repeated repetitions": regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
    "many words of any letters": regex(r"(\p{L}{1,500}|\w{1,500}){1,500}"),
    "looks two thousand letters back": regex("(.*a.{2000})"),
    "backtracks without end elsewhere": regex("(a+)+b"),
    "a hundred thousand of a letter": regex("a{1,100000}"),
    "a number between two close ones": schema({"type": "number", "minimum": 0.12345678901, "maximum": 0.12345678902}),
    "a list of a million": schema({"type": "array", "minItems": 1_000_000}),
}
"""May be refused or not: it depends on the vocabulary."""


def _word(draw: random.Random) -> str:
    return "".join(draw.choice('abcé\ud7ff\u200d"\\<>|{}[]().*+? \n') for _ in range(draw.randrange(1, 12)))


def _schema(draw: random.Random, depth: int = 0) -> Any:
    """A schema of keywords and values that mostly do not go together."""
    kinds = ["string", "integer", "number", "boolean", "null", "array", "object", "thing", ["string", "null"], 7]
    result: dict[str, Any] = {"type": draw.choice(kinds)}
    for _ in range(draw.randrange(4)):
        key = draw.choice(
            [
                "enum",
                "const",
                "pattern",
                "minLength",
                "maxLength",
                "minimum",
                "maximum",
                "multipleOf",
                "format",
                "items",
                "prefixItems",
                "minItems",
                "maxItems",
                "properties",
                "required",
                "additionalProperties",
                "anyOf",
                "allOf",
                "oneOf",
                "not",
                "$ref",
                "$defs",
                "patternProperties",
                "uniqueItems",
                "x-guidance",
                "contains",
                "if",
            ]
        )
        number = draw.choice([0, 1, -1, 3, 1e-9, 1e308, 2**63, 100_000, 1_000_003])
        inner = _schema(draw, depth + 1) if depth < 4 else {}
        result[key] = draw.choice(
            [
                number,
                _word(draw),
                inner,
                [inner, {}],
                {_word(draw): inner},
                [_word(draw), number, None],
                True,
                "#/$defs/a",
                "^(a+)+$",
                "(a|aa)*b{1,5000}",
                [f"v{i}" for i in range(draw.choice([3, 3000]))],
            ]
        )
    return result


def _expression(draw: random.Random, depth: int = 0) -> str:
    if depth > draw.randrange(1, 7):
        return draw.choice(["a", "b", ".", r"\d", r"\w", "[^x]", r"\p{L}", "é", "(", "[", "\\", "(?i:q)"])
    inner = [_expression(draw, depth + 1) for _ in range(draw.randrange(1, 4))]
    low, high = draw.randrange(3), 10 ** draw.randrange(6)
    return draw.choice(
        [
            "(" + "|".join(inner) + ")",
            f"({''.join(inner)})+",
            f"({''.join(inner)})*",
            f"({inner[0]}){{{low},{high}}}",
            "".join(inner),
            f"(?:{inner[0]})?",
        ]
    )


def _grammar(draw: random.Random) -> str:
    names = [f"r{i}" for i in range(draw.randrange(1, 12))]
    parts = [
        *names,
        '"a"',
        '"b"',
        "/[a-z]+/",
        "/(a|b)*c/",
        "<end>",
        "<[3]>",
        "%json {}",
        '%json {"type":"thing"}',
        "nobody",
    ]
    counts = ["", "", "*", "+", "?", "{2,900}"]

    def alternative() -> str:
        return " ".join(draw.choice(parts) + draw.choice(counts) for _ in range(draw.randrange(1, 5)))

    rules = [f"{name}: " + " | ".join(alternative() for _ in range(draw.randrange(1, 5))) for name in names]
    return "\n".join(["start: " + names[0], *rules])


def forms(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Fields of `StructuredOutputs`, most of which are no grammar or one too many."""
    draw = random.Random(seed)
    for i in range(count):
        kind = i % 4
        if kind == 0:
            yield {"json": _schema(draw), "lenient": draw.random() < 0.3}
        elif kind == 1:
            yield {"regex": _expression(draw)}
        elif kind == 2:
            yield {"grammar": _grammar(draw)}
        else:
            size = draw.choice([1, 100, 4000])
            yield draw.choice(
                [
                    {"choice": [f"{_word(draw)}{j}" for j in range(size)]},
                    {"json": {"enum": list(range(size))}},
                    {
                        "json": _deep(
                            draw.choice([3, 60, 64, 65, 1000]), draw.choice(["not", "items", "additionalProperties"])
                        )
                    },
                    {"json": _chain(draw.randrange(2, 30))},
                    {"regex": f"(.*a.{{{size}}})"},
                ]
            )


def cases(count: int, seed: int) -> Iterator[str]:
    """So many grammars as text: of the forms that are well made, and the vicious ones."""
    vicious = [grammar for name, grammar in {**VICIOUS, **DOUBTFUL}.items() if name not in SLOW]
    num_given = 0
    for fields in forms(50 * count, seed):
        if num_given == count:
            return
        try:
            case = (
                grammar_text(StructuredOutputs(**fields)) if num_given % 10 else vicious[num_given // 10 % len(vicious)]
            )
        except (InvalidRequest, ValueError):
            continue
        num_given += 1
        yield case
