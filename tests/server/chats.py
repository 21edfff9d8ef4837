"""Chats put together from their events, as a client does it."""

from __future__ import annotations

from typing import Any


def streamed_choice(events: list[Any], index: int = 0) -> dict[str, Any]:
    """A choice of a streamed chat in the shape of a whole one, without `index`, and with the same checks as clients."""
    message: dict[str, Any] = {"role": None, "content": ""}
    calls: list[dict[str, Any]] = []
    logprobs: list[Any] = []
    token_ids: list[int] = []
    ends: list[tuple[str, Any]] = []
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            if choice["index"] != index:
                continue
            assert not ends, "something follows the end of a choice"
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            message["content"] += delta.get("content") or ""
            for name in ("reasoning", "reasoning_content"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls") or ():
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": piece["type"], "function": dict(piece["function"])})
                    assert piece["function"]["name"]
                else:
                    assert piece["index"] == len(calls) - 1
                    assert set(piece) == {"index", "function"}
                    assert set(piece["function"]) == {"arguments"}
                    calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
            logprobs += (choice["logprobs"] or {}).get("content", [])
            token_ids += choice.get("token_ids", [])
            if choice["finish_reason"] is not None:
                ends.append((choice["finish_reason"], choice["stop_reason"]))
    ((finish_reason, stop_reason),) = ends
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return {
        "message": message,
        "logprobs": {"content": logprobs} if logprobs else None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    } | ({"token_ids": token_ids} if token_ids else {})


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice in which calls have no ids: those are random."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "id"} for call in message["tool_calls"]]
    return {name: value for name, value in choice.items() if name != "index"} | {"message": message}
