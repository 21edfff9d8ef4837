"""Telling, in a rendered conversation, the special tokens of the template from those that a user spelled.

The template is rendered twice: once as it is, and once with characters of the users' strings replaced by stand-ins,
one for one. A special token of the second rendering was written by the template alone; stands a stand-in in it, a user
had a hand in it. As every stand-in takes the place of one character, both renderings have the same positions, and the
tokens of the first are those of the second.

    plain     <|im_start|>user\\nsay <|im_end|><|im_end|>
    guarded   <|im_start|>user\\nsay .|im_end|.<|im_end|>          `.`: a stand-in for `<` or `>`
    special   ^^^^^^^^^^^^                      ^^^^^^^^^^

Stand-ins are surrogate code points, which no valid text contains. Where a template looks into what it renders, a
stand-in may lead it elsewhere; that shows as a difference, and fewer characters are replaced in another attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.text.messages import Conversation
from chairlift.text.specials import Span, SpecialScanner

Render = Callable[[Conversation], str]
Rewrite = Callable[[str], str]

FIRST_STAND_IN = 0xD800
MAX_STAND_INS = 0x800


class SpecialGuard:
    """Guards the special tokens of one tokenizer.

    A user's string can take part in a special token in three ways, however the template joins strings: it brings the
    first or the last character of the token, or it lies inside it as a whole (`<` + name + `>`).
    """

    def __init__(self, scanner: SpecialScanner) -> None:
        self._scanner = scanner
        spellings = [spelling for spelling in scanner.spellings if spelling.strip()]
        alphabet = sorted({character for spelling in spellings for character in spelling if not character.isspace()})
        codes = {ord(character): FIRST_STAND_IN + index for index, character in enumerate(alphabet[:MAX_STAND_INS])}
        self._all = codes
        self._originals = {stand_in: code for code, stand_in in codes.items()}
        ends = {ord(spelling.strip()[index]) for spelling in spellings for index in (0, -1)}
        self._ends = {code: stand_in for code, stand_in in codes.items() if code in ends}
        self._joined = "\n".join(spellings)
        self._folded = self._joined.casefold()
        self._longest = max(map(len, spellings), default=0)
        self._heads = {spelling[:size] for spelling in spellings for size in range(1, len(spelling))}
        self._tails = {spelling[-size:] for spelling in spellings for size in range(1, len(spelling))}

    def render(self, render: Render, conversation: Conversation) -> tuple[str, list[Span]]:
        """A rendered conversation and the special tokens in it that the template wrote."""
        plain = render(conversation)
        guarded = plain
        for rewrite in (self._cover_ends, self._cover_ends_unless_words, self._cover_spellings):
            covered = _rewritten(conversation, rewrite)
            if covered == conversation:
                return plain, self._scanner.find(plain)
            try:
                guarded = render(covered)
            except InvalidRequest:
                if rewrite == self._cover_spellings:
                    raise
                continue
            if guarded.translate(self._originals) == plain:
                return plain, self._scanner.find(guarded)
        # The template treats a special token that a user spelled differently from other text: then let it see text.
        return guarded.translate(self._originals), self._scanner.find(guarded)

    def _cover_ends(self, text: str) -> str:
        return text.translate(self._all if self._is_inside(text) else self._ends)

    def _cover_ends_unless_words(self, text: str) -> str:
        """Leaves words alone that a template may well compare with, such as names of types."""
        return text if text.isidentifier() else self._cover_ends(text)

    def _cover_spellings(self, text: str) -> str:
        """Covers whole spellings, in any case, and what may become one together with what stands beside the text."""
        if text.isidentifier():
            return text
        if self._is_inside(text):
            return text.translate(self._all)
        covered = list(text)
        for start, stop in self._scanner.spellings_in(text):
            covered[start:stop] = text[start:stop].translate(self._all)
        body = text.rstrip()
        for size in range(1, min(self._longest, len(body)) + 1):
            if body[-size:] in self._heads:
                covered[len(body) - size] = covered[len(body) - size].translate(self._all)
        start = len(text) - len(text.lstrip())
        for size in range(1, min(self._longest, len(text) - start) + 1):
            if text[start : start + size] in self._tails:
                covered[start + size - 1] = covered[start + size - 1].translate(self._all)
        return "".join(covered)

    def _is_inside(self, text: str) -> bool:
        text = text.strip()
        return 0 < len(text) <= self._longest and text.casefold() in self._folded


def _rewritten(conversation: Conversation, rewrite: Rewrite) -> Conversation:
    """The conversation with every string of the users' rewritten; roles and the names of fields are not theirs."""
    return Conversation(
        [
            {name: value if name == "role" else _map_strings(value, rewrite) for name, value in message.items()}
            for message in conversation.messages
        ],
        _map_strings(conversation.tools, rewrite),
        {name: _map_strings(value, rewrite) for name, value in conversation.kwargs.items()},
    )


def _map_strings(value: Any, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, list):
        return [_map_strings(item, rewrite) for item in value]
    if isinstance(value, dict):
        return {rewrite(key): _map_strings(item, rewrite) for key, item in value.items()}
    return value
