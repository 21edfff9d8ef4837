"""Calls as GPT-OSS writes them, in a message of their own, once `text.harmony` has put its header in order.

<|channel|>commentary to=functions.get_weather<|message|>{"city": "Bern"}<|call|>
"""

from __future__ import annotations

from chairlift.text.harmony import CALL, CALL_OPENING, MESSAGE, SPECIAL_TEXTS
from chairlift.text.tools.found import END, Found, Malformed, Reading, ToolFormat
from chairlift.text.tools.reading import attempt, content_before, gap, space, tag, value

MAX_NAME_CHARS = 128


def _read(found: Found) -> Reading[None]:
    character = yield
    while character != END:
        character = yield from content_before(character, found, CALL_OPENING)
        is_call, character = yield from attempt(found, _call(character, found))
        if is_call:
            character = yield from gap(character, found)


def _call(character: str, found: Found) -> Reading[str]:
    """The name, and the arguments alone. The token that ends a call may be there, and ends the answer as a rule."""
    characters: list[str] = []
    while character not in (END, "<") and len(characters) < MAX_NAME_CHARS:
        characters.append(character)
        character = yield
    name = "".join(characters)
    is_header, character = yield from tag(character, MESSAGE)
    if not is_header or name not in found.names:
        raise Malformed(character)
    character = yield from space(character)
    if character != "{":
        raise Malformed(character)
    found.begin(name)
    character = yield from value(character, found.arguments)
    character = yield from space(character)
    if character == CALL[0]:
        _, character = yield from tag(character, CALL)
    return character


HARMONY_CALLS = ToolFormat("openai", _read, SPECIAL_TEXTS)
