"""From a body as sent to a request that can be served, or a 400 that says why not.

Everything that one request may ask for in numbers is bounded here, before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import MAX_LOGPROBS, SamplingParams
from chairlift.server.chat_prompt import chat_prompt
from chairlift.server.errors import bad_request, from_invalid
from chairlift.server.fields import MAX_INT, check_priority_and_cut, check_range, deadline_s, user_name
from chairlift.server.json_body import convert
from chairlift.server.ports import ChatManners, ChatPrompt
from chairlift.server.protocol import (
    HARMLESS_IN_CHATS,
    HARMLESS_IN_COMPLETIONS,
    ChatBody,
    CompletionBody,
    SamplingFields,
)
from chairlift.server.structured import asked_form
from chairlift.server.tools import ToolUse, tool_use

T = TypeVar("T")

MAX_CHOICES = 128
"""Most answers one request may ask for: `n` times the number of prompts."""
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_TOKEN_LIST = 4096
"""Most entries of `stop_token_ids` and `logit_bias`."""
MAX_SALT_CHARS = 256
DEFAULT_MAX_TOKENS = 16
"""Of completions, as in the OpenAI API; a chat may use the rest of the context."""

MAX_METADATA = 16
MAX_STREAM_INTERVAL = 1024

SERVICE_TIERS = {"auto": "default", "default": "default", "priority": "default", "scale": "default", "flex": "flex"}
"""The ways of being served that clients ask for, and how they are: nobody is before others for the asking."""
FLEX_PRIORITY = 1
"""Of requests that gladly wait: behind all that say nothing."""

Defaults = Mapping[str, float | int]
"""What the model's makers recommend where a request says nothing, by the names of `SamplingParams`."""

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
    _refuse_unsupported(content, HARMLESS_IN_COMPLETIONS)
    body = convert(content, CompletionBody)
    echo = bool(body.echo)
    num_kept = _num_kept(body)
    scores_only = echo and body.max_tokens == 0
    check_range("logprobs", body.logprobs, 0, MAX_LOGPROBS)
    prompt_logprobs = body.prompt_logprobs
    if echo and body.logprobs is not None:
        prompt_logprobs = max(body.logprobs, prompt_logprobs or 0)
    params = _params(
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
    _refuse_unsupported(content, HARMLESS_IN_CHATS)
    if content.get("best_of") not in (None, content.get("n") or 1):
        raise bad_request("best_of is not defined for chats", "best_of", "unsupported_parameter")
    body = convert(content, ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
    check_range("top_logprobs", body.top_logprobs, 0, MAX_LOGPROBS)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    tools = tool_use(body, manners)
    params = _params(
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


def _refuse_unsupported(content: dict[str, Any], harmless: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in content.items():
        if name in harmless and value not in harmless[name]:
            raise bad_request(f"{name} is not supported by this server", name, "unsupported_parameter")


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


def _params(
    body: SamplingFields,
    defaults: Defaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    form: StructuredOutputs | None,
) -> SamplingParams:
    _check_list("stop_token_ids", body.stop_token_ids)
    _check_list("logit_bias", body.logit_bias)
    check_range("top_k", body.top_k, -1, MAX_INT)
    check_range("min_tokens", body.min_tokens, 0, MAX_INT)
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=_or(body.min_tokens, 0),
            temperature=_or(body.temperature, defaults.get("temperature", 1.0)),
            top_k=_or(body.top_k, int(defaults.get("top_k", 0))),
            top_p=_or(body.top_p, defaults.get("top_p", 1.0)),
            min_p=_or(body.min_p, defaults.get("min_p", 0.0)),
            seed=body.seed,
            repetition_penalty=_or(body.repetition_penalty, defaults.get("repetition_penalty", 1.0)),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            logit_bias=tuple((_token_id(key), bias) for key, bias in (body.logit_bias or {}).items()),
            allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            stop=_stops(body.stop),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            ignore_eos=bool(body.ignore_eos),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=form,
        )
    except InvalidRequest as error:
        raise from_invalid(error) from None


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
        message = "stream_options.include_obfuscation is not supported by this server"
        raise bad_request(message, "stream_options", "unsupported_parameter")
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
        stream_interval=_or(body.stream_interval, 1),
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
    n = _or(num_choices, 1)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_request(f"n times the number of prompts must be at most {MAX_CHOICES}", "n")
    check_priority_and_cut(body.priority, body.truncate_prompt_tokens)
    if len(body.metadata or ()) > MAX_METADATA:
        raise bad_request(f"metadata may have at most {MAX_METADATA} entries", "metadata")
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_SALT_CHARS:
        raise bad_request(f"cache_salt must have 1 to {MAX_SALT_CHARS} characters", "cache_salt")
    return Validated(
        prompts=prompts,
        params=params,
        n=n,
        clip_max_tokens=clip,
        truncate_to=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens is not False,
        priority=_or(body.priority, FLEX_PRIORITY if body.service_tier == "flex" else 0),
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


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise bad_request(f"at most {MAX_STOPS} stop strings are allowed", "stop")
    if any(len(text) > MAX_STOP_CHARS for text in stops):
        raise bad_request(f"a stop string may have at most {MAX_STOP_CHARS} characters", "stop")
    return stops


def _token_id(key: str) -> int:
    """A token id as JSON writes it when it is a key; one spelling per id, so that none comes twice."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10) or str(int(key)) != key:
        raise bad_request("logit_bias: keys must be token ids", "logit_bias")
    return int(key)


def _check_list(name: str, values: list[int] | dict[str, float] | None) -> None:
    if values is not None and len(values) > MAX_TOKEN_LIST:
        raise bad_request(f"{name} may have at most {MAX_TOKEN_LIST} entries", name)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
