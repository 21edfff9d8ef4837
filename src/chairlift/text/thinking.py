"""Chats with a model that thinks: its thought comes before the form of an answer, and is read apart from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chairlift.core.types import SamplingParams
from chairlift.text.loading import Text
from chairlift.text.pieces import TokenBytes
from chairlift.text.reasoning import AnyReasoningReader, ReasoningFormat, reasoning_format_of
from chairlift.text.tokenizer import Tokenizer

END_TOKENS = 16
"""Tokens of a prompt in which it may open a thought."""


class Thinking:
    """How the answers of one model's chats are read."""

    def __init__(self, form: ReasoningFormat, tokenizer: Tokenizer) -> None:
        self._form = form
        self._token_bytes = tokenizer.token_bytes
        self.tokens = ShownBytes(tokenizer, form.special_texts)
        """What a text stream must show a reader."""

    def params(self, params: SamplingParams, prompt: Sequence[int]) -> SamplingParams:
        """The same, with thought before the form of an answer to `prompt`."""
        end = prompt_end(prompt, self._token_bytes)
        return thought_before(params, self._form, end, begins=self._form.begins_after(end))

    def reader(self, prompt: Sequence[int]) -> AnyReasoningReader:
        """Of one answer to `prompt`."""
        return self._form.reader(begins=self._form.begins_after(prompt_end(prompt, self._token_bytes)))


def thinking_of(text: Text) -> Thinking | None:
    """How a model thinks, as its chat template speaks of it; None if it does not."""
    form = None if text.chat_template is None else reasoning_format_of(text.chat_template.tool_source)
    return None if form is None else Thinking(form, text.tokenizer)


class ShownBytes:
    """The bytes of tokens, with those of some special tokens, wherever a text stream asks for them."""

    def __init__(self, tokenizer: Tokenizer, shown: Sequence[str]) -> None:
        ids = {token for token in tokenizer.special_token_ids if tokenizer.special_text(token) in shown}
        plain = tokenizer.bytes_of(True)
        self._bytes = TokenBytes(
            tokenizer.vocab_size, lambda token: tokenizer.token_bytes(token) if token in ids else plain[token]
        )

    def bytes_of(self, skip_special_tokens: bool) -> TokenBytes:
        return self._bytes


def prompt_end(prompt: Sequence[int], token_bytes: Callable[[int], bytes]) -> str:
    """The end of a prompt as text, special tokens spelled out."""
    return b"".join(map(token_bytes, prompt[-END_TOKENS:])).decode("utf-8", "replace")


def thought_before(params: SamplingParams, form: ReasoningFormat, end: str, *, begins: bool) -> SamplingParams:
    """The same, but an answer to a prompt that ends like `end` may be thought before it has the form it must have."""
    if params.structured_outputs is None:
        return params
    tags = form.tags_before(end, begins=begins)
    if tags is None:
        return params
    return replace(params, structured_outputs=replace(params.structured_outputs, after=tags))
