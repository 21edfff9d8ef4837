"""The scheduler: which sequences compute how many tokens in the next step.

    waiting  --join-->  prefilling  --last known token computed-->  decoding  --end-->  gone
       ^                    |                                           |
       +----- preempted ----+-------------------------------------------+

A step in order: blocks for the rows that decode, preempting from the tail of the order until they fit; then chunks of
those that prefill, in order, under the token budget; then joins. Nothing granted is taken back.

Decoding rows cost nothing in `schedule` and one short loop in `commit`: whatever needs a closer look (a block is full,
the length is reached, somebody watches the text) is folded into one comparison with `Sequence.mark`.
"""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.batching import Batching, Continuous
from chairlift.core.checks import check_request
from chairlift.core.errors import InvalidOption, InvalidRequest
from chairlift.core.kv import KVCache
from chairlift.core.ordering import Fcfs, Ordering
from chairlift.core.running import RunningSet, in_order
from chairlift.core.sequence import Sequence, State, StopMatcher
from chairlift.core.types import (
    CacheShape,
    Chunk,
    EngineStats,
    FinishReason,
    Join,
    Limits,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
)

StopMatcherFactory = Callable[[Request], StopMatcher | None]
"""Gives a fresh matcher for a sequence of the request; None if it has no stop strings."""

WATERMARK = 0.01
"""Share of the blocks left free when a sequence joins others, so that those do not run out at once."""


