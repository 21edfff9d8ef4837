"""How fast an engine takes what waits, learned from what it reports: the base of every estimate of a wait.

Sequences join as others leave. The rate of leaving is counted while somebody waits in the engine, since before that it
says how much was asked for and not how much can be served; and it fades, since what is asked for changes. Until enough
was counted, Little's law stands in: slots divided by the mean time in a slot, known from the first sequence that ends.
"""

from __future__ import annotations

import math

from chairlift.core.types import EngineStats, WaitReason

FADING_S = 30.0
"""What was counted so long ago weighs 1/e of what is counted now."""
PRIOR_LEAVES = 4.0
"""How many counted departures weigh as much as Little's law."""
SERVICE_SHARE = 1 / 32
"""Weight of a new sample in a mean over the last few dozen."""


class Pace:
    """Rates of one engine, for all but the background, which gives way. Takes constant time and memory."""

    __slots__ = (
        "_crowded_s",
        "_hit_share",
        "_is_crowded",
        "_last",
        "_left",
        "_left_since",
        "_num_running",
        "_num_services",
        "_token_s",
        "max_num_seqs",
        "num_free",
        "service_s",
    )

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        """As in force now."""
        self.num_free = max_num_seqs
        """Slots that nobody waits for longer than until the next step."""
        self.service_s: float | None = None
        """Mean seconds from joining to the end; None before the first end."""
        self._num_running = 0
        self._is_crowded = False
        self._last: float | None = None
        self._left = 0.0
        self._left_since = 0
        self._crowded_s = 0.0
        self._num_services = 0
        self._token_s = 0.0
        self._hit_share = 0.0

    def observe(self, stats: EngineStats, now: float) -> None:
        """The counts of a step, or of an idle moment."""
        if self._last is not None:
            elapsed_s = max(0.0, now - self._last)
            kept = math.exp(-elapsed_s / FADING_S)
            self._left *= kept
            self._crowded_s *= kept
            if self._is_crowded:
                self._left += self._left_since
                self._crowded_s += elapsed_s
        self._left_since = 0
        self._last = now
        if stats.max_num_seqs:
            self.max_num_seqs = stats.max_num_seqs
        num_running = self._num_running = stats.num_running - stats.num_background_running
        num_waiting = stats.num_waiting - stats.num_background_waiting
        # Where nobody runs, those who wait are about to take their slots, be it when a batch is full.
        num_soon = stats.waiting_by_reason.get(WaitReason.STEP, 0) if num_running else num_waiting
        self._is_crowded = num_waiting > num_soon
        self.num_free = 0 if self._is_crowded else max(0, self.max_num_seqs - num_running)
        if stats.prefix_queries:
            self._hit_share = stats.prefix_hits / stats.prefix_queries
        if stats.step_s > 0 and 2 * stats.num_step_tokens >= stats.max_num_batched_tokens > 0:
            sample = stats.step_s / stats.num_step_tokens
            self._token_s += (sample - self._token_s) * (SERVICE_SHARE if self._token_s else 1.0)

    def left(self, num_seqs: int, service_s: float) -> None:
        """Sequences left their slots `service_s` after they took them."""
        self._left_since += num_seqs
        self._num_services += 1
        if self.service_s is None:
            self.service_s = service_s
        else:
            self.service_s += (service_s - self.service_s) * max(SERVICE_SHARE, 1 / self._num_services)

    def slots_s(self, num_seqs: int) -> float | None:
        """Seconds until so many sequences will have left their slots; None if nothing is known yet."""
        if num_seqs <= 0:
            return 0.0
        if not self.service_s:
            return None if self._left < 1 else num_seqs * self._crowded_s / self._left
        num_rows = max(1, self._num_running if self._is_crowded else self.max_num_seqs)
        return num_seqs * (self._crowded_s + PRIOR_LEAVES * self.service_s / num_rows) / (self._left + PRIOR_LEAVES)

    def prompts_s(self, num_tokens: float) -> float:
        """Seconds that computing prompts of so many tokens takes at least; 0 while no full step was seen.

        Only steps that were at least half full say what a full step can do: a step of one row takes nearly as long.
        """
        return num_tokens * (1.0 - self._hit_share) * self._token_s
