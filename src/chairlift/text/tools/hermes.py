"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them: each a JSON object between two tags.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Bern"}}
</tool_call>
"""

from __future__ import annotations

from chairlift.text.tools.found import END, CallSpelling, Found, Reading, ToolFormat
from chairlift.text.tools.reading import attempt, call, content_before, gap, space, tag

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def _read(found: Found) -> Reading[None]:
    character = yield
    while character != END:
        character = yield from content_before(character, found, OPENING)
        is_open = True
        while is_open:
            character = yield from space(character)
            is_call, character = yield from attempt(found, call(character, found))
            is_open = False
            if is_call:
                is_open, character = yield from _after_call(character, found)


def _after_call(character: str, found: Found) -> Reading[tuple[bool, str]]:
    """The closing tag; or the next opening one, if a model forgets the other."""
    character = yield from gap(character, found)
    if character != OPENING[0]:
        return False, character
    character = yield
    if character != CLOSING[1]:
        return (yield from tag(character, OPENING[1:]))
    is_closed, character = yield from tag(character, CLOSING[1:])
    if is_closed:
        character = yield from gap(character, found)
    return False, character


SPELLING = CallSpelling(f"{OPENING}\n", after=f"\n{CLOSING}", between="\n")

HERMES = ToolFormat("hermes", _read, (OPENING, CLOSING), SPELLING)
