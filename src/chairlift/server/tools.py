"""What a chat says of tools: which functions the model is told of, which it may call, and whether it must."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from chairlift.core.structured import StructuredOutputs
from chairlift.server.bounds import FUNCTION_NAME, MAX_TOOLS
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.ports import ChatManners
from chairlift.server.protocol import ChatBody, Function, Tool
from chairlift.server.tool_grammar import forced_calls
from chairlift.text.tools import GENERIC, ToolFormat, ToolReader

_NAME = re.compile(FUNCTION_NAME)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, of which there is at least one."""

    told: list[dict[str, Any]]
    """As a chat template takes them."""
    functions: tuple[Function, ...]
    """What may be called."""
    form: ToolFormat
    """How calls are written."""
    has_short_ids: bool
    max_calls: int | None
    must_call: bool

    def reader(self) -> ToolReader:
        """For one answer."""
        return ToolReader(self.form, (function.name for function in self.functions), self.max_calls)

    def answer_form(self, form: StructuredOutputs | None, field: str) -> StructuredOutputs | None:
        """The form of an answer that is to be of `form` if it calls nothing; `field` is what asked for that.

        Raises:
            ApiError: 400.
        """
        if self.must_call:
            if form is not None:
                raise bad_request(f"{field} and a tool_choice that forces calls exclude each other", field)
            return forced_calls(self.form, self.functions, self.max_calls)
        if form is None:
            return None
        if self.form.spelling is None or self.form.spelling.is_bare:
            raise unsupported(f"{field} with tools is not supported with this model, unless tool_choice is none", field)
        return replace(form, alternative=forced_calls(self.form, self.functions, self.max_calls).grammar)


def tool_use(body: ChatBody, manners: ChatManners) -> ToolUse | None:
    """What a body says of tools; None if the model is to know of none.

    Raises:
        ApiError: 400, naming the field.
    """
    tools, choice = body.tools or [], body.tool_choice or "auto"
    if not tools:
        if choice not in ("auto", "none"):
            raise bad_request("tool_choice needs tools", "tool_choice")
        return None
    functions = _functions(tools)
    mode, names = _chosen(choice, functions)
    form = manners.tool_format
    if mode == "none":
        return None
    if form is None:
        raise unsupported(
            "tools are not supported with this model: its chat template has no place for them that is known here. "
            "The server can be started with --tool-call-parser json, which tells any model of tools in words.",
            "tools",
        )
    if mode == "auto" and not manners.auto_tool_choice:
        raise unsupported("tool_choice auto is turned off: start with --enable-auto-tool-choice", "tool_choice")
    max_calls = 1 if body.parallel_tool_calls is False or mode == "named" else None
    return ToolUse(
        told=[_told(function) for function in functions.values()],
        functions=tuple(function for name, function in functions.items() if name in names),
        form=GENERIC if mode != "auto" and form.spelling is None else form,
        has_short_ids=form.short_ids,
        max_calls=max_calls,
        must_call=mode != "auto",
    )


def _functions(tools: Sequence[Tool]) -> dict[str, Function]:
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"at most {MAX_TOOLS} tools are allowed", "tools")
    functions: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        if tool.type != "function" or tool.function is None:
            raise unsupported(f"tools[{index}]: only tools of type function are supported", "tools")
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise bad_request(f"tools[{index}].function.name must have 1 to 128 letters, digits or ._:-", "tools")
        if name in functions:
            raise bad_request(f"tools[{index}].function.name comes twice", "tools")
        functions[name] = tool.function
    return functions


def _chosen(choice: str | Mapping[str, Any], functions: Mapping[str, Function]) -> tuple[str, frozenset[str]]:
    """Whether functions may be called (none, auto, required, named), and which."""
    if choice in ("none", "auto", "required"):
        return str(choice), frozenset(functions)
    if isinstance(choice, str):
        raise bad_request("tool_choice must be none, auto, required or an object", "tool_choice")
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
            raise bad_request("tool_choice: allowed_tools needs a mode and tools", "tool_choice")
        return str(mode), frozenset(_name_in(one, functions) for one in listed)
    return "named", frozenset((_name_in(choice, functions),))


def _name_in(choice: object, functions: Mapping[str, Function]) -> str:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_request('tool_choice must be like {"type": "function", "function": {"name": "..."}}', "tool_choice")
    if name not in functions:
        raise bad_request("tool_choice names a function that is not among the tools", "tool_choice")
    return name


def _told(function: Function) -> dict[str, Any]:
    """A tool as templates were written for: without `strict`, which is between the client and the server."""
    fields = {name: getattr(function, name) for name in ("name", "description", "parameters")}
    told = {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not None}
    return {"type": "function", "function": told}
