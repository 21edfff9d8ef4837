"""What a request changes in its logits before the draw: masks, bias, minimum length, penalties."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import Request

Ids = NDArray[np.int64]


class Patch:
    """The changes of one sequence, and the tokens that its penalties look at.

    Applied in the order allowed ids, bias, minimum length, repetition, frequency and presence. Repetition looks at
    prompt and output, the other two at the output only.

    Raises:
        InvalidRequest: an id outside the vocabulary in `allowed_token_ids` or `logit_bias`.

    Source: the order and the scopes are vLLM's; repetition is that of Keskar et al. 2019, arXiv:1909.05858.
    """

    def __init__(self, request: Request, tokens: list[int], vocab_size: int) -> None:
        params = request.params
        self._allowed = None
        if params.allowed_token_ids is not None:
            self._allowed = _checked_ids("allowed_token_ids", set(params.allowed_token_ids), vocab_size)
        bias: defaultdict[int, float] = defaultdict(float)
        for token, value in params.logit_bias:
            bias[token] += value
        self._bias_ids = _checked_ids("logit_bias", set(bias), vocab_size)
        self._bias = np.array([bias[token] for token in self._bias_ids.tolist()], np.float32)
        self._min_tokens = params.min_tokens
        ends = {*request.eos_token_ids, *params.stop_token_ids}
        self._ends = np.array(sorted(t for t in ends if 0 <= t < vocab_size), np.int64)
        self._penalties = None
        if params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
            self._penalties = _Penalties(request, tokens)

    def lasts(self, num_output: int) -> bool:
        """Whether anything is left to change for a sequence that has `num_output` tokens of output."""
        return (
            self._penalties is not None
            or self._allowed is not None
            or len(self._bias_ids) > 0
            or (num_output < self._min_tokens and len(self._ends) > 0)
        )

    def apply(self, row: NDArray[np.float32], num_output: int) -> None:
        """Change a row in place.

        Shapes:
            row  [vocab]
        """
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill(-np.inf)
            row[self._allowed] = kept
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if num_output < self._min_tokens:
            row[self._ends] = -np.inf
        if self._penalties is not None:
            self._penalties.apply(row)

    def push(self, token: int) -> None:
        """Take note of a sampled token."""
        if self._penalties is not None:
            self._penalties.push(token)


class _Penalties:
    """Distinct tokens of a sequence in order of appearance, with how often each was generated."""

    def __init__(self, request: Request, tokens: list[int]) -> None:
        params = request.params
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        num_prompt = len(request.prompt)
        self._place: dict[int, int] = {}
        if params.repetition_penalty != 1.0:
            self._place = {token: i for i, token in enumerate(dict.fromkeys(tokens[:num_prompt]))}
        self._num = len(self._place)
        self._ids = np.fromiter(self._place, np.int64, self._num)
        self._counts = np.zeros(self._num, np.float32)
        for token in tokens[num_prompt:]:
            self.push(token)

    def push(self, token: int) -> None:
        place = self._place.setdefault(token, self._num)
        if place == self._num:
            if self._num == len(self._ids):
                room = np.zeros(max(16, self._num), np.int64)
                self._ids = np.concatenate([self._ids, room])
                self._counts = np.concatenate([self._counts, room.astype(np.float32)])
            self._ids[place] = token
            self._num += 1
        self._counts[place] += 1

    def apply(self, row: NDArray[np.float32]) -> None:
        ids, counts = self._ids[: self._num], self._counts[: self._num]
        scores = row[ids]
        if self._repetition != 1.0:
            scores = np.where(scores > 0, scores / self._repetition, scores * self._repetition)
        scores -= self._frequency * counts
        scores -= self._presence * (counts > 0)
        row[ids] = scores


def _checked_ids(name: str, tokens: set[int], vocab_size: int) -> Ids:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{name} has token {token}, outside the vocabulary of {vocab_size}", name)
    return np.array(sorted(tokens), np.int64)
