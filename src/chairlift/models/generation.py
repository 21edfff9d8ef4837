"""What the makers of a model recommend when a request says nothing: `generation_config.json`, or keys of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.models.fields import MAX_CONTEXT, MAX_SIZE, Fields
from chairlift.models.gguf import GGUF

_SAMPLING_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")


_GGUF_SAMPLING = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}


def gguf_sampling(gguf: GGUF) -> dict[str, float | int]:
    """Recommended sampling of a GGUF file, by the names of `SamplingParams`; few files have any.

    Raises:
        InvalidModel: a value of the wrong type or out of bounds.
    """
    sampling: dict[str, float | int] = {}
    for key, name in _GGUF_SAMPLING.items():
        if gguf.has(f"general.sampling.{key}"):
            sampling[name] = gguf.number(f"general.sampling.{key}")
    if gguf.has("general.sampling.top_k"):
        sampling["top_k"] = gguf.integer("general.sampling.top_k")
    try:
        SamplingParams(**sampling)  # type: ignore[arg-type]
    except InvalidRequest as error:
        raise gguf.error(f"general.sampling: {error}") from error
    return sampling


def generation_defaults(values: Mapping[str, Any], where: str) -> tuple[tuple[int, ...], dict[str, float | int]]:
    """End-of-sequence ids and recommended sampling of a `generation_config.json`.

    Sampling is keyed by the names of `SamplingParams`; a checkpoint that says `do_sample: false` recommends
    nothing, since its other values are then unused.

    Raises:
        InvalidModel: a field of the wrong type or out of bounds.
    """
    fields = Fields(values, where)
    sampling: dict[str, float | int] = {}
    if fields.flag("do_sample", True):
        for key in _SAMPLING_NUMBERS:
            if fields.get(key) is not None:
                sampling[key] = fields.number(key, 0.0, 100.0)
        if fields.get("top_k") is not None:
            sampling["top_k"] = fields.integer("top_k", -1, MAX_SIZE)
    if fields.get("max_new_tokens") is not None:
        sampling["max_tokens"] = fields.integer("max_new_tokens", 1, MAX_CONTEXT)
    try:
        SamplingParams(**sampling)  # type: ignore[arg-type]
    except InvalidRequest as error:  # every request that says nothing itself would be refused
        raise fields.error(str(error)) from error
    return fields.token_ids("eos_token_id"), sampling
