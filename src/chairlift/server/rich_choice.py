"""One streamed answer with more than text: log-probabilities, token ids, the prompt, running totals."""

from __future__ import annotations

from typing import Any

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
        self._tokens: list[int] = []
        self._scores: list[TokenLogprob] = []
        self._prompt_scores: list[TokenLogprob] = []
        self.heard: float | None = None

    def push(self, token: int) -> None:
        self._start()
        if self._asked.show.discard_output:
            return
        self._num_tokens += 1
        self._tokens.append(token)
        text = self._text.push((token,))
        logprobs, more = self._take()
        self._outlet.write(self._asked.shape.text(self._index, text, logprobs, more, self._usage()))

    def score(self, logprob: TokenLogprob) -> None:
        if not self._asked.show.discard_output:
            self._scores.append(logprob)

    def score_prompt(self, logprobs: list[TokenLogprob]) -> None:
        self._prompt_scores += logprobs

    def finish(self, finish: Finish) -> None:
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._start()
            rest, reason, stop_reason = "", FinishReason.LENGTH, None
            if not self._asked.show.discard_output:
                rest, reason, stop_reason = self._text.finish(), finish.reason, finish.stop_reason
            self._outlet.write(self._asked.shape.end(self._index, rest, None, reason, stop_reason, self._usage()))
        self._on_end(finish)

    def _start(self) -> None:
        """The opening of a chat; the prompt's text, scores and ids where they are wanted."""
        if self._started:
            return
        self._started = True
        asked, shape = self._asked, self._asked.shape
        fields = asked.prompt_fields(self._prompt_scores)
        if shape.chat:
            self._outlet.write(shape.opening(self._index, fields))
            return
        if not (asked.show.echo or fields):
            return
        text = asked.echo()
        logprobs = asked.echoed_logprobs((), (), self._prompt_scores) if asked.show.echo else None
        if logprobs is not None:
            self._offset = sum(len(name) for name in logprobs["tokens"])
        self._outlet.write(shape.text(self._index, text, logprobs, fields, self._usage()))

    def _take(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Scores and further fields of the tokens since the last event."""
        asked = self._asked
        tokens, self._tokens = self._tokens, []
        scores, self._scores = self._scores, []
        logprobs = asked.logprobs(tokens, scores, self._offset)
        if logprobs is not None and not asked.shape.chat:
            self._offset += sum(len(token_text(asked.tokenizer, token)) for token in tokens)
        return logprobs, {"token_ids": tokens} if asked.show.return_token_ids else {}

    def _usage(self) -> Usage | None:
        if not self._asked.show.continuous_usage:
            return None
        return Usage(len(self._asked.prompt), self._num_tokens, 0)
