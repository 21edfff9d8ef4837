"""Request bodies as clients of Anthropic's Messages API send them.

Nothing here is checked beyond its JSON type, whatever the types tell besides. Every field may be null, which means the
same as leaving it out; `cache_control` is a hint that means nothing here, wherever it stands: every prompt is cached.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from chairlift.server.bounds import (
    MAX_STOPS,
    CacheSalt,
    DeadlineMs,
    FunctionName,
    MinP,
    Priority,
    RequestId,
    Seed,
    StopText,
    Temperature,
    TopK,
    TopP,
    tells,
)  # fmt: skip
from chairlift.server.fields import MAX_INT
from chairlift.server.protocol import HARMLESS_IN_CHATS, ChatBody
from chairlift.server.structured import OFF

_ROOM = "At most as many as the context has room for."


class Block(msgspec.Struct):
    """A piece of what a message says; which of the other fields it has depends on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None


class Said(msgspec.Struct):
    """A message."""

    role: Annotated[str, tells(enum=["user", "assistant", "system"])]
    content: str | list[Block]


class ToolParam(msgspec.Struct):
    """A function that the client can call."""

    name: FunctionName
    type: Annotated[str, tells(enum=["custom"])] | None = None
    description: str | None = None
    input_schema: Annotated[dict[str, Any], tells("A JSON schema.", required=True)] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Whether tools are used."""

    type: Annotated[str, tells(enum=["auto", "any", "none", "tool"])]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model thinks before it answers."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    """What form an answer has."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct):
    """How an answer is given."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens: what decides about the prompt."""

    model: str | None = None
    messages: Annotated[list[Said], tells(minItems=1, required=True)] | None = None
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages; the last fields are those of this server's other ways of asking."""

    max_tokens: Annotated[int, tells(_ROOM, required=True, minimum=1, maximum=MAX_INT)] | None = None
    stop_sequences: Annotated[list[StopText], tells(maxItems=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Annotated[str, tells(enum=["auto", "standard_only"])] | None = None
    stream: bool | None = None
    seed: Seed | None = None
    min_p: MinP | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    request_id: RequestId | None = None
    ttft_deadline_ms: DeadlineMs | None = None
    e2e_deadline_ms: DeadlineMs | None = None


_THEIRS: dict[str, tuple[Any, ...]] = {
    "container": OFF,
    "context_management": OFF,
    "fallbacks": OFF,
    "mcp_servers": OFF,
    "output_format": OFF,
    "speed": (*OFF, "standard"),
}
_DEFAULTS: dict[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "include_reasoning": True,
    "n": 1,
    "parallel_tool_calls": True,
    "repetition_penalty": 1,
    "skip_special_tokens": True,
    "stream_interval": 1,
}
"""What fields of a chat may say, besides nothing, to ask for what is done without being asked."""
_OF_CHATS: dict[str, tuple[Any, ...]] = {
    name: (*OFF, _DEFAULTS[name]) if name in _DEFAULTS else OFF for name in ChatBody.__struct_fields__
}
HARMLESS_IN_MESSAGES = {
    name: values
    for name, values in (_OF_CHATS | HARMLESS_IN_CHATS | _THEIRS).items()
    if name not in MessagesBody.__struct_fields__
}
"""Known fields that would change the answer and are not supported, with the values that ask for nothing: what else
chats have goes by other names here, or is not to be had."""
