"""The pieces that calls are made of, as models write them: JSON values, calls, tags, and the text around them.

Each function reads from a character that it is given and gives back the first one that it did not read. None looks
back, and none goes deeper than `MAX_DEPTH`: what a text costs grows with its length and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from chairlift.text.tools.found import END, Found, Malformed, Reading

MAX_DEPTH = 64

Emit = Callable[[str], object]

SPACE = frozenset(" \t\n\r")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_SCALAR_STARTS = frozenset("-0123456789tfn")
_SCALAR_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONTROLS = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}

_ARGUMENTS = frozenset({"arguments", "parameters"})
_BARE_KEYS = _ARGUMENTS | {"name", "type", "id"}


# ---------------------------------------------------------------- JSON


def value(character: str, emit: Emit) -> Reading[str]:
    """A JSON value, told to `emit` as it comes. Characters that a string must escape and does not are escaped."""
    closers: list[str] = []
    while True:
        if character in ("{", "["):
            if len(closers) == MAX_DEPTH:
                raise Malformed(character)
            closers.append("}" if character == "{" else "]")
            emit(character)
            character = yield from space((yield), emit)
            if character != closers[-1]:
                if closers[-1] == "}":
                    character = yield from _key(character, emit)
                continue
        elif character == '"':
            character = yield from _string(character, emit)
        else:
            character = yield from _scalar(character, emit)
        while closers:
            character = yield from space(character, emit)
            if character == closers[-1]:
                emit(closers.pop())
                character = yield
            elif character == ",":
                emit(character)
                character = yield from space((yield), emit)
                if closers[-1] == "}":
                    character = yield from _key(character, emit)
                break
            else:
                raise Malformed(character)
        else:
            return character


def space(character: str, emit: Emit = len) -> Reading[str]:
    """White space as JSON has it."""
    while character in SPACE:
        emit(character)
        character = yield
    return character


def _string(character: str, emit: Emit) -> Reading[str]:
    emit(character)
    character = yield
    while character != '"':
        if character == "\\":
            emit(character)
            character = yield
            if character not in _ESCAPES and character != "u":
                raise Malformed(character)
            emit(character)
            for _ in range(4 if character == "u" else 0):
                character = yield
                if character not in _HEX:
                    raise Malformed(character)
                emit(character)
        elif character == END:
            raise Malformed(character)
        else:
            emit(_CONTROLS.get(character, character))
        character = yield
    emit(character)
    return (yield)


def _key(character: str, emit: Emit) -> Reading[str]:
    """A key, the colon, and the space after it."""
    if character != '"':
        raise Malformed(character)
    character = yield from _string(character, emit)
    character = yield from space(character, emit)
    if character != ":":
        raise Malformed(character)
    emit(character)
    return (yield from space((yield), emit))


def _scalar(character: str, emit: Emit) -> Reading[str]:
    if character not in _SCALAR_STARTS:
        raise Malformed(character)
    texts = []
    while character in _SCALAR_CHARACTERS:
        texts.append(character)
        character = yield
    text = "".join(texts)
    emit(text)
    if not _SCALAR.fullmatch(text):
        raise Malformed(character)
    return character


# ---------------------------------------------------------------- calls


def call(character: str, found: Found, *, is_bare: bool = False) -> Reading[str]:
    """An object with the `name` of a function and its `arguments` (or `parameters`), in either order.

    The call is announced as soon as the name is known, and its arguments from then on as they come. Nothing but its
    form tells a `bare` one from other JSON: it needs both fields and has no strange ones.
    """
    if character != "{":
        raise Malformed(character)
    name: str | None = None
    arguments: list[str] | None = None
    character = yield from space((yield))
    while True:
        key_texts: list[str] = []
        character = yield from _key(character, key_texts.append)
        key = json.loads("".join(key_texts).rpartition(":")[0])
        if key == "name" and name is None:
            name_texts: list[str] = []
            character = yield from value(character, name_texts.append)
            name = json.loads("".join(name_texts)) if name_texts[0] == '"' else None
            if name not in found.names:
                raise Malformed(character)
        elif key in _ARGUMENTS and arguments is None:
            arguments = []
            if name is not None and character == "{":
                found.begin(name)
                character = yield from value(character, found.arguments)
            else:
                character = yield from value(character, arguments.append)
        elif key == "name" or key in _ARGUMENTS or (is_bare and key not in _BARE_KEYS):
            raise Malformed(character)
        else:
            character = yield from value(character, len)
        character = yield from space(character)
        if character == "}":
            break
        if character != ",":
            raise Malformed(character)
        character = yield from space((yield))
    if not found.has_begun:
        if name is None or (arguments is None and is_bare):
            raise Malformed(character)
        text = _arguments("".join(arguments or ()), character)
        found.begin(name)
        found.arguments(text)
    return (yield)


def _arguments(text: str, character: str) -> str:
    """Arguments that were held back, as a JSON object: some models leave them out, or put them in a string."""
    if text.startswith("{"):
        return text
    if text in ("", "null"):
        return "{}"
    if text.startswith('"'):
        inner = json.loads(text).strip()
        checked = checked_json(inner)
        if inner.startswith("{") and checked is not None:
            return checked
    raise Malformed(character)


def checked_json(text: str) -> str | None:
    """`text`, if it is one JSON value and nothing else."""
    texts: list[str] = []
    reading = value(text[:1], texts.append)
    try:
        text.encode()
        next(reading)
        for character in text[1:]:
            reading.send(character)
        reading.send(END)
    except StopIteration as end:
        return "".join(texts) if end.value == END else None
    except (Malformed, UnicodeEncodeError):
        pass
    return None


def calls_in_list(character: str, found: Found, *, is_bare: bool = False) -> Reading[str]:
    """A JSON list of calls."""
    if character != "[":
        raise Malformed(character)
    while True:
        character = yield from space((yield))
        character = yield from call(character, found, is_bare=is_bare)
        found.drop_before()
        character = yield from space(character)
        if character == "]":
            return (yield)
        if character != ",":
            raise Malformed(character)


# ---------------------------------------------------------------- what is around them


def attempt(found: Found, reading: Reading[str]) -> Reading[tuple[bool, str]]:
    """Read a call if it is one; else what was read is content, up to the character that did not fit.

    One that was announced stays a call, though its arguments may be incomplete.
    """
    try:
        character = yield from reading
    except Malformed as error:
        if not found.has_begun:
            found.say_before()
            return False, error.character
        character = error.character
    found.drop_before()
    return True, character


def tag(character: str, spelling: str) -> Reading[tuple[bool, str]]:
    """`spelling`, if it is there; its first character must not come in it again."""
    for expected in spelling:
        if character != expected:
            return False, character
        character = yield
    return True, character


def content_before(character: str, found: Found, opening: str) -> Reading[str]:
    """Content up to the tag `opening`, and that tag; it stays undecided, with the white space before it."""
    while character != END:
        if character == opening[0]:
            is_there, character = yield from tag(character, opening)
            if is_there:
                return character
            found.say_before()
        else:
            if not character.isspace():
                found.say()
            character = yield
    return character


def gap(character: str, found: Found) -> Reading[str]:
    """White space after a call, which is nobody's."""
    while character.isspace():
        character = yield
    found.drop_before()
    return character
