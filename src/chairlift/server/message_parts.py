"""What an answer is made of, in the shapes of a chat: deltas of a stream, and whole messages."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable
from typing import Any

from chairlift.text.parts import CallArguments, CallBegin, Content, Part, Reasoning

_LETTERS = string.ascii_letters + string.digits
_SHORT_CHARS = 9

NewId = Callable[[], str]


def call_id() -> str:
    """An id for a call, as the OpenAI API has them."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """An id for a call, as Mistral's templates demand."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_SHORT_CHARS))


def delta(part: Part, new_id: NewId) -> dict[str, Any]:
    """A part as a delta of a chat."""
    if isinstance(part, Content):
        return {"content": part.text}
    if isinstance(part, Reasoning):
        return _reasoning(part.text)
    if isinstance(part, CallBegin):
        return {"tool_calls": [{"index": part.index, **_call(new_id(), part.name, "")}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def message(parts: Iterable[Part], new_id: NewId, include_reasoning: bool) -> dict[str, Any]:
    """All parts of an answer as one message; its content is null if it says nothing but calls functions."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            calls.append((part.name, []))
        elif isinstance(part, CallArguments):
            calls[part.index][1].append(part.text)
        else:
            (content if isinstance(part, Content) else reasoning).append(part.text)
    told: dict[str, Any] = {"role": "assistant", "content": "".join(content)}
    if calls:
        told["content"] = told["content"] or None
        told["tool_calls"] = [_call(new_id(), name, "".join(arguments)) for name, arguments in calls]
    if reasoning and include_reasoning:
        told |= _reasoning("".join(reasoning))
    return told


def _call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names: vLLM's clients read the one, those of llama-server and DeepSeek the other."""
    return {"reasoning": text, "reasoning_content": text}
