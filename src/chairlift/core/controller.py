"""The controller: how many sequences may run, and how many prompt tokens a step may hold, to keep latency objectives.

It learns what a step costs (`core/steptime.py`) and plans each step to end in time, instead of measuring latency and
correcting afterwards: what is being corrected has changed by then, and a late answer to a doubled load oscillates.
What a prediction cannot know (noise, a page fault) is a margin: a high quantile of actual / predicted, learned too.

    objective_s / margin  =  decode rows, predicted  |  prompt tokens: what is left

- Prompt tokens get what the objective leaves, all of it while prompts wait. That needs no estimate of the traffic: with
  more rows less is left for prompts, so fewer sequences begin to decode; with fewer rows, more. The batch settles where
  prompts come in as fast as answers end, and every step on the way there is a full one.
- Sequences may join as long as their decode rows, with contexts as long as they have been lately, leave room for some
  prompt tokens. That matters where contexts grow, or prompts are found in the cache and need no room.
- Nothing is planned far beyond what was tried: at most twice the largest step so far, so a new engine feels its way.
- Prompts that got nothing for `STARVED_STEPS` steps get one long step: rare enough not to move the 99th percentile.
- A step may always last a little longer than one of a single row, and a few sequences may always run: an objective
  below that is missed either way, and serving one at a time would only make everybody else wait.
- For a time to first token alone, prompts are spread over that time: of the tokens that wait, each step gets the share
  that its length is of the objective, times a factor learned from the times measured. Decodes are slowed no more
  than that needs. With both objectives the inter-token bound decides, and within it prompts get everything.

Source: ours. Steering the batch by decode latency: Pang et al. 2025, arXiv:2503.05248. Chunks beside decodes: Agrawal
et al. 2024 (Sarathi-Serve), OSDI. The quantile: Robbins and Monro 1951.
"""

from __future__ import annotations

import math

from chairlift.core.steptime import StepTimes
from chairlift.core.types import Limits, StepPlan

QUANTUM_TOKENS = 16
"""Chunks of a step are cut to multiples of it together, and to powers of two below: an executor may have to prepare for
every new size."""
RESERVED = 0.25
"""Most of the time left after a step's fixed part that rows leave to a quantum of prompt tokens."""
MARGIN_QUANTILE = 0.98
"""Share of steps that shall end within the objective."""
TTFT_QUANTILE = 0.95
"""Share of first tokens that shall come within the objective."""
MAX_MARGIN = 1.5
"""Rare delays that come from elsewhere do not shrink with the step: beyond this, shorter steps help nobody."""
FEWEST_ROWS = 4
"""May always run: what a step costs whatever it holds outweighs them."""
LEAST = 1.25
"""How many times a step of one row a step may always last: an objective below that cannot be held by doing less."""
STARVED_STEPS = 128
STARVED_FACTOR = 2.0
"""How many times the objective the step after `STARVED_STEPS` without prompt tokens may last."""
FIRST_ROWS = 8
FIRST_TOKENS = 64
"""As if steps of this size had been tried before the first one."""


