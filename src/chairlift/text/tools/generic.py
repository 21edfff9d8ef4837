"""Calls as models write them that were told in words how to: JSON, one call or a list of them, perhaps fenced.

{"name": "get_weather", "arguments": {"city": "Bern"}}
```json
[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]
```
"""

from __future__ import annotations

from chairlift.text.tools.found import END, CallSpelling, Found, Reading, ToolFormat
from chairlift.text.tools.reading import attempt, call, calls_in_list, gap, space

FENCE = "`"
NUM_FENCE = 3


def _read(found: Found) -> Reading[None]:
    character = yield
    while character != END:
        is_fenced = False
        if character == FENCE:
            is_fenced, character = yield from _fence(character)
            if not is_fenced:
                found.say_before()
                continue
            character = yield from _label(character)
        if character in ("{", "["):
            read = call if character == "{" else calls_in_list
            is_call, character = yield from attempt(found, read(character, found, is_bare=True))
            if is_call:
                character = yield from gap(character, found)
                if is_fenced and character == FENCE:
                    is_closed, character = yield from _fence(character)
                    if is_closed:
                        character = yield from gap(character, found)
        elif is_fenced:
            found.say_before()
        else:
            if not character.isspace():
                found.say()
            character = yield


def _fence(character: str) -> Reading[tuple[bool, str]]:
    for _ in range(NUM_FENCE):
        if character != FENCE:
            return False, character
        character = yield
    return True, character


def _label(character: str) -> Reading[str]:
    """The language that a fence names, and the space up to what is fenced."""
    while character != END and character.isascii() and character.isalpha():
        character = yield
    return (yield from space(character))


GENERIC = ToolFormat("json", _read, spelling=CallSpelling(opens_list="[", closes_list="]"))
