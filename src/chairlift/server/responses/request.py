"""From a body of the Responses API to the question that a chat would ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chairlift.server import validate
from chairlift.server.common_fields import CommonFields
from chairlift.server.dialect import Question, renaming
from chairlift.server.errors import ApiError, bad_request, unsupported
from chairlift.server.fields import MAX_INT, check_range, refuse_unsupported
from chairlift.server.json_body import convert
from chairlift.server.ports import ServedText
from chairlift.server.protocol import ChatBody, Function, StreamOptions, Tool
from chairlift.server.responses.body import (
    HARMLESS_IN_RESPONSES,
    INCLUDABLE,
    LOGPROBS,
    ReasoningOptions,
    ResponsesBody,
    ResponseTool,
    TextOptions,
)
from chairlift.server.responses.conversation import MAX_KIND_CHARS, chat_messages, refuse_other_items
from chairlift.server.responses.telling import Responses
from chairlift.server.structured import JsonSchemaFormat, ResponseFormat

_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What is called otherwise in chats."""


def read_response(content: dict[str, Any], text: ServedText) -> Question:
    """A body of /v1/responses."""
    refuse_unsupported(content, HARMLESS_IN_RESPONSES)
    refuse_other_items(content)
    body = convert(content, ResponsesBody)
    chat = _chat_body(body)
    with renaming(_NAMES):
        asked = validate.asked_chat(chat, text.sampling_defaults, text.manners)
    asked = replace(asked, show=replace(asked.show, repeats_answer=True))
    told = _told_back(body, asked)
    return Question(asked, lambda heading: Responses(heading, told), _NAMES)


def _chat_body(body: ResponsesBody) -> ChatBody:
    options = body.stream_options
    check_range("max_tool_calls", body.max_tool_calls, 1, MAX_INT)
    return ChatBody(
        **{name: getattr(body, name) for name in CommonFields.__struct_fields__},
        messages=chat_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=_wants_logprobs(body),
        top_logprobs=body.top_logprobs,
        tools=None if body.tools is None else [_chat_tool(tool, index) for index, tool in enumerate(body.tools)],
        tool_choice=_chat_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=_effort(body.reasoning or ReasoningOptions()),
        include_reasoning=body.include_reasoning,
        chat_template_kwargs=body.chat_template_kwargs,
        response_format=_chat_format(body.text or TextOptions()),
        structured_outputs=body.structured_outputs,
        stream_options=StreamOptions(
            include_usage=True, include_obfuscation=None if options is None else options.include_obfuscation
        )
        if body.stream or options is not None
        else None,
    )


def _wants_logprobs(body: ResponsesBody) -> bool:
    for one in body.include or ():
        if one not in INCLUDABLE:
            raise _unsupported(f"include: {one[:MAX_KIND_CHARS]!r}", "include")
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def _effort(options: ReasoningOptions) -> str | None:
    """Nobody sums thought up here: whoever leaves that to the server gets the thought itself."""
    for name in ("summary", "generate_summary"):
        if getattr(options, name) not in (None, "auto"):
            raise _unsupported(f"reasoning.{name} other than auto", f"reasoning.{name}")
    return options.effort


def _chat_format(options: TextOptions) -> ResponseFormat | None:
    if options.verbosity not in (None, "medium"):
        raise _unsupported("text.verbosity other than medium", "text.verbosity")
    form = options.format
    if form is None:
        return None
    schema = JsonSchemaFormat(name=form.name, description=form.description, schema=form.schema, strict=form.strict)
    return ResponseFormat(type=form.type, json_schema=schema if form.type == "json_schema" else None)


def _chat_tool(tool: ResponseTool, index: int) -> Tool:
    if tool.type != "function":
        raise _unsupported(f"tools[{index}]: tools of type {tool.type[:MAX_KIND_CHARS]!r}", "tools")
    if tool.name is None:
        raise bad_request(f"tools[{index}].name must not be empty", "tools")
    return Tool("function", Function(tool.name, tool.description, tool.parameters, tool.strict))


def _chat_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return _named(choice)
    if kind == "allowed_tools":
        tools = choice.get("tools")
        listed = [_named(tool) for tool in tools] if isinstance(tools, list) else None
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": listed}}
    raise _unsupported(f"tool_choice: type {str(kind)[:MAX_KIND_CHARS]!r}", "tool_choice")


def _named(choice: object) -> dict[str, Any]:
    """A function as chats name it."""
    if not isinstance(choice, dict) or choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise bad_request('tool_choice must name functions like {"type": "function", "name": "..."}', "tool_choice")
    return {"type": "function", "function": {"name": choice["name"]}}


def _told_back(body: ResponsesBody, asked: validate.Validated) -> dict[str, Any]:
    """What a response repeats of its request, with the values that are in force."""
    form = None if body.text is None else body.text.format
    reasoning = body.reasoning or ReasoningOptions()
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": asked.show.service_tier or "default",
        "store": False,
        "temperature": asked.params.temperature,
        "text": {"format": _told_format(form), "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": asked.params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _told_format(form: Any) -> dict[str, Any]:
    if form is None or form.type != "json_schema":
        return {"type": "text" if form is None else form.type}
    return {
        "type": form.type,
        "name": form.name or "",
        "description": form.description,
        "schema": form.schema,
        "strict": form.strict is not False,
    }


def _unsupported(what: str, param: str) -> ApiError:
    return unsupported(f"{what}: not supported by this server", param)
