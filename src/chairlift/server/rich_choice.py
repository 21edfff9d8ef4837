"""One streamed answer with more than text: thought, calls, log-probabilities, token ids, the prompt, running totals."""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.choices import OnEnd, Voice, last_parts, read_parts
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.written import Told
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import Part


class RichStreamedChoice:
    """Gives a voice each token, or so many as are wanted in one event, with what belongs to them."""

    def __init__(
        self,
        asked: Asked,
        text: TokenText,
        outlet: Outlet,
        on_end: OnEnd,
        voice: Voice,
        reader: AnswerReader | None = None,
    ) -> None:
        self._asked = asked
        self._text = text
        self._outlet = outlet
        self._on_end = on_end
        self._voice = voice
        self._reader = reader
        self._started = False
        self._tokens: list[int] = []
        """Of the next event."""
        self._parts: list[Part] = []
        """What they say."""
        self._scores: list[TokenLogprob] = []
        """Of tokens that are in no event yet, in order."""
        self._last_tokens: list[int] = []
        self._interval = 1
        """Tokens of the next event; the first stands alone."""
        self.heard: float | None = None
        self.push: Callable[[int], None] = self._push

    def _push(self, token: int, silent: bool = False) -> None:
        if not self._started:
            self._start()
        if self._asked.show.discard_output:
            return
        self._tokens.append(token)
        if not silent:
            self._parts += read_parts(self._reader, self._text.push((token,)), 1)
        if len(self._tokens) >= self._interval:
            self._interval = self._asked.show.stream_interval
            self._flush()

    def score(self, logprob: TokenLogprob) -> None:
        self._scores.append(logprob)

    def hold(self) -> None:
        if not self._asked.includes_stop:
            self.push = self._last_tokens.append

    def finish(self, finish: Finish) -> None:
        for token in self._last_tokens[:-1]:
            self._push(token)
        for token in self._last_tokens[-1:]:
            self._push(token, silent=True)
        self._flush()
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            if not self._started:
                self._start()
            rest = last_parts(self._reader, self._text.finish())
            self._write(self._voice.closing(self._asked.shown(rest), finish))
        self._on_end(finish)

    def _start(self) -> None:
        self._started = True
        self._write(self._voice.opening())

    def _flush(self) -> None:
        """What waits for an event."""
        tokens, self._tokens = self._tokens, []
        if not tokens:
            return
        scores, self._scores = self._scores[: len(tokens)], self._scores[len(tokens) :]
        parts, self._parts = self._parts, []
        self._write(self._voice.piece(tokens, self._asked.shown(parts), scores))

    def _write(self, data: Told) -> None:
        if data:
            self._outlet.write(data)
