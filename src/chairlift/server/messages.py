"""The messages of a chat, from the forms in which clients send them to the one that chat templates know."""

from __future__ import annotations

from typing import Any

from chairlift.server.bounds import ROLES
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.protocol import ContentPart, Message, ToolCall
from chairlift.text.messages import BETWEEN_PARTS


def template_messages(messages: list[Message] | None) -> list[dict[str, Any]]:
    """Messages as a chat template takes them; what their texts hold is checked when they are rendered.

    Raises:
        ApiError: 400.
    """
    if not messages:
        raise bad_request("messages must not be empty", "messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, field: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise bad_request(f"{field}.role must be one of {', '.join(ROLES)}", "messages")
    if message.function_call or message.audio:
        name = "function_call" if message.function_call else "audio"
        raise unsupported(f"{field}.{name} is not supported by this server", "messages")
    if message.tool_calls and message.role != "assistant":
        raise bad_request(f"{field}: only the assistant calls tools", "messages")
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise bad_request(f"{field}.content must not be empty", "messages")
    told: dict[str, Any] = {
        "role": message.role,
        "content": _text(message.content, field),
    }
    if message.name:
        told["name"] = message.name
    if message.role == "tool" and message.tool_call_id:
        told["tool_call_id"] = message.tool_call_id
    if message.role == "assistant":
        if thought := message.reasoning or message.reasoning_content:
            told["reasoning_content"] = thought
        if message.tool_calls:
            told["tool_calls"] = [_call(call, field) for call in message.tool_calls]
    return told


def _text(content: str | list[ContentPart] | None, field: str) -> str:
    """The text of a content, its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.type != "text" or part.text is None:
            raise bad_request(f"{field}.content: only parts of type text are supported", "messages")
        texts.append(part.text)
    return BETWEEN_PARTS.join(texts)


def _call(call: ToolCall, field: str) -> dict[str, Any]:
    if call.type not in (None, "function"):
        raise unsupported(f"{field}.tool_calls: only functions are supported", "messages")
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": call.id})
