"""Following one answer through its grammar, token by token."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from chairlift.grammars.compiling import explained, is_too_much

ALLOWANCE_S = 0.05
ALLOWANCE_PER_TOKEN_S = 0.001
"""Processor time that an answer may take to be followed, to begin with and per token; usual is a hundredth."""
FRESH_S = 2e-5
"""A mask that takes longer than this grew the tables behind it."""


class Matcher:
    """Knows which tokens may come next in one answer.

    Once a token came that ends answers, only such tokens may follow: with `ignore_eos` they fill up what is left.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        num_tokens: int,
        end_ids: tuple[int, ...],
        note: Callable[[float, bool], None] = lambda grown_s, is_broken: None,
    ) -> None:
        self._matcher = matcher
        self._num_words = -(-num_tokens // 32)
        self._end_ids = end_ids
        self._note = note
        """Told of time that went into new tables, and whether the grammar is broken for all who share it."""
        self._ended = False
        self._allowance_s = ALLOWANCE_S
        self._error: str | None = None

    def accept(self, token: int) -> None:
        """The answer goes on with this token, which was allowed."""
        self.accept_all([token])

    def accept_all(self, tokens: list[int]) -> None:
        """The same for several at once: an answer that was preempted."""
        if self._ended or self._error is not None:
            return
        text = list(takewhile(lambda token: token not in self._end_ids, tokens))
        self._ended = len(text) < len(tokens)
        begun = time.thread_time()
        try:
            if not self._matcher.consume_tokens(text):
                self._break()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the library: of no type that has a name
            self._panic()
        self._spend(time.thread_time() - begun - len(text) * ALLOWANCE_PER_TOKEN_S)

    def fill(self, words: NDArray[np.uint32]) -> str | None:
        """Set the bits of the tokens that may come next, those of 32 tokens to a word; why there are none, else None.

        Shapes:
            words  [at least the vocabulary / 32]
        """
        if self._ended:
            words.fill(0)
            for token in self._end_ids:
                words[token >> 5] |= np.uint32(1 << (token & 31))
            return None
        if self._error is None:
            begun = time.thread_time()
            try:
                self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, 4 * self._num_words)
                if self._matcher.is_error():
                    self._break()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # as above
                self._panic()
            self._spend(time.thread_time() - begun)
        if self._error is not None:
            words.fill(0)
        return self._error

    def _spend(self, seconds: float) -> None:
        self._allowance_s = min(self._allowance_s - seconds, ALLOWANCE_S)
        if seconds > FRESH_S:
            self._note(seconds, False)
        if self._allowance_s < 0 and self._error is None:
            self._error = "the grammar takes too long to be followed"

    def _panic(self) -> None:
        self._error = "the grammar cannot be followed"
        self._note(0.0, True)

    def _break(self) -> None:
        if is_too_much(self._matcher):
            self._error = f"the grammar became too complex: {explained(self._matcher)}"
            self._note(0.0, True)
        else:
            self._error = "the grammar came to a dead end: no token leads to a text that it allows"
