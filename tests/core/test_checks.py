"""What is refused before it is queued because it could only fail later."""

from __future__ import annotations

import pytest

from chairlift.core.checks import check_request
from chairlift.core.errors import InvalidRequest
from chairlift.core.types import Request, SamplingParams

VOCAB = 8
EOS = 2


def check(**fields: object) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    request = Request(0, [1, 3], params, eos_token_ids=(EOS,))
    check_request(request, max_model_len=64, max_num_seqs=4, vocab_size=VOCAB)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 1, "allowed_token_ids": (EOS,)},
        {"min_tokens": 1, "allowed_token_ids": (EOS, 5), "stop_token_ids": (5, 6)},
        {"min_tokens": 1, "allowed_token_ids": (EOS,), "ignore_eos": True},
        {"min_tokens": 1, "stop_token_ids": tuple(range(VOCAB))},
        {"min_tokens": 1, "stop_token_ids": tuple(token for token in range(VOCAB) if token != EOS)},
    ],
)
def test_a_minimum_length_that_no_token_may_fill(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="min_tokens") as error:
        check(**fields)
    assert error.value.param == "min_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": (EOS,)},
        {"stop_token_ids": tuple(range(VOCAB))},
        {"min_tokens": 1, "allowed_token_ids": (EOS, 5)},
        {"min_tokens": 1, "stop_token_ids": tuple(range(VOCAB - 1))},
    ],
)
def test_one_token_left_is_enough(fields: dict[str, object]) -> None:
    check(**fields)


@pytest.mark.parametrize("penalty", [0.0, 1e-300, 1e-45, 0.0099, 100.1, float("nan")])
def test_a_penalty_that_float32_cannot_divide_by_is_refused(penalty: float) -> None:
    with pytest.raises(InvalidRequest, match="repetition_penalty"):
        SamplingParams(repetition_penalty=penalty)


def test_the_extreme_penalties() -> None:
    assert SamplingParams(repetition_penalty=0.01).repetition_penalty == 0.01
    assert SamplingParams(repetition_penalty=100).repetition_penalty == 100
