"""How a message is told: blocks of text, thought and calls, one after another, streamed or whole."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from chairlift.core.types import Finish, FinishReason, TokenLogprob
from chairlift.server.asked import Asked
from chairlift.server.message_parts import call_id
from chairlift.server.shapes import MARK, Usage, encode_json
from chairlift.text.parts import CallArguments, CallBegin, Content, Part, Reasoning

_DELTAS: dict[type[Part], tuple[str, str]] = {
    Content: ("text_delta", "text"),
    Reasoning: ("thinking_delta", "thinking"),
    CallArguments: ("input_json_delta", "partial_json"),
}
"""The type of what adds to a block, and what it calls its text."""


def event(name: str, **fields: Any) -> bytes:
    """An event of a stream; its name is in it twice, for readers of either kind."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json({"type": name, **fields}))


def usage_told(usage: Usage) -> dict[str, Any]:
    """Tokens as Anthropic's API counts them: what the cache gave is no input."""
    told: dict[str, Any] = {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
        "service_tier": "standard",
    }
    if usage.num_reasoning_tokens is not None:
        told["output_tokens_details"] = {"thinking_tokens": usage.num_reasoning_tokens}
    return told


def stop_told(reason: FinishReason, stop_reason: int | str | None, num_calls: int) -> dict[str, Any]:
    """Why an answer ended; a sequence that was to end it comes before what it happened to call."""
    if reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": "tool_use" if num_calls else "end_turn", "stop_sequence": None}


def _id_maker(asked: Asked) -> Callable[[], str]:
    """Ids of calls, as Anthropic's API has them, unless the model's template wants others."""
    return asked.new_call_id if asked.new_call_id is not call_id else lambda: f"toolu_{secrets.token_hex(12)}"


def _pattern(kind: type[Part], index: int) -> tuple[bytes, bytes]:
    """An event that adds a part of a kind to a block, before and after its text."""
    name, field = _DELTAS[kind]
    delta = event("content_block_delta", index=index, delta={"type": name, field: MARK})
    head, _, tail = delta.partition(encode_json(MARK))
    return head, tail


class TextEvents:
    """The events of a message that is one text: of a model that neither thinks nor calls."""

    def __init__(self, opening: bytes) -> None:
        self.stop: dict[str, Any] = {}
        """Why it ended, once it has."""
        self._opening = opening

    def opening(self, index: int) -> bytes:
        """The message, empty, and its block."""
        return self._opening + event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def split(self, index: int) -> tuple[bytes, bytes]:
        """An event with a text, without it."""
        return _pattern(Content, 0)

    def end(self, index: int, text: str, reason: FinishReason, stop_reason: int | str | None) -> bytes:
        """What was held back, and the end of the block."""
        self.stop = stop_told(reason, stop_reason, 0)
        return (encode_json(text).join(self.split(0)) if text else b"") + event("content_block_stop", index=0)


class EventVoice:
    """Tells a message in events."""

    def __init__(self, asked: Asked, opening: bytes) -> None:
        self.stop: dict[str, Any] = {}
        """Why it ended, once it has."""
        self._opening = opening
        self._new_id = _id_maker(asked)
        self._kind: type[Part] | None = None
        """Of what the open block takes; None if none is open."""
        self._index = -1
        self._num_calls = 0
        self._pattern: tuple[bytes, bytes] = (b"", b"")
        """An event that adds to the open block, without the text."""

    def opening(self) -> bytes:
        """The message, empty."""
        return self._opening

    def piece(self, tokens: list[int], parts: list[Part], scores: list[TokenLogprob]) -> bytes:
        """Events for what the tokens said."""
        return b"".join([self._told(part) for part in parts])

    def closing(self, parts: list[Part], finish: Finish) -> bytes:
        """Events for what was held back, and the end of the last block."""
        told = b"".join([self._told(part) for part in parts]) + self._closed()
        self.stop = stop_told(finish.reason, finish.stop_reason, self._num_calls)
        return told

    def _told(self, part: Part) -> bytes:
        kind = type(part)
        if isinstance(part, CallBegin):
            self._num_calls += 1
            block = {"type": "tool_use", "id": self._new_id(), "name": part.name, "input": {}}
            return self._opened(CallArguments, block)
        begun = b""
        if kind is not self._kind:
            thinks = kind is Reasoning
            block = {"type": "thinking", "thinking": "", "signature": ""} if thinks else {"type": "text", "text": ""}
            begun = self._opened(kind, block)
        head, tail = self._pattern
        return begun + head + encode_json(part.text) + tail

    def _opened(self, kind: type[Part], block: dict[str, Any]) -> bytes:
        """The beginning of a block that takes parts of a kind, after the end of the one before."""
        closed = self._closed()
        self._index += 1
        self._kind = kind
        self._pattern = _pattern(kind, self._index)
        return closed + event("content_block_start", index=self._index, content_block=block)

    def _closed(self) -> bytes:
        if self._kind is None:
            return b""
        self._kind = None
        return event("content_block_stop", index=self._index)


class WholeVoice:
    """Keeps what is told as the blocks of a message."""

    def __init__(self, asked: Asked) -> None:
        self.stop: dict[str, Any] = {}
        """Why it ended, once it has."""
        self._new_id = _id_maker(asked)
        self._blocks: list[tuple[type[Part], str, list[str]]] = [(Content, "", [])] if asked.is_plain else []
        """Of each block what it takes, the function that it calls, and its text. Who can only talk always says one."""

    def opening(self) -> bytes:
        """Nothing is sent."""
        return b""

    def piece(self, tokens: list[int], parts: list[Part], scores: list[TokenLogprob]) -> bytes:
        """Keep what the tokens said."""
        for part in parts:
            self._keep(part)
        return b""

    def closing(self, parts: list[Part], finish: Finish) -> bytes:
        """Keep the rest."""
        self.piece([], parts, [])
        num_calls = sum(kind is CallArguments for kind, _, _ in self._blocks)
        self.stop = stop_told(finish.reason, finish.stop_reason, num_calls)
        return b""

    def content(self) -> list[dict[str, Any]]:
        """The blocks."""
        return list(self._contents())

    def _keep(self, part: Part) -> None:
        if isinstance(part, CallBegin):
            self._blocks.append((CallArguments, part.name, []))
            return
        if not self._blocks or self._blocks[-1][0] is not type(part):
            self._blocks.append((type(part), "", []))
        self._blocks[-1][2].append(part.text)

    def _contents(self) -> Iterable[dict[str, Any]]:
        for kind, name, texts in self._blocks:
            text = "".join(texts)
            if kind is CallArguments:
                yield {"type": "tool_use", "id": self._new_id(), "name": name, "input": _object(text)}
            elif kind is Reasoning:
                yield {"type": "thinking", "thinking": text, "signature": ""}
            else:
                yield {"type": "text", "text": text}


def _object(text: str) -> msgspec.Raw | dict[str, Any]:
    """The arguments of a call, as they were written; of a call that breaks off, none."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return msgspec.Raw(text.encode())
