"""Request bodies as clients of the Responses API send them. Nothing here is checked beyond its JSON type."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from chairlift.server.bounds import MAX_TOOLS, NumLogprobs, NumTokens, tells
from chairlift.server.common_fields import CommonFields
from chairlift.server.fields import MAX_INT
from chairlift.server.protocol import HARMLESS
from chairlift.server.structured import OFF

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
"""What may be asked for besides. Thought is told openly, so that nothing has to be encrypted for the way back."""
ITEM_KINDS = ("message", "function_call", "function_call_output", "reasoning")
TEXT_KINDS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
"""Of parts that say what their `text` says."""
REFUSAL = "refusal"


class InputPart(msgspec.Struct):
    """A piece of what an item says."""

    type: Annotated[str, tells(enum=[*TEXT_KINDS, REFUSAL])]
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct):
    """A message, a call, what a call gave, or thought; which of the other fields it has depends on `type`."""

    type: Annotated[str, tells(enum=list(ITEM_KINDS))] | None = None
    role: Annotated[str, tells(enum=["user", "system", "developer", "assistant"])] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Annotated[str, tells("JSON as text.")] | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None


class ResponseTool(msgspec.Struct):
    """A function that may be called."""

    type: Annotated[str, tells(enum=["function"])]
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct):
    """The form of the answer: `text`, `json_object` or `json_schema`; the other fields are of the last."""

    type: Annotated[str, tells(enum=["text", "json_object", "json_schema"])]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: Annotated[str, tells("Others are not supported.", enum=["medium"])] | None = None


Summary = Annotated[str, tells("The thought itself is told, and nothing else.", enum=["auto"])]


class ReasoningOptions(msgspec.Struct):
    effort: Annotated[str, tells("As far as the model's chat template reads it.")] | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None


class ResponseStreamOptions(msgspec.Struct):
    include_obfuscation: Annotated[bool, tells("Not supported.", enum=[False])] | None = None


class ResponsesBody(CommonFields, kw_only=True):
    """POST /v1/responses."""

    input: Annotated[str | list[InputItem], tells("A list may not be empty.", required=True)] | None = None
    instructions: str | None = None
    max_output_tokens: NumTokens | None = None
    max_tool_calls: (
        Annotated[int, tells("Of tools that the server calls: it has none.", minimum=1, maximum=MAX_INT)] | None
    ) = None
    top_logprobs: NumLogprobs | None = None
    include: list[Annotated[str, tells(enum=list(INCLUDABLE))]] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[ResponseTool], tells(maxItems=MAX_TOOLS)] | None = None
    tool_choice: Annotated[str, tells(enum=["none", "auto", "required"])] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    store: Annotated[bool, tells("Nothing is stored, and responses say so.")] | None = None
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
