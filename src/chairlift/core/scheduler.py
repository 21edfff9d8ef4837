"""The scheduler: which sequences compute how many tokens in the next step, and what became of the last one.

    waiting  --join-->  prefilling  --last known token computed-->  decoding  --end-->  gone, or held as a filler
       ^                    |                                           |
       +----- preempted ----+-------------------------------------------+

`core/planner.py` decides what goes into a step; here requests come and go, and results are applied.

Decoding rows cost nothing in `schedule` and one short loop in `commit`: whatever needs a closer look (a block is full,
the length is reached, somebody watches the text) is folded into one comparison with `Sequence.mark`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from chairlift.core.background import num_running
from chairlift.core.checks import check_request
from chairlift.core.controller import Controller
from chairlift.core.deadlines import TTFT, Deadlines
from chairlift.core.errors import InvalidOption, InvalidRequest, NeverFits
from chairlift.core.fairness import Fair, Service
from chairlift.core.kv import KVCache
from chairlift.core.look import Look, look
from chairlift.core.ordering import Line, Sorted, Waiting
from chairlift.core.planner import JoinRule, Planner
from chairlift.core.policy import Policy
from chairlift.core.running import RunningSet
from chairlift.core.sequence import DECODING, Sequence, State, StopMatcher
from chairlift.core.types import (
    CacheShape,
    Chunk,
    EngineStats,
    FinishReason,
    LimitChange,
    Limits,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
    WaitReason,
)
from chairlift.core.waits import WaitClocks

StopMatcherFactory = Callable[[Request], StopMatcher | None]
"""Gives a fresh matcher for a sequence of the request; None if it has no stop strings."""


NEVER_S = 1e12
"""Longer than anybody waits, in seconds; finite, so that arrivals added to it keep their order."""


class Scheduler:
    """Plans steps under `limits` over a cache of shape `cache`. `now` is in seconds of the driver's clock.

    The driver alternates `schedule` and `commit` (or `fail`); everything else may come at any time between.

    Raises:
        InvalidOption: limits under which a step could not serve every running sequence.
    """

    def __init__(
        self,
        limits: Limits,
        cache: CacheShape,
        *,
        vocab_size: int,
        enable_prefix_caching: bool = True,
        policy: Policy | None = None,
        join_rule: JoinRule | None = None,
        takes_block_keys: bool = False,
    ) -> None:
        if not 1 <= limits.max_num_seqs <= limits.max_num_batched_tokens:
            raise InvalidOption("max_num_seqs must be at least 1 and at most max_num_batched_tokens")
        if cache.num_blocks < 1 or cache.block_size < 1:
            raise InvalidOption("the cache has no blocks")
        self.policy = policy = policy if policy is not None else Policy()
        self.limits = replace(limits)
        """As in force now; `set_limits` changes them."""
        self.started_with = replace(limits)
        """What `limits` were at the start, and may not exceed."""
        self.kv = KVCache(cache, enable_prefix_caching=enable_prefix_caching)
        self.max_model_len = min(limits.max_model_len, cache.num_blocks * cache.block_size)
        """Most tokens of a sequence: what the model allows, and what the whole cache can hold."""
        self.controller = Controller(
            self.limits,
            itl_objective_s=policy.itl_objective_s,
            ttft_objective_s=policy.ttft_objective_s,
            max_step_s=policy.max_step_s,
        )
        self._vocab_size = vocab_size
        self.takes_block_keys = takes_block_keys
        """Whether requests may come with keys in the place of tokens: there is no device that would need the tokens."""
        self._service: Service | None = None
        make_line: Callable[[], Line] = Sorted
        if policy.scheduling_policy == "fair":
            service = Service(
                policy.weights,
                policy.input_token_weight,
                policy.output_token_weight,
                charges_ahead=policy.charges_ahead,
            )
            self._service = service
            make_line = partial(Fair, service)
        self._waiting = Waiting(make_line, policy.priority_ageing_s)
        self._running = RunningSet(limits.max_num_seqs)
        self._clocks = WaitClocks()
        self._planner = Planner(
            policy,
            self.limits,
            self.kv,
            self._running,
            self._waiting,
            self.controller,
            self._clocks,
            self._service,
            join_rule,
        )
        self._deadlines = Deadlines()
        self._live: dict[int, list[Sequence]] = {}
        """By request: sequences that are not over."""
        self._serial = 0
        self._step = 0
        self._planned: StepPlan | None = None
        self._planned_at = 0.0
        self._ended = StepOutput()
        """What ended outside a step and was not given out yet."""

    # ------------------------------------------------------------ requests

    def add(self, request: Request, stop_matchers: StopMatcherFactory | None = None) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: wrong in itself, or an id already in use.
            NeverFits: larger than the context, the cache or the batch can ever hold.
        """
        if request.id in self._live:
            raise InvalidRequest("a request with this id is being served already")
        check_request(
            request,
            max_model_len=self.max_model_len,
            max_num_seqs=self.started_with.max_num_seqs,
            vocab_size=self._vocab_size,
            keyed_block_size=self.kv.block_size if self.takes_block_keys else None,
        )
        if (request.pooling is not None) is not self.policy.single_pass:
            raise InvalidRequest("this model generates" if request.pooling else "this model generates no text", "model")
        end = self._longest(request)
        self._check_size(request, end)
        self._serial += 1
        order = (request.priority, self._place(request), self._serial)
        sequences = [
            Sequence(
                request,
                choice,
                (*order, choice),
                end,
                stop_matchers(request) if stop_matchers is not None else None,
            )
            for choice in range(request.n)
        ]
        self._live[request.id] = sequences
        self._deadlines.add(request)
        for sequence in sequences:
            sequence.queued_behind = len(self._waiting)
            self._clocks.arrive(sequence)
            if self._service is not None:
                self._service.enter(sequence)
        lead = sequences[0]
        lead.siblings = sequences[1:]
        self._waiting.push(lead, request.arrival)
        self._planner.may_join = True

    def _longest(self, request: Request) -> int:
        """Most tokens that a sequence of the request may come to, prompt included."""
        if request.pooling is not None:
            return len(request.prompt)
        max_tokens = request.params.max_tokens
        return self.max_model_len if max_tokens is None else min(self.max_model_len, len(request.prompt) + max_tokens)

    def _check_size(self, request: Request, end: int) -> None:
        """What these policies can never serve."""
        num_prompt, most = len(request.prompt), self.limits.max_num_batched_tokens
        if not self.policy.enable_chunked_prefill and num_prompt > most:
            why = "a text is read in one step, which" if request.pooling else "without chunked prefill a step"
            raise NeverFits(f"the prompt has {num_prompt} tokens, and {why} takes at most {most}", "prompt")
        if self._planner.reserves_max and request.n > 1:
            num_shared = (num_prompt - 1) // self.kv.block_size
            num_blocks = num_shared + request.n * (self.kv.num_blocks_for(end) - num_shared)
            if num_blocks > self.kv.pool.num_blocks:
                raise NeverFits(
                    f"{request.n} answers of {end - num_prompt} tokens reserve {num_blocks} cache blocks; "
                    f"there are {self.kv.pool.num_blocks}",
                    "n",
                )

    def _place(self, request: Request) -> float:
        """Where a request stands among those of its priority: its arrival, or its deadline where deadlines rule.

        One without a deadline stands where it would with a deadline of one ageing period; without ageing, behind all.
        With a window of lengths, arrivals are as good as equal inside it, and lengths decide.
        """
        if self.policy.scheduling_policy != "deadline":
            window_s = self.policy.length_window_s
            if not window_s:
                return request.arrival
            return (request.arrival // window_s + len(request.prompt) / (self.max_model_len + 1)) * window_s
        deadlines = [when for when in (request.ttft_deadline, request.e2e_deadline) if when is not None]
        return min(deadlines, default=request.arrival + (self.policy.priority_ageing_s or NEVER_S))

    def abort(self, request_id: int, now: float) -> None:
        """Nobody wants this request any longer. Its blocks are free at once, or after the step that computes it.

        Unknown and finished ids are ignored.
        """
        self._end_all(request_id, now, FinishReason.ABORT, None)

    def close(self) -> None:
        """No more requests will come: a held batch need not wait for them."""
        self._planner.closed = True

    def set_limits(self, change: LimitChange) -> None:
        """Change limits from the next step on, within what the scheduler was started with. Nobody is preempted.

        Raises:
            InvalidOption: a value out of its range; nothing was changed.
        """
        limits, first = self.limits, self.started_with
        max_num_seqs = limits.max_num_seqs if change.max_num_seqs is None else change.max_num_seqs
        max_tokens = limits.max_num_batched_tokens
        max_tokens = max_tokens if change.max_num_batched_tokens is None else change.max_num_batched_tokens
        if not 1 <= max_num_seqs <= first.max_num_seqs:
            raise InvalidOption(f"max_num_seqs must be between 1 and {first.max_num_seqs}")
        if not max_num_seqs <= max_tokens <= first.max_num_batched_tokens:
            raise InvalidOption(
                f"max_num_batched_tokens must be at least max_num_seqs, {max_num_seqs}, and at most "
                f"{first.max_num_batched_tokens}"
            )
        if max_tokens < first.max_num_batched_tokens and not self.policy.enable_chunked_prefill:
            raise InvalidOption("max_num_batched_tokens cannot be lowered without chunked prefill: prompts must fit")
        if min(change.long_prefill_token_threshold or 0, change.itl_objective_s or 0, change.ttft_objective_s or 0) < 0:
            raise InvalidOption("a threshold or an objective must be at least 0")
        limits.max_num_seqs, limits.max_num_batched_tokens = max_num_seqs, max_tokens
        if change.long_prefill_token_threshold is not None:
            self._planner.threshold = change.long_prefill_token_threshold
        self.controller.set_objectives(itl_objective_s=change.itl_objective_s, ttft_objective_s=change.ttft_objective_s)
        self._planner.may_join = True

    @property
    def has_work(self) -> bool:
        """Whether there is a live request, or an ending nobody has taken yet."""
        return bool(self._live) or bool(self._ended.finishes)

    def in_flight(self) -> list[tuple[Request, int, int, bool]]:
        """(request, choice, slot, whether it decodes) of every sequence that is not over; slot -1: it has no row."""
        return [
            (s.request, s.choice, s.slot if s.joined else -1, s.state is DECODING)
            for sequences in self._live.values()
            for s in sequences
        ]

    def look(self) -> Look:
        """Who runs and who waits."""
        live = (sequence for sequences in self._live.values() for sequence in sequences)
        return look(live, self._waiting, self._running.held)

    def wake_at(self) -> float | None:
        """When to call `schedule` again after it had nothing to compute, if nothing else happens; None: no need to."""
        times = [when for when in (self._deadlines.next, self._planner.opens_at) if when is not None]
        return min(times, default=None)

    def take_ended(self) -> StepOutput:
        """What ended outside a step, once."""
        ended, self._ended = self._ended, StepOutput()
        return ended

    def stats(self, num_step_tokens: int = 0, num_step_rows: int = 0, step_s: float = 0.0) -> EngineStats:
        """Counts of this moment, with those of the last step as its driver knows them."""
        pool, planner = self.kv.pool, self._planner
        num_waiting = self._waiting.num_seqs
        by_reason: Counter[WaitReason] = Counter()
        for sequence, reason in planner.set_aside:
            if sequence.state is State.WAITING:
                by_reason[reason] += 1 + len(sequence.siblings)
        if num_waiting > by_reason.total():
            by_reason[planner.blocked_by or self._clocks.reason] += num_waiting - by_reason.total()
        return EngineStats(
            num_running=self._running.num_live,
            num_waiting=num_waiting,
            num_used_blocks=pool.num_held,
            num_cached_blocks=pool.num_kept,
            num_preemptions=planner.num_preemptions,
            prefix_queries=planner.prefix_queries,
            prefix_hits=planner.prefix_hits,
            waiting_by_reason=dict(by_reason),
            waited_s=self._clocks.seconds,
            max_num_seqs=planner.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            max_prefill_tokens=min(self.controller.max_prefill_tokens, self.limits.max_num_batched_tokens),
            num_step_tokens=num_step_tokens,
            num_step_rows=num_step_rows,
            step_s=step_s,
            num_background_running=num_running(self._running),
            num_background_waiting=self._waiting.num_background,
        )

    # ------------------------------------------------------------ a step is planned

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None if there is nothing to compute; `wake_at` then says when there may be.

        Raises:
            RuntimeError: the last plan was neither committed nor failed.
        """
        if self._planned is not None:
            raise RuntimeError("the last step was not committed")
        self._expire(now)
        self._clocks.settle(now)
        plan = StepPlan(step=self._step)
        self._planner.fill(plan, now)
        self._clocks.turn(self._planner.waits_for)
        if not plan.decodes and not plan.chunks:
            return None
        plan.leaves, self._running.leaves = self._running.leaves, []
        self._step += 1
        self._planned, self._planned_at = plan, now
        return plan

    def _expire(self, now: float) -> None:
        """End the requests whose deadlines have come."""
        for kind, request in self._deadlines.pop_due(now):
            if not self._is_live(request):
                continue
            sequences = self._live[request.id]
            if kind == TTFT:
                # One choice's first token is the request's.
                if all(s.first_token is None for s in sequences) and len(sequences) == request.n:
                    error = f"ttft deadline: no first token within {_after(request, request.ttft_deadline):.3f} s"
                    self._end_all(request.id, now, FinishReason.DEADLINE, error)
            else:
                error = f"e2e deadline: not finished within {_after(request, request.e2e_deadline):.3f} s"
                self._end_all(request.id, now, FinishReason.DEADLINE, error)

    # ------------------------------------------------------------ a step is over

    def commit(self, result: StepResult, now: float) -> StepOutput:
        """Apply the result of the planned step; also gives what ended outside a step since the last call.

        Raises:
            RuntimeError: no step was planned.
        """
        plan = self._take_planned(now)
        output = self.take_ended()
        output.joined = [s.request.id for s in self._planner.joined]
        num_decodes = len(plan.decodes)
        if num_decodes:
            self._commit_decodes(result, num_decodes, output, now)
        if plan.chunks:
            self._commit_chunks(plan, result, result.tokens[num_decodes:], output, now)
        if self.controller.is_active:
            self.controller.observe(plan, max(0.0, now - self._planned_at))
        self._release_held()
        return output

    def check_result(self, plan: StepPlan, result: StepResult) -> str | None:
        """What makes a result unusable as a whole, None if nothing does; tokens outside the vocabulary and vectors that
        are not there become errors of their rows."""
        tokens = result.tokens
        if len(tokens) != plan.num_samples:
            return f"the executor gave {len(tokens)} tokens for {plan.num_samples} rows"
        if tokens and (min(tokens) < 0 or max(tokens) >= self._vocab_size):
            slots = [*plan.decodes, *(chunk.slot for chunk in plan.chunks if chunk.samples)]
            for slot, token in zip(slots, tokens, strict=True):
                if not 0 <= token < self._vocab_size:
                    result.errors.setdefault(slot, "the sampled token is outside the vocabulary")
        if self.policy.single_pass:
            for chunk in plan.chunks:
                if chunk.slot not in result.vectors:
                    result.errors.setdefault(chunk.slot, "the executor gave no vector")
        return None

    def fail(self, message: str, now: float) -> StepOutput:
        """The planned step failed as a whole: every row in it ends with this error; rows outside it go on.

        Raises:
            RuntimeError: no step was planned.
        """
        plan = self._take_planned(now)
        output = self.take_ended()
        output.joined = [s.request.id for s in self._planner.joined]
        rows = self._running.decoding if plan.decodes else []
        for sequence in [*rows, *self._planner.chunked]:
            self._end(sequence, output, now, FinishReason.ERROR, error=message)
        self._release_held()
        return output

    def _take_planned(self, now: float) -> StepPlan:
        plan = self._planned
        if plan is None:
            raise RuntimeError("no step was planned")
        self._expire(now)
        self._planned = None
        return plan

    def _commit_decodes(self, result: StepResult, num_decodes: int, output: StepOutput, now: float) -> None:
        """Append a token to every decoding row, and end those whose time has come."""
        running = self._running
        rows, keys, sampled = running.decoding, running.keys, result.tokens
        if result.errors:
            rows = [s for s in rows if s.slot not in result.errors]
            keys = [s.key for s in rows]
            sampled = [t for s, t in zip(running.decoding, sampled, strict=False) if s.slot not in result.errors]
        elif len(sampled) > num_decodes:
            sampled = sampled[:num_decodes]
        output.keys, output.tokens = keys, sampled
        if result.logprobs:  # before any sequence ends and leaves its slot
            output.logprobs = {s.key: result.logprobs[s.slot] for s in rows if s.slot in result.logprobs}
        failed = [s for s in running.decoding if s.slot in result.errors] if result.errors else []
        running.advance(len(rows))
        for sequence, token in zip(rows, sampled, strict=True):
            tokens = sequence.tokens
            tokens.append(token)
            if len(tokens) >= sequence.mark or token in sequence.ends:
                self._examine(sequence, token, output, now)
        for sequence in failed:
            self._end(sequence, output, now, FinishReason.ERROR, error=result.errors[sequence.slot])

    def _commit_chunks(
        self, plan: StepPlan, result: StepResult, sampled: list[int], output: StepOutput, now: float
    ) -> None:
        """Apply the chunks; those that reached their last known token start to decode."""
        output.keys, output.tokens = list(output.keys), list(output.tokens)
        self._planner.may_join = True
        tokens = iter(sampled)
        for chunk, sequence in zip(plan.chunks, self._planner.chunked, strict=True):
            token = next(tokens) if chunk.samples else None
            if chunk.slot in result.errors:
                self._end(sequence, output, now, FinishReason.ERROR, error=result.errors[chunk.slot])
                continue
            if sequence.doom is not None:
                self._end(sequence, output, now, sequence.doom[0], error=sequence.doom[1])
                continue
            sequence.num_chunks += 1
            sequence.num_recomputed += max(0, min(sequence.peak, chunk.start + chunk.count) - chunk.start)
            sequence.computed += chunk.count
            sequence.peak = max(sequence.peak, sequence.computed)
            self.kv.publish(sequence, sequence.computed)
            if chunk.scores:
                self._commit_scores(chunk, sequence, result, output)
            if chunk.pools:
                if chunk.slot in result.vectors:  # a replay has none: no decision depends on it
                    output.vectors[sequence.request.id] = result.vectors[chunk.slot]
                self._end(sequence, output, now, FinishReason.STOP)
            if token is None:
                continue
            self._fork(sequence)
            if sequence.first_token is None:
                sequence.first_token = now
                if self.controller.is_active:
                    self.controller.first_token(max(0.0, now - sequence.request.arrival))
            self._running.start_decode(sequence)
            sequence.tokens.append(token)
            output.keys.append(sequence.key)
            output.tokens.append(token)
            if chunk.slot in result.logprobs:
                output.logprobs[sequence.key] = result.logprobs[chunk.slot]
            self._examine(sequence, token, output, now)

    def _commit_scores(self, chunk: Chunk, sequence: Sequence, result: StepResult, output: StepOutput) -> None:
        """Give out the prompt's log-probabilities that were not given out before a preemption."""
        scores = result.prompt_logprobs.get(chunk.slot, [])
        output.prompt_logprobs[sequence.key] = scores[max(0, sequence.scored - chunk.start) :]
        sequence.scored = max(sequence.scored, min(chunk.start + chunk.count, sequence.num_prompt - 1))

    def _fork(self, lead: Sequence) -> None:
        """The common prompt is computed: the other choices start from its full blocks."""
        for sibling in lead.siblings:
            if sibling.state is State.FORKING:
                self.kv.share(lead, sibling)
                sibling.peak = sibling.computed
                self._running.start_prefill(sibling)
        lead.siblings = []

    def _examine(self, sequence: Sequence, token: int, output: StepOutput, now: float) -> None:
        """A decoding sequence got `token` and has come to its mark: end it, or set the next one."""
        if sequence.doom is not None:
            self._end(sequence, output, now, sequence.doom[0], error=sequence.doom[1])
            return
        ending = sequence.ending(token)
        if ending is not None:
            self._end(sequence, output, now, *ending)
            return
        block_size = self.kv.block_size
        computed = len(sequence.tokens) - 1
        if computed % block_size == 0:
            self.kv.publish(sequence, computed)
            if self.kv.is_full(sequence):
                self._planner.needs_block.append(sequence)
        if self._service is not None:
            self._service.go_on(sequence, sequence.num_output + block_size)
        if sequence.matcher is None:
            sequence.mark = min(sequence.end, (computed // block_size + 1) * block_size + 1)

    # ------------------------------------------------------------ endings

    def _end_all(self, request_id: int, now: float, reason: FinishReason, error: str | None) -> None:
        """End a request's sequences: at once, or those that are in the step in flight when it is over."""
        for sequence in list(self._live.get(request_id, ())):
            if self._is_in_flight(sequence):
                sequence.doom = sequence.doom or (reason, error)
                sequence.mark = 0
            else:
                self._end(sequence, self._ended, now, reason, error=error)
        self._release_held()

    def _is_live(self, request: Request) -> bool:
        sequences = self._live.get(request.id)
        return sequences is not None and sequences[0].request is request

    def _is_in_flight(self, sequence: Sequence) -> bool:
        if self._planned is None:
            return False
        if sequence.state is DECODING:
            return bool(self._planned.decodes)
        return sequence.state is State.PREFILLING and sequence in self._planner.chunked

    def _end(
        self,
        sequence: Sequence,
        output: StepOutput,
        now: float,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        error: str | None = None,
    ) -> None:
        """A sequence is over: what it holds is free, or kept to the end of its batch; its `Finish` is given out."""
        if sequence.state in (State.GONE, State.HELD):
            return
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
            if sequence.first_scheduled is None:
                self._clocks.settle(now)
                self._clocks.stop(sequence)
        if reason is FinishReason.ERROR:
            self.kv.distrust(sequence)
        elif sequence.state is DECODING:
            self.kv.publish(sequence, len(sequence.tokens) - 1)
        if self._planner.batching.holds and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._running.hold(sequence)
        else:
            self.kv.release(sequence)
            self._running.vacate(sequence, State.GONE)
        self._planner.may_join = True
        if self._service is not None:
            self._service.leave(sequence)
        live = self._live[sequence.request.id]
        live.remove(sequence)
        if not live:
            del self._live[sequence.request.id]
            self._deadlines.prune(len(self._live), self._is_live)
        output.finishes.append(sequence.finish(now, reason, stop_reason, error))
        for sibling in sequence.siblings:
            # Choices that waited for this one's prompt have nothing to start from.
            self._end(sibling, output, now, reason, stop_reason, error)

    def _release_held(self) -> None:
        """A held batch whose last member is over gives everything back."""
        if self._running.held and not self._running.num_live:
            for sequence in self._running.take_held():
                self.kv.release(sequence)
                self._running.vacate(sequence, State.GONE)


def _after(request: Request, when: float | None) -> float:
    """Seconds from its arrival to a deadline that it has."""
    return (when or 0.0) - request.arrival
