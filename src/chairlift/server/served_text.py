"""The `text` package as the server wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.models.resolve import resolve
from chairlift.server.ports import ServedText, TokenText
from chairlift.text import Text, load_text
from chairlift.text.stops import StopAutomaton
from chairlift.text.stream import TextStream


class _ServedText:
    """One model's text."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokenizer = text.tokenizer
        self.vocab_size = text.tokenizer.vocab_size
        self.eos_token_ids = text.eos_token_ids
        self.sampling_defaults = text.sampling_defaults
        self.token_bytes = text.tokenizer.token_bytes
        self.decode = text.tokenizer.decode

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
        template = self._text.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template: use /v1/completions", "messages")
        return template.render_tokens(messages, tokenizer=self._tokenizer, add_generation_prompt=add_generation_prompt)

    def streams(self, params: SamplingParams, *, skip_special_tokens: bool) -> Callable[[], TokenText]:
        stops = StopAutomaton(params.stop)
        return lambda: TextStream(
            self._tokenizer,
            stops,
            params.include_stop_str_in_output,
            skip_special_tokens,
            params.min_tokens,
        )


def load_served_text(model: str, chat_template: str | None = None) -> ServedText:
    """The text of a model named by path or as an installed package; `chat_template` replaces its own.

    Raises:
        InvalidModel: there is no such model, or its tokenizer cannot be read.
    """
    return _ServedText(load_text(resolve(model), chat_template))
