"""Log-probabilities in the shapes of the OpenAI API, and of vLLM for those of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from chairlift.core.types import TokenLogprob
from chairlift.server.ports import TokenNames
from chairlift.server.written import Written, list_pieces, object_pieces

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_entries(tokenizer: TokenNames, scores: Iterable[TokenLogprob]) -> Iterator[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat."""
    for score in scores:
        tops = [_chat_entry(tokenizer, token, logprob) for token, logprob in score.top]
        yield _chat_entry(tokenizer, score.token, score.logprob) | {"top_logprobs": tops}


def written_chat_logprobs(tokenizer: TokenNames, scores: Iterable[TokenLogprob]) -> Written:
    """`choices[].logprobs` of a whole chat."""
    entries = Written(lambda: list_pieces(chat_entries(tokenizer, scores)))
    return Written(lambda: object_pieces({"content": entries}))


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


def written_completion_logprobs(
    tokenizer: TokenNames,
    tokens: Callable[[], Iterable[int]],
    scores: Callable[[], Iterable[TokenLogprob | None]],
) -> Written:
    """`choices[].logprobs` of a whole completion."""

    def offsets() -> Iterator[int]:
        offset = 0
        for token in tokens():
            yield offset
            offset += len(token_text(tokenizer, token))

    fields = {
        "tokens": lambda: (token_text(tokenizer, token) for token in tokens()),
        "token_logprobs": lambda: (None if score is None else finite(score.logprob) for score in scores()),
        "top_logprobs": lambda: (None if score is None else _top_by_text(tokenizer, score) for score in scores()),
        "text_offset": offsets,
    }
    lists = {name: Written(partial(_listed, members)) for name, members in fields.items()}
    return Written(lambda: object_pieces(lists))


def written_prompt_logprobs(tokenizer: TokenNames, scores: Iterable[TokenLogprob]) -> Written:
    """`prompt_logprobs`: for each prompt token the scores by token id; the first token has none."""

    def rows() -> Iterator[dict[str, dict[str, float | int | str]] | None]:
        yield None
        for score in scores:
            ranked = enumerate(score.top, start=1)
            row = {str(token): _prompt_entry(tokenizer, token, logprob, rank) for rank, (token, logprob) in ranked}
            row.setdefault(str(score.token), _prompt_entry(tokenizer, score.token, score.logprob, score.rank))
            yield row

    return Written(lambda: list_pieces(rows()))


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


def _listed(members: Callable[[], Iterable[Any]]) -> Iterator[bytes]:
    return list_pieces(members())


def _prompt_entry(tokenizer: TokenNames, token: int, logprob: float, rank: int) -> dict[str, float | int | str]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(tokenizer, token)}
