"""Calls as Mistral writes them, older and newer: after a special token, in a list or each by itself.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Bern"}}]
[TOOL_CALLS]get_weather[ARGS]{"city": "Bern"}[TOOL_CALLS]get_time[ARGS]{}
"""

from __future__ import annotations

from chairlift.text.tools.found import END, Found, Malformed, Reading, ToolFormat
from chairlift.text.tools.reading import attempt, call, calls_in_list, content_before, gap, space, tag, value

TAG, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MAX_WORD_CHARS = 128


def _read(found: Found) -> Reading[None]:
    character = yield
    while character != END:
        character = yield from content_before(character, found, TAG)
        character = yield from space(character)
        reading = {"[": calls_in_list, "{": call}.get(character, _named_call)(character, found)
        is_call, character = yield from attempt(found, reading)
        if is_call:
            character = yield from gap(character, found)


def _named_call(character: str, found: Found) -> Reading[str]:
    """A name, perhaps an id, and the arguments alone."""
    name, character = yield from _word(character)
    if name not in found.names:
        raise Malformed(character)
    if character == "[":
        character = yield
        is_id, character = yield from tag(character, ID[1:])
        if is_id:
            _, character = yield from _word(character)
            if character != "[":
                raise Malformed(character)
            character = yield
        is_next, character = yield from tag(character, ARGUMENTS[1:])
        if not is_next:
            raise Malformed(character)
    character = yield from space(character)
    if character != "{":
        raise Malformed(character)
    found.begin(name)
    return (yield from value(character, found.arguments))


def _word(character: str) -> Reading[tuple[str, str]]:
    """Everything up to a bracket, a brace or white space."""
    characters: list[str] = []
    while not (character == END or character in "[]{}" or character.isspace()):
        if len(characters) == MAX_WORD_CHARS:
            raise Malformed(character)
        characters.append(character)
        character = yield
    return "".join(characters), character


MISTRAL = ToolFormat("mistral", _read, (TAG, ID, ARGUMENTS), short_ids=True)
