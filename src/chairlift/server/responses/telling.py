"""A response of the Responses API: its events in order and with numbers, or the whole of it.

created, in_progress
for each item:  output_item.added, then for text: content_part.added, deltas, text done, content_part.done,
                or for a call: deltas, arguments done; then output_item.done
completed | incomplete | failed and error
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.choices import CollectedChoice, OnEnd
from chairlift.server.dialect import Heading
from chairlift.server.errors import ApiError
from chairlift.server.listener import Choice
from chairlift.server.logprobs import chat_entries
from chairlift.server.outlet import Outlet
from chairlift.server.ports import TokenText
from chairlift.server.responses.items import COMPLETED, INCOMPLETE, CallItem, Item, TextItem
from chairlift.server.rich_choice import RichStreamedChoice
from chairlift.server.shapes import Usage, encode_json
from chairlift.server.written import Told, pieces_of, strung
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import CallArguments, CallBegin, Part, Reasoning


class Responses:
    """The dialect: what is the same in every event, and the one answer."""

    def __init__(self, heading: Heading, told_back: dict[str, Any]) -> None:
        self.id = f"resp_{heading.label}"
        self.created = heading.created
        self._model = heading.model
        self._told_back = told_back
        self._voice: ItemVoice | None = None

    def streamed(
        self, asked: Asked, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd, reader: AnswerReader | None
    ) -> Choice:
        """There is one choice."""
        return RichStreamedChoice(asked, text, outlet, on_end, self._opened(asked), reader)

    def ending(self, usage: Usage, more: Mapping[str, Any]) -> Told:
        """What ends the last item, and the response."""
        return b"" if self._voice is None else self._voice.ending(usage, more)

    def failure(self, error: ApiError) -> Told:
        """The response as far as it came, and the error in the way in which clients raise it."""
        return error.event() if self._voice is None else self._voice.failure(error)

    def body(
        self, choices: Sequence[CollectedChoice], usage: Callable[[], Usage], more: Mapping[str, Any]
    ) -> Iterable[bytes]:
        """The response alone."""
        (choice,) = choices
        voice = self._opened(choice.asked)
        choice.tell(voice)
        voice.end_items()
        return pieces_of(voice.response(usage(), more))

    def _opened(self, asked: Asked) -> ItemVoice:
        envelope = {"id": self.id, "object": "response", "created_at": self.created, "model": self._model}
        self._voice = ItemVoice(asked, encode_json(envelope | self._told_back)[:-1])
        return self._voice


class ItemVoice:
    """Tells an answer as items. `envelope` is the beginning of the response, as JSON."""

    def __init__(self, asked: Asked, envelope: bytes) -> None:
        self._asked = asked
        self._envelope = envelope
        self._serial = 0
        self._open: Item | None = None
        self._delta = (b"", b"")
        """Of an event with a piece of the open item: what stands before its number, and after."""
        self._items: list[Told] = []
        """Those that are whole."""
        self._scores: list[TokenLogprob] = []
        """Of tokens whose text has not come yet. Those of tags, thought and calls are in no text."""
        self._finish: Finish | None = None

    def opening(self) -> Told:
        """The response with nothing in it."""
        response = self._response(b"in_progress", [])
        return strung(
            *[self._event(kind, b'"response":', response) for kind in (b"response.created", b"response.in_progress")]
        )

    def piece(self, tokens: list[int], parts: list[Part], scores: list[TokenLogprob]) -> Told:
        """An event for each part, and those that begin and end items."""
        if self._asked.wants_logprobs:
            self._scores += scores
        if not parts:
            if self._open is not None and not self._open.has_scores:
                self._scores.clear()
            return b""
        told = self._told(parts[0]) if len(parts) == 1 else strung(*[self._told(part) for part in parts])
        self._scores.clear()
        return told

    def closing(self, parts: list[Part], finish: Finish) -> Told:
        """Only what was held back: what ends the items repeats them, and goes out in one piece with the response."""
        self._finish = finish
        ended_by_token = finish.reason is FinishReason.STOP and not isinstance(finish.stop_reason, str)
        if ended_by_token and not self._asked.includes_stop:
            del self._scores[-1:]  # it has no text
        return self.piece([], parts, [])

    def ending(self, usage: Usage, more: Mapping[str, Any]) -> Told:
        """The last events of a good end."""
        kind = b"response.incomplete" if self._is_cut else b"response.completed"
        ended = self.end_items()
        return strung(ended, self._event(kind, b'"response":', self.response(usage, more)))

    def failure(self, error: ApiError) -> Told:
        """The last events of a bad end. An `error` on the outermost level is what clients raise."""
        opened = b"" if self._serial else self.opening()
        items = self._items if self._open is None else [*self._items, self._open.whole(INCOMPLETE)]
        told = error.told()
        response = self._response(b"failed", items, error={"code": "server_error", "message": told["message"]})
        failed = self._event(b"response.failed", b'"response":', response)
        flat = {name: told[name] for name in ("code", "message", "param")} | {"error": told}
        return strung(opened, failed, self._event(b"error", encode_json(flat)[1:-1]))

    def response(self, usage: Usage, more: Mapping[str, Any]) -> Told:
        """The whole response."""
        status, fields = (b"completed", {}) if not self._is_cut else (b"incomplete", {"reason": "max_output_tokens"})
        return self._response(status, self._items, usage=usage, incomplete=fields or None, more=more)

    def end_items(self) -> Told:
        """Ends the last item. An answer without any is a message that says nothing."""
        begun = b"" if self._items or self._open is not None else self._begun(self._text_item(is_thought=False))
        return strung(begun, self._ended(INCOMPLETE if self._is_cut else COMPLETED))

    @property
    def _is_cut(self) -> bool:
        return self._finish is not None and self._finish.reason is FinishReason.LENGTH

    # ------------------------------------------------------------ items

    def _told(self, part: Part) -> Told:
        item = self._open
        if isinstance(part, CallBegin):
            called = CallItem(self._next_index, part.name, self._asked.new_call_id())
            return strung(self._ended(COMPLETED), self._begun(called))
        if isinstance(part, CallArguments):
            if not isinstance(item, CallItem):
                raise RuntimeError("arguments of no call")
            return self._piece(item.add(part.text), b"")
        is_thought = isinstance(part, Reasoning)
        begun: Told = b""
        if not isinstance(item, TextItem) or item.is_thought is not is_thought:
            ended = self._ended(COMPLETED)
            item = self._text_item(is_thought=is_thought)
            begun = strung(ended, self._begun(item))
        if is_thought:
            piece = self._piece(item.add(part.text, ()), b"")
        else:
            scores = self._scores
            entries = encode_json(list(chat_entries(self._asked.tokenizer, scores))) if scores else b"[]"
            piece = self._piece(item.add(part.text, scores), b',"logprobs":' + entries)
        return strung(begun, piece) if begun else piece

    @property
    def _next_index(self) -> int:
        return len(self._items) + (self._open is not None)

    def _text_item(self, *, is_thought: bool) -> TextItem:
        return TextItem(self._next_index, self._asked.tokenizer, is_thought=is_thought)

    def _begun(self, item: Item) -> Told:
        self._open = item
        added = self._event(b"response.output_item.added", b'"output_index":%d,"item":' % item.index, item.opening())
        self._delta = _head(item.delta), b"," + self._place(item)
        if isinstance(item, CallItem):
            return added
        part = self._event(b"response.content_part.added", self._place(item) + b',"part":', item.part())
        return strung(added, part)

    def _piece(self, text: bytes, more: bytes) -> bytes:
        serial = self._serial
        self._serial = serial + 1
        head, tail = self._delta
        return b'%b%d%b,"delta":%b%b}\n\n' % (head, serial, tail, text, more)

    def _ended(self, status: bytes) -> Told:
        """What ends the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        place = self._place(item)
        if isinstance(item, CallItem):
            status = COMPLETED if item.is_whole else INCOMPLETE
            told = self._event(item.done, place + b',"arguments":' + item.text())
        else:
            told = strung(
                self._event(item.done, place + b',"text":' + item.text(), item.scores()),
                self._event(b"response.content_part.done", place + b',"part":', item.part()),
            )
        whole = item.whole(status)
        self._items.append(whole)
        done = self._event(b"response.output_item.done", b'"output_index":%d,"item":' % item.index, whole)
        return strung(told, done)

    def _place(self, item: Item) -> bytes:
        part = b"" if isinstance(item, CallItem) else b',"content_index":0'
        return b'"item_id":"%b","output_index":%d%b' % (item.id, item.index, part)

    # ------------------------------------------------------------ events

    def _event(self, kind: bytes, *fields: Told) -> Told:
        serial = self._serial
        self._serial = serial + 1
        return strung(b"%b%d," % (_head(kind), serial), *fields, b"}\n\n")

    def _response(
        self,
        status: bytes,
        items: Sequence[Told],
        *,
        usage: Usage | None = None,
        error: Mapping[str, Any] | None = None,
        incomplete: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Told:
        fields = {"error": error, "incomplete_details": incomplete, "usage": None if usage is None else _usage(usage)}
        output = [told for item in items for told in (b",", item)][1:]
        rest = encode_json(fields | dict(more or {}))[1:]
        return strung(self._envelope, b',"status":"%b","output":[' % status, *output, b"],", rest)


def _head(kind: bytes) -> bytes:
    """An event up to its number."""
    return b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind, kind)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens or 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
