"""Log-probabilities in the shapes of the OpenAI API, and of vLLM for those of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chairlift.core.types import TokenLogprob
from chairlift.server.ports import TokenNames

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokenizer: TokenNames, scores: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    return {
        "content": [
            _chat_entry(tokenizer, score.token, score.logprob)
            | {"top_logprobs": [_chat_entry(tokenizer, token, logprob) for token, logprob in score.top]}
            for score in scores
        ]
    }


def completion_logprobs(
    tokenizer: TokenNames,
    tokens: Sequence[int],
    scores: Sequence[TokenLogprob | None],
    offset: int = 0,
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; the first token of an echoed prompt has no score.

    `offset` is where the first token begins in the whole text, in characters.
    """
    names = [token_text(tokenizer, token) for token in tokens]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    return {
        "tokens": names,
        "token_logprobs": [None if score is None else finite(score.logprob) for score in scores],
        "top_logprobs": [None if score is None else _top_by_text(tokenizer, score) for score in scores],
        "text_offset": offsets,
    }


def prompt_logprobs(
    tokenizer: TokenNames, scores: Sequence[TokenLogprob]
) -> list[dict[str, dict[str, float | int | str]] | None]:
    """`prompt_logprobs`: for each prompt token the scores by token id; the first token has none."""
    rows: list[dict[str, dict[str, float | int | str]] | None] = [None]
    for score in scores:
        row = {str(token): _prompt_entry(tokenizer, token, logprob, rank) for rank, (token, logprob) in _ranked(score)}
        row.setdefault(str(score.token), _prompt_entry(tokenizer, score.token, score.logprob, score.rank))
        rows.append(row)
    return rows


def token_text(tokenizer: TokenNames, token: int) -> str:
    """The token as text; bytes that are no characters by themselves become U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def finite(logprob: float) -> float:
    return logprob if logprob >= LOWEST else LOWEST


def _chat_entry(tokenizer: TokenNames, token: int, logprob: float) -> dict[str, Any]:
    content = tokenizer.token_bytes(token)
    return {"token": content.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(content)}


def _top_by_text(tokenizer: TokenNames, score: TokenLogprob) -> dict[str, float]:
    """Of two tokens with the same text the likelier one counts; the token itself is always there."""
    tops = {token_text(tokenizer, token): finite(logprob) for token, logprob in reversed(score.top)}
    tops.setdefault(token_text(tokenizer, score.token), finite(score.logprob))
    return tops


def _ranked(score: TokenLogprob) -> Sequence[tuple[int, tuple[int, float]]]:
    return list(enumerate(score.top, start=1))


def _prompt_entry(tokenizer: TokenNames, token: int, logprob: float, rank: int) -> dict[str, float | int | str]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(tokenizer, token)}
