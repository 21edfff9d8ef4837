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
from chairlift.text.thinking import prompt_end, thought_before


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
    begins = form is not None and _begins(form, asked, prompt_end(prompt, text.token_bytes))
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
        end = prompt_end(prompt, text.token_bytes)
        return thought_before(params, form, end, begins=_begins(form, asked, end))

    params = [changed(one, prompt) for one, prompt in zip(fitted.params, fitted.prompts, strict=True)]
    return replace(fitted, params=params)


def _begins(form: ReasoningFormat, asked: Validated, end: str) -> bool:
    """Whether an answer to a prompt that ends like `end` begins as thought."""
    (chat,) = asked.prompts
    if isinstance(chat, ChatPrompt) and chat.continue_final_message:
        return form.begins_within(chat.messages[-1]["content"])
    return form.begins_after(end)
