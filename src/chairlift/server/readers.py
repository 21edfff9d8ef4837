"""How the answers to one request are read: for thought, if the model thinks, and for calls, if it has tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chairlift.core.types import SamplingParams
from chairlift.server.ports import ChatPrompt, ServedText
from chairlift.server.prompts import Fitted
from chairlift.server.validate import Validated
from chairlift.text.answers import AnswerReader
from chairlift.text.reasoning import ReasoningFormat

END_TOKENS = 16
"""Tokens of a prompt in which it may open a thought."""


def shown_texts(asked: Validated, text: ServedText) -> tuple[str, ...]:
    """Special tokens that a reader must see."""
    if not asked.show.chat:
        return ()
    form = text.manners.reasoning_format
    tags = () if form is None else form.special_texts
    return tags if asked.tools is None else (*tags, *asked.tools.form.special_texts)


def reader_opener(asked: Validated, text: ServedText, prompt: list[int]) -> Callable[[], AnswerReader] | None:
    """Gives a fresh reader for each answer to `prompt`; None if its text needs no reading."""
    form, tools = text.manners.reasoning_format, asked.tools
    if not asked.show.chat or (form is None and tools is None):
        return None
    begins = form is not None and _begins(form, asked, text, prompt)
    return lambda: AnswerReader(
        None if form is None else form.reader(begins=begins, has_tools=tools is not None),
        None if tools is None else tools.reader(),
    )


def after_thought(fitted: Fitted, text: ServedText) -> Fitted:
    """The same, but a model that thinks may do so before it keeps to the form that its answer must have."""
    asked, form = fitted.asked, text.manners.reasoning_format
    if form is None or asked.params.structured_outputs is None or not asked.show.chat:
        return fitted

    def changed(params: SamplingParams, prompt: list[int]) -> SamplingParams:
        tags = form.tags_before(_end(text, prompt), begins=_begins(form, asked, text, prompt))
        if params.structured_outputs is None or tags is None:
            return params
        return replace(params, structured_outputs=replace(params.structured_outputs, after=tags))

    params = [changed(one, prompt) for one, prompt in zip(fitted.params, fitted.prompts, strict=True)]
    return replace(fitted, params=params)


def _end(text: ServedText, prompt: list[int]) -> str:
    return b"".join(map(text.token_bytes, prompt[-END_TOKENS:])).decode("utf-8", "replace")


def _begins(form: ReasoningFormat, asked: Validated, text: ServedText, prompt: list[int]) -> bool:
    """Whether an answer begins as thought."""
    (chat,) = asked.prompts
    if isinstance(chat, ChatPrompt) and chat.continue_final_message:
        return form.begins_within(chat.messages[-1]["content"])
    return form.begins_after(_end(text, prompt))
