"""How long a step takes, as a straight line through a few measured ones, and the token budget that follows."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.executors.openvino.buckets import round_down, round_up

MAX_STEP_S = 0.25
"""Aborts and heartbeats act between steps: none should take longer than this."""
TARGET_STEP_S = 0.1
"""What a full step may take when the cache is empty: reading long contexts comes on top, and so do other processes."""
EFFICIENT_TOKENS = 256
"""Larger steps are hardly more efficient, smaller ones are less: twice the target is taken before going below."""
MAX_TOKEN_BUDGET = 8192


@dataclass(frozen=True, slots=True)
class StepRates:
    """A step's time in seconds: `base_s + token_s * tokens + context_s * context`.

    `context` is the number of cached tokens that decoding rows read, summed over rows.
    """

    base_s: float
    token_s: float
    context_s: float

    def step_s(self, num_tokens: int, num_context_tokens: int = 0) -> float:
        return self.base_s + self.token_s * num_tokens + self.context_s * num_context_tokens


def fit_rates(small: tuple[int, float], large: tuple[int, float], context: tuple[int, float]) -> StepRates:
    """Rates from two steps without a past, as (tokens, seconds), and the (context tokens, seconds) a past adds.

    Other processes may have disturbed the measurement: at least half of the large step is taken to be its tokens'.
    """
    (few, few_s), (many, many_s) = small, large
    token_s = max((many_s - few_s) / (many - few), many_s / 2 / many)
    return StepRates(max(many_s - token_s * many, 0.0), token_s, max(context[1], 0.0) / max(context[0], 1))


def suggest_token_budget(rates: StepRates, max_num_seqs: int) -> int:
    """Tokens of a step such that it stays well under `MAX_STEP_S`; never less than one for each sequence.

    Always the size of a bucket, so that a step that uses its whole budget computes no padding.
    """
    short = _tokens_within(rates, TARGET_STEP_S)
    budget = max(short, min(EFFICIENT_TOKENS, _tokens_within(rates, 2 * TARGET_STEP_S)))
    return max(round_down(budget), round_up(max_num_seqs))


def _tokens_within(rates: StepRates, seconds: float) -> int:
    return int(min(max((seconds - rates.base_s) / rates.token_s, 1.0), MAX_TOKEN_BUDGET))
