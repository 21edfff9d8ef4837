"""Sampling parameters as people write them: kept in one form, or refused before they reach the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams


def made(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": None}, {"stop": ()}),
        ({"stop_token_ids": [5, 6]}, {"stop_token_ids": (5, 6)}),
        ({"stop_token_ids": None}, {"stop_token_ids": ()}),
        ({"stop_token_ids": np.array([5, 6])}, {"stop_token_ids": (5, 6)}),
        ({"allowed_token_ids": range(3)}, {"allowed_token_ids": (0, 1, 2)}),
        ({"logit_bias": {5: 1, 6: -2.5}}, {"logit_bias": ((5, 1.0), (6, -2.5))}),
        ({"logit_bias": [(5, 1)]}, {"logit_bias": ((5, 1.0),)}),
        ({"logit_bias": None}, {"logit_bias": ()}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": np.float32(0.5)}, {"temperature": 0.5}),
        ({"max_tokens": np.int64(3)}, {"max_tokens": 3}),
        ({"top_k": np.int32(-1), "seed": np.uint8(7)}, {"top_k": -1, "seed": 7}),
    ],
)
def test_other_forms_of_the_same(given: dict[str, Any], kept: dict[str, Any]) -> None:
    params = made(**given)
    assert params == made(**kept)
    for name, value in kept.items():
        assert type(getattr(params, name)) is type(value)
    hash(params)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": b"x"},
        {"stop": [b"x"]},
        {"stop": ["a", ""]},
        {"stop": ""},
        {"stop": 5},
        {"stop": {"a": 1}},
        {"stop_token_ids": "12"},
        {"stop_token_ids": ["1"]},
        {"stop_token_ids": [1.0]},
        {"stop_token_ids": [True]},
        {"stop_token_ids": 5},
        {"allowed_token_ids": []},
        {"allowed_token_ids": "ab"},
        {"allowed_token_ids": {1: 2}},
        {"logit_bias": {"1": 1.0}},
        {"logit_bias": {1: "x"}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: 100.5}},
        {"logit_bias": {1: True}},
        {"logit_bias": [1, 2]},
        {"logit_bias": [(1, 2, 3)]},
        {"logit_bias": 3},
        {"ignore_eos": "no"},
        {"include_stop_str_in_output": 1},
        {"temperature": "0"},
        {"temperature": True},
        {"temperature": np.float32("nan")},
        {"max_tokens": 2.0},
        {"max_tokens": True},
        {"min_tokens": None},
        {"logprobs": "5"},
    ],
)
def test_what_is_no_form_of_it_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InvalidRequest, match=name.removesuffix("s")) as error:
        made(**fields)
    assert error.value.param == name
