"""The output items of a response while they are written, as JSON.

An item is written several times: piece by piece, then whole in the events that end it, then in the response. Its text
is turned into JSON once, piece by piece; the pieces, joined, are the JSON of the whole.
"""

from __future__ import annotations

import secrets

import msgspec

from chairlift.server.shapes import encode_json

IN_PROGRESS, COMPLETED, INCOMPLETE = b"in_progress", b"completed", b"incomplete"


class TextItem:
    """A message or thought: an item with one part that is text."""

    def __init__(self, index: int, *, is_thought: bool) -> None:
        self.index = index
        self.is_thought = is_thought
        self.has_scores = not is_thought
        self.id = _new_id("rs_" if is_thought else "msg_")
        self.delta = b"response.reasoning_text.delta" if is_thought else b"response.output_text.delta"
        self.done = b"response.reasoning_text.done" if is_thought else b"response.output_text.done"
        self._pieces: list[bytes] = []
        self._scores: list[bytes] = []

    def add(self, text: str, scores: bytes) -> bytes:
        """The text as JSON; `scores` are those of its tokens, entries of a list."""
        piece: bytes = encode_json(text)
        self._pieces.append(piece[1:-1])
        if scores:
            self._scores.append(scores)
        return piece

    def text(self) -> bytes:
        """All text so far."""
        return b'"' + b"".join(self._pieces) + b'"'

    def scores(self) -> bytes:
        """Those of all text so far; thought has none."""
        return b',"logprobs":[' + b",".join(self._scores) + b"]" if self.has_scores else b""

    def part(self) -> bytes:
        """What there is of its part."""
        if self.is_thought:
            return b'{"type":"reasoning_text","text":' + self.text() + b"}"
        return b'{"type":"output_text","text":' + self.text() + b',"annotations":[]' + self.scores() + b"}"

    def opening(self) -> bytes:
        """The item before it has a part."""
        return self._item(IN_PROGRESS, b"")

    def whole(self, status: bytes) -> bytes:
        """The item."""
        return self._item(status, self.part())

    def _item(self, status: bytes, part: bytes) -> bytes:
        kind = b'"reasoning","summary":[]' if self.is_thought else b'"message","role":"assistant"'
        more = b',"encrypted_content":null' if self.is_thought else b""
        return b'{"id":"%b","type":%b,"status":"%b","content":[%b]%b}' % (self.id, kind, status, part, more)


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
