"""The input of a response as the messages of a chat.

A response is a list of items where a chat has one message: thought, text and calls that follow one another were one
turn of the assistant, and become one message again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chairlift.server.errors import ApiError, bad_request, unsupported
from chairlift.server.protocol import FunctionCall, Message, ToolCall
from chairlift.server.responses.body import ITEM_KINDS, REFUSAL, TEXT_KINDS, InputItem, InputPart, ResponsesBody
from chairlift.text.messages import BETWEEN_PARTS

MAX_KIND_CHARS = 64
_ROLES = frozenset({"user", "system", "developer", "assistant"})


def refuse_other_items(content: dict[str, Any]) -> None:
    """Raises a 400 for an item of a kind that is not served, before it is read as one that is."""
    items = content.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in ITEM_KINDS:
            raise _unsupported(f"input[{index}]: items of type {kind[:MAX_KIND_CHARS]!r}")


def chat_messages(body: ResponsesBody) -> list[Message]:
    """The messages of the chat that a body asks to go on.

    Raises:
        ApiError: 400, naming `input`.
    """
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return [*messages, Message(role="user", content=body.input)]
    if not body.input:
        raise bad_request("input must not be empty", "input")
    turns = _Turns(messages)
    for index, item in enumerate(body.input):
        turns.add(item, f"input[{index}]")
    return turns.messages


class _Turns:
    """Messages in the making."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._open: Message | None = None
        """The assistant's, as long as what follows may belong to it."""
        self._called: set[str] = set()
        """Ids of calls so far."""

    def add(self, item: InputItem, field: str) -> None:
        kind = item.type or ("message" if item.role is not None else "item_reference")
        if kind == "message":
            self._say(item, field)
        elif kind == "reasoning":
            self._think(item, field)
        elif kind == "function_call":
            self._call(item, field)
        elif kind == "function_call_output":
            self._give(item, field)
        else:
            raise _unsupported(f"{field}: an item that is only named (nothing is stored)")

    def _say(self, item: InputItem, field: str) -> None:
        if item.role not in _ROLES:
            raise bad_request(f"{field}.role must be user, system, developer or assistant", "input")
        if item.content is None:
            raise bad_request(f"{field}.content must not be empty", "input")
        text = _text(item.content, f"{field}.content")
        if item.role != "assistant":
            self._open = None
            self.messages.append(Message(role=item.role, content=text))
        elif self._open is None or self._open.content or self._open.tool_calls:
            self._begin(content=text)
        else:
            self._open.content = text

    def _think(self, item: InputItem, field: str) -> None:
        thought = _text(item.content or (), f"{field}.content") or _text(item.summary or (), f"{field}.summary")
        if item.encrypted_content and not thought:
            raise _unsupported(f"{field}.encrypted_content")
        if not thought:
            return
        if self._open is None or self._open.content or self._open.tool_calls or self._open.reasoning:
            self._begin(reasoning=thought)
        else:
            self._open.reasoning = thought

    def _call(self, item: InputItem, field: str) -> None:
        if not item.call_id or not item.name:
            raise bad_request(f"{field}: a function_call needs a call_id and a name", "input")
        call = ToolCall(FunctionCall(item.name, item.arguments), id=item.call_id, type="function")
        message = self._begin() if self._open is None else self._open
        if message.tool_calls is None:
            message.tool_calls = []
        message.tool_calls.append(call)
        self._called.add(item.call_id)

    def _give(self, item: InputItem, field: str) -> None:
        if not item.call_id or item.output is None:
            raise bad_request(f"{field}: a function_call_output needs a call_id and an output", "input")
        if item.call_id not in self._called:
            raise bad_request(f"{field}.call_id is not that of a function_call before it", "input")
        self._open = None
        text = _text(item.output, f"{field}.output")
        self.messages.append(Message(role="tool", content=text, tool_call_id=item.call_id))

    def _begin(self, content: str = "", reasoning: str | None = None) -> Message:
        self._open = Message(role="assistant", content=content, reasoning=reasoning)
        self.messages.append(self._open)
        return self._open


def _text(content: str | Sequence[InputPart], field: str) -> str:
    """The text of a content, its parts joined; a refusal is what an assistant said."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == REFUSAL else part.text
        if part.type not in TEXT_KINDS and part.type != REFUSAL:
            raise _unsupported(f"{field}[{index}]: parts of type {part.type[:MAX_KIND_CHARS]!r}")
        if text is None:
            raise bad_request(f"{field}[{index}] needs a text", "input")
        texts.append(text)
    return BETWEEN_PARTS.join(texts)


def _unsupported(what: str) -> ApiError:
    return unsupported(f"{what}: not supported by this server", "input")
