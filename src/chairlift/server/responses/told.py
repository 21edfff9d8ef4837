"""What responses and their events hold, as types for the OpenAPI document; tests hold them to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from chairlift.server.openapi.answers import (
    CachedTokens,
    Created,
    Explained,
    Id,
    ReasoningTokens,
    TimingsTold,
    TokenScore,
)

Serial = Annotated[int, Meta(ge=0, description="Counts the events of a response.")]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class PartTold(TypedDict):
    """The text of a message or thought; a message's has scores if they were asked for."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: NotRequired[list[Any]]
    logprobs: NotRequired[list[TokenScore]]


class OutputItem(TypedDict):
    """A message, thought, or a call of a function."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: ItemStatus
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[list[PartTold]]
    summary: NotRequired[list[Any]]
    encrypted_content: NotRequired[None]
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[Annotated[str, Meta(description="JSON as text; broken off, if the status is incomplete.")]]


class InputTokens(CachedTokens):
    cache_write_tokens: Annotated[int, Meta(ge=0, le=0, description="Nobody counts them.")]


class ResponseUsage(TypedDict):
    input_tokens: Annotated[int, Meta(ge=0)]
    input_tokens_details: InputTokens
    output_tokens: Annotated[int, Meta(ge=0)]
    output_tokens_details: ReasoningTokens
    total_tokens: Annotated[int, Meta(ge=0)]


class ResponseFailure(TypedDict):
    code: str
    message: str


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseTold(TypedDict):
    """A response, or what there is of it."""

    id: Id
    object: Literal["response"]
    created_at: Created
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    metrics: NotRequired[TimingsTold]
    explanation: NotRequired[list[Explained]]


class ResponseEvent(TypedDict):
    """An event of a streamed response; which of the other fields it has depends on `type`."""

    type: str
    sequence_number: Serial
    response: NotRequired[ResponseTold]
    item: NotRequired[OutputItem]
    item_id: NotRequired[str]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    part: NotRequired[PartTold]
    delta: NotRequired[str]
    text: NotRequired[str]
    arguments: NotRequired[str]
    logprobs: NotRequired[list[TokenScore]]
    code: NotRequired[str | None]
    message: NotRequired[str]
    param: NotRequired[str | None]
    error: NotRequired[dict[str, Any]]
