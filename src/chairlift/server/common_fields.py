"""The fields of a body that mean the same in every API that asks for answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from chairlift.server.bounds import (
    AllowedTokens,
    CacheSalt,
    DeadlineMs,
    LogitBias,
    Metadata,
    MinP,
    MinTokens,
    Penalty,
    Priority,
    RepetitionPenalty,
    RequestId,
    Seed,
    ServiceTier,
    Stops,
    StopTokens,
    Temperature,
    TopK,
    TopP,
    Truncation,
    UserName,
    tells,
)  # fmt: skip


class CommonFields(msgspec.Struct, kw_only=True):
    """How an answer is made, for whom, and by when. Every field may be null, which means the same as leaving it out."""

    model: str | None = None
    min_tokens: MinTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: AllowedTokens | None = None
    stop: Stops | None = None
    stop_token_ids: StopTokens | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    stream: bool | None = None
    service_tier: ServiceTier | None = None
    metadata: Metadata | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    cache_salt: CacheSalt | None = None
    user: UserName | None = None
    safety_identifier: UserName | None = None
    ttft_deadline_ms: DeadlineMs | None = None
    e2e_deadline_ms: DeadlineMs | None = None
    explain: Annotated[bool, tells("Say what was decided about each answer.")] | None = None
