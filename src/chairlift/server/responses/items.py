"""The output items of a response while they are written, as JSON.

An item is written several times: piece by piece, then whole in the events that end it, then in the response. Its text
is turned into JSON once, piece by piece; the pieces, joined, are the JSON of the whole. Scores, which are a hundred
times as long, are kept as numbers and become JSON whenever they are sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from chairlift.core.types import TokenLogprob
from chairlift.server.logprobs import chat_entries
from chairlift.server.ports import TokenNames
from chairlift.server.scores import Scores
from chairlift.server.shapes import encode_json
from chairlift.server.written import Told, Written, list_pieces, strung

IN_PROGRESS, COMPLETED, INCOMPLETE = b"in_progress", b"completed", b"incomplete"


class TextItem:
    """A message or thought: an item with one part that is text."""

    def __init__(self, index: int, tokenizer: TokenNames, *, is_thought: bool) -> None:
        self.index = index
        self._tokenizer = tokenizer
        self.is_thought = is_thought
        self.has_scores = not is_thought
        self.id = _new_id("rs_" if is_thought else "msg_")
        self.delta = b"response.reasoning_text.delta" if is_thought else b"response.output_text.delta"
        self.done = b"response.reasoning_text.done" if is_thought else b"response.output_text.done"
        self._pieces: list[bytes] = []
        self._scores = Scores()

    def add(self, text: str, scores: Sequence[TokenLogprob]) -> bytes:
        """The text as JSON; `scores` are those of its tokens."""
        piece: bytes = encode_json(text)
        self._pieces.append(piece[1:-1])
        if scores:
            self._scores.extend(scores)
        return piece

    def text(self) -> bytes:
        """All text so far."""
        return b'"' + b"".join(self._pieces) + b'"'

    def scores(self) -> Told:
        """Those of all text so far; thought has none."""
        if not self.has_scores:
            return b""
        if not len(self._scores):
            return b',"logprobs":[]'
        entries = Written(lambda: list_pieces(chat_entries(self._tokenizer, self._scores)))
        return strung(b',"logprobs":', entries)

    def part(self) -> Told:
        """What there is of its part."""
        if self.is_thought:
            return b'{"type":"reasoning_text","text":' + self.text() + b"}"
        text = b'{"type":"output_text","text":' + self.text() + b',"annotations":[]'
        return strung(text, self.scores(), b"}")

    def opening(self) -> Told:
        """The item before it has a part."""
        return self._item(IN_PROGRESS, b"")

    def whole(self, status: bytes) -> Told:
        """The item."""
        return self._item(status, self.part())

    def _item(self, status: bytes, part: Told) -> Told:
        kind = b'"reasoning","summary":[]' if self.is_thought else b'"message","role":"assistant"'
        more = b',"encrypted_content":null' if self.is_thought else b""
        return strung(b'{"id":"%b","type":%b,"status":"%b","content":[' % (self.id, kind, status), part, b"]%b}" % more)


class CallItem:
    """A call of a function."""

    has_scores = False
    delta = b"response.function_call_arguments.delta"
    done = b"response.function_call_arguments.done"

    def __init__(self, index: int, name: str, call_id: str) -> None:
        self.index = index
        self.id = _new_id("fc_")
        self._names = b'"call_id":%b,"name":%b' % (encode_json(call_id), encode_json(name))
        self._pieces: list[bytes] = []

    def add(self, text: str) -> bytes:
        """A piece of the arguments as JSON."""
        piece: bytes = encode_json(text)
        self._pieces.append(piece[1:-1])
        return piece

    def text(self) -> bytes:
        """All arguments so far."""
        return b'"' + b"".join(self._pieces) + b'"'

    @property
    def is_whole(self) -> bool:
        """Its arguments are JSON. What a model broke off is no call that anybody should make."""
        try:
            msgspec.json.decode(msgspec.json.decode(self.text(), type=str))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def opening(self) -> bytes:
        """The item before it has arguments."""
        return self.whole(IN_PROGRESS)

    def whole(self, status: bytes) -> bytes:
        """The item."""
        return b'{"id":"%b","type":"function_call","status":"%b","arguments":%b,%b}' % (
            self.id,
            status,
            self.text(),
            self._names,
        )


Item = TextItem | CallItem


def _new_id(before: str) -> bytes:
    return (before + secrets.token_hex(12)).encode()
