"""Chat completions and completions: their answers as choices, whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server import validate
from chairlift.server.asked import Asked
from chairlift.server.choices import CollectedChoice, OnEnd, StreamedChoice
from chairlift.server.dialect import Heading, Question
from chairlift.server.errors import ApiError
from chairlift.server.listener import Choice
from chairlift.server.logprobs import token_text
from chairlift.server.message_parts import delta
from chairlift.server.outlet import Outlet
from chairlift.server.ports import ServedText, TokenText
from chairlift.server.rich_choice import RichStreamedChoice
from chairlift.server.shapes import DONE, MARK, Shape, Usage, encode_json
from chairlift.server.validate import Presentation
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import CallBegin, Content, Part


def read_completion(content: dict[str, Any], text: ServedText) -> Question:
    """A body of /v1/completions."""
    asked = validate.completion(content, text.sampling_defaults)
    return Question(asked, lambda heading: Chunks(asked.show, heading))


def read_chat(content: dict[str, Any], text: ServedText) -> Question:
    """A body of /v1/chat/completions."""
    asked = validate.chat(content, text.sampling_defaults, text.manners)
    return Question(asked, lambda heading: Chunks(asked.show, heading))


class Chunks:
    """The dialect of both."""

    def __init__(self, show: Presentation, heading: Heading) -> None:
        self._show = show
        self._shape = Shape(
            chat=show.chat,
            id=f"chatcmpl-{heading.label}" if show.chat else f"cmpl-{heading.label}",
            created=heading.created,
            model=heading.model,
            include_usage=show.include_usage,
            service_tier=show.service_tier,
        )
        self.id = self._shape.id
        self.created = self._shape.created

    def streamed(
        self, asked: Asked, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd, reader: AnswerReader | None
    ) -> Choice:
        """Of the cheap kind where text is all that is wanted."""
        if asked.is_plain:
            return StreamedChoice(asked, self._shape, index, text, outlet, on_end)
        return RichStreamedChoice(asked, text, outlet, on_end, ChunkVoice(asked, self._shape, index, reader), reader)

    def ending(self, usage: Usage, more: Mapping[str, Any]) -> bytes:
        """The totals, if anybody wants them, and what ends every whole stream."""
        told = usage if self._shape.include_usage else None
        if told is None and not more:
            return DONE
        return self._shape.totals(told, dict(more)) + DONE

    def failure(self, error: ApiError) -> bytes:
        """Never followed by what ends a whole stream."""
        return error.event()

    def body(
        self, choices: Sequence[CollectedChoice], usage: Callable[[], Usage], more: Mapping[str, Any]
    ) -> Iterator[bytes]:
        """With `num_kept` only the likeliest answers to each prompt are shown, under numbers of their own."""
        kept = list(choices) if self._show.num_kept is None else _likeliest(choices, self._show.num_kept)
        told = [choice.as_json(self._shape, index) for index, choice in enumerate(kept)]
        fields = choices[0].asked.prompt_fields() if self._shape.chat else {}
        return self._shape.body(told, usage(), fields | dict(more))


def _likeliest(choices: Sequence[CollectedChoice], num_kept: int) -> list[CollectedChoice]:
    """Of each prompt's answers the best, likeliest first."""
    kept: list[CollectedChoice] = []
    for _, answers in groupby(choices, lambda choice: id(choice.asked)):
        kept += sorted(answers, key=lambda choice: -choice.mean_logprob)[:num_kept]
    return kept


class ChunkVoice:
    """Tells a choice in chunks.

    Where one token completes several parts of an answer, each is an event of its own, and what belongs to the token is
    in the first.
    """

    def __init__(self, asked: Asked, shape: Shape, index: int, reader: AnswerReader | None) -> None:
        self._asked = asked
        self._shape = shape
        self._index = index
        self._reader = reader
        self._num_tokens = 0
        self._offset = 0
        """Where the next token's text begins, in characters."""
        self._patterns: dict[type[Part], list[bytes]] = {}
        """Events that carry a text and nothing else, cut where the text stands; of calls, of the last one."""

    def opening(self) -> bytes:
        """Who speaks, in a chat; the prompt's text and ids where they are wanted."""
        asked, shape = self._asked, self._shape
        fields = asked.prompt_fields()
        if shape.chat:
            return shape.opening(self._index, fields)
        if asked.show.echo or fields:
            return shape.delta(self._index, shape.content(asked.echo()), None, fields, self._usage())
        return b""

    def piece(self, tokens: list[int], parts: list[Part], scores: list[TokenLogprob]) -> bytes:
        """An event for the tokens, if they have anything to say."""
        asked = self._asked
        self._num_tokens += len(tokens)
        logprobs = asked.logprobs(tokens, scores, self._offset)
        if logprobs is not None:
            self._offset += sum(len(token_text(asked.tokenizer, token)) for token in tokens)
        more = {"token_ids": tokens} if asked.show.return_token_ids else {}
        if logprobs is None and not more and (parts or not asked.show.continuous_usage):
            return self._told(parts)
        piece = self._piece(parts[0]) if parts else self._shape.content("")
        return self._shape.delta(self._index, piece, logprobs, more, self._usage()) + self._told(parts[1:])

    def closing(self, parts: list[Part], finish: Finish) -> bytes:
        """The last event, after events for what was held back."""
        reason, stop_reason = finish.reason, finish.stop_reason
        if self._asked.show.discard_output:
            reason, stop_reason = FinishReason.LENGTH, None
        if self._reader is None:
            rest = "".join(part.text for part in parts if isinstance(part, Content))
            return self._shape.end(self._index, rest, reason, stop_reason, self._usage())
        calls = self._reader.num_calls > 0
        return self._told(parts) + self._shape.end(self._index, "", reason, stop_reason, self._usage(), calls=calls)

    def _told(self, parts: Iterable[Part]) -> bytes:
        """An event for each part."""
        return b"".join([self._event(part) for part in parts])

    def _event(self, part: Part) -> bytes:
        if isinstance(part, CallBegin) or self._asked.show.continuous_usage:
            return self._shape.delta(self._index, self._piece(part), usage=self._usage())
        pattern = self._patterns.get(type(part))
        if pattern is None:
            marked = self._shape.delta(self._index, self._piece(replace(part, text=MARK)))
            pattern = self._patterns[type(part)] = marked.split(encode_json(MARK))
        return encode_json(part.text).join(pattern)

    def _piece(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Content):
            return self._shape.content(part.text)
        if isinstance(part, CallBegin):
            self._patterns.clear()
        return delta(part, self._asked.new_call_id)

    def _usage(self) -> Usage | None:
        if not self._asked.show.continuous_usage:
            return None
        thought = None if self._reader is None else self._reader.num_reasoning_tokens
        return Usage(len(self._asked.prompt), self._num_tokens, 0, thought)
