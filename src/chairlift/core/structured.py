"""What an answer has to be a text of: the grammar of one request, as plain text that core carries and never reads."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.nesting import is_deeper

MAX_GRAMMAR_CHARS = 128 << 10
"""Longest schema, expression, grammar or list of choices, in characters. What a longer one compiles to is not known to
be useful to anybody, and its compilation is work that others pay for."""
MAX_NUM_CHOICES = 4096
MAX_TAG_CHARS = 64
MAX_JSON_DEPTH = 64
"""Deepest nesting of a schema."""

_KINDS = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form of an answer: exactly one of the first five says it.

    `json` is a JSON Schema, given as text or as what a JSON text says, and kept as text. `regex` must match the whole
    answer. `choice` are texts of which the answer is one. `grammar` is in the Lark syntax of llguidance. `json_object`
    is any JSON object.

    `whitespace_pattern` is a regular expression for the blanks between the parts of JSON, instead of at most eight of
    them; an empty one forbids blanks. `lenient` ignores the keywords of a schema that cannot be enforced; without it
    they are refused.

    `after` is for models that think: (opening, closing). The form begins after a text of any kind that ends with
    `closing`; if `opening` is not empty, that text is there only if the answer begins with it. `alternative` is a
    grammar: an answer may be a text of that instead.

    Raises:
        InvalidRequest: not exactly one form, or one that is too large or no text. Whether it is a grammar at all is
            found when it is compiled.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    whitespace_pattern: str | None = None
    lenient: bool = False
    after: tuple[str, str] | None = None
    alternative: str | None = None

    def __post_init__(self) -> None:
        for name in ("json_object", "lenient"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(f"{name} must be true or false")
        num_given = sum(getattr(self, name) is not None for name in _KINDS) + self.json_object
        if num_given != 1:
            raise _invalid(f"exactly one of {', '.join(_KINDS)}, json_object must be given, not {num_given}")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.after is not None:
            object.__setattr__(self, "after", _tags(self.after))
        for name in ("json", "regex", "grammar", "whitespace_pattern", "alternative"):
            _check_text(name, getattr(self, name))
        if self.whitespace_pattern is not None and self.json is None and not self.json_object:
            raise _invalid("whitespace_pattern goes with json and json_object only")


def structured_outputs(value: object) -> StructuredOutputs | None:
    """What a caller gave, who may give a mapping of the fields.

    Raises:
        InvalidRequest: it is something else.
    """
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping):
        raise _invalid("must be StructuredOutputs or a mapping of its fields")
    unknown = sorted(str(name) for name in value if name not in StructuredOutputs.__dataclass_fields__)
    if unknown:
        raise _invalid(f"{unknown[0][:64]} is not supported")
    return StructuredOutputs(**value)


def _schema_text(schema: Any) -> str:
    """A schema as text in which nothing is spelled in two ways; the order of its fields is part of it."""
    try:
        if isinstance(schema, str):
            if len(schema) > MAX_GRAMMAR_CHARS:
                raise _invalid(f"json must have at most {MAX_GRAMMAR_CHARS} characters")
            schema = json_text.loads(schema, parse_constant=_no_constant)
        if not isinstance(schema, dict | bool):
            raise _invalid("json must be a JSON Schema: an object, or true or false")
        if is_deeper(schema, MAX_JSON_DEPTH):
            raise _invalid(f"json must not be nested deeper than {MAX_JSON_DEPTH}")
        text = json_text.dumps(schema, allow_nan=False, separators=(",", ":"))
    except InvalidRequest:
        raise
    except (ValueError, TypeError, RecursionError):
        raise _invalid("json is no valid JSON") from None
    return text


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _choices(choice: object) -> tuple[str, ...]:
    if isinstance(choice, str | bytes | Mapping) or not isinstance(choice, Iterable):
        raise _invalid("choice must be a list of texts")
    choices = tuple(choice)
    if not choices or len(choices) > MAX_NUM_CHOICES:
        raise _invalid(f"choice must have 1 to {MAX_NUM_CHOICES} texts")
    for text in choices:
        _check_text("choice", text)
    if sum(map(len, choices)) > MAX_GRAMMAR_CHARS:
        raise _invalid(f"choice must have at most {MAX_GRAMMAR_CHARS} characters in all")
    return choices


def _tags(after: object) -> tuple[str, str]:
    if not isinstance(after, list | tuple) or len(after) != 2 or not all(isinstance(tag, str) for tag in after):
        raise _invalid("after must be two texts")
    opening, closing = after
    if not closing or max(len(opening), len(closing)) > MAX_TAG_CHARS:
        raise _invalid(
            f"after must be two texts of at most {MAX_TAG_CHARS} characters, of which the second is not empty"
        )
    for tag in (opening or closing, closing):
        _check_text("after", tag)
    return opening, closing


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise _invalid(f"{name} must be a text")
    if not text and name != "whitespace_pattern":
        raise _invalid(f"{name} must not be empty")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise _invalid(f"{name} must have at most {MAX_GRAMMAR_CHARS} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{name} must not hold half a surrogate pair") from None


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(f"structured_outputs: {message}", "structured_outputs")
