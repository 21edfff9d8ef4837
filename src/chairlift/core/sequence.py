"""One answer in flight."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from chairlift.core.prefix import Key
from chairlift.core.types import MAX_ABSENCES, Decisions, Finish, FinishReason, PreemptReason, Request, WaitReason


class StopMatcher(Protocol):
    """Watches the text of one sequence for its stop strings."""

    def push(self, token: int) -> str | None:
        """The stop string that this token completed, or None."""
        ...


class State(Enum):
    """Where a sequence is; see the drawing in `core/scheduler.py`."""

    WAITING = 0
    FORKING = 1
    """Has a slot, and waits for another choice of its request to compute their common prompt."""
    PREFILLING = 2
    DECODING = 3
    HELD = 4
    """Over, but a row of a static batch until its end."""
    GONE = 5


DECODING, PREFILLING = State.DECODING, State.PREFILLING
"""As names of their own, for what is asked of every row or in every step: Python 3.11 takes four times as long to find
a member of an enumeration."""


Order = tuple[int, float, int, int]
"""(level, when, serial, choice): lower goes first. Level is the priority, or better by ageing; `when` is the arrival,
or the deadline where deadlines rule."""


class Sequence:
    """Tokens, cache blocks and history of one (request, choice). Private to the scheduler.

        tokens     |-------- prompt --------|----- output -----|
        computed   |------------------------------------|          their K/V are in `blocks`

    Between steps computed < len(tokens), and len(blocks) * block_size >= computed. While a sequence decodes, it lacks
    exactly its last token, and `computed` is len(tokens) - 1 without being stored.
    """

    __slots__ = (
        "absences",
        "ages_at",
        "awaited",
        "blocks",
        "chain",
        "choice",
        "computed",
        "doom",
        "end",
        "ends",
        "first_scheduled",
        "first_token",
        "joined",
        "key",
        "mark",
        "matcher",
        "num_cached",
        "num_chunks",
        "num_prompt",
        "num_recomputed",
        "order",
        "owner",
        "paid_inputs",
        "paid_outputs",
        "passed",
        "peak",
        "preempted_at",
        "preempted_s",
        "preemptions",
        "published",
        "queued_behind",
        "rank",
        "request",
        "scored",
        "siblings",
        "slot",
        "state",
        "tag",
        "tokens",
        "waited",
        "waits_from",
        "waits_since",
    )

    def __init__(self, request: Request, choice: int, order: Order, end: int, matcher: StopMatcher | None) -> None:
        params = request.params
        self.request = request
        self.choice = choice
        self.key = request.id, choice
        self.order = order
        """Its place among all others: a preempted sequence returns to it."""
        self.rank = order
        """Its place among those that run, given when it joins: the last are preempted first."""
        self.owner = request.principal, request.tenant
        self.end = end
        """Number of tokens, prompt included, at which the sequence ends for its length."""
        self.matcher = matcher
        self.ends = frozenset(
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids + request.eos_token_ids
        )
        self.tokens = _known_tokens(request)
        self.num_prompt = len(self.tokens)
        self.computed = 0
        self.blocks: list[int] = []
        self.chain: list[Key] = []
        """Prefix keys: the root, then one of each full block that was given or hashed so far."""
        self.published = 0
        """Leading blocks that were offered to the prefix index."""
        self.state = State.WAITING
        self.slot = -1
        self.joined = False
        """Whether the executor holds a row for it."""
        self.mark = 0
        """Number of tokens at which commit must look closer: a block is full, the length is reached, or always (0)."""
        self.siblings: list[Sequence] = []
        """Other choices of the request, waiting for this one to compute their common prompt. They have their slots."""
        self.scored = 0 if params.prompt_logprobs is not None else self.num_prompt
        """Highest prompt position whose log-probability was given out; the first token has none."""
        self.awaited: list[Key] = []
        """Keys of blocks that it is going to compute and that others may wait for."""
        self.doom: tuple[FinishReason, str | None] | None = None
        """Why it ends with the step in flight, whatever that gives: aborted, or past a deadline."""
        self.first_scheduled: float | None = None
        self.first_token: float | None = None

        # Its place in the queue, kept by the queue.
        self.waits_since: float | None = None
        self.ages_at = 0.0
        self.passed = 0
        """How often a later one joined before it."""

        self.tag = 0.0
        """Its principal's service when it joined."""
        self.paid_inputs = 0
        self.paid_outputs = 0
        """Tokens that its owner was charged for so far."""

        # What was decided about it.
        self.num_cached = 0
        self.queued_behind = 0
        self.waits_from: tuple[float, ...] = ()
        """The scheduler's clocks of waiting (in the order of `WaitReason`) when it arrived."""
        self.waited: tuple[tuple[WaitReason, float], ...] = ()
        self.preemptions: list[tuple[int, PreemptReason]] = []
        self.preempted_at: float | None = None
        self.preempted_s = 0.0
        self.absences: list[tuple[float, float]] = []
        self.num_chunks = 0
        self.num_recomputed = 0
        self.peak = 0
        """Tokens that were ever computed at once, or found in the cache."""

    @property
    def wants_scores(self) -> bool:
        return self.scored < self.num_prompt - 1

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def set_level(self, level: int) -> None:
        """Move up or down among all others, with the choices that follow it."""
        for one in (self, *self.siblings):
            one.order = (level, *one.order[1:])

    def ending(self, token: int) -> tuple[FinishReason, int | str | None] | None:
        """Why the sequence is over by itself now that `token`, its newest, was appended; None if it goes on."""
        params = self.request.params
        if token in self.ends:
            return FinishReason.STOP, None if token not in params.stop_token_ids else token
        stop = self.matcher.push(token) if self.matcher is not None else None
        if stop is not None and self.num_output >= params.min_tokens:
            return FinishReason.STOP, stop
        if len(self.tokens) >= self.end:
            return FinishReason.LENGTH, None
        return None

    def finish(
        self, now: float, reason: FinishReason, stop_reason: int | str | None = None, error: str | None = None
    ) -> Finish:
        return Finish(
            id=self.request.id,
            choice=self.choice,
            reason=reason,
            stop_reason=stop_reason,
            error=error,
            num_prompt_tokens=self.num_prompt,
            num_output_tokens=self.num_output,
            num_cached_tokens=self.num_cached,
            num_preemptions=len(self.preemptions),
            arrival=self.request.arrival,
            first_scheduled=self.first_scheduled,
            first_token=self.first_token,
            finished=now,
            decisions=Decisions(
                queued_behind=self.queued_behind,
                waited=self.waited,
                preemptions=tuple(self.preemptions),
                preempted_s=self.preempted_s,
                chunks=self.num_chunks,
                recomputed_tokens=self.num_recomputed,
                passed=self.passed,
                absences=self._absences(now),
            ),
        )

    def _absences(self, now: float) -> tuple[tuple[float, float], ...]:
        """With the one that its end, `now`, found it in."""
        ended = tuple(self.absences)
        if self.preempted_at is None or len(ended) == MAX_ABSENCES:
            return ended
        return (*ended, (self.preempted_at, max(self.preempted_at, now)))


def _known_tokens(request: Request) -> list[int]:
    """A copy of the prompt; 0 for each token that keys stand for, which nobody is going to read."""
    given = request.block_keys
    if given is None:
        return list(request.prompt)
    return [0] * given.num_tokens + list(request.prompt[given.num_tokens :])
