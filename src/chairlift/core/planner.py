"""What goes into a step: blocks for those who decode, chunks for those who prefill, and who joins.

A step in order: blocks for the rows that decode, preempting from the tail of the order until they fit; then chunks of
those that prefill, in order, under the token budget; then joins, in the order of the queue. Nothing granted is taken
back. With `prefill_first`, and always in held batches, a step is either chunks and joins or decodes.
"""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.background import (
    LINGER_S,
    MAX_HELD_BACK_TOKENS,
    is_background,
    is_full,
    is_shared,
    is_there,
    max_tokens_alone,
    surplus,
)
from chairlift.core.batching import make_batching
from chairlift.core.controller import Controller
from chairlift.core.fairness import Service
from chairlift.core.kv import KVCache
from chairlift.core.ordering import Waiting
from chairlift.core.policy import Policy
from chairlift.core.running import LOWEST_LEVEL, RunningSet, in_order
from chairlift.core.sequence import Order, Sequence, State
from chairlift.core.types import (
    BACKGROUND_PRIORITY,
    MAX_ABSENCES,
    Chunk,
    Join,
    Limits,
    PreemptReason,
    StepPlan,
    WaitReason,
)
from chairlift.core.waits import WaitClocks

MAX_SCORED_TOKENS = 512
"""Most prompt tokens of one step whose log-probabilities are wanted, where prompts may be cut: with 20 alternatives
they are a megabyte on either side of the frames, and for each of them the device computes a whole vocabulary."""

MAX_SET_ASIDE = 16
"""How many waiting sequences that cannot join are looked past in one step."""

JoinRule = Callable[[Sequence, list[Sequence]], bool]
"""Whether a waiting sequence may join those that run, of one that nothing else keeps from it. It may change its mind
from step to step. Simulations of other engines have one."""


