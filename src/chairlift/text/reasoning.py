"""Telling what a model thinks from what it says, while it is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chairlift.text.harmony import HARMONY, HarmonyFormat, HarmonyReader
from chairlift.text.parts import Content, Part, Reasoning


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """How models of one kind think: between two tags.

    With `begins` an answer is thought from its first character on, whether or not it opens with the tag: some models
    leave it out. Otherwise it is if it opens with the tag, or if the prompt already did.
    """

    name: str
    opening: str
    closing: str
    begins: bool = False

    def begins_after(self, prompt_end: str) -> bool:
        """Whether an answer to a prompt that ends like this begins as thought."""
        prompt_end = prompt_end.rstrip()
        if prompt_end.endswith(self.closing):
            return False
        return self.begins or prompt_end.endswith(self.opening)

    @property
    def mark(self) -> str:
        """What templates of such models write, and no others: one that writes a closing tag knows thought."""
        return self.closing

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Special tokens that a reader must see."""
        return self.opening, self.closing

    def begins_within(self, said: str) -> bool:
        """Whether what goes on a message begins as thought."""
        return said.rfind(self.opening) > said.rfind(self.closing)

    def tags_before(self, prompt_end: str, *, begins: bool) -> tuple[str, str] | None:
        """What may stand before the form that an answer must have: see `StructuredOutputs.after`.

        None where the prompt itself has the thought behind it: some templates are told so not to let a model think.
        """
        if not begins and prompt_end.rstrip().endswith(self.closing):
            return None
        return "" if begins else self.opening, self.closing

    def reader(self, *, begins: bool, has_tools: bool = False) -> ReasoningReader:
        """Calls, if there are any, are in what it gives out as content."""
        return ReasoningReader(self, begins=begins)


ReasoningFormat = TaggedFormat | HarmonyFormat


MAX_SPACES = 64
"""Most white space beside a tag that goes with it: what is held back stays small."""

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    form.name: form
    for form in (
        TaggedFormat("qwen3", "<think>", "</think>"),
        TaggedFormat("deepseek_r1", "<think>", "</think>", begins=True),
        TaggedFormat("mistral", "[THINK]", "[/THINK]"),
        HARMONY,
    )
}
"""By the names that users of other servers know."""


def reasoning_format_of(source: str) -> ReasoningFormat | None:
    """The format that a chat template speaks of, if any."""
    return next((form for form in REASONING_FORMATS.values() if form.mark in source), None)


class _Place(Enum):
    OPENING = 1
    """The opening tag may come."""
    AFTER_OPENING = 2
    """White space before the thought."""
    THOUGHT = 3
    AFTER_CLOSING = 4
    """White space before the content."""
    CONTENT = 5


class ReasoningReader:
    """Divides one answer at its tags, as its text comes; the white space around them goes with them."""

    def __init__(self, form: TaggedFormat, *, begins: bool) -> None:
        self._form = form
        self._begins = begins
        self._place = _Place.OPENING
        self._held = ""
        """What may be the beginning of a tag, with the white space before it."""

    @property
    def is_thinking(self) -> bool:
        """Whether text that comes now is thought, as far as one can tell."""
        if self._place is _Place.OPENING:
            return self._begins
        return self._place in (_Place.AFTER_OPENING, _Place.THOUGHT)

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with `text`."""
        if self._place is _Place.CONTENT:
            return [Content(text)] if text else []
        parts: list[Part] = []
        text = self._held + text
        self._held = ""
        if self._place is _Place.OPENING:
            text = self._open(text)
        if self._place is _Place.AFTER_OPENING:
            text = text.lstrip()
            if text:
                self._place = _Place.THOUGHT
        if self._place is _Place.THOUGHT:
            text = self._think(text, parts)
        if self._place is _Place.AFTER_CLOSING:
            text = text.lstrip()
            if text:
                self._place = _Place.CONTENT
        if self._place is _Place.CONTENT and text:
            parts.append(Content(text))
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that no text follows."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [Reasoning(held) if self.is_thinking else Content(held)]

    def _open(self, text: str) -> str:
        """What follows the opening tag, or the whole text if there is none."""
        opening, unspaced = self._form.opening, text.lstrip()
        if len(text) - len(unspaced) <= MAX_SPACES:
            if unspaced.startswith(opening):
                self._place = _Place.AFTER_OPENING
                return unspaced[len(opening) :]
            if opening.startswith(unspaced):
                self._held = text
                return ""
        self._place = _Place.AFTER_OPENING if self._begins else _Place.CONTENT
        return text

    def _think(self, text: str, parts: list[Part]) -> str:
        """What follows the closing tag, if that is there."""
        closing = self._form.closing
        end = text.find(closing)
        if end >= 0:
            self._place = _Place.AFTER_CLOSING
            thought, rest = _unspaced(text[:end]), text[end + len(closing) :]
        else:
            sizes = range(min(len(text), len(closing) - 1), 0, -1)
            size = next((size for size in sizes if closing.startswith(text[-size:])), 0)
            thought, rest = _unspaced(text[: len(text) - size]), ""
            self._held = text[len(thought) :]
        if thought:
            parts.append(Reasoning(thought))
        return rest


AnyReasoningReader = ReasoningReader | HarmonyReader


def _unspaced(text: str) -> str:
    return text[: max(len(text.rstrip()), len(text) - MAX_SPACES)]
