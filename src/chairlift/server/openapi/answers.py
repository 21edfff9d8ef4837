"""What responses hold, as types for the OpenAPI document; tests hold every kind of response to them.

Responses are written as dictionaries or as bytes, where they are made. A key that is not always there is NotRequired.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

Id = Annotated[str, Meta(description="Holds the request's id, which `X-Request-Id` or `request_id` may have given.")]
Created = Annotated[int, Meta(description="In seconds since 1970.")]


class CachedTokens(TypedDict):
    cached_tokens: Annotated[int, Meta(ge=0, description="Of the prompt, found in the prefix cache.")]


class ReasoningTokens(TypedDict):
    reasoning_tokens: Annotated[int, Meta(ge=0)]


class UsageTold(TypedDict):
    """Tokens of one request; a prompt counts once however many answers it got."""

    prompt_tokens: Annotated[int, Meta(ge=0)]
    completion_tokens: Annotated[int, Meta(ge=0)]
    total_tokens: Annotated[int, Meta(ge=0)]
    prompt_tokens_details: CachedTokens
    completion_tokens_details: NotRequired[ReasoningTokens]


class TimingsTold(TypedDict, total=False):
    """How long the request took, with `--enable-per-request-metrics`."""

    time_to_first_token_ms: float
    generation_time_ms: float
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


class Explained(TypedDict):
    """What was decided about one answer, where `explain` asked for it."""

    index: int
    sentence: str
    decisions: dict[str, Any]


class PromptScore(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


PromptScores = list[dict[str, PromptScore] | None]
"""For each token of the prompt the scores by token id."""


class FunctionCalled(TypedDict, total=False):
    name: str
    arguments: Annotated[str, Meta(description="JSON as text; in a stream a piece of it.")]


class CallTold(TypedDict, total=False):
    """In a stream, `id`, `type` and the name come once; then pieces of the arguments under the same index."""

    index: int
    id: str
    type: Literal["function"]
    function: FunctionCalled


class TokenAlternative(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenScore(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatScores(TypedDict):
    content: list[TokenScore]


class CompletionScores(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReasonTold = Literal["stop", "length", "tool_calls"]
StopReason = Annotated[int | str | None, Meta(description="The stop string or stop token that ended the answer.")]


class MessageTold(TypedDict):
    role: Literal["assistant"]
    content: str | None
    tool_calls: NotRequired[list[CallTold]]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[Annotated[str, Meta(description="The same as `reasoning`.")]]


class ChatChoice(TypedDict):
    index: int
    message: MessageTold
    logprobs: ChatScores | None
    finish_reason: FinishReasonTold
    stop_reason: StopReason
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """A whole answer to a chat."""

    id: Id
    object: Literal["chat.completion"]
    created: Created
    model: str
    choices: list[ChatChoice]
    usage: UsageTold
    service_tier: NotRequired[str]
    prompt_logprobs: NotRequired[PromptScores]
    prompt_token_ids: NotRequired[list[int]]
    metrics: NotRequired[TimingsTold]
    explanation: NotRequired[list[Explained]]


class DeltaTold(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    tool_calls: list[CallTold]
    reasoning: str
    reasoning_content: str


class ChatChunkChoice(TypedDict):
    index: int
    delta: DeltaTold
    logprobs: ChatScores | None
    finish_reason: FinishReasonTold | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[list[int]]


class ChatChunk(TypedDict):
    """An event of a streamed chat."""

    id: Id
    object: Literal["chat.completion.chunk"]
    created: Created
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageTold | None]
    service_tier: NotRequired[str]
    prompt_token_ids: NotRequired[list[int]]
    metrics: NotRequired[TimingsTold]
    explanation: NotRequired[list[Explained]]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionScores | None
    finish_reason: FinishReasonTold
    stop_reason: StopReason
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptScores]


class Completion(TypedDict):
    """A whole answer to a completion."""

    id: Id
    object: Literal["text_completion"]
    created: Created
    model: str
    choices: list[CompletionChoice]
    usage: UsageTold
    service_tier: NotRequired[str]
    metrics: NotRequired[TimingsTold]
    explanation: NotRequired[list[Explained]]


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionScores | None
    finish_reason: FinishReasonTold | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunk(TypedDict):
    """An event of a streamed completion."""

    id: Id
    object: Literal["text_completion"]
    created: Created
    model: str
    choices: list[CompletionChunkChoice]
    usage: NotRequired[UsageTold | None]
    service_tier: NotRequired[str]
    metrics: NotRequired[TimingsTold]
    explanation: NotRequired[list[Explained]]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: Created
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class VersionTold(TypedDict):
    version: str


class StatusTold(TypedDict):
    status: str
