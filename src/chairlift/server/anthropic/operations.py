"""What the routes of messages take and give, as the OpenAPI document tells it."""

from __future__ import annotations

from chairlift.server.anthropic.body import HARMLESS_IN_MESSAGES, CountBody, MessagesBody
from chairlift.server.anthropic.told import AnthropicError, CountAnswer, MessageAnswer, MessageEvent
from chairlift.server.route import OF_ENGINE, Operation

_TAG = "Text"

MESSAGES = Operation(
    about="The next message of a conversation in the way of Anthropic's API, as a whole or streamed.",
    tag=_TAG,
    body=MessagesBody,
    unsupported=HARMLESS_IN_MESSAGES,
    answer=MessageAnswer,
    events=MessageEvent,
    error=AnthropicError,
    statuses=OF_ENGINE,
)
COUNT = Operation(
    about="How many tokens a conversation has in the way of Anthropic's API.",
    tag=_TAG,
    body=CountBody,
    unsupported=HARMLESS_IN_MESSAGES,
    answer=CountAnswer,
    error=AnthropicError,
    statuses=(404, 429),
)
