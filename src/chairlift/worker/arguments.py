"""What callers of the offline API may give: one thing or a list of them, in the types that people have them in."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from operator import index
from typing import Any, SupportsIndex

from chairlift.core.checks import check_request
from chairlift.core.errors import InvalidRequest
from chairlift.core.types import Limits, Request, SamplingParams

MAX_TENANT_CHARACTERS = 256

Prompt = str | Sequence[int]
"""Text, or token ids."""

Message = Mapping[str, Any]
"""A turn of a conversation: `role` and `content`."""


def each_prompt(prompts: str | Iterable[int] | Iterable[Prompt]) -> list[Prompt]:
    """One prompt, text or token ids, or a list of them: as a list."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidRequest("prompts must be texts or lists of token ids", "prompts")
    each = list(prompts)
    tokens = [one for one in each if isinstance(one, int | Integral)]
    several = [one for one in each if not isinstance(one, int | Integral)]
    if tokens and several:
        raise InvalidRequest("prompts must be texts or lists of token ids", "prompts")
    return [token_ids(tokens)] if tokens else list(several)


def token_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """Raises InvalidRequest unless everything is a whole number, of Python's or of NumPy's."""
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        raise InvalidRequest("a prompt must be text or token ids", "prompt")
    try:
        return [index(token) for token in prompt]
    except TypeError as error:
        raise InvalidRequest("a prompt must be text or token ids", "prompt") from error


def each_priority(priority: int | Sequence[int], count: int) -> list[int]:
    """One priority for all prompts, or one for each: as a list."""
    if not isinstance(priority, Sequence):
        return [priority] * count
    if len(priority) != count:
        raise InvalidRequest(f"{count} prompts need one or {count} priorities, not {len(priority)}", "priority")
    return list(priority)


def whole_priority(value: object) -> int:
    """Raises InvalidRequest unless it is a whole number, of 32 bits."""
    if not isinstance(value, int | Integral) or isinstance(value, bool) or not -(2**31) <= int(value) < 2**31:
        raise InvalidRequest("priority must be an integer of 32 bits, or one for each prompt", "priority")
    return int(value)


def tenant_name(value: object) -> str:
    """Raises InvalidRequest unless it is a text that can be shown and counted with."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_TENANT_CHARACTERS:
        raise InvalidRequest(f"tenant must be a text of at most {MAX_TENANT_CHARACTERS} characters", "tenant")
    return value


def checked(request: Request, limits: Limits, vocab_size: int) -> Request:
    """The request, before anything runs.

    Raises:
        InvalidRequest: an engine with these limits would refuse it for ever.
    """
    check_request(request, max_model_len=limits.max_model_len, max_num_seqs=limits.max_num_seqs, vocab_size=vocab_size)
    return request


def deadline(name: str, arrival: float, after_ms: object) -> float | None:
    """The point in time that lies so many milliseconds after arrival, in seconds."""
    if after_ms is None:
        return None
    if not isinstance(after_ms, int | float) or isinstance(after_ms, bool) or not 0 < after_ms <= sys.float_info.max:
        raise InvalidRequest(f"{name} must be a number of milliseconds above 0", name)
    return arrival + after_ms / 1e3


def each_conversation(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or a list of them: as a list."""
    one = [each for each in messages if isinstance(each, Mapping)]
    several = [each for each in messages if not isinstance(each, Mapping)]
    if one and several:
        raise InvalidRequest("messages must be one conversation or a list of them", "messages")
    return [one] if one else list(several)


def each_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int, default: SamplingParams
) -> Sequence[SamplingParams]:
    """None, one set of parameters for all prompts, or one for each: as one for each."""
    if params is None:
        return [default] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise InvalidRequest("sampling_params must be SamplingParams, or one for each prompt", "sampling_params")
    if len(params) != count:
        raise InvalidRequest(f"{count} prompts need one or {count} sampling parameters, not {len(params)}")
    return params
