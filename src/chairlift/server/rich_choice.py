"""One streamed answer with more than text: thought, calls, log-probabilities, token ids, the prompt, running totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.choices import OnEnd
from chairlift.server.logprobs import token_text
from chairlift.server.message_parts import delta
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.shapes import MARK, Usage, encode_json
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import CallBegin, Content, Part, Reasoning, joined


class RichStreamedChoice:
    """Writes an event for a token, or for so many as are wanted in one, with what belongs to them.

    The prompt's part goes out before the first. Where one token completes several parts of an answer, each is an event
    of its own, and what belongs to the token is in the first.
    """

    def __init__(
        self,
        asked: Asked,
        index: int,
        text: TokenText,
        outlet: Outlet,
        on_end: OnEnd,
        reader: AnswerReader | None = None,
    ) -> None:
        self._asked = asked
        self._index = index
        self._text = text
        self._outlet = outlet
        self._on_end = on_end
        self._reader = reader
        self._started = False
        self._num_tokens = 0
        self._offset = 0
        """Where the next token's text begins, in characters."""
        self._tokens: list[int] = []
        """Of the next event."""
        self._parts: list[Part] = []
        """What they say."""
        self._patterns: dict[type[Part], list[bytes]] = {}
        """Events that carry a text and nothing else, cut where the text stands; of calls, of the last one."""
        self._scores: list[TokenLogprob] = []
        """Of tokens that are in no event yet, in order."""
        self._last_tokens: list[int] = []
        self.heard: float | None = None
        self.push: Callable[[int], None] = self._push

    def _push(self, token: int, silent: bool = False) -> None:
        self._start()
        if self._asked.show.discard_output:
            return
        self._num_tokens += 1
        self._tokens.append(token)
        if not silent:
            self._parts += self._read(self._text.push((token,)), 1)
        if self._num_tokens == 1 or len(self._tokens) >= self._asked.show.stream_interval:
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
            self._start()
            if self._asked.show.discard_output:
                end = self._asked.shape.end(self._index, "", FinishReason.LENGTH, None, self._usage())
            else:
                end = self._end(finish)
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
            self._outlet.write(shape.delta(self._index, shape.content(asked.echo()), None, fields, self._usage()))

    def _flush(self) -> None:
        """An event for the tokens that are waiting for one, if it has anything to say."""
        tokens, self._tokens = self._tokens, []
        if not tokens:
            return
        asked = self._asked
        scores, self._scores = self._scores[: len(tokens)], self._scores[len(tokens) :]
        logprobs = asked.logprobs(tokens, scores, self._offset)
        if logprobs is not None:
            self._offset += sum(len(token_text(asked.tokenizer, token)) for token in tokens)
        more = {"token_ids": tokens} if asked.show.return_token_ids else {}
        parts, self._parts = self._shown(self._parts), []
        if logprobs is not None or more or (asked.show.continuous_usage and not parts):
            piece = self._piece(parts[0]) if parts else asked.shape.content("")
            self._outlet.write(asked.shape.delta(self._index, piece, logprobs, more, self._usage()))
            parts = parts[1:]
        self._write(parts)

    def _read(self, text: str, num_tokens: int = 0) -> list[Part]:
        if self._reader is not None:
            return self._reader.push(text, num_tokens)
        return [Content(text)] if text else []

    def _shown(self, parts: list[Part]) -> list[Part]:
        shows_reasoning = self._asked.show.include_reasoning
        return [part for part in joined(parts) if shows_reasoning or not isinstance(part, Reasoning)]

    def _write(self, parts: Iterable[Part]) -> None:
        """An event for each part."""
        for part in parts:
            self._outlet.write(self._event(part))

    def _event(self, part: Part) -> bytes:
        if isinstance(part, CallBegin) or self._asked.show.continuous_usage:
            return self._asked.shape.delta(self._index, self._piece(part), usage=self._usage())
        pattern = self._patterns.get(type(part))
        if pattern is None:
            marked = self._asked.shape.delta(self._index, self._piece(replace(part, text=MARK)))
            pattern = self._patterns[type(part)] = marked.split(encode_json(MARK))
        return encode_json(part.text).join(pattern)

    def _piece(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Content):
            return self._asked.shape.content(part.text)
        if isinstance(part, CallBegin):
            self._patterns.clear()
        return delta(part, self._asked.new_call_id)

    def _end(self, finish: Finish) -> bytes:
        """The last event, after events for what was held back."""
        asked, rest = self._asked, self._text.finish()
        if self._reader is None:
            return asked.shape.end(self._index, rest, finish.reason, finish.stop_reason, self._usage())
        self._write(self._shown(self._reader.push(rest) + self._reader.finish()))
        calls = self._reader.num_calls > 0
        return asked.shape.end(self._index, "", finish.reason, finish.stop_reason, self._usage(), calls=calls)

    def _usage(self) -> Usage | None:
        if not self._asked.show.continuous_usage:
            return None
        thought = None if self._reader is None else self._reader.num_reasoning_tokens
        return Usage(len(self._asked.prompt), self._num_tokens, 0, thought)
