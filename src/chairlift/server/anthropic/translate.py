"""From the body of a message to that of the chat which asks for the same: what follows knows chats only."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from chairlift.server.anthropic.body import (
    HARMLESS_IN_MESSAGES,
    CountBody,
    MessagesBody,
    OutputConfig,
    Thinking,
    ToolChoice,
    ToolParam,
)
from chairlift.server.anthropic.conversation import chat_messages
from chairlift.server.chat_prompt import SWITCHES
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.fields import MAX_INT, check_range, refuse_unsupported
from chairlift.server.identity import MAX_TENANT_CHARS
from chairlift.server.json_body import convert
from chairlift.server.ports import ChatManners
from chairlift.server.protocol import ChatBody, Function, Tool
from chairlift.server.structured import JsonSchemaFormat, ResponseFormat

MAX_USER_CHARS = 1024
TIERS = {"auto": "auto", "standard_only": "default"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "continue_final_message": "messages",
}
"""What fields of a chat are called here."""


@dataclass(frozen=True, slots=True)
class _Thought:
    """What a body wants of the model's thought."""

    switches: dict[str, bool]
    """For the chat template."""
    is_shown: bool


def message_chat(content: dict[str, Any], manners: ChatManners) -> ChatBody:
    """The chat that asks for what a body of /v1/messages asks for.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse_unsupported(content, HARMLESS_IN_MESSAGES)
    body = convert(content, MessagesBody)
    if body.max_tokens is None:
        raise bad_request("max_tokens must be given", "max_tokens")
    check_range("max_tokens", body.max_tokens, 1, MAX_INT)
    if body.service_tier is not None and body.service_tier not in TIERS:
        raise bad_request(f"service_tier must be one of {', '.join(TIERS)}", "service_tier")
    chat = _prompt_chat(body, manners)
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.user = _user(body.metadata)
    chat.service_tier = None if body.service_tier is None else TIERS[body.service_tier]
    for name in _SAME:
        setattr(chat, name, getattr(body, name))
    return chat


_SAME = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "min_p", "priority", "cache_salt", "request_id",
    "ttft_deadline_ms", "e2e_deadline_ms",
)  # fmt: skip
"""Fields that mean the same in a chat."""


def counted_chat(content: dict[str, Any], manners: ChatManners) -> ChatBody:
    """The chat that a body of /v1/messages/count_tokens is about.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse_unsupported(content, HARMLESS_IN_MESSAGES)
    return _prompt_chat(convert(content, CountBody), manners)


def _prompt_chat(body: CountBody, manners: ChatManners) -> ChatBody:
    """The part that decides about the prompt."""
    messages = chat_messages(body.system, body.messages)
    thought = _thought(body, manners)
    choice = body.tool_choice
    continues = messages[-1].role == "assistant"
    return ChatBody(
        messages=messages,
        tools=None if not body.tools else [_tool(tool, i) for i, tool in enumerate(body.tools)],
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=None if choice is None or not choice.disable_parallel_tool_use else False,
        chat_template_kwargs=thought.switches | (body.chat_template_kwargs or {}),
        include_reasoning=thought.is_shown,
        reasoning_effort=_effort(body.output_config),
        response_format=_format(body.output_config),
        continue_final_message=continues,
    )


def _tool(tool: ToolParam, index: int) -> Tool:
    if tool.type not in (None, "custom"):
        message = f"tools[{index}]: a tool of type {tool.type[:64]} is not supported by this server"
        raise unsupported(message, "tools")
    if tool.input_schema is None:
        raise bad_request(f"tools[{index}].input_schema must be given", "tools")
    return Tool(
        type="function",
        function=Function(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        ),
    )


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in CHOICES:
        raise bad_request(f"tool_choice.type must be one of {', '.join((*CHOICES, 'tool'))}", "tool_choice")
    return CHOICES[choice.type]


def _thought(body: CountBody, manners: ChatManners) -> _Thought:
    """Who does not ask for thought does not expect any: then it is turned off, or left out where that cannot be."""
    asked, thinks = body.thinking, manners.reasoning_format is not None
    switches = SWITCHES & manners.template_variables if thinks else frozenset()
    if asked is None:
        is_set = switches & (manners.template_kwargs.keys() | (body.chat_template_kwargs or {}).keys())
        return _Thought({} if is_set else dict.fromkeys(switches, False), bool(is_set))
    if asked.type == "disabled":
        if thinks and not switches:
            raise unsupported("thinking: this model cannot be kept from it", "thinking")
        return _Thought(dict.fromkeys(switches, False), False)
    if asked.type not in ("enabled", "adaptive"):
        raise unsupported(f"thinking: type {asked.type[:64]} is not supported by this server", "thinking")
    if asked.type == "enabled":
        _check_budget(asked, body)
        if not thinks:
            raise unsupported("thinking is not supported with this model", "thinking")
    if asked.display not in (None, "summarized", "omitted"):
        raise bad_request("thinking.display must be summarized or omitted", "thinking")
    return _Thought(dict.fromkeys(switches, True), asked.display != "omitted")


def _check_budget(asked: Thinking, body: CountBody) -> None:
    """It is a wish, there as here; it must be one that can be met."""
    if asked.budget_tokens is None:
        raise bad_request("thinking.budget_tokens must be given", "thinking")
    most = (body.max_tokens or MAX_INT) - 1 if isinstance(body, MessagesBody) else MAX_INT
    if not 1 <= asked.budget_tokens <= most:
        raise bad_request("thinking.budget_tokens must be at least 1 and below max_tokens", "thinking")


def _effort(config: OutputConfig | None) -> str | None:
    """`high` is what is done without being asked."""
    if config is None or config.effort in (None, "high"):
        return None
    return {"max": "xhigh"}.get(config.effort, config.effort)


def _format(config: OutputConfig | None) -> ResponseFormat | None:
    form = None if config is None else config.format
    if form is None:
        return None
    if form.type != "json_schema" or form.schema is None:
        raise bad_request("output_config.format must be of type json_schema, with a schema", "output_config")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema, strict=True))


def _user(metadata: dict[str, Any] | None) -> str | None:
    """Whom the client asks for. Agents send names that are longer than tenants' may be; each stands for itself."""
    for name in metadata or ():
        if name != "user_id":
            raise unsupported(f"metadata: {name[:64]} is not supported by this server", "metadata")
    user = (metadata or {}).get("user_id")
    if user is None:
        return None
    if not isinstance(user, str) or len(user) > MAX_USER_CHARS:
        raise bad_request(f"metadata.user_id must be a text of at most {MAX_USER_CHARS} characters", "metadata")
    return user if len(user) <= MAX_TENANT_CHARS else sha256(user.encode()).hexdigest()
