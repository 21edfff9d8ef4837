"""What responses of single passes over texts hold, as types for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from chairlift.server.openapi.answers import Created, Id


class PassUsage(TypedDict):
    prompt_tokens: Annotated[int, Meta(ge=0)]
    total_tokens: Annotated[int, Meta(ge=0)]


class ItemError(TypedDict):
    """What was wrong with one item, with `partial`."""

    message: str
    type: str
    param: str | None
    code: str | None
    status: int
    estimated_wait_ms: NotRequired[int | None]
    explanation: NotRequired[list[dict[str, Any]]]


class Embedding(TypedDict):
    object: Literal["embedding", "error"]
    index: int
    embedding: NotRequired[Annotated[list[float] | str, Meta(description="As base64: float32 numbers, little-endian.")]]
    error: NotRequired[ItemError]


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PassUsage


class Classified(TypedDict):
    index: int
    label: NotRequired[str]
    probs: NotRequired[list[float]]
    num_classes: NotRequired[int]
    error: NotRequired[ItemError]


class Classification(TypedDict):
    id: Id
    created: Created
    object: Literal["list"]
    data: list[Classified]
    model: str
    usage: PassUsage


class DocumentTold(TypedDict):
    text: str


class RankedDocument(TypedDict):
    index: int
    relevance_score: NotRequired[float]
    error: NotRequired[ItemError]
    document: NotRequired[DocumentTold]


class Ranking(TypedDict):
    """With `documents`."""

    id: Id
    model: str
    results: list[RankedDocument]
    usage: PassUsage


class RankedText(TypedDict):
    """With `texts`."""

    index: int
    score: NotRequired[float]
    error: NotRequired[ItemError]
    text: NotRequired[str]


class Score(TypedDict):
    object: Literal["score"]
    index: int
    score: NotRequired[float]
    error: NotRequired[ItemError]


class ScoreList(TypedDict):
    id: Id
    object: Literal["list"]
    created: Created
    model: str
    data: list[Score]
    usage: PassUsage
