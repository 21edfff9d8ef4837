"""The sampler: state of every row from join to leave, and one exact draw per step for the whole batch."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import Request, SamplingParams, TokenLogprob
from chairlift.sampling.draw import Draw
from chairlift.sampling.logprobs import token_logprob
from chairlift.sampling.masks import ConstraintFactory, Masks
from chairlift.sampling.patch import Patch
from chairlift.sampling.randomness import seeded_stream, uniforms, unseeded_stream

GREEDY_BELOW = 1e-5
"""A temperature below this means the most likely token, as in vLLM: dividing by it would only overflow."""


@dataclass(slots=True)
class Sampled:
    """Tokens parallel to the slots that were sampled; -1 stands where `errors` has the slot."""

    tokens: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """What a slot's sequence asks beyond the most likely token. `refused` says why it can never be sampled."""

    params: SamplingParams
    patch: Patch | None
    refused: str | None


class Sampler:
    """Samples the rows of a batch, each as if it were alone.

    Most rows want the most likely token and nothing else: `_plain` marks them, and they cost one argmax together.
    The others are taken one by one, since each works on a row that fits in the nearest cache. A row's randomness is
    a function of its seed (or, without one, of `entropy` and its request's id), its choice and the number of tokens
    generated; the only state that a draw leaves is that number and the tokens which penalties count.

    A request with `structured_outputs` has a constraint, made by `constraints`: what it does not allow is masked before
    anything else, and a row that is left with nothing fails alone. `prepare` makes the masks of the next draw, which
    may be done while the logits are computed.

    `entropy` is fresh unless given: two samplers with equal entropy sample equal requests alike.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        *,
        entropy: bytes | None = None,
        constraints: ConstraintFactory | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._constraints = constraints
        self._masks = Masks(num_slots, vocab_size)
        self._entropy = secrets.token_bytes(32) if entropy is None else entropy
        self._plain = np.zeros(num_slots, np.bool_)
        self._num_output = np.zeros(num_slots, np.int64)
        self._key_low = np.zeros(num_slots, np.uint64)
        self._key_high = np.zeros(num_slots, np.uint64)
        self._rows: list[_Row | None] = [None] * num_slots
        self._draw = Draw(vocab_size)
        self._scratch = np.empty(vocab_size, np.float32)

    def join(self, slot: int, request: Request, choice: int, tokens: list[int]) -> None:
        """A sequence takes a slot. `tokens` are its prompt and what it generated before a preemption.

        A request that can never be sampled (an id outside the vocabulary) joins, and fails alone when sampled.
        """
        params = request.params
        patch, refused = None, None
        try:
            patch = Patch(request, tokens, self._vocab_size)
            if params.structured_outputs is not None:
                self._constrain(slot, request, tokens)
        except InvalidRequest as error:
            refused = str(error)
        self._num_output[slot] = len(tokens) - len(request.prompt)
        if patch is not None and not patch.lasts(int(self._num_output[slot])):
            patch = None
        if params.seed is None:
            stream = unseeded_stream(self._entropy, request.id, choice)
        else:
            stream = seeded_stream(params.seed, choice)
        self._key_low[slot], self._key_high[slot] = stream
        self._rows[slot] = _Row(params, patch, refused)
        self._plain[slot] = (
            params.temperature < GREEDY_BELOW and patch is None and refused is None and params.logprobs is None
        )

    def _constrain(self, slot: int, request: Request, tokens: list[int]) -> None:
        if self._constraints is None:
            raise InvalidRequest("structured outputs are not available here", "structured_outputs")
        self._masks.join(slot, self._constraints(request, tokens[len(request.prompt) :]))

    def leave(self, slot: int) -> None:
        """The sequence in a slot is gone."""
        self._rows[slot] = None
        self._plain[slot] = False
        self._masks.leave(slot)

    def prepare(self, slots: NDArray[np.integer] | list[int]) -> None:
        """Do now what the next `sample` of these slots can do without their logits."""
        if self._masks.has_rows:
            self._masks.prepare(np.asarray(slots).tolist())

    def sample(
        self,
        slots: NDArray[np.integer] | list[int],
        logits: NDArray[np.float32],
        logsumexp: NDArray[np.float32] | None,
    ) -> Sampled:
        """Sample one token for each slot; the logits are only read.

        A row whose logits hold NaN or +inf, or which has nothing left to sample, fails alone; -inf is legal.

        Shapes:
            slots      [rows]         distinct, each joined before
            logits     [rows, vocab]
            logsumexp  [rows]         of each row of logits, where the device computed it
        """
        slots = np.asarray(slots, np.int64)
        best = logits.argmax(axis=1)  # the first NaN, if there is one
        peaks = logits[np.arange(len(slots)), best]
        sampled = Sampled(best.tolist())
        finite = np.isfinite(peaks)
        plain = self._plain[slots] & finite
        masked = None
        if self._masks.has_rows:
            self.prepare(slots)
            masked = self._masks.rows[slots]
            plain &= ~masked | self._masks.allow(slots, best)
        special = (~plain).nonzero()[0]
        if len(special):
            chosen = slots[special]
            numbers = uniforms(self._key_low[chosen], self._key_high[chosen], self._num_output[chosen]).tolist()
            with np.errstate(over="ignore"):
                for i, uniform in zip(special.tolist(), numbers, strict=True):
                    lse = None if logsumexp is None else float(logsumexp[i])
                    self._sample_row(sampled, i, int(slots[i]), logits[i], float(peaks[i]), lse, uniform)
        if masked is not None:
            for i in masked.nonzero()[0].tolist():
                if sampled.tokens[i] >= 0:
                    self._masks.push(int(slots[i]), sampled.tokens[i])
        self._num_output[slots] += 1
        return sampled

    def _sample_row(
        self,
        sampled: Sampled,
        i: int,
        slot: int,
        logits: NDArray[np.float32],
        peak: float,
        logsumexp: float | None,
        uniform: float,
    ) -> None:
        """Sample row i, which is not plain or not healthy, into `sampled`."""
        state = self._rows[slot]
        if state is None:
            raise ValueError(f"slot {slot} was sampled but nothing joined it")
        error = state.refused or _fault(peak) or self._masks.error(slot)
        params, token, row = state.params, sampled.tokens[i], logits
        is_masked = bool(self._masks.rows[slot])
        if error is None and (is_masked or state.patch is not None):
            row = self._scratch
            if is_masked:
                self._masks.copy_allowed(slot, logits, row)
            else:
                np.copyto(row, logits)
            if state.patch is not None:
                state.patch.apply(row, int(self._num_output[slot]))
            token = int(row.argmax())
            peak = float(row[token])
            error = _fault(peak)
        if error is not None:
            sampled.tokens[i] = -1
            sampled.errors[slot] = error
            return
        if params.temperature >= GREEDY_BELOW:
            token = self._draw(row, peak, params.temperature, params.top_k, params.top_p, params.min_p, uniform)
        sampled.tokens[i] = token
        if params.logprobs is not None:
            sampled.logprobs[slot] = token_logprob(logits, logsumexp, token, params.logprobs)
        if state.patch is not None:
            state.patch.push(token)
            if not state.patch.lasts(int(self._num_output[slot]) + 1):
                state.patch = None
                self._plain[slot] = params.temperature < GREEDY_BELOW and params.logprobs is None


def _fault(peak: float) -> str | None:
    """Why a row with this maximum cannot be sampled; None if it can."""
    if math.isfinite(peak):
        return None
    if peak == -math.inf:
        return "no token is left to sample: every one of them is masked"
    return "the model's logits are not finite numbers"
