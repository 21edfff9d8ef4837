"""The JSON of answers: whole bodies, and the events of a stream.

An event of the common kind (some text and nothing else) is `head + escaped text + tail`, with head and tail made once
per choice: a dictionary per token would cost more than everything else on the token's way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from chairlift.core.types import FinishReason
from chairlift.server.written import Written, object_pieces, objects_pieces

encode_json = msgspec.json.Encoder().encode
"""Text comes out as UTF-8, never as an escape, except where JSON demands one."""

LAST_WORD = "[DONE]"
"""The data of the event that ends a stream which was not cut off."""
DONE = f"data: {LAST_WORD}\n\n".encode()

_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
MARK = "\x00text\x00"
"""Stands for a text in an event that is cut there."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request; a prompt counts once however many answers it got."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_reasoning_tokens: int | None = None
    """Of the output; None if the model is not known to think."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if self.num_reasoning_tokens is not None:
            told["completion_tokens_details"] = {"reasoning_tokens": self.num_reasoning_tokens}
        return told


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields that every object of one response carries, in the way of a chat or of a completion."""

    chat: bool
    id: str
    created: int
    model: str
    include_usage: bool = False
    service_tier: str | None = None

    def opening(self, index: int, fields: dict[str, Any] | None = None) -> bytes:
        """What a choice's stream begins with: a chat says who speaks. `fields` are about the whole response."""
        if not self.chat:
            return b""
        chunk = self._chunk(index, {"role": "assistant", "content": ""}, None)
        return self._event([chunk], fields=fields)

    def split(self, index: int) -> tuple[bytes, bytes]:
        """Head and tail of an event that carries text and nothing else."""
        head, _, tail = self.text(index, MARK).partition(encode_json(MARK))
        return head, tail

    def text(self, index: int, text: str) -> bytes:
        """An event with a piece of text."""
        return self.delta(index, self.content(text))

    def delta(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """An event with a piece of an answer; `more` are further fields of the choice."""
        return self._event([self._chunk(index, delta, logprobs) | (more or {})], usage)

    def content(self, text: str) -> dict[str, Any]:
        """A piece of text as a delta."""
        return {"content": text} if self.chat else {"text": text}

    def end(
        self,
        index: int,
        text: str,
        reason: FinishReason,
        stop_reason: int | str | None,
        usage: Usage | None = None,
        *,
        calls: bool = False,
    ) -> bytes:
        """The last event of a choice, with the text that was held back; with `calls` it calls functions."""
        chunk = self._chunk(index, self.content(text) if text or not self.chat else {}, None)
        chunk |= _finish_fields(reason, stop_reason, calls)
        return self._event([chunk], usage)

    def totals(self, usage: Usage | None, fields: dict[str, Any]) -> bytes:
        """The event about all choices together, which has none itself."""
        return self._event([], usage, fields)

    def choice(
        self,
        index: int,
        content: dict[str, Any],
        logprobs: Written | None,
        reason: FinishReason,
        stop_reason: int | str | None,
        more: dict[str, Any],
        *,
        calls: bool = False,
    ) -> dict[str, Any]:
        """A whole answer, not streamed; `content` is the message of a chat, or the text of a completion."""
        return {
            "index": index,
            **content,
            "logprobs": logprobs,
            **_finish_fields(reason, stop_reason, calls),
            **more,
        }

    def body(self, choices: Sequence[dict[str, Any]], usage: Usage, more: dict[str, Any]) -> Iterator[bytes]:
        """A whole response, not streamed."""
        kind = "chat.completion" if self.chat else "text_completion"
        told = Written(lambda: objects_pieces(choices))
        return object_pieces(self._envelope(kind, told) | {"usage": usage.as_json()} | more)

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
        content = {"delta": delta} if self.chat else delta
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": None}

    def _envelope(self, kind: str, choices: list[dict[str, Any]] | Written) -> dict[str, Any]:
        envelope = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return envelope if self.service_tier is None else envelope | {"service_tier": self.service_tier}

    def _event(
        self, choices: list[dict[str, Any]], usage: Usage | None = None, fields: dict[str, Any] | None = None
    ) -> bytes:
        body = self._envelope("chat.completion.chunk" if self.chat else "text_completion", choices)
        if usage is not None:
            body["usage"] = usage.as_json()
        elif self.include_usage:
            body["usage"] = None
        if fields:
            body |= fields
        return b"data: " + encode_json(body) + b"\n\n"


def _finish_fields(reason: FinishReason, stop_reason: int | str | None, calls: bool) -> dict[str, Any]:
    told = "tool_calls" if calls and reason is FinishReason.STOP else _FINISH_REASONS[reason]
    return {"finish_reason": told, "stop_reason": stop_reason}
