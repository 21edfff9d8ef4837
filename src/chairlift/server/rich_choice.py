"""One streamed answer with more than text: log-probabilities, token ids, the prompt repeated, running totals."""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.choices import OnEnd
from chairlift.server.logprobs import token_text
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.shapes import Usage


class RichStreamedChoice:
    """Writes an event for every token, with what belongs to it; the prompt's part goes out before the first."""

    def __init__(self, asked: Asked, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd) -> None:
        self._asked = asked
        self._index = index
        self._text = text
        self._outlet = outlet
        self._on_end = on_end
        self._started = False
        self._num_tokens = 0
        self._offset = 0
        """Where the next token's text begins, in characters."""
        self._scores: list[TokenLogprob] = []
        """Of tokens that were not pushed yet, in order."""
        self._last_tokens: list[int] = []
        self.heard: float | None = None
        self.push: Callable[[int], None] = self._push

    def _push(self, token: int, silent: bool = False) -> None:
        self._start()
        if self._asked.show.discard_output:
            return
        self._num_tokens += 1
        text = "" if silent else self._text.push((token,))
        scores, self._scores = self._scores[:1], self._scores[1:]
        logprobs = self._asked.logprobs((token,), scores, self._offset)
        if logprobs is not None:
            self._offset += len(token_text(self._asked.tokenizer, token))
        more = {"token_ids": [token]} if self._asked.show.return_token_ids else {}
        self._outlet.write(self._asked.shape.text(self._index, text, logprobs, more, self._usage()))

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
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._start()
            if self._asked.show.discard_output:
                end = self._asked.shape.end(self._index, "", FinishReason.LENGTH, None, self._usage())
            else:
                rest = self._text.finish()
                end = self._asked.shape.end(self._index, rest, finish.reason, finish.stop_reason, self._usage())
            self._outlet.write(end)
        self._on_end(finish)

    def _start(self) -> None:
        """The opening of a chat; the prompt's text and ids where they are wanted."""
        if self._started:
            return
        self._started = True
        asked, shape = self._asked, self._asked.shape
        fields = asked.prompt_fields()
        if shape.chat:
            self._outlet.write(shape.opening(self._index, fields))
        elif asked.show.echo or fields:
            self._outlet.write(shape.text(self._index, asked.echo(), None, fields, self._usage()))

    def _usage(self) -> Usage | None:
        if not self._asked.show.continuous_usage:
            return None
        return Usage(len(self._asked.prompt), self._num_tokens, 0)
