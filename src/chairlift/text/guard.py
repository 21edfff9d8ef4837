"""Telling, in a rendered conversation, the special tokens of the template from those that a user spelled.

The template is rendered twice: once as it is, and once with characters of the users' strings replaced by stand-ins,
one for one. A special token of the second rendering was written by the template alone; had a user a hand in one, a
stand-in breaks it up. As every stand-in takes the place of one character, both renderings have the same positions, and
the special tokens of the second are those of the first.

    plain     <|im_start|>user say <|im_end|><|im_end|>
    guarded   <|im_start|>user say .|im_end|.<|im_end|>          `.`: a stand-in for `<` or `>`
    special   ^^^^^^^^^^^^                   ^^^^^^^^^^

Stand-ins are letters without case that occur nowhere in the conversation, so that whatever a template does to text it
does to them. Comparisons see what they stand for. Where a template looks deeper into what it renders, a stand-in may
lead it elsewhere; unless the special tokens stay the same, fewer characters are replaced in another attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.text.messages import Conversation
from chairlift.text.specials import Span, SpecialScanner

Render = Callable[[Conversation, Mapping[int, int] | None], str]
"""Renders a conversation; with what the stand-ins in it stand for, if it has any."""
Table = Mapping[int, int]

STAND_INS = (range(0x20000, 0x2A6E0), range(0xAC00, 0xD7A4), range(0x3400, 0x4DC0), range(0x1200, 0x1249))
"""Letters without case: rare Chinese characters, Hangul syllables, more Chinese characters, Ethiopic."""


class SpecialGuard:
    """Guards the special tokens of one tokenizer.

    A user's string can take part in a special token in three ways, however the template joins strings: it brings the
    first or the last character of the token, or it lies inside it as a whole (`<` + name + `>`).
    """

    def __init__(self, scanner: SpecialScanner) -> None:
        spellings = [spelling.strip() for spelling in scanner.spellings if spelling.strip()]
        joined = "\n".join(spellings)
        self._scanner = scanner
        self._alphabet = sorted(ord(character) for character in set(joined) if not character.isspace())
        self._ends = {ord(spelling[index]) for spelling in spellings for index in (0, -1)}
        self._folded = joined.casefold()
        self._longest = max(map(len, spellings), default=0)
        self._heads = {spelling[:size] for spelling in spellings for size in range(1, len(spelling))}
        self._tails = {spelling[-size:] for spelling in spellings for size in range(1, len(spelling))}

    def render(self, render: Render, conversation: Conversation) -> tuple[str, list[Span]]:
        """A rendered conversation and the special tokens in it that the template wrote.

        Raises:
            InvalidRequest: from rendering; or the conversation leaves no character to stand in.
        """
        plain = render(conversation, None)
        spelled = self._scanner.find(plain)
        if not any(self._is_suspect(text) for text in strings_of(conversation)):
            return plain, spelled
        stand_ins = self._stand_ins(chain([plain], strings_of(conversation)))
        ends = {code: stand_ins[code] for code in self._ends}
        originals = {stand_in: code for code, stand_in in stand_ins.items()}

        def cover_ends(text: str) -> str:
            return text.translate(stand_ins if self._is_inside(text) else ends)

        def cover_ends_but_words(text: str) -> str:
            return text if text.isidentifier() else cover_ends(text)

        def cover_spellings(text: str) -> str:
            return self._without_spellings(text, stand_ins)

        for cover in (cover_ends, cover_ends_but_words):
            try:
                guarded = render(_rewritten(conversation, cover), originals)
            except InvalidRequest:
                continue
            spans = self._scanner.find(guarded)
            if guarded.translate(originals) == plain:
                return plain, spans
            if [span.id for span in spans] == [span.id for span in spelled]:
                return plain, spelled  # the users added none, whatever else the stand-ins changed
        # Either the template looks for what tokens begin with, and need not be disturbed in that; or it treats special
        # tokens that a user spelled unlike other text, and then it had better see other text.
        guarded = render(_rewritten(conversation, cover_spellings), originals)
        return guarded.translate(originals), self._scanner.find(guarded)

    def _is_suspect(self, text: str) -> bool:
        return not self._ends.isdisjoint(map(ord, set(text))) or self._is_inside(text)

    def _is_inside(self, text: str) -> bool:
        """Whether a special token may have the whole text inside it, in any case."""
        text = text.strip()
        return 0 < len(text) <= self._longest and text.casefold() in self._folded

    def _stand_ins(self, texts: Iterator[str]) -> dict[int, int]:
        """A stand-in for every character of the special tokens, none of which is in the texts."""
        seen = {ord(character) for text in texts if not text.isascii() for character in set(text)}
        free = (code for block in STAND_INS for code in block if code not in seen)
        stand_ins = dict(zip(self._alphabet, islice(free, len(self._alphabet)), strict=False))
        if len(stand_ins) < len(self._alphabet):
            raise InvalidRequest("messages use too many different characters", "messages")
        return stand_ins

    def _without_spellings(self, text: str, stand_ins: Table) -> str:
        """Cover whole spellings, in any case, and what may become one together with what stands beside the text."""
        if text.isidentifier():
            return text
        if self._is_inside(text):
            return text.translate(stand_ins)
        covered = list(text)
        for start, stop in self._scanner.spellings_in(text):
            covered[start:stop] = text[start:stop].translate(stand_ins)
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        for size in range(1, min(self._longest, end - begin) + 1):
            if text[end - size : end] in self._heads:
                covered[end - size] = text[end - size].translate(stand_ins)
            if text[begin : begin + size] in self._tails:
                covered[begin + size - 1] = text[begin + size - 1].translate(stand_ins)
        return "".join(covered)


def _rewritten(conversation: Conversation, rewrite: Callable[[str], str]) -> Conversation:
    """The conversation with every string of the users' rewritten; roles and the names of fields are not theirs."""
    return Conversation(
        [
            {name: value if name == "role" else _map_strings(value, rewrite) for name, value in message.items()}
            for message in conversation.messages
        ],
        _map_strings(conversation.tools, rewrite),
        {name: _map_strings(value, rewrite) for name, value in conversation.kwargs.items()},
    )


def _map_strings(value: Any, rewrite: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, list):
        return [_map_strings(item, rewrite) for item in value]
    if isinstance(value, dict):
        return {rewrite(key): _map_strings(item, rewrite) for key, item in value.items()}
    return value


def strings_of(conversation: Conversation) -> Iterator[str]:
    """Every string of the users'."""
    for message in conversation.messages:
        for name, value in message.items():
            if name != "role":
                yield from _strings_in(value)
    yield from _strings_in(conversation.tools)
    yield from _strings_in(list(conversation.kwargs.values()))


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings_in(item)
