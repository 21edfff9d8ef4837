"""From a body as sent to a request that can be served, or a 400 that says why not.

Everything that one request may ask for in numbers is bounded here, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import MAX_LOGPROBS, SamplingParams
from chairlift.server.bounds import (
    MAX_CHOICES,
    MAX_METADATA,
    MAX_METADATA_CHARS,
    MAX_METADATA_KEY_CHARS,
    MAX_SALT_CHARS,
    MAX_STREAM_INTERVAL,
    SERVICE_TIERS,
)
from chairlift.server.chat_prompt import chat_prompt
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.fields import (
    MAX_INT,
    check_priority_and_cut,
    check_range,
    deadline_s,
    given,
    refuse_unsupported,
    user_name,
)
from chairlift.server.json_body import convert
from chairlift.server.ports import ChatManners, ChatPrompt
from chairlift.server.protocol import (
    HARMLESS_IN_CHATS,
    HARMLESS_IN_COMPLETIONS,
    ChatBody,
    CompletionBody,
    SamplingFields,
)
from chairlift.server.sampling import Defaults, sampling_params
from chairlift.server.structured import asked_form
from chairlift.server.tools import ToolUse, tool_use

DEFAULT_MAX_TOKENS = 16
"""Of completions, as in the OpenAI API; a chat may use the rest of the context."""

FLEX_PRIORITY = 1
"""Of requests that gladly wait: behind all that say nothing."""

Prompt = str | list[int] | ChatPrompt
"""Text, token ids, or a conversation."""

PLAIN = ChatManners()


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """How an answer is to be shown; the engine knows nothing of it."""

    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    return_token_ids: bool
    skip_special_tokens: bool
    discard_output: bool = False
    """`max_tokens` 0 with `echo`: only the prompt's log-probabilities are wanted."""
    explain: bool = False
    """Say at the end what was decided about each answer."""
    num_kept: int | None = None
    """Of a prompt's answers only so many are shown, the likeliest."""
    include_reasoning: bool = True
    continues: bool = True
    """The answer goes on with the text before it, as in all but a chat's new messages."""
    stream_interval: int = 1
    """Tokens per event, from the second event on."""
    service_tier: str | None = None
    """How it is served, if that was asked for."""
    repeats_answer: bool = False
    """A stream ends with the whole answer, so that nothing of it may be forgotten while it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A request that is right in itself; whether its prompts fit is known once they are tokens."""

    prompts: list[Prompt]
    params: SamplingParams
    n: int
    clip_max_tokens: bool
    """`max_tokens` is our default, so that a long prompt shortens it instead of being refused."""
    truncate_to: int | None
    """Keep only the last so many prompt tokens; -1: as many as the context takes."""
    add_special_tokens: bool
    priority: int
    cache_salt: str
    user: str
    """Whom the client asks for: a part of its own traffic."""
    ttft_deadline_s: float | None
    e2e_deadline_s: float | None
    """Deadlines count from the arrival."""
    request_id: str | None
    shows_logprobs: bool
    shows_prompt_logprobs: bool
    """As a field of their own; `echo` may want the scores for its own shape only."""
    show: Presentation
    tools: ToolUse | None = None


def completion(content: dict[str, Any], defaults: Defaults) -> Validated:
    """A body of /v1/completions.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse_unsupported(content, HARMLESS_IN_COMPLETIONS)
    body = convert(content, CompletionBody)
    echo = bool(body.echo)
    num_kept = _num_kept(body)
    scores_only = echo and body.max_tokens == 0
    check_range("logprobs", body.logprobs, 0, MAX_LOGPROBS)
    prompt_logprobs = body.prompt_logprobs
    if echo and body.logprobs is not None:
        prompt_logprobs = max(body.logprobs, prompt_logprobs or 0)
    params = sampling_params(
        body,
        defaults,
        max_tokens=1 if scores_only else body.max_tokens if body.max_tokens is not None else DEFAULT_MAX_TOKENS,
        logprobs=body.logprobs if num_kept is None else body.logprobs or 0,
        prompt_logprobs=prompt_logprobs,
        form=asked_form(body),
    )
    show = _presentation(
        body,
        chat=False,
        echo=echo,
        scores=body.logprobs is not None,
        discard_output=scores_only,
        num_kept=num_kept,
    )
    return _validated(
        body,
        _completion_prompts(body),
        params,
        show,
        num_choices=body.n if num_kept is None else body.best_of,
        shows_logprobs=body.logprobs is not None,
        clip=body.max_tokens is None,
    )


def chat(content: dict[str, Any], defaults: Defaults, manners: ChatManners = PLAIN) -> Validated:
    """A body of /v1/chat/completions, for a model that chats like this.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse_unsupported(content, HARMLESS_IN_CHATS)
    if content.get("best_of") not in (None, content.get("n") or 1):
        raise unsupported("best_of is not defined for chats", "best_of")
    return asked_chat(convert(content, ChatBody), defaults, manners)


def asked_chat(body: ChatBody, defaults: Defaults, manners: ChatManners = PLAIN) -> Validated:
    """A chat, in whichever API it came.

    Raises:
        ApiError: 400, naming the field as chats call it.
    """
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
    check_range("top_logprobs", body.top_logprobs, 0, MAX_LOGPROBS)
    check_range("max_completion_tokens", body.max_completion_tokens, 1, MAX_INT)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    tools = tool_use(body, manners)
    params = sampling_params(
        body,
        defaults,
        max_tokens=int(defaults["max_tokens"]) if max_tokens is None and "max_tokens" in defaults else max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        form=_chat_form(body, tools),
    )
    show = _presentation(
        body,
        chat=True,
        include_reasoning=body.include_reasoning is not False,
        continues=bool(body.continue_final_message),
    )
    return _validated(
        body,
        [chat_prompt(body, tools, manners)],
        params,
        show,
        num_choices=body.n,
        shows_logprobs=bool(body.logprobs),
        clip=max_tokens is None,
        tools=tools,
    )


