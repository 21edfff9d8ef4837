"""From a validated request to token ids that fit: templates, tokenising, and everything that needs the vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.server.errors import bad_request, from_invalid, never_fits
from chairlift.server.ports import ChatPrompt, PromptTokens
from chairlift.server.probe import hopeless
from chairlift.server.shapes import encode_json
from chairlift.server.validate import Prompt, Validated

CONTEXT_CODE = "context_length_exceeded"

PROBE_CHARS_PER_TOKEN = 16
"""A text with more characters per token of context than this is probed before it is encoded as a whole."""
MAX_TRUNCATED_CHARS = 1 << 20
"""Longest text that may be encoded for its end alone."""

MAX_SCORES = 1 << 18
"""Most log-probabilities in one response, alternatives counted: three answers of 4,096 tokens with 20 each. They are
kept until all of them are sent, in twelve bytes each. What is streamed is sent as it comes, and not counted."""

BYTES_PER_TOKEN = 4
"""Of ordinary text in ordinary vocabularies: what a text is taken for until it is encoded."""
TOKENS_PER_MESSAGE = 8
"""What a chat template adds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A request whose prompts are token ids that the context can take."""

    asked: Validated
    prompts: list[list[int]]
    params: list[SamplingParams]
    """One per prompt: a default length is shortened to what is left of the context."""


def fit(asked: Validated, tokens: PromptTokens, max_model_len: int) -> Fitted:
    """Encode the prompts and check them against the vocabulary and the context.

    Raises:
        ApiError: 400.
    """
    _check_ids(asked.params, tokens.vocab_size)
    prompts, params = [], []
    for prompt in asked.prompts:
        ids = _truncated(_encoded(prompt, asked, tokens, max_model_len), asked, max_model_len)
        prompts.append(ids)
        params.append(_fitted_params(len(ids), asked, max_model_len))
    _check_scores(asked, [len(ids) for ids in prompts], params, max_model_len)
    return Fitted(asked, prompts, params)


def estimated_tokens(asked: Validated, max_model_len: int) -> list[int]:
    """About how many tokens each prompt has, found without encoding; nothing that is served has more than fit."""
    most = max_model_len if asked.truncate_to is None or asked.truncate_to < 0 else asked.truncate_to
    return [max(1, min(most, _estimated(prompt))) for prompt in asked.prompts]


def _estimated(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt.encode()) // BYTES_PER_TOKEN
    if not isinstance(prompt, ChatPrompt):
        return len(prompt)
    messages = sum(TOKENS_PER_MESSAGE + _num_bytes(message) // BYTES_PER_TOKEN for message in prompt.messages)
    return messages + (len(encode_json(prompt.tools)) // BYTES_PER_TOKEN if prompt.tools else 0)


def _num_bytes(message: dict[str, Any]) -> int:
    calls, thought = message.get("tool_calls"), message.get("reasoning_content", "")
    more = len(encode_json(calls)) if calls else 0
    return len(message["content"].encode()) + len(thought.encode()) + more


def _encoded(prompt: Prompt, asked: Validated, tokens: PromptTokens, max_model_len: int) -> list[int]:
    if not prompt:  # a lone token for the beginning of text would be a prompt, but nobody's wish
        raise bad_request("prompt must not be empty", "prompt")
    if isinstance(prompt, str):
        if asked.truncate_to is None:
            refuse_hopeless(prompt, tokens, max_model_len)
        elif len(prompt) > MAX_TRUNCATED_CHARS:
            raise bad_request(f"prompt must have at most {MAX_TRUNCATED_CHARS} characters to be truncated", "prompt")
        ids = text_tokens(prompt, tokens, add_special_tokens=asked.add_special_tokens)
    elif isinstance(prompt, ChatPrompt):
        return chat_tokens(prompt, tokens)
    else:
        ids = prompt
        check_token_ids("prompt", ids, tokens.vocab_size)
    if not ids:
        raise bad_request("prompt must not be empty", "prompt")
    return ids


def text_tokens(text: str, tokens: PromptTokens, *, add_special_tokens: bool) -> list[int]:
    """What a text is to the model; raises a 400 for one that cannot be told from the model's special tokens."""
    try:
        return tokens.encode(text, add_special_tokens=add_special_tokens)
    except InvalidRequest as error:
        raise bad_request(str(error), "prompt") from None


