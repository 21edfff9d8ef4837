"""Telling a model in words what it can call, where its chat template has no place for that.

Calls and their results of earlier turns become text as well, in the form in which a model is asked to write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = (
    "You can call functions. To call one, answer with nothing but a JSON object: "
    '{"name": "...", "arguments": {...}}. To call several, answer with a JSON list of such objects. '
    "If no function helps, answer in words. These are the functions, one on each line:"
)


def told(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Messages of the roles that every template knows, which say the same."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    text = "\n".join([INTRODUCTION, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    if plain and plain[0]["role"] == "system":
        text = "\n\n".join(filter(None, (plain[0]["content"], text)))
        plain = plain[1:]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the function: {message['content']}"}
    if not message.get("tool_calls"):
        return dict(message)
    calls = [_call(call["function"]) for call in message["tool_calls"]]
    written = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
    return {"role": message["role"], "content": "\n".join(filter(None, (message.get("content"), written)))}


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments") or "{}"
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {spelled}}}'
