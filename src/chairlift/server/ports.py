"""What the server needs of a model's text, whoever provides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from chairlift.core.types import SamplingParams


class TokenText(Protocol):
    """Tokens in, text out: never half a character, never the beginning of a stop string that may still come."""

    def push(self, tokens: Sequence[int]) -> str: ...
    def finish(self) -> str: ...


class TokenNames(Protocol):
    """What tokens stand for."""

    def token_bytes(self, token: int) -> bytes: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class PromptTokens(Protocol):
    """Prompts as token ids. May be called from several threads at once.

    Raises:
        InvalidRequest: a chat that the model's template cannot say.
    """

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def encode_chat(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> list[int]: ...


class ServedText(TokenNames, PromptTokens, Protocol):
    """All of it."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """What the model's makers recommend, by the names of `SamplingParams`."""
        ...

    def streams(self, params: SamplingParams, *, skip_special_tokens: bool) -> Callable[[], TokenText]:
        """Gives a fresh text for each answer of one request, from its first token on."""
        ...
