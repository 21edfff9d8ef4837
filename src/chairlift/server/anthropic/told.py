"""What responses of Anthropic's API hold, as types for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from chairlift.server.openapi.answers import Id, TimingsTold

StopReasonTold = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingTokens(TypedDict):
    thinking_tokens: Annotated[int, Meta(ge=0)]


class MessageUsage(TypedDict):
    """Tokens of a message; the whole prompt is what was read from the cache and what was not."""

    input_tokens: Annotated[int, Meta(ge=0, description="Of the prompt, without those of the prefix cache.")]
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: Annotated[int, Meta(ge=0, description="Of the prompt, found in the prefix cache.")]
    output_tokens: Annotated[int, Meta(ge=0)]
    output_tokens_details: NotRequired[ThinkingTokens]
    service_tier: Literal["standard"]


class BlockTold(TypedDict, total=False):
    """A piece of a message: `text`, `thinking` (with an empty signature) or `tool_use`."""

    type: Literal["text", "thinking", "tool_use"]
    text: str
    thinking: str
    signature: Literal[""]
    id: str
    name: str
    input: dict[str, Any]


class MessageAnswer(TypedDict):
    """A whole message; at the beginning of a stream one that says nothing yet."""

    id: Id
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[BlockTold]
    stop_reason: StopReasonTold | None
    stop_sequence: str | None
    usage: MessageUsage
    metrics: NotRequired[TimingsTold]


class DeltaTold(TypedDict, total=False):
    """What an event adds: to a block, or at the end to the message."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"]
    text: str
    thinking: str
    partial_json: Annotated[str, Meta(description="A piece of the input's JSON.")]
    stop_reason: StopReasonTold
    stop_sequence: str | None


class MessageEvent(TypedDict):
    """An event of a stream: `type` is its name as well."""

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "ping",
    ]  # fmt: skip
    message: NotRequired[MessageAnswer]
    index: NotRequired[int]
    content_block: NotRequired[BlockTold]
    delta: NotRequired[DeltaTold]
    usage: NotRequired[MessageUsage]


class CountAnswer(TypedDict):
    """How long a prompt would be."""

    input_tokens: int


class AnthropicErrorInside(TypedDict):
    type: str
    message: str


class AnthropicError(TypedDict):
    """A response that is an error; in a stream, its last event."""

    type: Literal["error"]
    error: AnthropicErrorInside
    request_id: str | None
