"""From the body of a chat to what is put to the model: its messages, its tools, and what its template may be told."""

from __future__ import annotations

from typing import Any

from chairlift.server.bounds import EFFORTS
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.messages import template_messages
from chairlift.server.ports import ChatManners, ChatPrompt
from chairlift.server.protocol import ChatBody
from chairlift.server.tools import ToolUse

SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Template arguments that clients send to any model; one that has no such switch needs none."""


def chat_prompt(body: ChatBody, tools: ToolUse | None, manners: ChatManners) -> ChatPrompt:
    """What a body wants to be put to the model.

    Raises:
        ApiError: 400, naming the field.
    """
    messages = template_messages(body.messages)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise bad_request("continue_final_message excludes add_generation_prompt", "continue_final_message")
    return ChatPrompt(
        messages=messages,
        tools=None if tools is None else tools.told,
        template_kwargs=_template_kwargs(body, manners),
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
    )


def _template_kwargs(body: ChatBody, manners: ChatManners) -> dict[str, Any]:
    """Only what the template reads: a name that it does not know would change nothing, and nobody would notice."""
    kwargs = dict(manners.template_kwargs)
    for name, value in (body.chat_template_kwargs or {}).items():
        if name in manners.template_variables:
            kwargs[name] = value
        elif name not in SWITCHES:
            message = f"chat_template_kwargs: {name[:64]} is not known to this model's chat template"
            raise unsupported(message, "chat_template_kwargs")
    return kwargs | _effort(body.reasoning_effort, manners)


def _effort(effort: str | None, manners: ChatManners) -> dict[str, Any]:
    if not effort:
        return {}
    if effort not in EFFORTS:
        raise bad_request(f"reasoning_effort must be one of {', '.join(EFFORTS)}", "reasoning_effort")
    if "reasoning_effort" in manners.template_variables:
        return {"reasoning_effort": effort}
    if effort == "none":
        return {name: False for name in SWITCHES if name in manners.template_variables}
    raise unsupported("reasoning_effort is not supported with this model", "reasoning_effort")
