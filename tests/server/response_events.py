"""Responses put together from their events, with every rule that clients may rely on."""

from __future__ import annotations

import json
from typing import Any

ENDS = ("response.completed", "response.incomplete", "response.failed")
TEXTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}
ARGUMENTS = "response.function_call_arguments"


def parsed(content: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each says what it is on both of its lines."""
    assert content.endswith(b"\n\n")
    events = []
    for block in content.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


class Stream:
    """Events in the order in which they must come."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events
        self._next = 0

    def next(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = self._events[self._next]
        assert event["type"] == kind, (event["type"], kind)
        assert event["sequence_number"] == self._next
        assert all(event[name] == value for name, value in fields.items()), (event, fields)
        self._next += 1
        return event

    def all(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        found = []
        while self.kind == kind:
            found.append(self.next(kind, **fields))
        return found

    @property
    def kind(self) -> str:
        return str(self._events[self._next]["type"]) if self._next < len(self._events) else ""


def response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a stream ends with, which is what its events say."""
    stream = Stream(events)
    first = stream.next("response.created")["response"]
    assert stream.next("response.in_progress")["response"] == first
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    items: list[dict[str, Any]] = []
    while stream.kind not in ENDS:
        items.append(_item(stream, len(items)))
    last: dict[str, Any] = stream.next(stream.kind)["response"]
    assert stream.kind == ""
    assert last["output"] == items
    ends = ("status", "output", "usage", "incomplete_details", "explanation", "metrics")
    assert {name: value for name, value in last.items() if name not in ends} == {
        name: value for name, value in first.items() if name not in ends
    }
    return last


def _item(stream: Stream, index: int) -> dict[str, Any]:
    item: dict[str, Any] = stream.next("response.output_item.added", output_index=index)["item"]
    assert item["status"] == "in_progress"
    place = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "function_call":
        told = _joined(stream.all(f"{ARGUMENTS}.delta", **place))
        assert stream.next(f"{ARGUMENTS}.done", **place)["arguments"] == told
        item = item | {"arguments": told}
    else:
        place["content_index"] = 0
        part = stream.next("response.content_part.added", **place)["part"]
        deltas = stream.all(f"{TEXTS[part['type']]}.delta", **place)
        part = part | {"text": _joined(deltas)}
        done = stream.next(f"{TEXTS[part['type']]}.done", **place)
        assert done["text"] == part["text"]
        if part["type"] == "output_text":
            part["logprobs"] = [entry for delta in deltas for entry in delta["logprobs"]]
            assert done["logprobs"] == part["logprobs"]
        assert stream.next("response.content_part.done", **place)["part"] == part
        item = item | {"content": [part]}
    whole: dict[str, Any] = stream.next("response.output_item.done", output_index=index)["item"]
    assert whole["status"] in ("completed", "incomplete")
    assert whole == item | {"status": whole["status"]}
    return whole


def _joined(deltas: list[dict[str, Any]]) -> str:
    assert all(delta["delta"] for delta in deltas)
    return "".join(delta["delta"] for delta in deltas)


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what is random."""
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return {k: v for k, v in response.items() if k not in ("id", "created_at")} | {"output": output}
