"""How tokens are to be sampled, out of the fields in which every API that asks for answers says so."""

from __future__ import annotations

from collections.abc import Mapping

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import SamplingParams
from chairlift.server.bounds import MAX_STOP_CHARS, MAX_STOPS, MAX_TOKEN_LIST
from chairlift.server.errors import bad_request, from_invalid
from chairlift.server.fields import MAX_INT, check_range, given
from chairlift.server.protocol import SamplingFields

Defaults = Mapping[str, float | int]
"""What the model's makers recommend where a request says nothing, by the names of `SamplingParams`."""


def sampling_params(
    body: SamplingFields,
    defaults: Defaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    form: StructuredOutputs | None,
) -> SamplingParams:
    """How a body wants its tokens sampled.

    Raises:
        ApiError: 400, naming the field.
    """
    _check_list("stop_token_ids", body.stop_token_ids)
    _check_list("logit_bias", body.logit_bias)
    check_range("top_k", body.top_k, -1, MAX_INT)
    check_range("min_tokens", body.min_tokens, 0, MAX_INT)
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=given(body.min_tokens, 0),
            temperature=given(body.temperature, defaults.get("temperature", 1.0)),
            top_k=given(body.top_k, int(defaults.get("top_k", 0))),
            top_p=given(body.top_p, defaults.get("top_p", 1.0)),
            min_p=given(body.min_p, defaults.get("min_p", 0.0)),
            seed=body.seed,
            repetition_penalty=given(body.repetition_penalty, defaults.get("repetition_penalty", 1.0)),
            presence_penalty=given(body.presence_penalty, 0.0),
            frequency_penalty=given(body.frequency_penalty, 0.0),
            logit_bias=tuple((_token_id(key), bias) for key, bias in (body.logit_bias or {}).items()),
            allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            stop=_stops(body.stop),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            ignore_eos=bool(body.ignore_eos),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=form,
        )
    except InvalidRequest as error:
        raise from_invalid(error) from None


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise bad_request(f"at most {MAX_STOPS} stop strings are allowed", "stop")
    if any(len(text) > MAX_STOP_CHARS for text in stops):
        raise bad_request(f"a stop string may have at most {MAX_STOP_CHARS} characters", "stop")
    return stops


def _token_id(key: str) -> int:
    """A token id as JSON writes it when it is a key; one spelling per id, so that none comes twice."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10) or str(int(key)) != key:
        raise bad_request("logit_bias: keys must be token ids", "logit_bias")
    return int(key)


def _check_list(name: str, values: list[int] | dict[str, float] | None) -> None:
    if values is not None and len(values) > MAX_TOKEN_LIST:
        raise bad_request(f"{name} may have at most {MAX_TOKEN_LIST} entries", name)
