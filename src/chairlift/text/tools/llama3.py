"""Calls as Llama 3 writes them: JSON objects with "parameters", alone or after a special token.

    {"name": "get_weather", "parameters": {"city": "Bern"}}
    <|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}

Without the token only an answer that begins so is a call: JSON further on is something the model says.
"""

from __future__ import annotations

from chairlift.text.tools.found import END, CallSpelling, Found, Reading, ToolFormat
from chairlift.text.tools.reading import attempt, call, content_before, gap, space

TAG = "<|python_tag|>"


def _read(found: Found) -> Reading[None]:
    character = yield from space((yield))
    character = yield from _calls(character, found)
    while character != END:
        character = yield from content_before(character, found, TAG)
        character = yield from _calls((yield from space(character)), found)


def _calls(character: str, found: Found) -> Reading[str]:
    while character == "{":
        is_call, character = yield from attempt(found, call(character, found, is_bare=True))
        if not is_call:
            break
        character = yield from gap(character, found)
        if character == ";":
            character = yield from space((yield))
    return character


LLAMA3 = ToolFormat("llama3_json", _read, (TAG,), CallSpelling(arguments="parameters", between="; "))
