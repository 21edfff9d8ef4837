"""Answers in messages on channels, as GPT-OSS writes them: what it thinks, what it says, and what it calls.

    <|channel|>analysis<|message|>They greet me.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>

What is on the channel `analysis` is thought, and all else content. What is for a function stays as it is written but
for its header, which is put in one order, for `tools.harmony` to read:

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chairlift.text.parts import Content, Part, Reasoning

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL = "<|end|>", "<|call|>"
ENDS = (END, "<|return|>", CALL)
SPECIAL_TEXTS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")
CALL_OPENING = f"{CHANNEL}commentary to=functions."
ANALYSIS, FINAL = f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}"
MAX_HEADER_CHARS = 256
"""A longer one is none, and its text content: what is held back stays small."""

_THOUGHT = re.compile(re.escape(CHANNEL) + r"\s*analysis\b")
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """How these models think: see `reasoning.ReasoningFormat`, whose place it takes."""

    name: str = "openai_gptoss"
    mark: str = CHANNEL
    special_texts: tuple[str, ...] = SPECIAL_TEXTS

    def begins_after(self, prompt_end: str) -> bool:
        return prompt_end.rstrip().endswith(ANALYSIS)

    def begins_within(self, said: str) -> bool:
        """A message that is gone on with is one for the reader."""
        return False

    def tags_before(self, prompt_end: str, *, begins: bool) -> tuple[str, str] | None:
        """Whatever comes before the message for the reader; None where the prompt has begun it."""
        return None if prompt_end.rstrip().endswith(FINAL) else ("" if begins else ANALYSIS, FINAL)

    def reader(self, *, begins: bool, has_tools: bool = False) -> HarmonyReader:
        return HarmonyReader(begins=begins, has_tools=has_tools)


class HarmonyReader:
    """Divides one answer by its messages, as its text comes; headers and ends are nobody's.

    Those of calls are left for who reads calls, if there are tools; without, the arguments are content.
    """

    def __init__(self, *, begins: bool, has_tools: bool = False) -> None:
        self.is_thinking = begins
        """Whether text that comes now is thought, as far as one can tell."""
        self._has_tools = has_tools
        self._in_message = begins
        self._is_call = False
        self._held = ""
        """What may be a header, or the beginning of an end."""

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with `text`."""
        parts: list[Part] = []
        self._held += text
        while self._held and (self._end(parts) if self._in_message else self._open(parts)):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that no text follows."""
        held, self._held = self._held, ""
        if not self._in_message:
            self.is_thinking = False
            if held.startswith((START, CHANNEL)):
                return []
        return [self._part(held)] if held else []

    def _open(self, parts: list[Part]) -> bool:
        """Take the header of a message, if it is all there; a message without header is for the reader."""
        held = self._held
        header, mark, rest = held.partition(MESSAGE)
        if held.startswith((START, CHANNEL)) and len(header) + len(mark) <= MAX_HEADER_CHARS:
            if not mark:
                return False
            function = _FUNCTION.search(header)
            self.is_thinking = function is None and _THOUGHT.search(header) is not None
            self._is_call = self._has_tools and function is not None
            if self._is_call and function is not None:
                parts.append(Content(f"{CALL_OPENING}{function[1]}{MESSAGE}"))
            self._held = rest
        elif START.startswith(held) or CHANNEL.startswith(held):
            return False
        else:
            self.is_thinking = self._is_call = False
        self._in_message = True
        return True

    def _end(self, parts: list[Part]) -> bool:
        """Give out a message up to its end, or to what may be the beginning of that."""
        held = self._held
        end, spelling = min(((at, one) for one in ENDS if (at := held.find(one)) >= 0), default=(-1, ""))
        if end < 0:
            sizes = range(min(len(held), max(map(len, ENDS)) - 1), 0, -1)
            size = next((size for size in sizes if any(one.startswith(held[-size:]) for one in ENDS)), 0)
            end = len(held) - size
        if end:
            parts.append(self._part(held[:end]))
        if self._is_call and spelling:
            parts.append(Content(CALL))
        self._held = held[end + len(spelling) :]
        self._in_message = not spelling
        return bool(spelling)

    def _part(self, text: str) -> Part:
        return Reasoning(text) if self.is_thinking else Content(text)


HARMONY = HarmonyFormat()


def rules_before_final(begun: bool) -> list[str]:
    """Rules of a grammar: `answer` in the message for the reader, after thought. What separates them is no text.

    With `begun` an answer begins within a thought.
    """
    end = f"text {END} {START} role"
    return [
        f'start: {end + " " if begun else ""}thought* {CHANNEL} "final" {MESSAGE} answer',
        f'thought: {CHANNEL} "analysis" {MESSAGE} {end}',
        'role: "assistant"',
        "text: /(?s:.*)/",
    ]
