"""How the answers to one request are read: for thought, if the model thinks, and for calls, if it has tools."""

from __future__ import annotations

from collections.abc import Callable

from chairlift.server.ports import ChatPrompt, ServedText
from chairlift.server.validate import Validated
from chairlift.text.answers import AnswerReader
from chairlift.text.reasoning import ReasoningFormat, ReasoningReader

END_TOKENS = 16
"""Tokens of a prompt in which it may open a thought."""


def shown_texts(asked: Validated, text: ServedText) -> tuple[str, ...]:
    """Special tokens that a reader must see."""
    if not asked.show.chat:
        return ()
    form = text.manners.reasoning_format
    tags = () if form is None else (form.opening, form.closing)
    return tags if asked.tools is None else (*tags, *asked.tools.form.special_texts)


def reader_opener(asked: Validated, text: ServedText, prompt: list[int]) -> Callable[[], AnswerReader] | None:
    """Gives a fresh reader for each answer to `prompt`; None if its text needs no reading."""
    form, tools = text.manners.reasoning_format, asked.tools
    if not asked.show.chat or (form is None and tools is None):
        return None
    begins = form is not None and _begins(form, asked, text, prompt)
    return lambda: AnswerReader(
        None if form is None else ReasoningReader(form, begins=begins),
        None if tools is None else tools.reader(),
    )


def _begins(form: ReasoningFormat, asked: Validated, text: ServedText, prompt: list[int]) -> bool:
    """Whether an answer begins as thought."""
    (chat,) = asked.prompts
    if isinstance(chat, ChatPrompt) and chat.continue_final_message:
        said: str = chat.messages[-1]["content"]
        return said.rfind(form.opening) > said.rfind(form.closing)
    end = b"".join(map(text.token_bytes, prompt[-END_TOKENS:])).decode("utf-8", "replace")
    return form.begins_after(end)
