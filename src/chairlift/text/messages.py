"""What a client may send as a conversation: checked, and brought into the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from chairlift.core.errors import InvalidRequest

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""A closed list, since templates write roles next to their special tokens: a role of one's own could complete one."""

_SAME_ROLES = {"developer": "system"}
"""The newer name of a role: most templates know the older one only, and would leave such a message out unseen."""

BETWEEN_PARTS = "\n"
"""Between the parts of a content, as vLLM and llama.cpp join them for templates that take text: clients that send
several (a question and what it is about) end the first without white space, and words would grow together."""

MAX_MESSAGES = 10_000
MAX_CHARS = 1 << 20
"""Of all strings of a conversation together."""
VALUE_CHARS = 8
"""What a number, a list or any other JSON value counts for."""
MAX_DEPTH = 32
MAX_KWARGS = 32
MAX_NAME_CHARS = 64

RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize", "conversation"}
)
"""Names that a template's own arguments must not take."""


@dataclass(slots=True)
class Conversation:
    """Messages, tools and a template's own arguments: copies, so that nothing of the client's is shared."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    kwargs: dict[str, Any]


def conversation_of(messages: object, tools: object = None, kwargs: object = None) -> Conversation:
    """Check a conversation.

    Content parts are joined by line ends. Arguments of tool calls, JSON in a string, become the object that templates
    expect. Fields of a message that no template knows are left out.

    Raises:
        InvalidRequest: with the field, if anything has the wrong type or is too large.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", "messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages must hold at most {MAX_MESSAGES} messages", "messages")
    size = _Size()
    return Conversation(
        [_message(message, f"messages[{index}]", size) for index, message in enumerate(messages)],
        None if tools is None or tools == [] else _tools(tools, size),
        _kwargs(kwargs or {}, size),
    )


class _Size:
    """Characters seen so far."""

    def __init__(self) -> None:
        self.num_chars = 0

    def add_value(self, where: str) -> None:
        """Count a JSON value: copying and writing one takes as long as a few characters."""
        self._grow(VALUE_CHARS, where)

    def add(self, text: str, where: str) -> str:
        self._grow(len(text), where)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidRequest(f"{where} must not hold half a surrogate pair", where)
        return text

    def _grow(self, num_chars: int, where: str) -> None:
        self.num_chars += num_chars
        if self.num_chars > MAX_CHARS:
            raise InvalidRequest(f"a conversation must hold at most {MAX_CHARS} characters", where)


def _message(message: Any, where: str, size: _Size) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(sorted(ROLES))}", f"{where}.role")
    calls = message.get("tool_calls")
    role = _SAME_ROLES.get(role, role)
    checked: dict[str, Any] = {"role": role}
    content = message.get("content")
    if content is None and role != "assistant":
        raise InvalidRequest(f"{where}.content is missing", f"{where}.content")
    checked["content"] = _content(content, f"{where}.content", size)
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise InvalidRequest(f"{where}.{name} must be a string", f"{where}.{name}")
            checked[name] = size.add(value, f"{where}.{name}")
    thought = checked.get("reasoning_content", checked.get("reasoning"))
    if thought is not None and role == "assistant":
        checked["reasoning_content"] = thought
        if not (calls and checked["content"]):  # templates that read this one refuse both beside a call
            checked["thinking"] = thought
    if calls is not None and role == "assistant":
        if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
            raise InvalidRequest(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
        if calls:
            checked["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{index}]", size) for index, call in enumerate(calls)
            ]
    return checked


def _content(content: Any, where: str, size: _Size) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return size.add(content, where)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be a string or a list of parts", where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text":
            shown = kind[:40] if isinstance(kind, str) else "no type"
            raise InvalidRequest(f"{where}[{index}]: only parts of type text are supported, not {shown!r}", where)
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}].text must be a string", where)
        texts.append(size.add(text, where))
    return BETWEEN_PARTS.join(texts)


def _tool_call(call: Any, where: str, size: _Size) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} must have a function with a name", where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"{where}.function.arguments must be JSON", where) from error
    if not isinstance(arguments, Mapping | None):
        raise InvalidRequest(f"{where}.function.arguments must be a JSON object", where)
    checked: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": size.add(function["name"], where),
            "arguments": _json(arguments or {}, where, size),
        },
    }
    if call.get("id") is not None:
        checked["id"] = _json(call["id"], where, size)
    return checked


def _tools(tools: Any, size: _Size) -> list[dict[str, Any]]:
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest("tools must be a list", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"tools[{index}] must have a function with a name", "tools")
    checked: list[dict[str, Any]] = _json(list(tools), "tools", size)
    return checked


def _kwargs(kwargs: Any, size: _Size) -> dict[str, Any]:
    where = "chat_template_kwargs"
    if not isinstance(kwargs, Mapping) or len(kwargs) > MAX_KWARGS:
        raise InvalidRequest(f"{where} must be an object of at most {MAX_KWARGS} fields", where)
    for name in kwargs:
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not name.isidentifier() or name.startswith("_"):
            raise InvalidRequest(f"{where}: the names must be plain words", where)
        if name in RESERVED or name.endswith("_token"):
            raise InvalidRequest(f"{where} must not set {name}", where)
    checked: dict[str, Any] = _json(dict(kwargs), where, size)
    return checked


def _json(value: Any, where: str, size: _Size, depth: int = 0) -> Any:
    """A deep copy of a value of JSON types."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{where} must not be nested more than {MAX_DEPTH} deep", where)
    size.add_value(where)
    if isinstance(value, str):
        return size.add(value, where)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if value.bit_length() > 64:
            raise InvalidRequest(f"{where} holds a number of more than 64 bits", where)
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidRequest(f"{where} must have strings as keys", where)
        return {size.add(key, where): _json(item, where, size, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_json(item, where, size, depth + 1) for item in value]
    raise InvalidRequest(f"{where} must be JSON", where)