def _num_kept(body: CompletionBody) -> int | None:
    """How many of `best_of` answers are shown; None if all are."""
    n = 1 if body.n is None else body.n
    if body.best_of is None or body.best_of == n:
        return None
    check_range("best_of", body.best_of, 1, MAX_CHOICES)
    if body.best_of < n:
        raise bad_request("best_of must be at least n", "best_of")
    for name in ("stream", "explain"):
        if getattr(body, name):
            raise bad_request(
                f"best_of above n excludes {name}: which answers are shown is known at the end", "best_of"
            )
    return n


def _chat_form(body: ChatBody, tools: ToolUse | None) -> StructuredOutputs | None:
    form = asked_form(body)
    if tools is None:
        return form
    return tools.answer_form(form, "structured_outputs" if body.response_format is None else "response_format")


def _presentation(
    body: SamplingFields,
    *,
    chat: bool,
    echo: bool = False,
    scores: bool = False,
    discard_output: bool = False,
    num_kept: int | None = None,
    include_reasoning: bool = True,
    continues: bool = True,
) -> Presentation:
    stream = bool(body.stream)
    if stream and body.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs are not available when stream is true", "prompt_logprobs")
    if stream and echo and scores:
        raise bad_request("logprobs with echo are not available when stream is true", "logprobs")
    if body.stream_options is not None and not stream:
        raise bad_request("stream_options needs stream to be true", "stream_options")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation is not supported by this server", "stream_options")
    check_range("stream_interval", body.stream_interval, 1, MAX_STREAM_INTERVAL)
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return Presentation(
        chat=chat,
        stream=stream,
        include_usage=usage,
        continuous_usage=usage and bool(body.stream_options and body.stream_options.continuous_usage_stats),
        echo=echo,
        return_token_ids=bool(body.return_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
        discard_output=discard_output,
        explain=bool(body.explain),
        num_kept=num_kept,
        include_reasoning=include_reasoning,
        continues=continues,
        stream_interval=given(body.stream_interval, 1),
        service_tier=_service_tier(body),
    )


def _service_tier(body: SamplingFields) -> str | None:
    tier = body.service_tier
    if tier is not None and tier not in SERVICE_TIERS:
        raise bad_request(f"service_tier must be one of {', '.join(SERVICE_TIERS)}", "service_tier")
    return None if tier is None else SERVICE_TIERS[tier]


def _validated(
    body: SamplingFields,
    prompts: list[Prompt],
    params: SamplingParams,
    show: Presentation,
    *,
    num_choices: int | None,
    shows_logprobs: bool,
    clip: bool,
    tools: ToolUse | None = None,
) -> Validated:
    check_range("n", body.n, 1, MAX_CHOICES)
    n = given(num_choices, 1)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_request(f"n times the number of prompts must be at most {MAX_CHOICES}", "n")
    check_priority_and_cut(body.priority, body.truncate_prompt_tokens)
    check_metadata(body.metadata)
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_SALT_CHARS:
        raise bad_request(f"cache_salt must have 1 to {MAX_SALT_CHARS} characters", "cache_salt")
    return Validated(
        prompts=prompts,
        params=params,
        n=n,
        clip_max_tokens=clip,
        truncate_to=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens is not False,
        priority=given(body.priority, FLEX_PRIORITY if body.service_tier == "flex" else 0),
        cache_salt=body.cache_salt or "",
        user=user_name(body),
        ttft_deadline_s=deadline_s("ttft_deadline_ms", body.ttft_deadline_ms),
        e2e_deadline_s=deadline_s("e2e_deadline_ms", body.e2e_deadline_ms),
        request_id=body.request_id,
        shows_logprobs=shows_logprobs,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        show=show,
        tools=tools,
    )


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raises a 400 for more of it than the API allows."""
    if len(metadata or ()) > MAX_METADATA:
        raise bad_request(f"metadata may have at most {MAX_METADATA} entries", "metadata")
    for key, value in (metadata or {}).items():
        if len(key) > MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_CHARS:
            raise bad_request(
                f"metadata: a key may have {MAX_METADATA_KEY_CHARS} characters and a value {MAX_METADATA_CHARS}",
                "metadata",
            )


def _completion_prompts(body: CompletionBody) -> list[Prompt]:
    """One prompt is text or token ids; several are a list of those."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt must not be empty", "prompt")
    if isinstance(prompt[0], int):
        return [_token_ids(prompt)]
    if len(prompt) > MAX_CHOICES:
        raise bad_request(f"at most {MAX_CHOICES} prompts are allowed", "prompt")
    kind = type(prompt[0])
    if any(type(one) is not kind for one in prompt):
        raise bad_request("prompt must be text, token ids, a list of texts or a list of lists of token ids", "prompt")
    return [one if isinstance(one, str) else _token_ids(one) for one in prompt if not isinstance(one, int)]


def _token_ids(prompt: list[Any]) -> list[int]:
    if any(type(token) is not int for token in prompt):
        raise bad_request("a prompt of token ids must hold integers only", "prompt")
    return prompt
