"""Request bodies as clients of the Responses API send them. Nothing here is checked beyond its JSON type."""

from __future__ import annotations

from typing import Any

import msgspec

from chairlift.server.common_fields import CommonFields
from chairlift.server.protocol import HARMLESS
from chairlift.server.structured import OFF


class InputPart(msgspec.Struct):
    """A piece of what an item says."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct):
    """A message, a call, what a call gave, or thought; which of the other fields it has depends on `type`."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None


class ResponseTool(msgspec.Struct):
    """A function that may be called."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct):
    """The form of the answer: `text`, `json_object` or `json_schema`; the other fields are of the last."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class ResponsesBody(CommonFields, kw_only=True):
    """POST /v1/responses."""

    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None


HARMLESS_IN_RESPONSES: dict[str, tuple[Any, ...]] = {
    name: values for name, values in HARMLESS.items() if name != "store"
} | {
    # What would have to be kept between requests, or come from elsewhere.
    "previous_response_id": OFF,
    "conversation": OFF,
    "prompt": OFF,
    "background": OFF,
    "background_options": OFF,
    "context_management": OFF,
    "moderation": OFF,
    "truncation": (*OFF, "disabled"),
    "image": OFF,
    # What chats call otherwise, or have alone.
    "messages": OFF,
    "n": (None, 1),
    "max_tokens": (None,),
    "max_completion_tokens": (None,),
    "response_format": OFF,
    "reasoning_effort": OFF,
    "logprobs": OFF,
    "prompt_logprobs": (None,),
    "echo": OFF,
    "return_token_ids": OFF,
    "continue_final_message": OFF,
    "guided_json": OFF,
    "guided_regex": OFF,
    "guided_choice": OFF,
    "guided_grammar": OFF,
    "guided_json_object": OFF,
}
"""Known fields that would change the answer and are not supported, with the values that ask for nothing."""
