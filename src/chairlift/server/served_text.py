"""The `text` package as the server wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from chairlift.core.errors import InvalidOption, InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.models.encoder import holds_encoder
from chairlift.models.resolve import resolve
from chairlift.server.passage_text import PassageText
from chairlift.server.ports import ChatManners, ChatPrompt, ServedText, TokenText
from chairlift.text import GivenTemplate, Text, load_text
from chairlift.text.chat import ChatTemplate
from chairlift.text.passages import load_passages
from chairlift.text.reasoning import REASONING_FORMATS, ReasoningFormat, reasoning_format_of
from chairlift.text.stops import StopAutomaton
from chairlift.text.stream import BytesByToken, TextStream
from chairlift.text.thinking import ShownBytes
from chairlift.text.tools import TOOL_FORMATS, ToolFormat
from chairlift.text.tools.detect import tool_format_of
from chairlift.text.tools.told import told

AUTO, NONE = "auto", "none"
"""Instead of the name of a format: what the chat template speaks of, and none."""


class _ServedText:
    """One model's text."""

    def __init__(self, text: Text, manners: ChatManners) -> None:
        self._text = text
        self._tokenizer = text.tokenizer
        self._shown: dict[tuple[str, ...], ShownBytes] = {}
        self.manners = manners
        self.vocab_size = text.tokenizer.vocab_size
        self.eos_token_ids = text.eos_token_ids
        self.sampling_defaults = text.sampling_defaults
        self.token_bytes = text.tokenizer.token_bytes
        self.decode = text.tokenizer.decode
        self.spell = partial(text.tokenizer.decode, skip_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        template = self._text.chat_template
        if template is None:
            raise InvalidRequest(f"{self._text.lacking}: use /v1/completions", "messages")
        messages, tools = prompt.messages, prompt.tools
        if "tools" not in template.variables:
            messages, tools = told(messages, tools), None
        return template.render_tokens(
            messages,
            tokenizer=self._tokenizer,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            tools=tools,
            kwargs=prompt.template_kwargs,
        )

    def streams(
        self, params: SamplingParams, *, skip_special_tokens: bool, shown: Sequence[str] = (), continues: bool = True
    ) -> Callable[[], TokenText]:
        stops = StopAutomaton(params.stop)
        tokenizer: BytesByToken = self._tokenizer
        if shown and skip_special_tokens:
            key = tuple(shown)
            if key not in self._shown:
                self._shown[key] = ShownBytes(self._tokenizer, key)
            tokenizer = self._shown[key]
        return lambda: TextStream(
            tokenizer,
            stops,
            params.include_stop_str_in_output,
            skip_special_tokens,
            params.min_tokens,
            strips_space=self._tokenizer.strips_space and not continues,
        )


def load_served_text(
    model: str,
    chat_template: GivenTemplate | None = None,
    *,
    tool_call_parser: str = AUTO,
    auto_tool_choice: bool = True,
    reasoning_parser: str = AUTO,
    template_kwargs: Mapping[str, Any] | None = None,
) -> ServedText:
    """The text of a model named by path or as an installed package.

    `chat_template` replaces its own; the two parsers are names of formats, or `AUTO` or `NONE`; `template_kwargs` are
    what its template is told where a request says nothing.

    Raises:
        InvalidModel: there is no such model, or its tokenizer cannot be read.
        InvalidOption: its template does not read what it is to be told, or the given one cannot be used.
    """
    files = resolve(model)
    if holds_encoder(files):
        return PassageText(load_passages(files))
    text = load_text(files, chat_template)
    template = text.chat_template
    variables = frozenset() if template is None else template.variables
    unknown = sorted(set(template_kwargs or ()) - variables)
    if unknown:
        raise InvalidOption(f"the model's chat template does not know {unknown[0]}")
    return _ServedText(
        text,
        ChatManners(
            tool_format=_tool_format(tool_call_parser, template),
            auto_tool_choice=auto_tool_choice,
            reasoning_format=_reasoning_format(reasoning_parser, template),
            template_variables=variables,
            template_kwargs=dict(template_kwargs or {}),
        ),
    )


def _tool_format(name: str, template: ChatTemplate | None) -> ToolFormat | None:
    if template is None or name == NONE:
        return None
    return tool_format_of(template) if name == AUTO else TOOL_FORMATS[name]


def _reasoning_format(name: str, template: ChatTemplate | None) -> ReasoningFormat | None:
    if template is None or name == NONE:
        return None
    return reasoning_format_of(template.tool_source) if name == AUTO else REASONING_FORMATS[name]
