"""The fields of a body that mean the same in every API that asks for answers."""

from __future__ import annotations

import msgspec


class CommonFields(msgspec.Struct, kw_only=True):
    """How an answer is made, for whom, and by when. Every field may be null, which means the same as leaving it out."""

    model: str | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    stream: bool | None = None
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    ttft_deadline_ms: float | None = None
    e2e_deadline_ms: float | None = None
    explain: bool | None = None