def chat_tokens(prompt: ChatPrompt, tokens: PromptTokens) -> list[int]:
    """What a chat is put to the model as; raises a 400 for one that the model's template cannot say."""
    try:
        return tokens.encode_chat(prompt)
    except InvalidRequest as error:
        raise from_invalid(error) from None


def refuse_hopeless(text: str, tokens: PromptTokens, max_model_len: int) -> None:
    """Raises a 400 for a hopelessly long text, by its beginning."""
    found = hopeless(
        text, max_model_len, PROBE_CHARS_PER_TOKEN, lambda part: len(tokens.encode(part, add_special_tokens=False))
    )
    if found is not None:
        raise never_fits(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt has more than "
            f"{found[1]} tokens. Please reduce the length of the prompt.",
            "prompt",
            CONTEXT_CODE,
        )


def _truncated(ids: list[int], asked: Validated, max_model_len: int) -> list[int]:
    if asked.truncate_to is None:
        return ids
    keep = asked.truncate_to
    if keep < 0:
        keep = max_model_len - (1 if asked.clip_max_tokens else asked.params.max_tokens or 1)
    return ids[-keep:] if keep > 0 else ids


def _fitted_params(num_prompt: int, asked: Validated, max_model_len: int) -> SamplingParams:
    params = asked.params
    left = max_model_len - num_prompt
    what, has = ("messages", "have") if asked.show.chat else ("prompt", "has")
    if left < 1:
        raise never_fits(
            f"This model's maximum context length is {max_model_len} tokens. However, your {what} {has} {num_prompt} "
            f"tokens, which leaves none for an answer. Please reduce the length of the {what}.",
            what,
            CONTEXT_CODE,
        )
    max_tokens = params.max_tokens
    if max_tokens is not None and max_tokens > left:
        if not asked.clip_max_tokens:
            raise never_fits(
                f"This model's maximum context length is {max_model_len} tokens. However, you requested "
                f"{num_prompt + max_tokens} tokens ({num_prompt} in the {what}, {max_tokens} in the completion). "
                f"Please reduce the length of the {what} or completion.",
                what,
                CONTEXT_CODE,
            )
        max_tokens = left
    if params.min_tokens > (left if max_tokens is None else max_tokens):
        raise bad_request("min_tokens must not exceed what is left of the context", "min_tokens")
    return params if max_tokens == params.max_tokens else dataclasses.replace(params, max_tokens=max_tokens)


def _check_scores(asked: Validated, lengths: list[int], params: list[SamplingParams], max_model_len: int) -> None:
    """Refuse what would be kept for one response: eighty bytes of a body could ask for gigabytes."""
    num_scores = 0
    num_told = 1 if asked.show.chat else asked.n  # a chat has those of its prompt beside the answers
    for length, one in zip(lengths, params, strict=True):
        if one.prompt_logprobs is not None:
            num_scores += length * (one.prompt_logprobs + 1) * num_told
        if one.logprobs is not None and (asked.show.repeats_answer or not asked.show.stream):
            most = max_model_len - length if one.max_tokens is None else one.max_tokens
            num_scores += asked.n * most * (one.logprobs + 1)
    if num_scores > MAX_SCORES:
        raise never_fits(
            f"This asks for up to {num_scores} log-probabilities at once, alternatives counted; at most {MAX_SCORES} "
            "are given. Ask for fewer tokens, answers or alternatives, or stream them.",
            "logprobs",
            "too_many_logprobs",
        )


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    check_token_ids("logit_bias", [token for token, _ in params.logit_bias], vocab_size)


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises a 400 for ids outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise bad_request(f"{name}: token ids must be at least 0 and below {vocab_size}", name)