class Controller:
    """Asked by the scheduler while it plans, told by it what came of each step. An objective of 0 is off."""

    def __init__(self, limits: Limits, *, itl_objective_s: float, ttft_objective_s: float, max_step_s: float) -> None:
        self._limits = limits
        self._itl_objective_s = itl_objective_s
        self._ttft_objective_s = ttft_objective_s
        self._max_step_s = max_step_s
        self.times = StepTimes()
        self.margin = 1.1
        """Planned steps are shorter than allowed by this factor."""
        self.pace = 0.5
        """Share of the objective over which waiting prompts are spread, when only first tokens have one."""
        self.max_prefill_tokens = limits.max_num_batched_tokens
        """Most prompt tokens that the last step with prompts could hold."""
        self._most_rows = FIRST_ROWS
        self._most_tokens = FIRST_TOKENS
        self._most_pairs = FIRST_TOKENS * FIRST_TOKENS
        self._row_context = 0.0
        """Context tokens of a row: rises with what runs, falls slowly."""
        self._cap = float(FIRST_ROWS if itl_objective_s > 0 else limits.max_num_seqs)
        self._num_starved = 0
        self._denied = False
        self._num_seqs = 0
        """That run or wait."""
        self._paced_tokens = 0.0
        self._prompts = 0.0
        self._prompt_tokens = 0.0
        """Prompts that ended and tokens computed for them, older ones counting less."""
        self.is_active = False
        """Whether there is anything to hold."""
        self.set_objectives(itl_objective_s=itl_objective_s, ttft_objective_s=ttft_objective_s)

    def set_objectives(self, *, itl_objective_s: float | None, ttft_objective_s: float | None) -> None:
        """Change objectives from the next step on; None leaves one as it is, 0 turns it off."""
        if itl_objective_s is not None:
            self._itl_objective_s = itl_objective_s
        if ttft_objective_s is not None:
            self._ttft_objective_s = ttft_objective_s
        self.is_active = self._itl_objective_s > 0 or self._ttft_objective_s > 0 or self._max_step_s > 0

    # ------------------------------------------------------------ what happened

    def observe(self, plan: StepPlan, step_s: float) -> None:
        """Learn from a step that was computed."""
        rows, chunk_tokens = len(plan.decodes) + len(plan.fillers), plan.num_chunk_tokens
        predicted = self.times.observe(rows, plan.num_context_tokens, chunk_tokens, plan.num_chunk_pairs, step_s)
        target = self._target_s(rows)
        if 0.5 * target < predicted * self.margin < math.inf and self.times.num_strange < 2:
            # Only steps near the target say how far it may be approached: short ones vary more for their length.
            # Several strange steps in a row are no noise, and soon no longer strange.
            late = step_s > predicted * self.margin
            change = MARGIN_QUANTILE if late else MARGIN_QUANTILE - 1.0
            self.margin = min(max(self.margin * math.exp(0.02 * change), 1.0), MAX_MARGIN)
        if chunk_tokens:
            self._num_starved = 0
            self._most_tokens = max(self._most_tokens, chunk_tokens)
            self._most_pairs = max(self._most_pairs, plan.num_chunk_pairs)
            self._prompts = 0.99 * self._prompts + sum(1 for chunk in plan.chunks if chunk.samples)
            self._prompt_tokens = 0.99 * self._prompt_tokens + chunk_tokens
        elif self._denied:
            self._num_starved += 1
        self._denied = False
        if rows:
            self._most_rows = max(self._most_rows, rows)
            more = plan.num_context_tokens / rows - self._row_context
            self._row_context += more * (0.1 if more > 0 else 0.002)
            if self.times.is_settled:
                self._cap += 0.2 * (self._fitting_rows() - self._cap)

    def first_token(self, ttft_s: float) -> None:
        """A request got its first token so long after it arrived."""
        if self._ttft_objective_s > 0:
            late = ttft_s > self._ttft_objective_s
            change = -TTFT_QUANTILE if late else 1.0 - TTFT_QUANTILE
            self.pace = min(max(self.pace * math.exp(0.2 * change), 0.05), 0.9)

    # ------------------------------------------------------------ what may be planned

    def max_num_seqs(self, num_running: int, num_waiting: int, num_context_tokens: int) -> int:
        """How many sequences may run in this step. Called once for each step.

        Only an objective for inter-token latency keeps anybody from running: the bound on steps is for chunks.
        """
        self._num_seqs = num_running + num_waiting
        if self._itl_objective_s <= 0:
            return self._limits.max_num_seqs
        return min(max(round(self._cap), FEWEST_ROWS), self._limits.max_num_seqs)

    def chunk_tokens(self, plan: StepPlan, num_decodes: int, num_context_tokens: int, start: int, wanted: int) -> int:
        """How many of `wanted` tokens of a chunk from position `start` the step may hold beside what it has; 0: none.

        `num_decodes` counts all rows that are computed as decodes, fillers too. Asking changes no answer.
        """
        granted = plan.num_chunk_tokens
        spent_s = self.times.predict(num_decodes, num_context_tokens, granted, plan.num_chunk_pairs)
        target = self._target_s(num_decodes)
        least = 0
        if granted == 0:
            if num_decodes == 0:
                least = QUANTUM_TOKENS
            elif self._num_starved >= STARVED_STEPS:
                least, target = QUANTUM_TOKENS, STARVED_FACTOR * target
        room = float(max(wanted, self._limits.max_num_batched_tokens - num_decodes - granted))
        if target < math.inf:
            room = min(room, self._fitting_tokens(self._plannable_s(target) - spent_s, start))
            room = min(room, self._tried_tokens(granted, plan.num_chunk_pairs, start))
        if self._ttft_objective_s > 0 and self._itl_objective_s == 0 and num_decodes:
            if granted == 0:
                self._paced_tokens = self._pace_tokens(spent_s, num_decodes, start, wanted)
            room = min(room, self._paced_tokens - granted)
        count = max(int(room), least, 0)
        self.max_prefill_tokens = granted + count
        count = min(wanted, max(_cut(granted + count) - granted, 0)) if count < wanted else wanted
        self._denied = self._denied or count == 0
        return count

    # ------------------------------------------------------------ predictions, turned round

    def _target_s(self, num_decodes: int) -> float:
        """Longest step, in seconds, that is allowed beside so many decode rows; infinite if nothing says."""
        target = self._max_step_s if self._max_step_s > 0 else math.inf
        if num_decodes and 0 < self._itl_objective_s < target:
            target = self._itl_objective_s
        return target

    def _plannable_s(self, target: float) -> float:
        """What a step may be predicted to last, in seconds, to end by the target."""
        a, b, c, _, _ = self.times.coefficients
        return max(target / self.margin, LEAST * (a + b + c * self._row_context))

    def _fitting_rows(self) -> float:
        """Decode rows, with contexts as they are, that leave time for some prompt tokens."""
        target = self._target_s(1)
        if target == math.inf:
            return self._limits.max_num_seqs
        a, b, c, d, e = self.times.coefficients
        left_s = self._plannable_s(target) - a
        left_s -= min(QUANTUM_TOKENS * (d + e * self._row_context), RESERVED * left_s)
        row_s = b + c * self._row_context
        most = self._limits.max_num_seqs
        if self._itl_objective_s > 0:
            most = min(most, 2 * self._most_rows)
        return min(left_s / row_s, most) if row_s > 0 else most

    def _fitting_tokens(self, left_s: float, start: int) -> float:
        """Tokens of a chunk from `start` that are computed in so many seconds."""
        *_, d, e = self.times.coefficients
        if left_s <= 0:
            return 0.0
        # Each token costs d, and e for every token up to itself: e / 2 n^2 + (d + e (start + 1/2)) n = left_s.
        linear = d + e * (start + 0.5)
        root = math.sqrt(linear * linear + 2.0 * e * left_s)
        return 2.0 * left_s / (linear + root) if root > 0 else math.inf

    def _tried_tokens(self, granted: int, pairs: int, start: int) -> float:
        """Tokens of a chunk from `start` with which the step is at most twice the largest so far."""
        tokens = 2 * self._most_tokens - granted
        left = max(2 * self._most_pairs - pairs, 0)
        by_pairs = math.sqrt((start + 0.5) ** 2 + 2.0 * left) - (start + 0.5)
        return min(tokens, max(by_pairs, QUANTUM_TOKENS))

    def _pace_tokens(self, decode_s: float, num_decodes: int, start: int, wanted: int) -> float:
        """Prompt tokens of this step so that all that wait are computed within the pace."""
        num_prompts = max(self._num_seqs - num_decodes, 1)
        mean = self._prompt_tokens / self._prompts if self._prompts >= 1 else wanted
        rate = max(num_prompts * mean, wanted) / (self.pace * self._ttft_objective_s)
        *_, d, e = self.times.coefficients
        spare = 1.0 - rate * (d + e * start)
        if spare <= 0:
            return self._limits.max_num_batched_tokens
        tokens = math.ceil(rate * decode_s / spare)
        return _cut(2 * tokens - 1) if tokens < QUANTUM_TOKENS else _cut(tokens + QUANTUM_TOKENS - 1)


def _cut(tokens: int) -> int:
    """The largest size of a step's chunks, together, that is at most so many tokens."""
    return tokens - tokens % QUANTUM_TOKENS if tokens >= QUANTUM_TOKENS else 1 << tokens.bit_length() >> 1
