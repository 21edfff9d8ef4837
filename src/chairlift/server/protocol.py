"""Request bodies as clients send them: the OpenAI fields, and the extensions that users of vLLM know.

Nothing here is checked beyond its JSON type, whatever the types tell besides; `validate.py` turns a body into something
that can be served. Every field may be null, which means the same as leaving it out.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from chairlift.server.bounds import (
    EFFORTS,
    MAX_TOOLS,
    ROLES,
    FunctionName,
    NumChoices,
    NumLogprobs,
    NumTokens,
    NumTokensOrNone,
    StreamInterval,
    TokenId,
    tells,
)  # fmt: skip
from chairlift.server.structured import OFF, StructuredFields


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: Annotated[bool, tells("Running totals in every event.")] | None = None
    include_obfuscation: Annotated[bool, tells("Not supported.", enum=[False])] | None = None


class SamplingFields(StructuredFields, kw_only=True):
    """What both ways of asking share."""

    n: NumChoices | None = None
    max_tokens: NumTokensOrNone | None = None
    prompt_logprobs: NumLogprobs | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: StreamInterval | None = None


class CompletionBody(SamplingFields, kw_only=True):
    """POST /v1/completions."""

    prompt: (
        Annotated[
            str | Annotated[list[str | TokenId | list[TokenId]], tells(minItems=1)],
            tells("Text or token ids, or a list of texts, or of lists of token ids.", required=True),
        ]
        | None
    ) = None
    logprobs: NumLogprobs | None = None
    echo: bool | None = None
    best_of: NumChoices | None = None


class ContentPart(msgspec.Struct):
    type: Annotated[str, tells(enum=["text"])]
    text: Annotated[str, tells(required=True)] | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: Annotated[str, tells(enum=["function"])] | None = None


class Message(msgspec.Struct):
    role: Annotated[str, tells(enum=list(ROLES))]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], tells("Of the role `assistant` only.")] | None = None
    tool_call_id: str | None = None
    function_call: Annotated[Any, tells("Not supported.", enum=[*OFF, 0])] = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: Annotated[Any, tells("Not supported.", enum=[*OFF, 0])] = None


class Function(msgspec.Struct):
    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], tells("A JSON schema.")] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: Annotated[str, tells(enum=["function"])]
    function: Annotated[Function, tells(required=True)] | None = None


class ChatBody(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], tells(minItems=1, required=True)] | None = None
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tools: Annotated[list[Tool], tells(maxItems=MAX_TOOLS)] | None = None
    tool_choice: Annotated[str, tells(enum=["none", "auto", "required"])] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, tells(enum=["", *EFFORTS])] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], tells("Only names that the template reads.")] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


HARMLESS: dict[str, tuple[Any, ...]] = {
    # The OpenAI API.
    "functions": OFF,
    "function_call": (*OFF, "none", "auto"),
    "modalities": (*OFF, ["text"]),
    "audio": OFF,
    "prediction": OFF,
    "store": OFF,
    "verbosity": (*OFF, "medium"),
    "web_search_options": OFF,
    "suffix": OFF,
    # vLLM.
    "bad_words": OFF,
    "use_beam_search": OFF,
    "length_penalty": (*OFF, 1.0),
    "early_stopping": OFF,
    "chat_template": OFF,
    "documents": OFF,
    "logits_processors": OFF,
    "prompt_embeds": OFF,
    "kv_transfer_params": OFF,
    "ec_transfer_params": OFF,
    "vllm_xargs": OFF,
    "mm_processor_kwargs": OFF,
    "media_io_kwargs": OFF,
    "thinking_token_budget": OFF,
    "repetition_detection": OFF,
    "logprob_token_ids": OFF,
    "return_tokens_as_token_ids": OFF,
    "truncation_side": (*OFF, "left"),
    "detokenize": (None, True),
    # Other servers.
    "grammar": OFF,
    "json_schema": OFF,
    "regex": OFF,
    "ebnf": OFF,
    "stop_regex": OFF,
    "mirostat": (*OFF, 0),
    "typical_p": (*OFF, 1.0),
    "dry_multiplier": (*OFF, 0.0),
    "xtc_probability": (*OFF, 0.0),
    "dynatemp_range": (*OFF, 0.0),
    "top_n_sigma": (*OFF, -1),
    "repeat_penalty": (*OFF, 1.0),
    "lora": OFF,
    "lora_path": OFF,
    "custom_logit_processor": OFF,
    "return_hidden_states": OFF,
    "thinking": OFF,
    "enable_thinking": OFF,
}
"""Known fields that would change the answer and are not supported, with the values that ask for nothing.

Any other value is refused by name: an answer that silently ignores a constraint is worse than none."""

HARMLESS_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = HARMLESS | {
    "tools": OFF,
    "tool_choice": (*OFF, "none", "auto"),
    "reasoning_effort": (*OFF, "none"),
    "chat_template_kwargs": OFF,
    "continue_final_message": OFF,
    "max_completion_tokens": (None,),
    "top_logprobs": (None, 0),
}
"""Besides, what only chats have."""

HARMLESS_IN_CHATS: dict[str, tuple[Any, ...]] = HARMLESS | {
    "echo": OFF,
}
"""Besides, what only completions have."""
