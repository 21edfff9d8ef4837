"""Which way of writing calls a model was trained on, from its chat template."""

from __future__ import annotations

from chairlift.text.chat import ChatTemplate
from chairlift.text.harmony import CHANNEL
from chairlift.text.tools import GENERIC, ToolFormat
from chairlift.text.tools.harmony import HARMONY_CALLS
from chairlift.text.tools.hermes import HERMES, OPENING
from chairlift.text.tools.llama3 import LLAMA3
from chairlift.text.tools.llama3 import TAG as LLAMA3_TAG
from chairlift.text.tools.mistral import MISTRAL
from chairlift.text.tools.mistral import TAG as MISTRAL_TAG

OTHERS = ("<function=", "<arg_key>", "tool▁call")
"""What templates of models hold that write calls in ways not read here."""


def tool_format_of(template: ChatTemplate | None) -> ToolFormat | None:
    """The format that a template speaks of; None if it has no place for tools, or an unknown one."""
    if template is None or "tools" not in template.variables:
        return None
    source = template.tool_source
    if any(text in source for text in OTHERS):
        return None
    for text, form in ((MISTRAL_TAG, MISTRAL), (LLAMA3_TAG, LLAMA3), (CHANNEL, HARMONY_CALLS), (OPENING, HERMES)):
        if text in source:
            return form
    return GENERIC
