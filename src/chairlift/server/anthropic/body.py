"""Request bodies as clients of Anthropic's Messages API send them.

Nothing here is checked beyond its JSON type. Every field may be null, which means the same as leaving it out;
`cache_control` is a hint that means nothing here, wherever it stands: every prompt is cached.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chairlift.server.protocol import HARMLESS_IN_CHATS
from chairlift.server.structured import OFF


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

    role: str
    content: str | list[Block]


class ToolParam(msgspec.Struct):
    """A function that the client can call."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Whether tools are used."""

    type: str
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
    messages: list[Said] | None = None
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages; the last fields are those of this server's other ways of asking."""

    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    stream: bool | None = None
    seed: int | None = None
    min_p: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    ttft_deadline_ms: float | None = None
    e2e_deadline_ms: float | None = None


_THEIRS: dict[str, tuple[Any, ...]] = {
    "container": OFF,
    "context_management": OFF,
    "fallbacks": OFF,
    "mcp_servers": OFF,
    "output_format": OFF,
    "speed": (*OFF, "standard"),
}
_OF_CHATS: dict[str, tuple[Any, ...]] = {
    "best_of": (*OFF, 1),
    "n": (*OFF, 1),
    "stop": OFF,
    "response_format": OFF,
    "structured_outputs": OFF,
    "logprobs": OFF,
    "logit_bias": OFF,
}
HARMLESS_IN_MESSAGES = {
    name: values for name, values in (HARMLESS_IN_CHATS | _THEIRS | _OF_CHATS).items() if name != "thinking"
}
"""Known fields that would change the answer and are not supported, with the values that ask for nothing."""
