"""From the tokens of one sequence to its text, as they come."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

from chairlift.text.pieces import TokenBytes
from chairlift.text.stops import StopAutomaton

_SURROGATE_HALF = b"\xed\xa0"


class BytesByToken(Protocol):
    """A tokenizer, as far as a stream looks at it."""

    def bytes_of(self, skip_special_tokens: bool) -> TokenBytes: ...


class TextStream:
    """The text of one sequence, a piece per push, cut before the first stop string.

    All pieces together are `tokenizer.decode(tokens, continuation=True)` up to the stop string, however the tokens are
    divided among pushes; with `strips_space`, for a text of its own, less the space that it begins with. A piece never
    ends within a character, nor with text that may still turn out to begin a stop string; nothing else is held back.
    Works on bytes: a push costs what its tokens cost, not what came before.

        bytes    |---- given out ----|-- may begin a stop string --|      or an incomplete character, never both

    The stop string that ends first counts; of several that end there, the longest. Stop strings completed before
    `min_tokens` tokens are passed over, as the engine does.
    """

    __slots__ = ("_automaton", "_bytes", "_held", "_include_stop", "_min_tokens", "_num_tokens", "_partial", "_state",
                 "_strips_space", "stopped")  # fmt: skip

    def __init__(
        self,
        tokenizer: BytesByToken,
        stop: tuple[str, ...] | StopAutomaton = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        strips_space: bool = False,
    ) -> None:
        self._bytes = tokenizer.bytes_of(skip_special_tokens)
        automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._automaton = automaton if automaton.firsts else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._strips_space = strips_space
        self._num_tokens = 0
        self._state = 0
        self._held = b""
        """Bytes that may begin a stop string."""
        self._partial = b""
        """Bytes of an incomplete character."""
        self.stopped: str | None = None
        """The stop string that ended the text; nothing is given out after it."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that became certain with these tokens; empty once stopped."""
        table = self._bytes
        if self._automaton is None:
            return self._decode(table[tokens[0]] if len(tokens) == 1 else b"".join(map(table.__getitem__, tokens)))
        if len(tokens) == 1:
            return self._watch(self._automaton, table[tokens[0]])
        return "".join([self._watch(self._automaton, table[token]) for token in tokens])

    def finish(self) -> str:
        """What was held back, now that no token follows."""
        if self.stopped is not None:
            return ""
        held, self._held = self._held, b""
        return self._decode(held, final=True)

    def _watch(self, automaton: StopAutomaton, data: bytes) -> str:
        if self.stopped is not None:
            return ""
        self._num_tokens += 1
        if not self._state and automaton.firsts.isdisjoint(data):
            return self._decode(data)
        seen = len(self._held)
        data = self._held + data
        while seen < len(data):
            self._state, read, stop = automaton.scan(self._state, data[seen:])
            seen += read
            if stop is not None and self._num_tokens >= self._min_tokens:
                self.stopped = stop
                self._held = b""
                return self._decode(data[: seen if self._include_stop else seen - len(stop.encode())], final=True)
        certain = len(data) - automaton.held[self._state]
        self._held = data[certain:]
        # What is held begins with a start byte, so an incomplete character before it stays incomplete.
        return self._decode(data[:certain], final=certain < len(data))

    def _decode(self, data: bytes, final: bool = False) -> str:
        if self._partial:
            data = self._partial + data
        text, used = utf_8_decode(data, "replace", final)
        self._partial = data[used:]
        if self._partial and _SURROGATE_HALF <= self._partial < b"\xee":
            # Python waits for the third byte of a surrogate, though UTF-8 has none: these two are errors already.
            text += self._partial.decode("utf-8", "replace")
            self._partial = b""
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
