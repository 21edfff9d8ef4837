"""What the server needs of a model's text, whoever provides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chairlift.core.types import SamplingParams
from chairlift.text.reasoning import ReasoningFormat
from chairlift.text.tools import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, and how it is put to the model."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The model goes on with the last message, which is the assistant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatManners:
    """What a model can do in a chat besides plain text, and how it writes that."""

    tool_format: ToolFormat | None = None
    """None: it is not told of tools."""
    auto_tool_choice: bool = True
    """It may decide itself whether to call one."""
    reasoning_format: ReasoningFormat | None = None
    template_variables: frozenset[str] = frozenset()
    """What its chat template reads: what requests may set."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What is set where a request does not."""


class TokenText(Protocol):
    """Tokens in, text out: never half a character, never the beginning of a stop string that may still come."""

    def push(self, tokens: Sequence[int]) -> str: ...
    def finish(self) -> str: ...


class TokenNames(Protocol):
    """What tokens stand for."""

    def token_bytes(self, token: int) -> bytes: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def spell(self, tokens: Sequence[int]) -> str:
        """Their text, with the spelling of those that are no text."""
        ...


class PromptTokens(Protocol):
    """Prompts as token ids. May be called from several threads at once.

    Raises:
        InvalidRequest: a chat that the model's template cannot say.
    """

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def encode_chat(self, prompt: ChatPrompt) -> list[int]: ...


class ServedText(TokenNames, PromptTokens, Protocol):
    """All of it."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """What the model's makers recommend, by the names of `SamplingParams`."""
        ...

    @property
    def manners(self) -> ChatManners: ...
    def streams(
        self, params: SamplingParams, *, skip_special_tokens: bool, shown: Sequence[str] = (), continues: bool = True
    ) -> Callable[[], TokenText]:
        """Gives a fresh text for each answer of one request, from its first token on.

        Special tokens that are spelled like one in `shown` are in it, whatever `skip_special_tokens` says. An answer
        that `continues` a text begins with the space of its first word, if that has one; others are texts of their own.
        """
        ...
