"""Messages: how they are asked for, and the words in which they are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chairlift.server.anthropic.errors import error_body
from chairlift.server.anthropic.told import CountAnswer
from chairlift.server.anthropic.translate import NAMES, counted_chat, message_chat
from chairlift.server.anthropic.voice import EventVoice, TextEvents, WholeVoice, event, usage_told
from chairlift.server.asked import Asked
from chairlift.server.chat_prompt import chat_prompt
from chairlift.server.choices import CollectedChoice, OnEnd, StreamedChoice
from chairlift.server.dialect import Heading, Question, renaming
from chairlift.server.errors import ApiError
from chairlift.server.generate import Engine
from chairlift.server.listener import Choice
from chairlift.server.outlet import Outlet
from chairlift.server.ports import ServedText, TokenText
from chairlift.server.rich_choice import RichStreamedChoice
from chairlift.server.shapes import Usage, encode_json
from chairlift.server.tokenizing import counted_tokens
from chairlift.server.tools import tool_use
from chairlift.server.validate import asked_chat
from chairlift.text.answers import AnswerReader

PING = event("ping")


def read_message(content: dict[str, Any], text: ServedText) -> Question:
    """A body of /v1/messages."""
    chat = message_chat(content, text.manners)
    with renaming(NAMES):
        asked = asked_chat(chat, text.sampling_defaults, text.manners)
    return Question(asked, Messages, NAMES, PING)


def count_message(content: dict[str, Any], engine: Engine) -> CountAnswer:
    """A body of /v1/messages/count_tokens, answered."""
    manners = engine.text.manners
    chat = counted_chat(content, manners)
    with renaming(NAMES):
        prompt = chat_prompt(chat, tool_use(chat, manners), manners)
        return CountAnswer(input_tokens=len(counted_tokens(prompt, engine)))


class Messages:
    """The dialect of one message."""

    def __init__(self, heading: Heading) -> None:
        self.id = f"msg_{heading.label}"
        self.created = heading.created
        self._label = heading.label
        self._model = heading.model
        self._voice: EventVoice | TextEvents | None = None

    def streamed(
        self, asked: Asked, index: int, text: TokenText, outlet: Outlet, on_end: OnEnd, reader: AnswerReader | None
    ) -> Choice:
        """The only choice. What the cache gave is known at its end: the usage there is the one that counts."""
        opening = event("message_start", message=self._message([], {}, Usage(len(asked.prompt), 0, 0)))
        if asked.is_plain:
            self._voice = events = TextEvents(opening)
            return StreamedChoice(asked, events, index, text, outlet, on_end)
        self._voice = voice = EventVoice(asked, opening)
        return RichStreamedChoice(asked, text, outlet, on_end, voice, reader)

    def ending(self, usage: Usage, more: Mapping[str, Any]) -> bytes:
        """Why it ended, and that it did."""
        stop = {} if self._voice is None else self._voice.stop
        return event("message_delta", delta=stop, usage=usage_told(usage), **more) + event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """Never followed by what ends a whole message."""
        return b"event: error\ndata: %b\n\n" % error_body(error, self._label)

    def body(
        self, choices: Sequence[CollectedChoice], usage: Callable[[], Usage], more: Mapping[str, Any]
    ) -> tuple[bytes]:
        """The whole message."""
        (choice,) = choices
        voice = WholeVoice(choice.asked)
        choice.tell(voice)
        return (encode_json(self._message(voice.content(), voice.stop, usage()) | dict(more)),)

    def _message(self, content: list[dict[str, Any]], stop: Mapping[str, Any], usage: Usage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            **stop,
            "usage": usage_told(usage),
        }
