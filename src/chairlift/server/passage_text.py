"""The text of an encoder that is served alone: it is tokenised, and nothing is ever generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.server.ports import ChatManners, ChatPrompt, TokenText
from chairlift.text.passages import PassageTokenizer


class PassageText:
    """What routes that are about text in general find instead of a generating model's text."""

    def __init__(self, passages: PassageTokenizer) -> None:
        self.passages = passages
        """What reads texts for vectors as well."""
        self.vocab_size = passages.vocab_size
        self.eos_token_ids: tuple[int, ...] = ()
        self.sampling_defaults: Mapping[str, float | int] = {}
        self.manners = ChatManners()
        self.token_bytes = passages.token_bytes
        self.decode = self.spell = passages.decode

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.passages.encode_ids(text, add_special_tokens=add_special_tokens)

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        raise InvalidRequest("this model generates no text", "model")

    def streams(
        self, params: SamplingParams, *, skip_special_tokens: bool, shown: Sequence[str] = (), continues: bool = True
    ) -> Callable[[], TokenText]:
        return Silence


class Silence:
    """The text of an answer that has no tokens."""

    def push(self, tokens: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""
