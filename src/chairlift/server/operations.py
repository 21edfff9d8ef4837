"""What routes take and give, as the OpenAPI document tells it: those that no module of their own has."""

from __future__ import annotations

from typing import Any

from chairlift.metrics.serving import CONTENT_TYPE
from chairlift.server.openapi.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ModelCard,
    ModelList,
    StatusTold,
    VersionTold,
)
from chairlift.server.protocol import HARMLESS_IN_CHATS, HARMLESS_IN_COMPLETIONS, ChatBody, CompletionBody
from chairlift.server.responses.body import HARMLESS_IN_RESPONSES, ResponsesBody
from chairlift.server.responses.told import ResponseEvent, ResponseTold
from chairlift.server.route import OF_ENGINE, Operation
from chairlift.server.shapes import LAST_WORD
from chairlift.server.tokenizing import (
    UNSUPPORTED_IN_TEXTS,
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)

_TEXT, _SERVER = "Text", "Server"

COMPLETIONS = Operation(
    about="Text that continues a prompt, as a whole or streamed.",
    tag=_TEXT,
    body=CompletionBody,
    unsupported=HARMLESS_IN_COMPLETIONS,
    answer=Completion,
    events=CompletionChunk,
    last_word=LAST_WORD,
    statuses=OF_ENGINE,
)
CHATS = Operation(
    about="The next message of a conversation, as a whole or streamed.",
    tag=_TEXT,
    body=ChatBody,
    unsupported=HARMLESS_IN_CHATS,
    answer=ChatCompletion,
    events=ChatChunk,
    last_word=LAST_WORD,
    statuses=OF_ENGINE,
)
TOKENIZE = Operation(
    about="The tokens of a text or of a chat, without an answer.",
    tag=_TEXT,
    body=TokenizeBody,
    unsupported=UNSUPPORTED_IN_TEXTS,
    answer=TokenizeAnswer,
    statuses=(404, 429),
)
DETOKENIZE = Operation(
    about="The text of tokens.", tag=_TEXT, body=DetokenizeBody, answer=DetokenizeAnswer, statuses=(404, 429)
)
RESPONSES = Operation(
    about="What follows a conversation of items: thought, text and calls, as a whole or as typed events.",
    tag=_TEXT,
    body=ResponsesBody,
    unsupported=HARMLESS_IN_RESPONSES,
    answer=ResponseTold,
    events=ResponseEvent,
    statuses=OF_ENGINE,
)
MODELS = Operation(about="Names that requests may use.", tag=_SERVER, answer=ModelList)
MODEL = Operation(about="What a name stands for.", tag=_SERVER, answer=ModelCard)
VERSION = Operation(about="The version of the server.", tag=_SERVER, answer=VersionTold)
METRICS = Operation(about="Metrics for Prometheus.", tag=_SERVER, answer_media=CONTENT_TYPE)
HEALTH = Operation(about="Whether the engine lives and makes progress.", tag=_SERVER, answer=StatusTold)
READY = Operation(about="Whether requests are taken.", tag=_SERVER, answer=StatusTold)
OPENAPI = Operation(about="This document.", tag=_SERVER, answer=dict[str, Any])
