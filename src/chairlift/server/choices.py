"""One answer in the making: collected to the end, or streamed as plain text.

`push` is called once per token of every request: what it costs is most of what the server costs. The token that ends
an answer (end of sequence, or a stop token) has no place in its text unless the request says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.message_parts import message
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.scores import Scores
from chairlift.server.shapes import Shape, encode_json
from chairlift.server.written import Told, Written, list_pieces
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import Content, Part

OnEnd = Callable[[Finish], None]


class Voice(Protocol):
    """Tells one answer, in events of some API; nothing may be an event."""

    def opening(self) -> Told:
        """Before the first token."""
        ...

    def piece(self, tokens: list[int], parts: list[Part], scores: list[TokenLogprob]) -> Told:
        """What these tokens said; with scores, if they are wanted. Neighbours of one kind are one part."""
        ...

    def closing(self, parts: list[Part], finish: Finish) -> Told:
        """After the last token of a good end; `parts` were held back."""
        ...


def read_parts(reader: AnswerReader | None, text: str, num_tokens: int = 0) -> list[Part]:
    """What the text of some tokens says; without a reader, all of it is content."""
    if reader is not None:
        return reader.push(text, num_tokens)
    return [Content(text)] if text else []


def last_parts(reader: AnswerReader | None, text: str) -> list[Part]:
    """What was held back, with the text that was."""
    return read_parts(reader, text) + ([] if reader is None else reader.finish())


class CollectedChoice:
    """Keeps everything until the end, in few bytes; the text is decoded once."""

    __slots__ = (
        "_finish",
        "_on_end",
        "_reader",
        "_scores",
        "_silent_end",
        "_text",
        "_tokens",
        "asked",
        "heard",
        "push",
    )

    def __init__(self, asked: Asked, text: TokenText, on_end: OnEnd, reader: AnswerReader | None = None) -> None:
        self.asked = asked
        self._text = text
        self._reader = reader
        self._on_end = on_end
        self._tokens = array("i")
        self._scores = Scores()
        self._silent_end = False
        self._finish: Finish | None = None
        self.heard: float | None = None
        self.push: Callable[[int], None] = self._tokens.append

    def score(self, logprob: TokenLogprob) -> None:
        self._scores.append(logprob)

    def hold(self) -> None:
        self._silent_end = not self.asked.includes_stop

    def finish(self, finish: Finish) -> None:
        self._finish = finish
        self._on_end(finish)

    def as_json(self, shape: Shape, index: int) -> dict[str, Any]:
        """The choice in a response's body; some of it is `Written`. Once, after a good end."""
        asked = self.asked
        tokens, scores = self._tokens, self._scores
        reason: FinishReason = FinishReason.LENGTH
        stop_reason: int | str | None = None
        if asked.show.discard_output:
            tokens, scores = array("i"), Scores()
        elif self._finish is not None:
            reason, stop_reason = self._finish.reason, self._finish.stop_reason
        spoken = tokens[:-1] if self._silent_end else tokens
        more: dict[str, Any] = {}
        if asked.show.return_token_ids:
            more["token_ids"] = Written(lambda: list_pieces(tokens))
        content: dict[str, Any]
        if shape.chat:
            content = {"message": self._message(spoken)}
        else:
            content = {"text": asked.echo() + self._text.push(spoken) + self._text.finish()}
            more |= asked.prompt_fields()
        calls = self._reader is not None and self._reader.num_calls > 0
        return shape.choice(
            index, content, asked.whole_logprobs(tokens, scores), reason, stop_reason, more, calls=calls
        )

    def tell(self, voice: Voice) -> None:
        """Tell a voice everything, as if it had been streamed. Once, after a good end, instead of `as_json`."""
        tokens, scores, finish = self._tokens, iter(self._scores), self._finish
        if finish is None:
            raise RuntimeError("an answer is told that has not ended")
        num_spoken = len(tokens) - self._silent_end
        step = 1 if self._reader is not None or len(self._scores) else max(1, len(tokens))
        for start in range(0, len(tokens), step):
            some = tokens[start : start + step].tolist()
            spoken = some[: num_spoken - start]
            parts = read_parts(self._reader, self._text.push(spoken), 1) if spoken else []
            voice.piece(some, self.asked.shown(parts), list(islice(scores, step)))
        voice.closing(self.asked.shown(last_parts(self._reader, self._text.finish())), finish)

    @property
    def mean_logprob(self) -> float:
        """How likely the model finds its answer, by token; the tokens must have been scored."""
        return self._scores.mean

    def _message(self, tokens: Sequence[int]) -> dict[str, Any]:
        reader, asked = self._reader, self.asked
        if reader is None:
            return {"role": "assistant", "content": self._text.push(tokens) + self._text.finish()}
        parts: list[Part] = []
        for token in tokens:
            parts += reader.push(self._text.push((token,)), 1)
        parts += last_parts(reader, self._text.finish())
        return message(parts, asked.new_call_id, asked.show.include_reasoning)


class PlainEvents(Protocol):
    """The events of an answer that is text and nothing else."""

    def opening(self, index: int) -> bytes:
        """What goes out together with the first text, or with the end."""
        ...

    def split(self, index: int) -> tuple[bytes, bytes]:
        """Head and tail of an event that carries text."""
        ...

    def end(self, index: int, text: str, reason: FinishReason, stop_reason: int | str | None) -> bytes:
        """The last event, with the text that was held back."""
        ...


class StreamedChoice:
    """Writes an event for every token that gives text; a chat's opening goes out together with the first."""

    __slots__ = (
        "_asked",
        "_head",
        "_index",
        "_last_tokens",
        "_on_end",
        "_opening",
        "_outlet",
        "_shape",
        "_tail",
        "_text",
        "heard",
        "push",
    )

    def __init__(
        self, asked: Asked, shape: PlainEvents, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd
    ) -> None:
        self._asked = asked
        self._shape = shape
        self._index = index
        self._text = text
        self._outlet = outlet
        self._on_end = on_end
        self._opening = shape.opening(index)
        self._head, self._tail = shape.split(index)
        self._last_tokens: list[int] = []
        self.heard: float | None = None
        self.push: Callable[[int], None] = self._push

    def _push(self, token: int) -> None:
        text = self._text.push((token,))
        if text:
            self._outlet.write(self._opening + self._head + encode_json(text) + self._tail)
            self._opening = b""

    def score(self, logprob: TokenLogprob) -> None:
        """Nobody asked."""

    def hold(self) -> None:
        if not self._asked.includes_stop:
            self.push = self._last_tokens.append

    def finish(self, finish: Finish) -> None:
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            rest = self._text.push(self._last_tokens[:-1]) + self._text.finish()
            end = self._shape.end(self._index, rest, finish.reason, finish.stop_reason)
            self._outlet.write(self._opening + end)
        self._on_end(finish)