class Planner:
    """Fills plans from the queue and the running set, within limits that may change between steps."""

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        kv: KVCache,
        running: RunningSet,
        waiting: Waiting,
        controller: Controller,
        clocks: WaitClocks,
        service: Service | None,
        join_rule: JoinRule | None = None,
    ) -> None:
        self.policy = policy
        self.join_rule = join_rule
        self.limits = limits
        self.batching = make_batching(policy)
        self.reserves_max = policy.kv_reservation == "max" or self.batching.holds
        """Whether whoever joins gets the blocks of its longest possible output at once."""
        self.closed = False
        """Whether no more requests will come."""
        self.threshold = policy.long_prefill_token_threshold
        self.max_num_seqs = limits.max_num_seqs
        """As in force in the last step: the limit, or what the controller allowed."""
        self.chunked: list[Sequence] = []
        """Sequences of the last plan's chunks."""
        self.joined: list[Sequence] = []
        """First choices that joined for the first time in the last plan."""
        self.needs_block: list[Sequence] = []
        """Decoding sequences whose last block is full."""
        self.set_aside: list[tuple[Sequence, WaitReason]] = []
        """Those that could not join in the last step although they were looked at."""
        self.blocked_by: WaitReason | None = None
        """Why nobody else could join then; None if nobody else waited."""
        self.opens_at: float | None = None
        """When the held batch that is forming opens at the latest; None if none forms, or waiting does not open it."""
        self.may_join = True
        """Whether anything happened that could let one join who could not: blocks or slots came free, or one came."""
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._kv = kv
        self._running = running
        self._waiting = waiting
        self._controller = controller
        self._clocks = clocks
        self._service = service
        self._prefill_first = policy.prefill_first or self.batching.holds
        # Nobody gives way to one that a rule might keep out all the same.
        self.may_preempt = not self.batching.holds and self.join_rule is None
        """Whether those who run may ever have to give way to better levels."""
        self._least_victim_level = BACKGROUND_PRIORITY if policy.scheduling_policy == "fcfs" else LOWEST_LEVEL
        """Only from there on does anybody give way to who is of a better level."""
        self.holds_back = False
        """Whether the background gives way to others in this step."""
        self.others_until = 0.0
        """So long the background goes on as if others were there: they are likely to be back."""
        self.lacks_room = False
        """Whether any of those others lacked a slot, blocks or time in the last one."""
        self._lacked_room = False
        """The same of this one, of those who were looked at so far: they may lack tokens too in the end."""

    def fill(self, plan: StepPlan, now: float) -> None:
        """Put into an empty plan what the next step computes; it stays empty if there is nothing to do."""
        running = self._running
        self.chunked, self.joined = [], []
        self._lacked_room = False
        running.sort_prefilling()
        if self.may_yield:
            self._yield_to_priority(now)
            running.sort_prefilling()
        self.holds_back = not self.batching.holds and is_there(running, self._waiting) and self._has_others(now)
        if self.holds_back:
            self._hold_back(now)
            running.sort_prefilling()
        num_preemptions = self.num_preemptions
        if self._prefill_first:
            running.refresh_decoding()
            self._fill_prefill(plan, now, num_preemptions)
            if not plan.chunks:
                self._fill_decodes(plan, now)
        else:
            self._fill_decodes(plan, now)
            self._fill_prefill(plan, now, num_preemptions)
        others_wait = self.holds_back and self._waiting and self._waiting.best_level < BACKGROUND_PRIORITY
        self.lacks_room = bool(others_wait) and (self._lacked_room or self.waits_for in self._lacking_room())
        if self._kv.pool.num_repeats:
            plan.num_shared_context_tokens = min(self._kv.num_shared_tokens, plan.num_context_tokens)

    @property
    def waits_for(self) -> WaitReason:
        """What keeps the first of the queue."""
        if self.set_aside:
            return self.set_aside[0][1]
        return self.blocked_by or WaitReason.STEP

    @property
    def may_yield(self) -> bool:
        """Whether those who run may have to give way to those who wait, whoever else does."""
        if not self.may_preempt or not self._waiting:
            return False
        worst = self._running.worst_level
        return self._waiting.best_level < worst and worst >= self._least_victim_level

    # ------------------------------------------------------------ decodes

    def _fill_decodes(self, plan: StepPlan, now: float) -> None:
        """Every decoding row, with a block for those whose last one is full, the first in the order first."""
        running = self._running
        if self.needs_block:
            needs, self.needs_block = sorted(self.needs_block, key=in_order), []
            for sequence in needs:
                if sequence.state is not State.DECODING or not self._kv.is_full(sequence):
                    continue
                # Whoever might give way is listed only where a block is missing: that is every row, and rare.
                is_free = self._kv.pool.num_free > 0
                if is_free or self._make_room(sequence, [*running.prefilling, *running.decoding], now):
                    self._reserve(plan, sequence)
                else:
                    self._preempt(sequence, sequence, PreemptReason.BLOCKS, now)
        running.refresh_decoding()
        plan.decodes = running.slots
        if plan.decodes:
            plan.fillers = running.fillers
            plan.num_context_tokens = running.num_context_tokens + running.num_filler_tokens

    # ------------------------------------------------------------ chunks

    def _fill_prefill(self, plan: StepPlan, now: float, num_preemptions: int) -> None:
        """Chunks of those who prefill, then joins. A step that preempted lets nobody join: it would undo the good."""
        running = self._running
        self.max_num_seqs = self._cap(running)
        self.opens_at = None
        if not self._waiting:
            self.set_aside, self.blocked_by = [], None
        budget = self.limits.max_num_batched_tokens - len(plan.decodes) - len(plan.fillers)
        for sequence in list(running.prefilling):  # joins add to it, with their chunks
            if self._waiting and self.num_preemptions == num_preemptions:
                budget = self._admit(plan, budget, now, before=sequence)
            if budget > 0 and sequence.state is State.PREFILLING:
                granted = self._grant_chunk(plan, sequence, budget, now)
                # What must come whole waits for a step with room for it, and nobody after it may fill that room.
                budget = budget - granted if granted or self.policy.enable_chunked_prefill else 0
        if self._waiting:
            if self.num_preemptions == num_preemptions:
                self._admit(plan, budget, now)
            else:
                self.set_aside, self.blocked_by = [], WaitReason.BLOCKS

    def _cap(self, running: RunningSet) -> int:
        if not self._controller.is_active:
            return self.limits.max_num_seqs
        cap = self._controller.max_num_seqs(running.num_live, len(self._waiting), running.num_context_tokens)
        return min(cap, self.limits.max_num_seqs)

    def _grant_chunk(self, plan: StepPlan, sequence: Sequence, budget: int, now: float) -> int:
        """Tokens granted to a prefilling sequence: what it lacks, cut to the budget and to the free blocks.

        It may take blocks from prefilling sequences after it in the order; if there are none it waits, keeping its own.
        A chunk does not go from the prompt into what was generated before a preemption: an executor may compute the
        two in different ways.
        """
        kv = self._kv
        start = sequence.computed
        in_prompt = start < sequence.num_prompt
        lacking = _lacking(sequence, start)
        count = min(lacking, budget)
        if self.policy.enable_chunked_prefill or not in_prompt:
            count = self._cut(plan, start, min(count, self._share(plan, sequence, start)))
            if sequence.wants_scores:
                num_scored = sum(chunk.count for chunk in plan.chunks if chunk.scores)
                count = min(count, max(1, MAX_SCORED_TOKENS - num_scored))
        elif count < lacking:
            return 0
        if count <= 0:
            return 0
        capacity = len(sequence.blocks) * kv.block_size
        if start == capacity and not self._make_room(sequence, self._running.prefilling, now):
            return 0
        reserved = sequence.end if self.reserves_max else start + count
        num_missing = min(kv.num_blocks_for(reserved) - len(sequence.blocks), kv.pool.num_free)
        count = min(count, capacity + num_missing * kv.block_size - start)
        if not sequence.joined:
            self._announce(plan, sequence)
        for _ in range(num_missing):
            self._reserve(plan, sequence)
        ends, pools = start + count == len(sequence.tokens), sequence.request.pooling is not None
        plan.chunks.append(
            Chunk(sequence.slot, start, count, ends and not pools, sequence.wants_scores, ends and pools)
        )
        plan.num_chunk_tokens += count
        plan.num_chunk_pairs += count * start + count * (count + 1) // 2
        self.chunked.append(sequence)
        return count

    def _cut(self, plan: StepPlan, start: int, count: int) -> int:
        """How many of `count` tokens one sequence may compute in this step from position `start`, blocks aside.

        At least one in a step that would be empty otherwise, whatever the controller thinks of it.
        """
        if 0 < self.threshold < count and self._has_company(plan):
            count = self.threshold
        if self._controller.is_active:
            num_rows = len(plan.decodes) + len(plan.fillers)
            least = 0 if plan.decodes or plan.chunks else 1
            fits = self._controller.chunk_tokens(plan, num_rows, plan.num_context_tokens, start, count)
            count = min(count, max(least, fits))
        return count

    def _has_company(self, plan: StepPlan) -> bool:
        return bool(plan.decodes) or bool(self._waiting) or len(self._running.prefilling) > 1

    def _announce(self, plan: StepPlan, sequence: Sequence) -> None:
        """Tell the executor of a new row and of the computed blocks it starts with."""
        sequence.joined = True
        plan.joins.append(Join(sequence.slot, sequence.request, sequence.choice, sequence.tokens))
        plan.block_slots.extend([sequence.slot] * len(sequence.blocks))
        plan.block_ids.extend(sequence.blocks)

    def _reserve(self, plan: StepPlan, sequence: Sequence) -> None:
        plan.block_slots.append(sequence.slot)
        plan.block_ids.append(self._kv.reserve(sequence))

    # ------------------------------------------------------------ joins

    def _admit(self, plan: StepPlan, budget: int, now: float, before: Sequence | None = None) -> int:
        """Let waiting sequences join, in order, while there are slots, tokens, and blocks for all they know.

        With `before`, only those with a better claim than this prefilling sequence. Gives the tokens that are left.

        One that cannot is set aside, so that others may pass it, but not more than `max_bypass` times in all. The
        members of a held batch join all at once, and get their first chunks as the budget allows.
        """
        waiting = self._waiting
        if before is not None and not self._goes_before(waiting.peek(now), before):
            return budget
        if self.blocked_by is WaitReason.BLOCKS and not self.may_join and self.join_rule is None:
            return budget
        self.may_join = False
        self.set_aside, self.blocked_by = [], None
        room = self._room(now)
        if room <= 0:
            self.blocked_by = WaitReason.BATCH if self.batching.gathers else WaitReason.SLOTS
            return budget
        promised = sum(self._num_needed(s) - len(s.blocks) for s in self._running.prefilling)
        while (sequence := waiting.peek(now)) is not None:
            if before is not None and not self._goes_before(sequence, before):
                break
            if self.holds_back and is_background(sequence) and self._is_background_full():
                self.blocked_by = WaitReason.SLOTS
                break
            matched = self._kv.match(sequence)
            num_needed = self._num_needed(sequence)
            reason = self._obstacle(plan, sequence, matched, num_needed + promised, room, budget)
            self._lacked_room |= reason in (WaitReason.SLOTS, WaitReason.BLOCKS) and not is_background(sequence)
            if reason is None:
                waiting.pop(sequence)
                waiting.left(sequence)
                room -= self._join(sequence, matched, now)
                if budget > 0:
                    budget -= self._grant_chunk(plan, sequence, budget, now)
                promised += num_needed - len(sequence.blocks)
                for passed, obstacle in self.set_aside:
                    passed.passed += 1
                    if passed.passed >= self.policy.max_bypass:
                        self.blocked_by = obstacle
                if self.blocked_by is not None:
                    break
            elif self._may_be_passed(sequence, reason, room):
                waiting.pop(sequence)
                self.set_aside.append((sequence, reason))
            else:
                self.blocked_by = reason
                break
        for sequence, _ in self.set_aside:
            waiting.push_back(sequence)
        return budget

    def _goes_before(self, waiting: Sequence | None, running: Sequence) -> bool:
        """Whether one that waits has a better claim to tokens than one that prefills: its level, its deadline, or its
        owner's service."""
        return waiting is not None and self._rank(waiting) < running.rank

    def _rank(self, sequence: Sequence) -> Order:
        """Place of a sequence among those that run, if it joined now."""
        if self._service is None:
            return sequence.order
        level, _, serial, choice = sequence.order
        return level, self._service.tag(sequence), serial, choice

    def _room(self, now: float) -> int:
        """How many sequences may join in this step."""
        running = self._running
        is_due = self.closed
        if self.batching.gathers and not running.num_taken and self._waiting:
            self.opens_at = self.batching.opens_at(s.request.arrival for s in self._waiting)
            is_due = is_due or (self.opens_at is not None and now >= self.opens_at) or self._fills_step()
        room = self.batching.room(running.num_taken, self.max_num_seqs, self._waiting.num_seqs, is_due)
        return min(room, len(running.free_slots))

    def _fills_step(self) -> bool:
        """Whether single passes that wait have as many tokens as a step takes: no more of them would join."""
        most = self.limits.max_num_batched_tokens
        return self.policy.single_pass and sum(s.num_prompt for s in self._waiting) >= most

    def _obstacle(
        self, plan: StepPlan, sequence: Sequence, matched: list[int], num_blocks: int, room: int, budget: int
    ) -> WaitReason | None:
        """What keeps a sequence from joining; `num_blocks` are wanted by it and by those who joined before it.

        Into an empty running set whoever is first may always join: what can never fit was refused when it came.
        """
        kv, holds = self._kv, self.batching.holds
        start = len(matched) * kv.block_size
        share = min(budget, self._share(plan, sequence, start))
        if not holds and (share <= 0 or self._cut(plan, start, min(_lacking(sequence, start), share)) <= 0):
            return WaitReason.TOKENS
        is_first = not self._running.num_taken
        if not is_first and 1 + self._num_followers(sequence) > room:
            return WaitReason.BATCH if holds else WaitReason.SLOTS
        if not holds and kv.is_coming(sequence, len(matched)):
            return WaitReason.PREFIX
        if not is_first and num_blocks - len(matched) + self._num_spare > kv.num_free_after(matched):
            return WaitReason.BLOCKS
        if not self.policy.enable_chunked_prefill and not holds and sequence.num_prompt - start > budget:
            return WaitReason.TOKENS
        if not is_first and self.join_rule is not None and not self.join_rule(sequence, self._running.live()):
            return WaitReason.BLOCKS
        return None

    def _may_be_passed(self, sequence: Sequence, reason: WaitReason, room: int) -> bool:
        """One that was preempted for lack of blocks is not: whoever passed it would be the next to be preempted."""
        return (
            reason in (WaitReason.BLOCKS, WaitReason.PREFIX, WaitReason.SLOTS)
            and not (sequence.preemptions and reason is WaitReason.BLOCKS)
            and room > 0
            and not self.batching.holds
            and sequence.passed < self.policy.max_bypass
            and len(self.set_aside) < MAX_SET_ASIDE
        )

    def _join(self, sequence: Sequence, matched: list[int], now: float) -> int:
        """A waiting sequence takes a slot, the matched blocks, and slots for the choices that will follow it.

        Gives the number of slots.
        """
        self._running.take_slot(sequence, State.PREFILLING)
        self._kv.attach(sequence, matched)
        self._kv.expect(sequence)
        num_slots = 1
        self._note_join(sequence, sequence.computed, now)
        for sibling in sequence.siblings:
            if sibling.state is State.WAITING:
                self._running.take_slot(sibling, State.FORKING)
                self._note_join(sibling, sequence.num_cached, now)
                num_slots += 1
        return num_slots

    def _note_join(self, sequence: Sequence, num_cached: int, now: float) -> None:
        """Write into a sequence's log that it joined, for the first time or again."""
        sequence.peak = max(sequence.peak, num_cached)
        if sequence.preempted_at is not None:
            sequence.preempted_s += max(0.0, now - sequence.preempted_at)
            if len(sequence.absences) < MAX_ABSENCES:
                sequence.absences.append((sequence.preempted_at, now))
            sequence.preempted_at = None
        sequence.rank = self._rank(sequence)
        if sequence.first_scheduled is not None:
            return
        sequence.first_scheduled = now
        sequence.num_cached = num_cached
        self._clocks.stop(sequence)
        if sequence.choice == 0:
            self.joined.append(sequence)
            self.prefix_queries += sequence.num_prompt
            self.prefix_hits += num_cached
        if self._service is not None:
            # Choices that follow the first compute less than a block of the prompt each.
            self._service.join(sequence, sequence.num_prompt - num_cached if sequence.choice == 0 else 0)

    def _num_followers(self, sequence: Sequence) -> int:
        """Choices that take their slots together with this one."""
        return sum(1 for s in sequence.siblings if s.state is State.WAITING)

    def _num_needed(self, sequence: Sequence) -> int:
        """Blocks for all it knows; if the longest output is reserved, for all that it and its followers can know."""
        num_blocks_for = self._kv.num_blocks_for
        if not self.reserves_max:
            return num_blocks_for(len(sequence.tokens))
        num_shared = (sequence.num_prompt - 1) // self._kv.block_size
        followers = [s for s in sequence.siblings if s.state in (State.WAITING, State.FORKING)]
        return num_blocks_for(sequence.end) + sum(num_blocks_for(s.end) - num_shared for s in followers)

    @property
    def _num_spare(self) -> int:
        """Blocks left free for those who run, so that they do not run out at once."""
        return 0 if self.reserves_max else 1 + int(self.policy.watermark * self._kv.pool.num_blocks)

    # ------------------------------------------------------------ preemption

    def _yield_to_priority(self, now: float) -> None:
        """Sequences of strictly better levels, first in the queue, get slots and blocks of those that run.

        Before anything is granted, and only if it helps: nobody is preempted for one that would still not fit.
        """
        running, waiting, kv = self._running, self._waiting, self._kv
        heads: list[Sequence] = []
        # Below zero where limits were lowered: so many more must go before anybody can join.
        room = min(self.max_num_seqs, self.limits.max_num_seqs) - running.num_taken
        promised = sum(self._num_needed(s) - len(s.blocks) for s in running.prefilling)
        promised += len(self.needs_block)  # decoding rows come first
        while (head := waiting.peek(now)) is not None and len(heads) < MAX_SET_ASIDE:
            least = max(head.order[0] + 1, self._least_victim_level)
            victims = [s for s in running.live() if s.order[0] >= least]
            matched = kv.match(head)
            if not victims or kv.is_coming(head, len(matched)):
                break
            victims.sort(key=in_order)
            num_slots = 1 + self._num_followers(head)
            num_blocks = self._num_needed(head) - len(matched) + promised + self._num_spare
            slots = room + sum(1 + self._num_forking(s) for s in victims)
            blocks = kv.num_free_after(matched) + sum(kv.num_exclusive(s, matched) for s in victims)
            if slots < num_slots or blocks < num_blocks:
                break
            while victims and (room < num_slots or kv.num_free_after(matched) < num_blocks):
                victim = victims.pop()
                room += 1 + self._num_forking(victim)
                self._preempt(victim, head, PreemptReason.PRIORITY, now)
            room -= num_slots
            promised = num_blocks - self._num_spare + kv.pool.num_free - kv.num_free_after(matched)
            waiting.pop(head)
            heads.append(head)
        for head in heads:
            waiting.push_back(head)

    def _hold_back(self, now: float) -> None:
        """All but a few of the background give their slots to whoever else is there.

        All of it, if somebody lacked room in the last step.
        """
        gone = surplus(self._running, keeps_none=self.lacks_room)
        others = [s for s in (*self._running.live(), *self._waiting) if not is_background(s)] if gone else []
        if others:
            by = min(others, key=in_order)
            for sequence in reversed(gone):
                self._preempt(sequence, by, PreemptReason.PRIORITY, now)

    def _lacking_room(self) -> tuple[WaitReason, ...]:
        """Why others wait while the background has what they need; to a controller rows are time."""
        time = (WaitReason.TOKENS,) if self._controller.is_active else ()
        return (WaitReason.SLOTS, WaitReason.BLOCKS, *time)

    def _has_others(self, now: float) -> bool:
        """Whether anybody else is there, or was a moment ago."""
        if is_shared(self._running, self._waiting):
            self.others_until = now + LINGER_S
        return now < self.others_until

    def _is_background_full(self) -> bool:
        """Whether no more of it may join: enough run, or somebody else cannot."""
        return is_full(self._running) or any(not is_background(one) for one, _ in self.set_aside)

    def _share(self, plan: StepPlan, sequence: Sequence, start: int) -> int:
        """Most tokens that one may compute in this step from position `start` for what it is: few of the background."""
        if not is_background(sequence):
            return self.limits.max_num_batched_tokens
        if start < sequence.num_prompt and not self.policy.enable_chunked_prefill:
            return self.limits.max_num_batched_tokens
        most = MAX_HELD_BACK_TOKENS if self.holds_back else max_tokens_alone(self.limits)
        return most - sum(
            chunk.count for chunk, one in zip(plan.chunks, self.chunked, strict=True) if is_background(one)
        )

    def _num_forking(self, sequence: Sequence) -> int:
        return sum(1 for s in sequence.siblings if s.state is State.FORKING)

    def _make_room(self, sequence: Sequence, running: list[Sequence], now: float) -> bool:
        """Free a block if there is none, preempting those of `running` after `sequence` in the order, the last first.

        The first in the order always gets its block, since the whole cache can hold any one sequence: somebody
        always advances.
        """
        while self._kv.pool.num_free == 0:
            later = [s for s in running if s.rank > sequence.rank and s.blocks]
            if not later:
                return False
            later.sort(key=in_order, reverse=True)
            # A sequence whose every block is shared frees nothing by itself: it goes only if the others are like it.
            victim = next((s for s in later if self._kv.frees_some(s)), later[0])
            self._preempt(victim, sequence, PreemptReason.BLOCKS, now)
        return True

    def _preempt(self, sequence: Sequence, by: Sequence, reason: PreemptReason, now: float) -> None:
        """Back to its place in the queue; it will resume from whatever of its blocks is still cached.

        Choices that wait for its prompt give their slots back too: slots held by nobody who runs could keep out
        the head of the queue for ever.
        """
        for one in (sequence, *sequence.siblings):
            if one.state is not State.GONE:
                one.preempted_at = now
                one.peak = max(one.peak, len(one.tokens) - 1 if one.state is State.DECODING else one.computed)
                self._kv.release(one)
                self._running.vacate(one, State.WAITING)
        sequence.preemptions.append((by.request.id, reason))
        self.num_preemptions += 1
        self._waiting.push(sequence, now)
        self.may_join = True


def _lacking(sequence: Sequence, start: int) -> int:
    """Tokens that the next chunk from `start` may hold: of the prompt, or of what was generated before a preemption."""
    return (sequence.num_prompt if start < sequence.num_prompt else len(sequence.tokens)) - start