class Scheduler:
    """Plans steps under `limits` over a cache of shape `cache`. `now` is in seconds of the driver's clock.

    The driver alternates `schedule` and `commit` (or `fail`); `add` and `abort` may come at any time between.

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
        batching: Batching | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        if not 1 <= limits.max_num_seqs <= limits.max_num_batched_tokens:
            raise InvalidOption("max_num_seqs must be at least 1 and at most max_num_batched_tokens")
        if cache.num_blocks < 1 or cache.block_size < 1:
            raise InvalidOption("the cache has no blocks")
        self.limits = limits
        self.kv = KVCache(cache, enable_prefix_caching=enable_prefix_caching)
        self.max_model_len = min(limits.max_model_len, cache.num_blocks * cache.block_size)
        """Most tokens of a sequence: what the model allows, and what the whole cache can hold."""
        self._vocab_size = vocab_size
        self._batching = batching if batching is not None else Continuous()
        self._waiting: Ordering = ordering if ordering is not None else Fcfs()
        self._running = RunningSet(limits.max_num_seqs)
        self._live: dict[int, list[Sequence]] = {}
        self._serial = 0

        # The step in flight, and what the next plan must say.
        self._step = 0
        self._planned: StepPlan | None = None
        self._chunked: list[Sequence] = []
        self._needs_block: list[Sequence] = []
        self._ended = StepOutput()

        self._num_preemptions = 0
        self._prefix_queries = 0
        self._prefix_hits = 0

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
            max_num_seqs=self.limits.max_num_seqs,
            vocab_size=self._vocab_size,
        )
        end = self.max_model_len
        if request.params.max_tokens is not None:
            end = min(end, len(request.prompt) + request.params.max_tokens)
        sequences = [
            Sequence(
                request,
                choice,
                (request.priority, self._serial, choice),
                end,
                stop_matchers(request) if stop_matchers is not None else None,
            )
            for choice in range(request.n)
        ]
        self._serial += 1
        self._live[request.id] = sequences
        lead = sequences[0]
        lead.siblings = sequences[1:]
        self._waiting.push(lead)

    def abort(self, request_id: int, now: float) -> None:
        """Nobody wants this request any longer. Its blocks are free at once, or after the step that computes it.

        Unknown and finished ids are ignored.
        """
        for sequence in list(self._live.get(request_id, ())):
            if self._planned is not None and sequence.joined:
                sequence.aborted = True
                sequence.mark = 0
            else:
                self._end(sequence, self._ended, now, FinishReason.ABORT)

    @property
    def has_work(self) -> bool:
        """Whether there is a live request, or an ending nobody has taken yet."""
        return bool(self._live) or bool(self._ended.finishes)

    def take_ended(self) -> StepOutput:
        """What ended outside a step, once."""
        ended, self._ended = self._ended, StepOutput()
        return ended

    def stats(self, num_step_tokens: int = 0, num_step_rows: int = 0, step_s: float = 0.0) -> EngineStats:
        """Counts of this moment, with those of the last step as its driver knows them."""
        pool = self.kv.pool
        return EngineStats(
            num_running=self._running.num_taken,
            num_waiting=len(self._waiting),
            num_used_blocks=pool.num_held,
            num_cached_blocks=pool.num_kept,
            num_preemptions=self._num_preemptions,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            max_num_seqs=self.limits.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            max_prefill_tokens=self.limits.max_num_batched_tokens,
            num_step_tokens=num_step_tokens,
            num_step_rows=num_step_rows,
            step_s=step_s,
        )

    # ------------------------------------------------------------ a step is planned

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None if there is nothing to compute.

        Raises:
            RuntimeError: the last plan was neither committed nor failed.
        """
        if self._planned is not None:
            raise RuntimeError("the last step was not committed")
        plan = StepPlan(step=self._step)
        running = self._running
        self._chunked = []
        num_preemptions = self._num_preemptions
        running.sort_prefilling()
        self._grant_decodes(plan)
        running.refresh_decoding()
        budget = self.limits.max_num_batched_tokens - len(running.slots)
        for sequence in running.prefilling:
            if budget > 0 and sequence.state is State.PREFILLING:
                budget -= self._grant_chunk(plan, sequence, budget)
        if self._num_preemptions == num_preemptions:
            self._admit(plan, budget, now)
        plan.decodes = running.slots
        plan.num_context_tokens = running.num_context_tokens
        if not plan.decodes and not plan.chunks:
            return None
        plan.leaves, running.leaves = running.leaves, []
        self._step += 1
        self._planned = plan
        return plan

    def _grant_decodes(self, plan: StepPlan) -> None:
        """A block for each decoding row whose last one is full, the first in the order first."""
        if not self._needs_block:
            return
        needs, self._needs_block = sorted(self._needs_block, key=in_order), []
        for sequence in needs:
            if sequence.state is not State.DECODING:
                continue
            if self._make_room(sequence, [*self._running.prefilling, *self._running.decoding]):
                self._reserve(plan, sequence)
            else:
                self._preempt(sequence)

    def _grant_chunk(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """Tokens granted to a prefilling sequence: what it lacks, cut to the budget and to the free blocks.

        It may take blocks from prefilling sequences after it in the order; if there are none it waits, keeping its own.
        A chunk does not go from the prompt into what was generated before a preemption: an executor may compute the
        two in different ways.
        """
        kv = self.kv
        start = sequence.computed
        end = sequence.num_prompt if start < sequence.num_prompt else len(sequence.tokens)
        count = min(end - start, budget)
        capacity = len(sequence.blocks) * kv.block_size
        if start == capacity and not self._make_room(sequence, self._running.prefilling):
            return 0
        num_missing = min(kv.num_blocks_for(start + count) - len(sequence.blocks), kv.pool.num_free)
        count = min(count, capacity + num_missing * kv.block_size - start)
        if not sequence.joined:
            self._announce(plan, sequence)
        for _ in range(num_missing):
            self._reserve(plan, sequence)
        samples = start + count == len(sequence.tokens)
        plan.chunks.append(Chunk(sequence.slot, start, count, samples, scores=sequence.wants_scores))
        plan.num_chunk_tokens += count
        self._chunked.append(sequence)
        return count

    def _admit(self, plan: StepPlan, budget: int, now: float) -> None:
        """Let waiting sequences join, in order, while there are slots, tokens, and blocks for all they know."""
        kv, running = self.kv, self._running
        room = min(self._batching.room(running.num_taken, self.limits.max_num_seqs), len(running.free_slots))
        promised = sum(kv.num_blocks_for(len(s.tokens)) - len(s.blocks) for s in running.prefilling)
        while room > 0 and budget > 0 and (sequence := self._waiting.peek()) is not None:
            num_slots = 1 + sum(1 for s in sequence.siblings if s.state is State.WAITING)
            if num_slots > room:
                break
            matched = kv.match(sequence)
            num_missing = kv.num_blocks_for(len(sequence.tokens)) - len(matched)
            spare = 1 + int(WATERMARK * kv.pool.num_blocks)
            if not running.is_empty and num_missing + promised + spare > kv.num_free_after(matched):
                break
            self._waiting.pop()
            self._join(sequence, matched, now)
            room -= num_slots
            budget -= self._grant_chunk(plan, sequence, budget)
            promised += kv.num_blocks_for(len(sequence.tokens)) - len(sequence.blocks)

    def _join(self, sequence: Sequence, matched: list[int], now: float) -> None:
        """A waiting sequence takes a slot, the matched blocks, and slots for the choices that will follow it."""
        self._running.take_slot(sequence, State.PREFILLING)
        self.kv.attach(sequence, matched)
        if sequence.first_scheduled is None:
            sequence.first_scheduled = now
            sequence.num_cached = sequence.computed
            self._prefix_queries += sequence.num_prompt
            self._prefix_hits += sequence.num_cached
        for sibling in sequence.siblings:
            if sibling.state is State.WAITING:
                self._running.take_slot(sibling, State.FORKING)
                if sibling.first_scheduled is None:
                    sibling.first_scheduled = now
                    sibling.num_cached = sequence.num_cached

    def _announce(self, plan: StepPlan, sequence: Sequence) -> None:
        """Tell the executor of a new row and of the computed blocks it starts with."""
        sequence.joined = True
        plan.joins.append(Join(sequence.slot, sequence.request, sequence.choice, sequence.tokens))
        plan.block_slots.extend([sequence.slot] * len(sequence.blocks))
        plan.block_ids.extend(sequence.blocks)

    def _reserve(self, plan: StepPlan, sequence: Sequence) -> None:
        plan.block_slots.append(sequence.slot)
        plan.block_ids.append(self.kv.reserve(sequence))

    # ------------------------------------------------------------ memory runs out

    def _make_room(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Free a block if there is none, preempting those of `running` after `sequence` in the order, the last first.

        The first in the order always gets its block, since the whole cache can hold any one sequence: somebody
        always advances.
        """
        while self.kv.pool.num_free == 0:
            later = [s for s in running if s.order > sequence.order and s.blocks]
            if not later:
                return False
            later.sort(key=in_order, reverse=True)
            # A sequence whose every block is shared frees nothing by itself: it goes only if the others are like it.
            self._preempt(next((s for s in later if self.kv.frees_some(s)), later[0]))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to its place in the queue; it will resume from whatever of its blocks is still cached.

        Choices that wait for its prompt give their slots back too: slots held by nobody who runs could keep out
        the head of the queue for ever.
        """
        for one in (sequence, *sequence.siblings):
            if one.state is not State.GONE:
                self.kv.release(one)
                self._running.vacate(one, State.WAITING)
        sequence.preemptions += 1
        self._num_preemptions += 1
        self._waiting.push(sequence)

    # ------------------------------------------------------------ a step is over

    def commit(self, result: StepResult, now: float) -> StepOutput:
        """Apply the result of the planned step; also gives what ended outside a step since the last call.

        Raises:
            RuntimeError: no step was planned.
        """
        plan = self._take_planned()
        output = self.take_ended()
        rows, keys, sampled = self._running.decoding, self._running.keys, result.tokens
        num_decodes = len(rows)
        if result.errors:
            rows = [s for s in rows if s.slot not in result.errors]
            keys = [s.key for s in rows]
            sampled = [t for s, t in zip(self._running.decoding, sampled, strict=False) if s.slot not in result.errors]
        elif len(sampled) > num_decodes:
            sampled = sampled[:num_decodes]
        output.keys, output.tokens = keys, sampled
        if result.logprobs:  # before any sequence ends and leaves its slot
            output.logprobs = {s.key: result.logprobs[s.slot] for s in rows if s.slot in result.logprobs}
        for sequence, token in zip(rows, sampled, strict=True):
            tokens = sequence.tokens
            tokens.append(token)
            if len(tokens) >= sequence.mark or token in sequence.ends:
                self._examine(sequence, token, output, now)
        if result.errors:
            for sequence in [s for s in self._running.decoding if s.slot in result.errors]:
                self._end(sequence, output, now, FinishReason.ERROR, error=result.errors[sequence.slot])
        if plan.chunks:
            self._commit_chunks(plan, result, result.tokens[num_decodes:], output, now)
        return output

    def fail(self, message: str, now: float) -> StepOutput:
        """The planned step failed as a whole: every row in it ends with this error; rows outside it go on.

        Raises:
            RuntimeError: no step was planned.
        """
        self._take_planned()
        output = self.take_ended()
        for sequence in [*self._running.decoding, *self._chunked]:
            self._end(sequence, output, now, FinishReason.ERROR, error=message)
        return output

    def _take_planned(self) -> StepPlan:
        plan, self._planned = self._planned, None
        if plan is None:
            raise RuntimeError("no step was planned")
        return plan

    def _commit_chunks(
        self, plan: StepPlan, result: StepResult, sampled: list[int], output: StepOutput, now: float
    ) -> None:
        """Apply the chunks; those that reached their last known token start to decode."""
        output.keys, output.tokens = list(output.keys), list(output.tokens)
        tokens = iter(sampled)
        for chunk, sequence in zip(plan.chunks, self._chunked, strict=True):
            token = next(tokens) if chunk.samples else None
            if chunk.slot in result.errors:
                self._end(sequence, output, now, FinishReason.ERROR, error=result.errors[chunk.slot])
                continue
            if sequence.aborted:
                self._end(sequence, output, now, FinishReason.ABORT)
                continue
            sequence.computed += chunk.count
            self.kv.publish(sequence, sequence.computed)
            if chunk.scores:
                self._commit_scores(chunk, sequence, result, output)
            if token is None:
                continue
            self._fork(sequence)
            if sequence.first_token is None:
                sequence.first_token = now
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
                self._running.start_prefill(sibling)
        lead.siblings = []

    def _examine(self, sequence: Sequence, token: int, output: StepOutput, now: float) -> None:
        """A decoding sequence got `token` and has come to its mark: end it, or set the next one."""
        ending = sequence.ending(token)
        if ending is not None:
            self._end(sequence, output, now, *ending)
            return
        block_size = self.kv.block_size
        computed = len(sequence.tokens) - 1
        if computed % block_size == 0:
            self.kv.publish(sequence, computed)
            self._needs_block.append(sequence)
        if sequence.matcher is None:
            sequence.mark = min(sequence.end, (computed // block_size + 1) * block_size + 1)

    def _end(
        self,
        sequence: Sequence,
        output: StepOutput,
        now: float,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        error: str | None = None,
    ) -> None:
        """A sequence is over: everything it holds is free, and its one `Finish` is given out."""
        if sequence.state is State.GONE:
            return
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        if reason is FinishReason.ERROR:
            self.kv.distrust(sequence)
        elif sequence.state is State.DECODING:
            self.kv.publish(sequence, len(sequence.tokens) - 1)
        self.kv.release(sequence)
        self._running.vacate(sequence, State.GONE)
        live = self._live[sequence.request.id]
        live.remove(sequence)
        if not live:
            del self._live[sequence.request.id]
        output.finishes.append(sequence.finish(now, reason, stop_reason, error))
        for sibling in sequence.siblings:
            # Choices that waited for this one's prompt have nothing to start from.
            self._end(sibling, output, now, reason, stop_reason, error)
