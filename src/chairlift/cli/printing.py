"""Printing an answer of a chat while it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chairlift.llm import CompletionOutput

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class PrintedAnswer:
    """What is said goes to standard output, what is thought to standard error, dimmed if that is a terminal."""

    def __init__(self) -> None:
        self._dim, self._plain = (DIM, PLAIN) if sys.stderr.isatty() else ("", "")
        self._is_thought = False

    def add(self, piece: CompletionOutput) -> None:
        """What is new."""
        if piece.reasoning:
            print(("" if self._is_thought else self._dim) + piece.reasoning, end="", file=sys.stderr, flush=True)
            self._is_thought = True
        if piece.text:
            self._end_thought("\n\n")
            print(piece.text, end="", flush=True)

    def end(self) -> None:
        """Nothing follows."""
        self._end_thought("")
        print()

    def _end_thought(self, gap: str) -> None:
        if self._is_thought:
            print(self._plain, end=gap, file=sys.stderr, flush=True)
            self._is_thought = False
