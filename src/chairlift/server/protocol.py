"""Request bodies as clients send them: the OpenAI fields, and the extensions that users of vLLM know.

Nothing here is checked beyond its JSON type; `validate.py` turns a body into something that can be served. Every field
may be null, which means the same as leaving it out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chairlift.server.structured import StructuredFields


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(StructuredFields, kw_only=True):
    """What both ways of asking share."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    ttft_deadline_ms: float | None = None
    e2e_deadline_ms: float | None = None
    explain: bool | None = None


class CompletionBody(SamplingFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatBody(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None


_OFF: tuple[Any, ...] = (None, False, "", [], {})

HARMLESS: dict[str, tuple[Any, ...]] = {
    "tools": _OFF,
    "tool_choice": (*_OFF, "none", "auto"),
    "functions": _OFF,
    "function_call": (*_OFF, "none", "auto"),
    "modalities": (*_OFF, ["text"]),
    "audio": _OFF,
    "prediction": _OFF,
    "web_search_options": _OFF,
    "reasoning_effort": (*_OFF, "none"),
    "suffix": _OFF,
    "bad_words": _OFF,
    "use_beam_search": _OFF,
    "length_penalty": (*_OFF, 1.0),
    "chat_template": _OFF,
    "chat_template_kwargs": _OFF,
    "continue_final_message": _OFF,
    "documents": _OFF,
    "logits_processors": _OFF,
    "prompt_embeds": _OFF,
    "kv_transfer_params": _OFF,
    "mm_processor_kwargs": _OFF,
}
"""Known fields that would change the answer and are not supported, with the values that ask for nothing.

Any other value is refused by name: an answer that silently ignores a constraint is worse than none."""
