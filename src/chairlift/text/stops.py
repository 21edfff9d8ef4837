"""Stop strings, found in a stream of bytes, one byte at a time and never twice.

UTF-8 is self-synchronising: a stop string begins with a start byte and ends with a whole character, so it is found in
the bytes of a sequence exactly where it stands in the decoded text. Both ends of the wire can therefore watch bytes:
the worker to end the sequence, the server to cut the text, and they agree on the token.
"""

from __future__ import annotations

from chairlift.core.errors import InvalidRequest
from chairlift.text.tokenizer import Tokenizer


class StopAutomaton:
    """The stop strings of one request as an automaton over bytes; shared by everything that watches the request.

    A state is the longest end of the bytes seen so far that begins a stop string. `found[state]` is the stop string
    that ends there (the longest, where several do), `held[state]` how many of the last bytes may still become part of
    one: they begin a stop string without completing it.

    Raises:
        InvalidRequest: a stop string is empty or holds half a surrogate pair.

    Source: Aho and Corasick 1975, doi:10.1145/360825.360855.
    """

    __slots__ = ("_steps", "firsts", "found", "held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._steps: list[dict[int, int]] = [{}]
        self.found: list[str | None] = [None]
        self.held: list[int] = [0]
        depths = [0]
        for stop in stops:
            state = 0
            for byte in _utf8(stop):
                following = self._steps[state].get(byte)
                if following is None:
                    following = self._steps[state][byte] = len(self._steps)
                    self._steps.append({})
                    self.found.append(None)
                    depths.append(depths[state] + 1)
                state = following
            self.found[state] = stop
        self.firsts = frozenset(self._steps[0])
        """The bytes that begin a stop string."""
        self._link(depths)

    def _link(self, depths: list[int]) -> None:
        """Complete the states, shallow ones first, with what they inherit from their longest end that is a state.

        After it a state knows its own continuations and those of all its ends but the empty one, state 0.
        """
        steps, root = self._steps, self._steps[0]
        ends = [0] * len(steps)
        self.held = [0] * len(steps)
        queue = list(root.values())
        for state in queue:
            own, end = steps[state], ends[state]
            queue.extend(own.values())
            for byte, following in own.items():
                ends[following] = steps[end].get(byte) or root.get(byte, 0)
            if self.found[state] is None:
                self.found[state] = self.found[end]
            self.held[state] = depths[state] if own else self.held[end]
            if end:
                steps[state] = {**steps[end], **own}

    def scan(self, state: int, data: bytes) -> tuple[int, int, str | None]:
        """Read on until a stop string ends: the new state, how many bytes were read, and the stop string."""
        steps, found = self._steps, self.found
        start = steps[0]
        for index, byte in enumerate(data):
            following = steps[state].get(byte)
            state = start.get(byte, 0) if following is None else following
            if found[state] is not None:
                return state, index + 1, found[state]
        return state, len(data), None


class StopMatcher:
    """Tells the token that completes a stop string, for one sequence. Cheap: most tokens cost one set lookup."""

    __slots__ = ("_automaton", "_bytes", "_state")

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...] | StopAutomaton, *, skip_special_tokens: bool = True
    ) -> None:
        self._automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._bytes = tokenizer.bytes_of(skip_special_tokens)
        self._state = 0

    def push(self, token: int) -> str | None:
        """The stop string that this token completed (the first, if it completed several), or None.

        May be pushed on after a match: a sequence that must reach `min_tokens` goes past it.
        """
        data = self._bytes[token]
        automaton = self._automaton
        if not self._state and automaton.firsts.isdisjoint(data):
            return None
        self._state, read, stop = automaton.scan(self._state, data)
        while read < len(data):
            self._state, more, _ = automaton.scan(self._state, data[read:])
            read += more
        return stop


def _utf8(stop: str) -> bytes:
    if not stop:
        raise InvalidRequest("a stop string must not be empty", "stop")
    try:
        return stop.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("a stop string must not hold half a surrogate pair", "stop") from error
