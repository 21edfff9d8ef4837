"""The messages of Anthropic's API as those of a chat.

What a message says in pieces is one text: whoever cut it left the white space in, and citations cut within sentences.
Messages in a row of one role are one turn, since templates want the roles to take turns; a blank line stands where one
ended. What a tool gave back is a message of its own in a chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.server.anthropic.body import Block, Said
from chairlift.server.errors import ApiError, bad_request, unsupported
from chairlift.server.json_body import field_of
from chairlift.server.protocol import FunctionCall, Message, ToolCall
from chairlift.text.messages import MAX_MESSAGES

ROLES = ("user", "assistant", "system")
BETWEEN = "\n\n"
"""Messages that become one."""


def chat_messages(system: str | list[Block] | None, messages: Sequence[Said] | None) -> list[Message]:
    """The messages of a chat that say the same.

    Raises:
        ApiError: 400, naming the piece that cannot be said.
    """
    if not messages:
        raise bad_request("messages must not be empty", "messages")
    if len(messages) > MAX_MESSAGES:
        raise bad_request(f"messages must hold at most {MAX_MESSAGES} messages", "messages")
    turns = _Turns()
    if text := _text(system, "system"):
        turns.of("system").say(text)
    for index, said in enumerate(messages):
        place = f"messages[{index}]"
        if said.role not in ROLES:
            raise bad_request(f"{place}.role must be one of {', '.join(ROLES)}", "messages")
        turns.of(said.role).begin()
        blocks = [Block("text", said.content)] if isinstance(said.content, str) else said.content
        for number, block in enumerate(blocks):
            _take(block, said.role, turns, f"{place}.content[{number}]")
    return [turn.message() for turn in turns.all if not turn.is_void]


@dataclass(slots=True)
class _Turn:
    """What one side says before another one speaks."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None
    """Of what a tool gave back."""
    is_void: bool = False
    """There is another turn for what it would say."""

    def begin(self) -> None:
        """A message begins, perhaps after another one."""
        for texts in (self.texts, self.thoughts):
            if texts and texts[-1] != BETWEEN:
                texts.append(BETWEEN)

    def say(self, text: str) -> None:
        """Go on."""
        if text:
            self.texts.append(text)

    def message(self) -> Message:
        """All of it."""
        return Message(
            role=self.role,
            content=_whole(self.texts),
            reasoning=_whole(self.thoughts) or None,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )


class _Turns:
    """The turns so far."""

    def __init__(self) -> None:
        self.all: list[_Turn] = []

    def of(self, role: str) -> _Turn:
        """The turn in which `role` goes on."""
        if not self.all or self.all[-1].role != role:
            self.all.append(_Turn(role))
        return self.all[-1]

    def give_back(self, call_id: str, text: str) -> None:
        """What a tool gave back; a user who says nothing before it needs no turn."""
        last = self.all[-1]
        last.is_void = last.role == "user" and not last.texts
        self.all.append(_Turn("tool", [text], call_id=call_id))


def _take(block: Block, role: str, turns: _Turns, place: str) -> None:
    if block.type == "text":
        turns.of(role).say(_text_of(block, place))
    elif block.type == "tool_result" and role == "user":
        if not block.tool_use_id:
            raise bad_request(f"{place}.tool_use_id must be given", "messages")
        turns.give_back(block.tool_use_id, _text(block.content, f"{place}.content"))
    elif block.type == "tool_use" and role == "assistant":
        if not block.name or not block.id:
            raise bad_request(f"{place}: id and name must be given", "messages")
        call = FunctionCall(name=block.name, arguments=block.input or {})
        turns.of(role).calls.append(ToolCall(function=call, id=block.id, type="function"))
    elif block.type == "thinking" and role == "assistant":
        turns.of(role).thoughts.append(block.thinking or "")
    else:
        raise _not_here(block, place, "messages")


def _text(content: str | list[Block] | None, place: str) -> str:
    """Of what may be text only."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_text_of(block, f"{place}[{index}]") for index, block in enumerate(content))


def _text_of(block: Block, place: str) -> str:
    if block.type != "text":
        raise _not_here(block, place, field_of(place))
    if block.text is None:
        raise bad_request(f"{place}.text must be given", field_of(place))
    return block.text


def _not_here(block: Block, place: str, field: str) -> ApiError:
    return unsupported(f"{place}: a block of type {block.type[:64]} is not supported here by this server", field)


def _whole(texts: list[str]) -> str:
    if texts and texts[-1] == BETWEEN:
        texts = texts[:-1]
    return "".join(texts)
