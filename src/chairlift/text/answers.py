"""Reading an answer as it is written: first what is thought, then in the rest the functions that are called."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from chairlift.text.parts import Content, Part
from chairlift.text.reasoning import AnyReasoningReader
from chairlift.text.tools import ToolReader


class AnswerReader:
    """Text in, parts out, as soon as they are certain. Joined, they are the same however the text came in pieces."""

    def __init__(self, reasoning: AnyReasoningReader | None, tools: ToolReader | None) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self.num_reasoning_tokens = 0

    @property
    def num_calls(self) -> int:
        """Calls of functions so far."""
        return 0 if self._tools is None else self._tools.num_calls

    def push(self, text: str, num_tokens: int = 0) -> list[Part]:
        """The parts that became certain with the text of `num_tokens` more tokens."""
        reasoning = self._reasoning
        if reasoning is None:
            return self._called([Content(text)])
        was_thinking = reasoning.is_thinking
        parts = self._called(reasoning.push(text))
        if was_thinking or reasoning.is_thinking:
            self.num_reasoning_tokens += num_tokens
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that no text follows."""
        parts = self._called([] if self._reasoning is None else self._reasoning.finish())
        return parts + ([] if self._tools is None else self._tools.finish())

    def _called(self, parts: Iterable[Part]) -> list[Part]:
        tools = self._tools
        if tools is None:
            return [part for part in parts if not isinstance(part, Content) or part.text]
        return list(chain.from_iterable(tools.push(p.text) if isinstance(p, Content) else (p,) for p in parts))
